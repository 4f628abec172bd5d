// How many KV blocks a worker's pool gets. Pure; any thread.
#ifndef BATON_WORKER_POOL_SIZE_H_
#define BATON_WORKER_POOL_SIZE_H_

#include <cstdint>

#include "kvcache/kv_layout.h"
#include "src/base/status.h"

namespace baton::worker {

// --kv-memory when the flag is absent, unless one full sequence needs more.
inline constexpr uint64_t kDefaultKvBytes = uint64_t{1} << 30;

// Bytes of one sequence of `max_context` tokens and a block.
uint64_t SequenceBytes(const kv::KvLayout& layout, uint32_t max_context);

// The longest sequence of a pool.
struct SequenceNeed {
  kv::KvLayout layout;
  uint32_t max_context = 0;
  uint32_t window_blocks = 0;  // the most blocks that it holds at once; 0 = blocks for all tokens
};

// Blocks of one such sequence and one more: the least that a pool needs.
uint64_t NumSequenceBlocks(const SequenceNeed& need);

// Blocks that fit in `kv_memory_bytes`; 0 bytes = the larger of kDefaultKvBytes and the need of the
// sequence and a block. ResourceExhausted where the sequence and a block do not fit: the message
// has the bytes needed and given, and the values of the two flags that would be enough.
StatusOr<uint32_t> NumPoolBlocks(uint64_t kv_memory_bytes, const SequenceNeed& need);

}  // namespace baton::worker

#endif  // BATON_WORKER_POOL_SIZE_H_
