// StepBatch: lowers a BatchPlan to the plain arrays of a ModelBatch and holds the logits that come
// back. All memory is taken at construction. Engine thread.
#ifndef BATON_ENGINE_STEP_BATCH_H_
#define BATON_ENGINE_STEP_BATCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/batch_plan.h"
#include "src/device/aligned_buffer.h"
#include "src/model/model_batch.h"

namespace baton {

// See the file comment.
class StepBatch {
 public:
  // At most `max_tokens` rows in `max_items` items, each of which may want one row of logits. The
  // pages of logits that are never written cost no memory.
  StepBatch(uint32_t max_tokens, uint32_t max_items, uint32_t vocab_size);

  // Replaces the batch; the plan's sequences and tables must live until the step is over.
  void Lower(const BatchPlan& plan);

  ModelBatch batch() const {
    return {.token_ids = tokens_, .spans = spans_, .logit_rows = logit_rows_};
  }
  // [logit_rows, vocab_size], to be written by Forward.
  std::span<float> logits();
  // [vocab_size] of plan item `item`, which wants logits.
  std::span<const float> LogitsOf(size_t item) const;

 private:
  const uint32_t vocab_size_;
  std::vector<TokenId> tokens_;
  std::vector<AttentionSpan> spans_;
  std::vector<uint32_t> logit_rows_;
  std::vector<uint32_t> logit_index_;  // of each item, valid where it wants logits
  AlignedBuffer logits_;
};

}  // namespace baton

#endif  // BATON_ENGINE_STEP_BATCH_H_
