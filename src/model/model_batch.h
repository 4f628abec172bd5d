// ModelBatch: what one forward pass computes, as plain arrays; and LayerHook, by which the engine
// sees each layer's KV as soon as it is stored. The model knows neither the scheduler nor who owns
// a block. Engine thread.
#ifndef BATON_MODEL_MODEL_BATCH_H_
#define BATON_MODEL_MODEL_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "kernels/sampling.h"
#include "src/base/ids.h"

namespace baton::model {

inline constexpr TokenId kNoTokenId = -1;

// Stands in place of a token id, in a step that is begun before the step before it has ended. It
// means the token that `row` of the earlier step gives, which the host does not know yet.
constexpr TokenId FedToken(uint32_t row) { return static_cast<TokenId>(row | uint32_t{1} << 31); }
// The row of a FedToken.
constexpr uint32_t FeedingRow(TokenId fed) {
  return static_cast<uint32_t>(fed) & ~(uint32_t{1} << 31);
}

// A copy of a sequence's fixed state as it is after some rows of its span, to be made on the way.
struct StateCopy {
  uint32_t span = 0;                 // of ModelBatch::spans
  uint32_t num_rows = 0;             // of the span, >= 1
  std::span<const uint32_t> blocks;  // [KvLayout::state_blocks], which no span uses
  // The model sets it where it made the copy, and no element is infinite or no number.
  bool has_numbers = false;
};

// The rows of one step. The arrays belong to the caller and live until Forward returns.
struct ModelBatch {
  std::span<const TokenId> token_ids;             // [rows], each in [0, vocab_size) or a FedToken
  std::span<const kernels::AttentionSpan> spans;  // cover [0, rows) in ascending order without gaps
  std::span<const uint32_t> logit_rows;  // ascending rows whose logits are wanted; may be empty
  // For a model that samples(): [logit_rows] each, or empty. Where on_device is set the model
  // writes the row's token, kNoTokenId when its logits leave none, and not its logits.
  std::span<const kernels::RowSampling> sampling = {};
  std::span<TokenId> tokens = {};
  // [logit_rows, hidden_size], or empty. The model writes the hidden state of each wanted row after
  // the last norm, beside its logits or token. Only for Forward.
  std::span<float> hidden = {};
  // By ascending span, one of each at most. Only for Forward of a model with fixed states.
  std::span<StateCopy> state_copies = {};

  uint32_t num_rows() const { return static_cast<uint32_t>(token_ids.size()); }
  // Whether the model is to choose a token of some row.
  bool wants_tokens() const {
    return std::any_of(sampling.begin(), sampling.end(),
                       [](const kernels::RowSampling& row) { return row.on_device != 0; });
  }
};

// Called by Forward on its own thread, between two layers: once for each layer of the layout.
class LayerHook {
 public:
  virtual ~LayerHook() = default;
  // All rows of the batch have stored layers [0, layer] of the layout (KvLayout::num_layers,
  // ModelConfig::FirstSlice) in their blocks. Forward will not write them again. Must not block.
  virtual void OnLayerStored(uint32_t layer) = 0;
};

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_BATCH_H_
