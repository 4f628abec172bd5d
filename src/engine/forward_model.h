// ForwardModel: what an engine needs of a model, so that scheduling and hand-off can be tested with
// a toy. The engine thread calls it.
#ifndef BATON_ENGINE_FORWARD_MODEL_H_
#define BATON_ENGINE_FORWARD_MODEL_H_

#include <cstdint>
#include <span>

#include "kvcache/kv_view.h"
#include "src/base/status.h"
#include "src/model/model_batch.h"

namespace baton {

// See the file comment.
class ForwardModel {
 public:
  virtual ~ForwardModel() = default;

  // Constant.
  virtual uint32_t vocab_size() const = 0;
  // Rows of one batch, and tokens of one sequence, at most.
  virtual uint32_t max_rows() const = 0;
  virtual uint32_t max_context() const = 0;

  // Computes the batch: KV goes to the blocks of its spans, `hook` (may be null) hears of each
  // layer, and `logits` [logit_rows, vocab_size] is overwritten. Allocates nothing.
  // InvalidArgument, with nothing written, for a batch outside the limits.
  virtual Status Forward(const ModelBatch& batch, const KvView& kv, LayerHook* hook,
                         std::span<float> logits) = 0;

  // Bytes of weights that a step of one row reads, and operations (multiplications and additions)
  // that one row costs without attention; 0 = unknown. For the utilisation metrics.
  virtual uint64_t weight_bytes() const { return 0; }
  virtual uint64_t flops_per_row() const { return 0; }
};

}  // namespace baton

#endif  // BATON_ENGINE_FORWARD_MODEL_H_
