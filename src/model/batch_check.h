// Whether a batch is one that a model was loaded for. Pure; private to src/model.
#ifndef BATON_MODEL_BATCH_CHECK_H_
#define BATON_MODEL_BATCH_CHECK_H_

#include <cstddef>
#include <cstdint>

#include "kvcache/kv_view.h"
#include "src/base/status.h"
#include "src/model/model_batch.h"

namespace baton::model {

// The limits that a model was loaded for.
struct BatchLimits {
  const kv::KvLayout* layout;
  uint32_t max_rows;
  uint32_t max_context;
  uint32_t vocab_size;
  uint32_t num_feeding = 0;  // rows of a step before that may feed this one
  uint32_t hidden_size = 0;  // 0 = no hidden states may be wanted
};

// InvalidArgument with the values when a size, token, position or block lies outside the limits, or
// `num_logits` (elements) is not what the wanted rows need.
absl::Status CheckBatch(const ModelBatch& batch, const kv::KvView& kv, const BatchLimits& limits,
                        size_t num_logits);

}  // namespace baton::model

#endif  // BATON_MODEL_BATCH_CHECK_H_
