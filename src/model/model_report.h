// A model file described for people: what `baton inspect` prints. Pure; any thread.
#ifndef BATON_MODEL_MODEL_REPORT_H_
#define BATON_MODEL_MODEL_REPORT_H_

#include <string>

#include "src/base/status.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/model_config.h"

namespace baton::model {

// OK when this build can serve the file: its config, tensors and tokenizer keys are all supported.
absl::Status CheckServable(const GgufFile& file);

// OK when the numbers of a servable file can be used: no NaN, no infinite scale. Costs one read of
// the file, in bounded memory.
absl::Status CheckWeights(const GgufFile& file, device::ThreadPool& pool);

// Shape, KV bytes a token, tensors by type with counts and bytes, metadata, and what is unsupported
// and why (`servable`: what all checks said). Several lines; untrusted strings are escaped and cut.
std::string DescribeModelFile(const GgufFile& file, const absl::Status& servable);

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_REPORT_H_
