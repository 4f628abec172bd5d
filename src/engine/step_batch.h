// StepBatch: lowers a BatchPlan to the plain arrays of a ModelBatch and holds the logits or tokens
// that come back. All memory is taken at construction. Engine thread.
#ifndef BATON_ENGINE_STEP_BATCH_H_
#define BATON_ENGINE_STEP_BATCH_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/batch_plan.h"
#include "src/device/aligned_buffer.h"
#include "src/model/model_batch.h"

namespace baton::engine {

// See the file comment.
class StepBatch {
 public:
  // At most `max_tokens` rows in `max_items` items. Each item may want one row of logits; logged
  // prompts and guesses want at most `max_more_logits` more. Pages of logits that nobody writes
  // cost no memory. `samples`: the model may choose tokens. `hidden_size`: the model's.
  // `state_blocks`: blocks of one sequence's state; a step copies one state an item at most.
  struct Limits {
    uint32_t max_tokens = 0;
    uint32_t max_items = 0;
    uint32_t max_more_logits = 0;
    uint32_t vocab_size = 0;
    uint32_t hidden_size = 0;
    uint32_t state_blocks = 0;
    bool samples = false;
  };
  explicit StepBatch(const Limits& limits);

  // Replaces the batch. The plan's sequences and tables must live until the step has ended.
  void Lower(const scheduler::BatchPlan& plan);

  // Lets the model choose the token of plan item `item`, which wants logits and has no guesses.
  // Call it after Lower. All other items get their logits.
  void SetSampling(size_t item, const kernels::RowSampling& sampling) {
    sampling_[logit_index_[item]] = sampling;
  }

  model::ModelBatch batch() {
    return {.token_ids = tokens_,
            .spans = spans_,
            .logit_rows = logit_rows_,
            .sampling = sampling_,
            .tokens = chosen_,
            .hidden = hidden(),
            .state_copies = state_copies_};
  }
  // The copies of states that the plan wanted, by plan item (StateCopy::span). The model writes its
  // findings into them.
  std::span<const model::StateCopy> state_copies() const { return state_copies_; }
  // [logit_rows, vocab_size], to be written by Forward.
  std::span<float> logits();
  // [vocab_size] of plan item `item`, which wants logits; unspecified where a token was chosen.
  // `row` > 0: the logits after `row` of its guesses.
  std::span<const float> LogitsOf(size_t item, uint32_t row = 0) const;
  // [vocab_size] of one token of plan item `item`, which logs its prompt; unspecified for the last
  // token where the model chose.
  std::span<const float> PromptLogitsOf(const scheduler::BatchItem& item, size_t idx,
                                        uint32_t token) const;
  // [hidden_size] of one token of plan item `item`, which embeds.
  std::span<const float> HiddenOf(const scheduler::BatchItem& item, size_t idx,
                                  uint32_t token) const;
  // The token that the model chose for plan item `item`; nothing without SetSampling.
  std::optional<TokenId> ChosenOf(size_t item) const;
  // Whether every row decodes and has its token chosen by the model, and no state is copied. After
  // SetSampling.
  bool IsChosenWhole() const;
  // [rows] of such a batch, to be written by ForwardModel::End.
  std::span<TokenId> chosen() { return chosen_; }

 private:
  void LowerCheckpoints(const scheduler::BatchPlan& plan);
  // [logit_rows][hidden_size], or empty where no item embeds.
  std::span<float> hidden();
  // Place of an item's token among the rows with logits.
  size_t RowOf(const scheduler::BatchItem& item, size_t idx, uint32_t token) const {
    return size_t{logit_index_[idx]} + 1 + token - item.num_tokens;
  }

  const uint32_t vocab_size_;
  const uint32_t hidden_size_;
  const bool samples_;
  std::vector<TokenId> tokens_;
  std::vector<kernels::AttentionSpan> spans_;
  std::vector<uint32_t> logit_rows_;
  std::vector<uint32_t> logit_index_;  // of each item's first token that is sampled, where one is
  std::vector<kernels::RowSampling>
      sampling_;                 // [logit_rows_]; empty when the model does not sample
  std::vector<TokenId> chosen_;  // [sampling_]
  device::AlignedBuffer logits_;
  device::AlignedBuffer hidden_;
  bool embeds_ = false;  // an item of the batch embeds
  std::vector<model::StateCopy> state_copies_;
  std::vector<uint32_t> copy_blocks_;  // of all copies
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_STEP_BATCH_H_
