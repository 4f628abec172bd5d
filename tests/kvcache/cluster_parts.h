// The small parts of a ClusterWorld: its size, a ledger of blocks, packets on the network, and what
// the router and the workers tell each other. Plain values.
#ifndef BATON_TESTS_KVCACHE_CLUSTER_PARTS_H_
#define BATON_TESTS_KVCACHE_CLUSTER_PARTS_H_

#include <array>
#include <compare>
#include <cstdint>
#include <utility>

namespace baton::kv {

inline constexpr uint32_t kMaxPromptBlocks = 3;
inline constexpr uint32_t kMaxCrossingBlocks = 2;
inline constexpr uint32_t kMaxPoolBlocks = 4;
inline constexpr uint32_t kClusterBlockSize = 4;  // tokens

// Size and fault budget of a world.
struct ClusterShape {
  uint32_t num_decodes = 1;  // <= 2
  uint32_t num_requests = 1;
  bool router_each = false;  // a router for each request, else one for all
  uint32_t num_blocks = 2;   // of each prompt and its state, <= kMaxPromptBlocks
  uint32_t pool_blocks = 2;  // of each worker, <= kMaxPoolBlocks
  // The first blocks, before a window: no row of the decode worker sees them, so they stay.
  uint32_t num_unseen = 0;
  // The last blocks, of a fixed state: the prompt's last token and each one of the answer changes
  // them.
  uint32_t num_state = 0;
  uint32_t max_attempts = 2;
  int64_t strand_us = 2'000'000;
  bool damage = true;       // slices may arrive damaged, as often as they like
  bool slow_router = true;  // notices may wait on their way; else the router hears at once
  bool mixed_up = false;    // the prefill worker computes another prompt than the one asked for
  // Budget of faults, all kinds together, and which kinds there are.
  uint32_t faults = 1;
  bool crash_prefill = true;
  bool crash_decode = true;
  bool crash_router = true;
  bool cut = true;
  bool cancel = true;

  uint32_t num_crossing() const { return num_blocks - num_unseen; }  // <= kMaxCrossingBlocks
  uint32_t num_tokens() const { return (num_blocks - num_state) * kClusterBlockSize - 1; }
};

// A block as of one allocation.
struct LedgerHandle {
  uint8_t index = 0;
  uint8_t generation = 0;  // 0 = none

  friend auto operator<=>(const LedgerHandle&, const LedgerHandle&) = default;
};

// A naive BlockPool: two counts and a generation for each block.
struct Ledger {
  struct Block {
    uint8_t generation = 0;
    uint8_t request_refs = 0;
    uint8_t transfer_refs = 0;
  };
  uint8_t num_blocks = 0;
  std::array<Block, kMaxPoolBlocks> blocks = {};

  bool IsFree(uint32_t index) const {
    return blocks[index].request_refs == 0 && blocks[index].transfer_refs == 0;
  }
  uint32_t NumFree() const {
    uint32_t count = 0;
    for (uint32_t i = 0; i < num_blocks; ++i) count += IsFree(i) ? 1 : 0;
    return count;
  }
  // Room for one is known.
  LedgerHandle Allocate() {
    uint8_t index = 0;
    while (!IsFree(index)) ++index;
    Block& block = blocks[index];
    ++block.generation;
    block.request_refs = 1;
    return {index, block.generation};
  }
  bool IsCurrent(LedgerHandle handle) const {
    return handle.generation != 0 && blocks[handle.index].generation == handle.generation;
  }
  Block& Of(LedgerHandle handle) { return blocks[handle.index]; }
  const Block& Of(LedgerHandle handle) const { return blocks[handle.index]; }
};

// A message or a slice between the prefill worker and a decode worker.
struct Packet {
  enum class Kind : uint8_t {
    kGrant,
    kSeal,
    kApplied,
    kNackAll,
    kNackSlice,
    kRevoke,
    kRenew,
    kSlice,
  };
  Kind kind = Kind::kGrant;
  bool to_prefill = false;
  uint8_t request = 0;
  uint8_t attempt = 0;
  uint8_t decode = 0;
  bool has_transfer = true;
  uint8_t ordinal = 0;  // of a slice or a Nack of one
  uint8_t life = 0;     // of the decode worker, in a grant
  std::array<uint8_t, kMaxCrossingBlocks> generations = {};

  friend auto operator<=>(const Packet&, const Packet&) = default;
};

// Router to worker, in order.
struct Command {
  enum class Kind : uint8_t { kStart, kCancel };
  Kind kind = Kind::kStart;
  uint8_t attempt = 0;
  uint8_t decode = 0;
  uint8_t life = 0;  // of the decode worker

  template <typename H>
  friend H AbslHashValue(H state, const Command& c) {
    return H::combine(std::move(state), c.kind, c.attempt, c.decode);
  }
};

// Worker to router, in order.
struct Notice {
  enum class Kind : uint8_t {
    kFirstToken,
    kLastToken,  // and all before it
    kVerified,
    kHandedOff,
    kStranded,
    kFailed,
    kRejected,
    kDied,
  };
  Kind kind = Kind::kFailed;
  uint8_t attempt = 0;

  template <typename H>
  friend H AbslHashValue(H state, const Notice& n) {
    return H::combine(std::move(state), n.kind, n.attempt);
  }
};

}  // namespace baton::kv

#endif  // BATON_TESTS_KVCACHE_CLUSTER_PARTS_H_
