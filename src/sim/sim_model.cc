#include "src/sim/sim_model.h"

#include <cstring>

#include "src/sim/sim_draws.h"

namespace baton::sim {

using kernels::AttentionSpan;
using kv::KvView;
using model::LayerHook;
using model::ModelBatch;

namespace {

constexpr uint64_t kOdd = kSplitMixStep;
constexpr size_t kSlotBytes = sizeof(uint64_t);

std::byte* SlotAt(const AttentionSpan& span, const KvView& kv, uint32_t position, size_t slot) {
  const uint32_t block = span.kv.blocks[position / kSimBlock];
  return kv.Piece(block, static_cast<uint32_t>(slot / 2), slot % 2, 0) +
         position % kSimBlock * kSlotBytes;
}

// The number of a layer's state in this block.
std::byte* StateAt(const KvView& kv, uint32_t block, uint32_t layer) {
  return kv.Piece(block, layer, 0, 0);
}

void StoreState(const KvView& kv, uint32_t block, uint32_t layer, uint64_t state) {
  std::memset(StateAt(kv, block, layer), 0, kv.layout->SliceBytes());
  std::memcpy(StateAt(kv, block, layer), &state, sizeof(state));
}

uint64_t LoadSlot(const AttentionSpan& span, const KvView& kv, uint32_t position, size_t slot) {
  uint64_t word = 0;
  std::memcpy(&word, SlotAt(span, kv, position, slot), sizeof(word));
  return word;
}

}  // namespace

uint64_t SimPrefix::NextHash(uint64_t hash, TokenId token) {
  return SplitMix(hash + kOdd * (static_cast<uint64_t>(token) + 1));
}

SimPrefix::States SimPrefix::FirstStates() {
  States states;
  for (size_t layer = 0; layer < states.size(); ++layer) states[layer] = layer + 1;
  return states;
}

void SimPrefix::MoveStates(TokenId token, States* states) {
  for (uint64_t& state : *states) state = NextHash(state, token);
}

SimPrefix::Slots SimPrefix::SlotsOf(uint64_t hash) {
  Slots slots;
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = (hash ^ ((hash >> 31) * i)) * (2 * i + 1);
  return slots;  // the first is the hash itself
}

void SimPrefix::Fold(uint64_t slot, uint64_t* fold) { *fold = *fold * kOdd + slot; }

void SimPrefix::LogitsOf(uint64_t fold, std::span<float> logits) {
  const uint64_t seed = SplitMix(fold);
  for (uint32_t v = 0; v < kSimVocab; ++v) {
    const uint64_t word = (seed ^ (v * kOdd)) * 0xd1342543de82ef95ull;
    logits[v] = static_cast<float>(word >> 44) * (8.0f / 1048576.0f);
  }
}

void SimPrefix::Append(TokenId token) {
  hash_ = NextHash(hash_, token);
  if (!seen_.empty()) seen_[num_tokens_ % seen_.size()] = hash_;
  ++num_tokens_;
  for (const uint64_t slot : SlotsOf(hash_)) Fold(slot, &fold_);
  MoveStates(token, &states_);
}

void SimPrefix::FillLogits(std::span<float> logits) const {
  uint64_t fold = fold_;
  if (!seen_.empty()) {
    fold = 1;
    const auto window = static_cast<uint32_t>(seen_.size());
    for (uint32_t p = FirstSeen(num_tokens_, window); p < num_tokens_; ++p) {
      for (const uint64_t slot : SlotsOf(seen_[p % window])) Fold(slot, &fold);
    }
  }
  if (has_states_) {
    for (const uint64_t state : states_) Fold(state, &fold);
  }
  LogitsOf(fold, logits);
}

int64_t SimModel::LayerUs(const ModelBatch& batch) const {
  int64_t us = cost_.fixed_us;
  for (const AttentionSpan& span : batch.spans) {
    us += span.num_rows == 1 ? cost_.decode_row_us : cost_.prefill_row_us * span.num_rows;
  }
  return us / kSimLayers;
}

std::vector<SimPrefix::States> SimModel::TakeStates(const ModelBatch& batch,
                                                    const KvView& kv) const {
  std::vector<SimPrefix::States> starts;
  if (kv.layout->state_blocks == 0) return starts;
  for (const AttentionSpan& span : batch.spans) {
    starts.push_back(SimPrefix::FirstStates());
    if (span.first_pos == 0) continue;
    for (uint32_t layer = 0; layer < kSimLayers; ++layer) {
      std::memcpy(&starts.back()[layer], StateAt(kv, span.kv.state.front(), layer),
                  sizeof(uint64_t));
    }
  }
  return starts;
}

void SimModel::StoreStates(const ModelBatch& batch, const KvView& kv, uint32_t layer,
                           std::span<const SimPrefix::States> starts) const {
  size_t next_copy = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const AttentionSpan& span = batch.spans[i];
    SimPrefix::States states = starts[i];
    for (uint32_t row = 0; row < span.num_rows; ++row) {
      SimPrefix::MoveStates(batch.token_ids[span.first_row + row], &states);
      if (next_copy == batch.state_copies.size()) continue;
      model::StateCopy& copy = batch.state_copies[next_copy];
      if (copy.span != i || copy.num_rows != row + 1) continue;
      StoreState(kv, copy.blocks.front(), layer, states[layer]);
      copy.has_numbers = true;
      ++next_copy;
    }
    StoreState(kv, span.kv.state.front(), layer, states[layer]);
  }
}

