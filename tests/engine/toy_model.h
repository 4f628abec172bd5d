// ToyModel: a model whose next token is a function of every KV byte of its prefix. It writes a hash
// of (token, position, layer) to each KV slot and reads all slots back for the logits: a wrong,
// torn, stale or missing block gives other tokens. With a window it reads that many slots at most.
// Where the layout has state blocks, so does a state that is not that of all tokens before.
#ifndef BATON_TESTS_ENGINE_TOY_MODEL_H_
#define BATON_TESTS_ENGINE_TOY_MODEL_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/kv_layout.h"
#include "src/base/split_mix.h"
#include "src/model/forward_model.h"

namespace baton::engine {

inline constexpr uint32_t kToyVocab = 64;
inline constexpr uint32_t kToyBlock = 4;
inline constexpr uint32_t kToyLayers = 6;
inline constexpr uint32_t kToyHidden = 8;  // a hidden state is the first logits

inline kv::KvLayout ToyLayout(uint32_t state_blocks = 0) {
  return {.dtype = kv::KvDtype::kF32,
          .encoding = kv::KvEncoding::kPlain,
          .num_layers = kToyLayers,
          .num_kv_heads = 1,
          .head_dim = 4,
          .block_size = kToyBlock,
          .state_blocks = state_blocks};
}

// See the file comment.
class ToyModel : public model::ForwardModel {
 public:
  explicit ToyModel(uint32_t window = 0) : window_(window) {}

  uint32_t vocab_size() const override { return kToyVocab; }
  uint32_t max_rows() const override { return 256; }
  uint32_t max_context() const override { return 256; }
  uint32_t hidden_size() const override { return kToyHidden; }

  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override {
    ++num_steps_;
    BATON_RETURN_IF_ERROR(device_error_);
    MoveStates(batch, kv);
    for (uint32_t layer = 0; layer < kToyLayers; ++layer) {
      for (const kernels::AttentionSpan& span : batch.spans) Store(batch, span, kv, layer);
      if (hook != nullptr) hook->OnLayerStored(layer);
    }
    size_t next = 0;
    for (const uint32_t row : batch.logit_rows) {
      const uint64_t hash = ReadPrefix(SpanOf(batch, row), row, kv, window_);
      FillLogits(hash, logits.subspan(next, kToyVocab));
      if (!batch.hidden.empty()) {
        std::copy_n(logits.data() + next, kToyHidden,
                    batch.hidden.data() + next / kToyVocab * kToyHidden);
      }
      next += kToyVocab;
    }
    return OkStatus();
  }

  // The logits after a prefix, without any KV.
  static std::vector<float> LogitsAfter(std::span<const TokenId> prefix, uint32_t window = 0) {
    uint64_t hash = 1;
    const auto end = static_cast<uint32_t>(prefix.size());
    for (uint32_t p = FirstSeen(end, window); p < end; ++p) {
      for (uint32_t layer = 0; layer < kToyLayers; ++layer) {
        for (uint32_t which = 0; which < 2; ++which) {
          for (const uint64_t word : Slot(prefix[p], p, layer, which)) hash = SplitMix(hash ^ word);
        }
      }
    }
    std::vector<float> logits(kToyVocab);
    FillLogits(hash, logits);
    return logits;
  }

  uint64_t num_steps() const { return num_steps_; }
  // Sets the status of every step from now on; an error fails the step.
  void SetDeviceError(Status error) { device_error_ = std::move(error); }

 private:
  const uint32_t window_;
  Status device_error_;
  using SlotBytes = std::array<uint64_t, 2>;

