#include "src/engine/step_batch.h"

#include <algorithm>

#include "src/base/check.h"

namespace baton::engine {

using device::AlignedBuffer;
using kernels::RowSampling;
using kv::BlockHandle;
using model::FedToken;
using model::kNoTokenId;
using scheduler::BatchItem;
using scheduler::BatchPlan;
using scheduler::CheckpointPlan;
using scheduler::kNotFed;

StepBatch::StepBatch(const Limits& limits)
    : vocab_size_(limits.vocab_size),
      hidden_size_(limits.hidden_size),
      samples_(limits.samples),
      logits_(AlignedBuffer::AllocateOrDie(size_t{limits.max_items + limits.max_more_logits} *
                                           limits.vocab_size * sizeof(float))),
      hidden_(AlignedBuffer::AllocateOrDie(size_t{limits.max_items + limits.max_more_logits} *
                                           limits.hidden_size * sizeof(float))) {
  const size_t max_logits = limits.max_items + limits.max_more_logits;
  tokens_.reserve(limits.max_tokens);
  spans_.reserve(limits.max_items);
  logit_rows_.reserve(max_logits);
  logit_index_.reserve(limits.max_items);
  if (limits.state_blocks > 0) state_copies_.reserve(limits.max_items);
  copy_blocks_.reserve(size_t{limits.max_items} * limits.state_blocks);
  if (!samples_) return;
  sampling_.reserve(max_logits);
  chosen_.reserve(max_logits);
}

void StepBatch::Lower(const BatchPlan& plan) {
  tokens_.clear();
  spans_.clear();
  logit_rows_.clear();
  logit_index_.clear();
  embeds_ = false;
  for (const BatchItem& item : plan.items) {
    const auto first_row = static_cast<uint32_t>(tokens_.size());
    const size_t num_known = item.num_tokens - item.proposed.size();
    const std::span<const TokenId> tokens =
        item.fed_by != kNotFed
            ? std::span<const TokenId>()
            : std::span(item.sequence->spec.tokens).subspan(item.first_pos, num_known);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    tokens_.insert(tokens_.end(), item.proposed.begin(), item.proposed.end());
    if (item.fed_by != kNotFed) tokens_.push_back(FedToken(item.fed_by));
    spans_.push_back({.kv = {.blocks = item.sequence->table.indices(),
                             .state = item.sequence->state_table.indices()},
                      .first_row = first_row,
                      .num_rows = item.num_tokens,
                      .first_pos = item.first_pos});
    for (uint32_t i = 0; item.logs_prompt && i + 1 < item.num_tokens; ++i) {
      logit_rows_.push_back(first_row + i);
    }
    embeds_ = embeds_ || item.sequence->spec.embeds;
    logit_index_.push_back(static_cast<uint32_t>(logit_rows_.size()));
    if (!item.wants_logits && !item.logs_prompt) continue;
    for (size_t i = num_known - 1; i < item.num_tokens; ++i) {
      logit_rows_.push_back(first_row + static_cast<uint32_t>(i));
    }
  }
  LowerCheckpoints(plan);
  if (!samples_) return;
  sampling_.assign(logit_rows_.size(), RowSampling());
  chosen_.assign(logit_rows_.size(), kNoTokenId);
}

void StepBatch::LowerCheckpoints(const BatchPlan& plan) {
  state_copies_.clear();
  copy_blocks_.clear();
  if (plan.checkpoints.empty()) return;
  for (const BlockHandle block : plan.checkpoint_blocks) {
    copy_blocks_.push_back(block.index.value());
  }
  for (const CheckpointPlan& checkpoint : plan.checkpoints) {
    const BatchItem& item = plan.items[checkpoint.item];
    const size_t num_blocks = item.sequence->state_table.size();
    state_copies_.push_back(
        {.span = checkpoint.item,
         .num_rows = checkpoint.num_tokens - item.first_pos,
         .blocks = std::span(copy_blocks_).subspan(checkpoint.first_block, num_blocks)});
  }
}

std::span<float> StepBatch::logits() {
  const size_t size = logit_rows_.size() * vocab_size_;
  BATON_CHECK(size * sizeof(float) <= logits_.size(), "{} rows of logits in {} bytes",
              logit_rows_.size(), logits_.size());
  return {reinterpret_cast<float*>(logits_.data()), size};
}

std::span<const float> StepBatch::LogitsOf(size_t item, uint32_t row) const {
  const auto* data = reinterpret_cast<const float*>(logits_.data());
  return {data + size_t{logit_index_[item] + row} * vocab_size_, vocab_size_};
}

std::span<const float> StepBatch::PromptLogitsOf(const BatchItem& item, size_t idx,
                                                 uint32_t token) const {
  const auto* data = reinterpret_cast<const float*>(logits_.data());
  return {data + RowOf(item, idx, token) * vocab_size_, vocab_size_};
}

std::span<float> StepBatch::hidden() {
  if (!embeds_) return {};
  return {reinterpret_cast<float*>(hidden_.data()), logit_rows_.size() * hidden_size_};
}

std::span<const float> StepBatch::HiddenOf(const BatchItem& item, size_t idx,
                                           uint32_t token) const {
  const auto* data = reinterpret_cast<const float*>(hidden_.data());
  return {data + RowOf(item, idx, token) * hidden_size_, hidden_size_};
}

std::optional<TokenId> StepBatch::ChosenOf(size_t item) const {
  const uint32_t row = logit_index_[item];
  if (!samples_ || sampling_[row].on_device == 0) return std::nullopt;
  return chosen_[row];
}

bool StepBatch::IsChosenWhole() const {
  return !embeds_ && state_copies_.empty() && !sampling_.empty() &&
         sampling_.size() == tokens_.size() &&
         std::all_of(sampling_.begin(), sampling_.end(),
                     [](const RowSampling& row) { return row.on_device != 0; });
}

}  // namespace baton::engine
