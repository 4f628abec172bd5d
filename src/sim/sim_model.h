// SimModel: the model of a simulation. Each KV slot holds a hash of the whole prefix that ends
// there, computed from the slot before it; the logits of a row are a hash of all slots of its
// prefix. So a wrong, torn, stale or missing byte anywhere gives other tokens, and what is computed
// after it is wrong too. Engine thread of one simulated worker.
//
//   h[p] = mix(h[p-1] + token[p])     read from the KV of position p-1
//   slot (p, layer, K|V) = h[p], or a number that follows from it for the other three
//   F[p] = F[p-1] * odd + each slot of p      over all p of the prefix, read from the KV
//   logits = hash(F, token id)
//
// With fixed states (KvLayout::state_blocks) each layer has one number of the sequence too, which
// each token moves on from the one before, and which the logits hash as well:
//
//   s[layer] = mix(s[layer] + token), from layer + 1 before the first token; read from its block
//
// With a window a row reads the slots of so many positions, its own included, and no others.
//
// Cost: one multiplication a slot, so 0.3 us for a prefix of 60 tokens.
#ifndef BATON_SIM_SIM_MODEL_H_
#define BATON_SIM_SIM_MODEL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/kv_layout.h"
#include "src/model/forward_model.h"

namespace baton::sim {

inline constexpr uint32_t kSimVocab = 64;
inline constexpr uint32_t kSimBlock = 4;   // tokens
inline constexpr uint32_t kSimLayers = 2;  // so that a prompt crosses in two groups
inline constexpr TokenId kSimEos = 0;
inline constexpr uint32_t kSimMaxRows = 256;
inline constexpr uint32_t kSimMaxContext = 2048;

// One head of 8 bytes: a slice has 64 bytes, a block 128. A fixed state takes one block.
inline kv::KvLayout SimLayout(bool has_states = false) {
  return {.dtype = kv::KvDtype::kF32,
          .encoding = kv::KvEncoding::kPlain,
          .num_layers = kSimLayers,
          .num_kv_heads = 1,
          .head_dim = 2,
          .block_size = kSimBlock,
          .state_blocks = has_states ? 1u : 0u};
}

// The least window: a row needs the slot before its own.
inline constexpr uint32_t kMinSimWindow = 2;

// The model's state after a prefix, without any KV: what a fault-free run computes.
class SimPrefix {
 public:
  // `window`: 0 = none.
  explicit SimPrefix(bool has_states = false, uint32_t window = 0)
      : has_states_(has_states), seen_(window) {}

  void Append(TokenId token);
  // [kSimVocab], overwritten.
  void FillLogits(std::span<float> logits) const;

 private:
  friend class SimModel;
  using Slots = std::array<uint64_t, 2 * size_t{kSimLayers}>;  // [layer][K|V]

  using States = std::array<uint64_t, kSimLayers>;

  static uint64_t NextHash(uint64_t hash, TokenId token);
  static States FirstStates();
  static void MoveStates(TokenId token, States* states);
  static Slots SlotsOf(uint64_t hash);
  static void Fold(uint64_t slot, uint64_t* fold);
  // The first position that the row before `end` reads.
  static uint32_t FirstSeen(uint32_t end, uint32_t window) {
    return window > 0 && end > window ? end - window : 0;
  }
  static void LogitsOf(uint64_t fold, std::span<float> logits);

  bool has_states_;
  std::vector<uint64_t> seen_;  // [window] the hash of position p at p % window
  uint32_t num_tokens_ = 0;
  uint64_t hash_ = 1;
  uint64_t fold_ = 1;
  States states_ = FirstStates();
};

// The cost of a step on a simulated device.
struct SimStepCost {
  int64_t fixed_us = 1200;
  int64_t prefill_row_us = 25;
  int64_t decode_row_us = 60;
};

// See the file comment. The layout of its KV says whether it has states.
class SimModel final : public model::ForwardModel {
 public:
  // `spend` is told what each layer costs, after it is computed and before the hook hears of it.
  SimModel(const SimStepCost& cost, std::function<void(int64_t us)> spend, uint32_t window = 0)
      : cost_(cost), spend_(std::move(spend)), window_(window) {}

  uint32_t vocab_size() const override { return kSimVocab; }
  uint32_t max_rows() const override { return kSimMaxRows; }
  uint32_t max_context() const override { return kSimMaxContext; }
  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override;

 private:
  int64_t LayerUs(const model::ModelBatch& batch) const;
  // The states before each span's first row; after it they are of the sequence's last row.
  std::vector<SimPrefix::States> TakeStates(const model::ModelBatch& batch,
                                            const kv::KvView& kv) const;
  void StoreStates(const model::ModelBatch& batch, const kv::KvView& kv, uint32_t layer,
                   std::span<const SimPrefix::States> starts) const;

  const SimStepCost cost_;
  const std::function<void(int64_t us)> spend_;
  const uint32_t window_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_MODEL_H_
