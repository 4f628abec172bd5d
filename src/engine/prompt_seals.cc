#include "src/engine/prompt_seals.h"

namespace baton::engine {

using device::StageRange;
using device::StepStage;
using kv::Grant;
using kv::KvLayout;
using scheduler::BatchItem;

PromptSeals::PromptSeals(const StepParts& parts)
    : state_(parts.state), events_(parts.events), sources_(&parts.hub->sources()) {
  const uint32_t max_items = state_->MaxItems();
  seals_.reserve(2 * max_items);  // the blocks of a prompt's tokens, and those of its state
  hit_seals_.reserve(max_items);
}

void PromptSeals::Clear() {
  seals_.clear();
  hit_seals_.clear();
}

void PromptSeals::Note(const BatchItem& item, SourceTransfer* transfer) {
  const KvLayout& layout = *state_->kv_view.layout;
  const uint32_t block_size = layout.block_size;
  if (transfer->blocks.empty()) {
    sources_->SetBlocks(transfer, *item.sequence);
    if (item.first_pos > 0) hit_seals_.push_back({transfer, 0, item.first_pos / block_size});
  }
  // Blocks that were full before this chunk are sealed already; a part-full last one is sealed at
  // the prompt's end only.
  const uint32_t end_pos = item.first_pos + item.num_tokens;
  const uint32_t first = item.first_pos / block_size;
  const uint32_t end = item.ends_prompt ? layout.BlocksFor(end_pos) : end_pos / block_size;
  seals_.push_back({transfer, first, end - first});
  // The last chunk leaves the state as it crosses, in the last ordinals.
  const uint32_t num_state = layout.state_blocks;
  if (item.ends_prompt && num_state > 0) seals_.push_back({transfer, end, num_state});
}

void PromptSeals::SealHits() {
  if (hit_seals_.empty()) return;
  const StageRange seals(state_->parts.stages, StepStage::kSeal);
  for (const Range& seal : hit_seals_) {
    sources_->HashAndSeal(seal.transfer, seal.first_ordinal, seal.num_ordinals, state_->now_us);
  }
}

void PromptSeals::OnLayerStored(uint32_t layer) {
  const StageRange seals(state_->parts.stages, StepStage::kSeal);
  for (const Range& seal : seals_) {
    sources_->HashLayer(seal.transfer, seal.first_ordinal, seal.num_ordinals, layer);
  }
  const uint32_t num_layers = state_->kv_view.layout->num_layers;
  const uint32_t group = state_->config.layers_per_group;
  const bool is_last = layer + 1 == num_layers;
  if ((layer + 1) % group != 0 && !is_last) return;
  const uint32_t first_layer = layer / group * group;
  const int64_t now_us = state_->parts.clock->NowUs();
  for (const Range& seal : seals_) {
    sources_->SealLayers(seal.transfer,
                         {.first_ordinal = seal.first_ordinal,
                          .num_ordinals = seal.num_ordinals,
                          .first_layer = first_layer,
                          .num_layers = layer + 1 - first_layer},
                         now_us);
  }
  TakeGrants();
}

void PromptSeals::TakeGrants() {
  if (!events_->MoreWait()) return;
  events_->Take();
  events_->ScanMessages([this](PeerMessage& message) {
    if (message.message == nullptr) return;
    const auto* const grant = std::get_if<Grant>(message.message.get());
    if (grant == nullptr) return;
    // The request of a grant that stays may come later in the queue. Both wait for the step's end.
    if (sources_->OnGrantInStep(message.peer, *grant, state_->parts.clock->NowUs())) {
      message.message.reset();
    }
  });
}

}  // namespace baton::engine