Status SimModel::Forward(const ModelBatch& batch, const KvView& kv, LayerHook* hook,
                         std::span<float> logits) {
  const int64_t layer_us = LayerUs(batch);
  const std::vector<SimPrefix::States> starts = TakeStates(batch, kv);
  for (uint32_t layer = 0; layer < kSimLayers; ++layer) {
    const size_t k_slot = size_t{2} * layer;
    const size_t v_slot = k_slot + 1;
    for (const AttentionSpan& span : batch.spans) {
      uint64_t hash = span.first_pos == 0 ? 1 : LoadSlot(span, kv, span.first_pos - 1, 0);
      const uint32_t end = span.first_pos + span.num_rows;
      for (uint32_t p = span.first_pos; p < end; ++p) {
        hash = SimPrefix::NextHash(hash, batch.token_ids[span.first_row + p - span.first_pos]);
        const SimPrefix::Slots slots = SimPrefix::SlotsOf(hash);
        std::memcpy(SlotAt(span, kv, p, k_slot), &slots[k_slot], kSlotBytes);
        std::memcpy(SlotAt(span, kv, p, v_slot), &slots[v_slot], kSlotBytes);
      }
      const uint32_t num_unused = (kSimBlock - end % kSimBlock) % kSimBlock;
      if (num_unused == 0) continue;
      std::memset(SlotAt(span, kv, end, k_slot), 0, num_unused * kSlotBytes);
      std::memset(SlotAt(span, kv, end, v_slot), 0, num_unused * kSlotBytes);
    }
    StoreStates(batch, kv, layer, starts);
    spend_(layer_us);
    if (hook != nullptr) hook->OnLayerStored(layer);
  }
  size_t span_idx = 0;
  size_t next = 0;
  for (const uint32_t row : batch.logit_rows) {
    while (batch.spans[span_idx].first_row + batch.spans[span_idx].num_rows <= row) ++span_idx;
    const AttentionSpan& span = batch.spans[span_idx];
    uint64_t fold = 1;
    const uint32_t end = span.first_pos + row - span.first_row + 1;
    for (uint32_t p = SimPrefix::FirstSeen(end, window_); p < end; ++p) {
      for (size_t i = 0; i < 2 * size_t{kSimLayers}; ++i) {
        SimPrefix::Fold(LoadSlot(span, kv, p, i), &fold);
      }
    }
    if (!starts.empty()) {
      SimPrefix::States states = starts[span_idx];
      for (uint32_t i = span.first_row; i <= row; ++i) {
        SimPrefix::MoveStates(batch.token_ids[i], &states);
      }
      for (const uint64_t state : states) SimPrefix::Fold(state, &fold);
    }
    SimPrefix::LogitsOf(fold, logits.subspan(next, kSimVocab));
    next += kSimVocab;
  }
  return OkStatus();
}

}  // namespace baton::sim
