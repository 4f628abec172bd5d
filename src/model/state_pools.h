// StateManifest: what a model keeps of a sequence, pool by pool, and what a hand-off of it moves.
// `baton inspect` prints it and `baton plan` counts with it. Plain data; any thread.
//
// A pool is one kind of state of some layers: rows that each token adds, or a fixed state that each
// token changes. Rows that later tokens stop reading (a sliding window, the taps of a convolution)
// are kept and moved as all others; `window` says how many of them are still read. Where every
// layer has that window (ModelConfig::window_of_all), workers on the processor release blocks
// before it, and do not move them.
//
// Invariants
//  1. The bytes a token of all pools sum to bytes_per_token().
//  2. The bytes a sequence of all pools are at most bytes_per_sequence(), which has whole blocks.
#ifndef BATON_MODEL_STATE_POOLS_H_
#define BATON_MODEL_STATE_POOLS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/kv_layout.h"
#include "kvcache/kv_window.h"
#include "src/model/model_config.h"

namespace baton::model {

// The kind of a pool.
enum class StatePoolKind : uint8_t {
  kRows = 0,        // of each token, all of them read
  kWindowRows = 1,  // of each token, the last ones read
  kFixed = 2,       // of each sequence
};
// "rows", "window rows", "fixed state".
std::string_view StatePoolKindName(StatePoolKind kind);

// One pool; see the file comment.
struct StatePool {
  std::string_view name;  // "attention"
  StatePoolKind kind = StatePoolKind::kRows;
  std::string_view dtype;  // "bf16"
  uint32_t num_layers = 0;
  uint64_t bytes_per_token = 0;     // 0 of a fixed state
  uint64_t bytes_per_sequence = 0;  // of a fixed state, else 0
  uint32_t window = 0;              // of kWindowRows: rows that are read, the newest included
};

// See the file comment.
struct StateManifest {
  std::vector<StatePool> pools;  // none is empty
  kv::KvLayout layout;           // of the blocks that hold them
  kv::KvWindow window;           // of all layers

  uint64_t bytes_per_token() const { return layout.BytesPerToken(); }
  uint64_t bytes_per_sequence() const { return layout.BytesPerSequence(); }
  // Bytes that cross with a prompt of so many tokens of which the decode worker holds nothing:
  // whole blocks of all pools. SeenBytes: of those, blocks that later rows see.
  uint64_t HandOffBytes(uint32_t num_tokens) const {
    return uint64_t{layout.BlocksOfSequence(num_tokens)} * layout.BlockBytes();
  }
  uint64_t SeenBytes(uint32_t num_tokens) const {
    return HandOffBytes(num_tokens) - window.NumUnseen(num_tokens) * layout.BlockBytes();
  }
  // Bytes of them that the token after the prompt reads.
  uint64_t ReadBytes(uint32_t num_tokens) const;
  // The longest sequence whose rows take no more than what it has besides; 0 = it has nothing.
  uint64_t TokensOfState() const { return bytes_per_sequence() / bytes_per_token(); }
};

// The manifest of a model whose K and V are stored as `dtype` in blocks of `block_size` tokens.
StateManifest StateManifestOf(const ModelConfig& config, kv::KvDtype dtype, uint32_t block_size);

// The lines of `baton inspect`, in bf16 and blocks of 16 tokens.
std::string StateManifestText(const ModelConfig& config);

}  // namespace baton::model

#endif  // BATON_MODEL_STATE_POOLS_H_
