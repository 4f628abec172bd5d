// Writes a model as one GGUF file with its matrices in another element type: `baton convert`.
// One call, one thread (and the pool given). Vectors and the routers of mixtures stay F32, as in
// all GGUF files; a matrix whose rows are no whole number of blocks becomes BF16.
#ifndef BATON_MODEL_CONVERT_H_
#define BATON_MODEL_CONVERT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/gguf_writer.h"

namespace baton::model {

// Options of a conversion.
struct ConvertOptions {
  GgmlType type = GgmlType::kBf16;     // kBf16, kQ8_0, kQ4_0 or kQ4_1
  device::ThreadPool* pool = nullptr;  // not owned
  // Adds the tokenizer keys of a folder, which `file` does not have; may be null.
  std::function<void(GgufWriter&)> add_keys;
};

// "bf16", "q8_0", "q4_0", "q4_1"; InvalidArgument naming them for another.
absl::StatusOr<GgmlType> ParseConvertType(std::string_view text);

// Writes `file` to `path` by way of a PartialFile, so that a file of that name is always whole.
// Errors as ReadModelConfig for a model that cannot be served; AlreadyExists when there is a file
// of that name; ResourceExhausted or Unavailable when it cannot be written. Memory: one matrix
// packed and once more in the new type, 256 rows of it in fp32; with a folder, the copies that
// OpenHfFolder makes. Quantised sources are taken apart first, so that a second quantisation adds
// its error to that of the first.
absl::Status ConvertModel(const GgufFile& file, const ConvertOptions& options,
                          const std::string& path);

}  // namespace baton::model

#endif  // BATON_MODEL_CONVERT_H_
