// ReadyBlocks: how many blocks of an arena have memory. Blocks get memory in the order of their
// indices. Pure value.
#ifndef BATON_KVCACHE_READY_BLOCKS_H_
#define BATON_KVCACHE_READY_BLOCKS_H_

#include <cstdint>

namespace baton::kv {

// Blocks [0, num_ready) have memory, blocks [num_ready, limit) will get it, and blocks from `limit`
// on never will: num_ready <= limit. With time num_ready only rises, and limit only falls.
struct ReadyBlocks {
  uint32_t num_ready = 0;
  uint32_t limit = 0;

  bool is_final() const { return num_ready == limit; }
  friend bool operator==(const ReadyBlocks&, const ReadyBlocks&) = default;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_READY_BLOCKS_H_