  static SlotBytes Slot(TokenId token, uint32_t position, uint32_t layer, uint32_t which) {
    const uint64_t name = (static_cast<uint64_t>(token) << 40) ^ (uint64_t{position} << 12) ^
                          (uint64_t{layer} << 4) ^ which;
    return {SplitMix(name + 1), SplitMix(name + (uint64_t{1} << 63))};
  }
  static std::byte* SlotAt(const kernels::AttentionSpan& span, const kv::KvView& kv,
                           uint32_t position, uint32_t layer, uint32_t which) {
    const uint32_t block = span.kv.blocks[position / kToyBlock];
    return kv.Piece(block, layer, which, 0) + (position % kToyBlock) * sizeof(SlotBytes);
  }
  static void Store(const model::ModelBatch& batch, const kernels::AttentionSpan& span,
                    const kv::KvView& kv, uint32_t layer) {
    const uint32_t end = span.first_pos + span.num_rows;
    for (uint32_t which = 0; which < 2; ++which) {
      for (uint32_t p = span.first_pos; p < end; ++p) {
        const TokenId token = batch.token_ids[span.first_row + p - span.first_pos];
        const SlotBytes slot = Slot(token, p, layer, which);
        std::memcpy(SlotAt(span, kv, p, layer, which), slot.data(), sizeof(slot));
      }
      for (uint32_t p = end; p % kToyBlock != 0; ++p) {
        std::memset(SlotAt(span, kv, p, layer, which), 0, sizeof(SlotBytes));
      }
    }
  }
  // A state is a hash of its sequence's tokens, in the first bytes of each of its blocks.
  static uint64_t StateAfter(uint64_t state, const SlotBytes& slot) {
    return SplitMix(state ^ slot[0]);
  }
  static uint64_t ReadState(std::span<const uint32_t> blocks, const kv::KvView& kv) {
    uint64_t state = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      uint64_t word = 0;
      std::memcpy(&word, kv.Piece(blocks[i], 0, 0, 0), sizeof(word));
      const uint64_t part = word ^ i;
      state = i == 0 || part == state ? part : SplitMix(part);
    }
    return state;
  }
  static void WriteState(std::span<const uint32_t> blocks, const kv::KvView& kv, uint64_t state) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      const uint64_t word = state ^ i;
      std::memcpy(kv.Piece(blocks[i], 0, 0, 0), &word, sizeof(word));
    }
  }
  // Each span's state takes its tokens, and is copied where the batch wants that.
  static void MoveStates(const model::ModelBatch& batch, const kv::KvView& kv) {
    size_t next_copy = 0;
    for (size_t i = 0; i < batch.spans.size(); ++i) {
      const kernels::AttentionSpan& span = batch.spans[i];
      if (span.kv.state.empty()) continue;
      uint64_t state = span.first_pos == 0 ? 1 : ReadState(span.kv.state, kv);
      for (uint32_t row = 0; row < span.num_rows; ++row) {
        const TokenId token = batch.token_ids[span.first_row + row];
        state = StateAfter(state, Slot(token, span.first_pos + row, 0, 0));
        if (next_copy == batch.state_copies.size()) continue;
        model::StateCopy& copy = batch.state_copies[next_copy];
        if (copy.span != i || copy.num_rows != row + 1) continue;
        WriteState(copy.blocks, kv, state);
        copy.has_numbers = true;
        ++next_copy;
      }
      WriteState(span.kv.state, kv, state);
    }
  }
  // The state is that of the tokens whose KV lies before the span's end.
  static bool HasRightState(const kernels::AttentionSpan& span, const kv::KvView& kv) {
    if (span.kv.state.empty()) return true;
    uint64_t state = 1;
    for (uint32_t p = 0; p < span.first_pos + span.num_rows; ++p) {
      SlotBytes slot;
      std::memcpy(slot.data(), SlotAt(span, kv, p, 0, 0), sizeof(slot));
      state = StateAfter(state, slot);
    }
    return state == ReadState(span.kv.state, kv);
  }
  static const kernels::AttentionSpan& SpanOf(const model::ModelBatch& batch, uint32_t row) {
    size_t i = 0;
    while (batch.spans[i].first_row + batch.spans[i].num_rows <= row) ++i;
    return batch.spans[i];
  }
  // The first position that the row before `end` sees.
  static uint32_t FirstSeen(uint32_t end, uint32_t window) {
    return window > 0 && end > window ? end - window : 0;
  }
  static uint64_t ReadPrefix(const kernels::AttentionSpan& span, uint32_t row, const kv::KvView& kv,
                             uint32_t window) {
    uint64_t hash = HasRightState(span, kv) ? 1 : 2;
    const uint32_t end = span.first_pos + row - span.first_row + 1;
    for (uint32_t p = FirstSeen(end, window); p < end; ++p) {
      for (uint32_t layer = 0; layer < kToyLayers; ++layer) {
        for (uint32_t which = 0; which < 2; ++which) {
          SlotBytes slot;
          std::memcpy(slot.data(), SlotAt(span, kv, p, layer, which), sizeof(slot));
          for (const uint64_t word : slot) hash = SplitMix(hash ^ word);
        }
      }
    }
    return hash;
  }
  static void FillLogits(uint64_t hash, std::span<float> logits) {
    for (uint32_t v = 0; v < kToyVocab; ++v) {
      logits[v] = static_cast<float>(SplitMix(hash + v) >> 44) * (8.0f / 1048576.0f);
    }
  }

  uint64_t num_steps_ = 0;
};

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_TOY_MODEL_H_
