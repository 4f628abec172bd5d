#include "src/worker/pool_size.h"

#include <algorithm>
#include <string>

#include "src/base/limits.h"

namespace baton::worker {

using kv::KvLayout;
using limits::kMaxPoolBlocks;

uint64_t SequenceBytes(const KvLayout& layout, uint32_t max_context) {
  return (uint64_t{layout.BlocksOfSequence(max_context)} + 1) * layout.BlockStride();
}

uint64_t NumSequenceBlocks(const SequenceNeed& need) {
  const auto& [layout, max_context, window_blocks] = need;
  const uint64_t all = uint64_t{layout.BlocksOfSequence(max_context)} + 1;
  if (window_blocks == 0) return all;
  return std::min(all, uint64_t{window_blocks} + layout.state_blocks + 1);
}

StatusOr<uint32_t> NumPoolBlocks(uint64_t kv_memory_bytes, const SequenceNeed& need) {
  const KvLayout& layout = need.layout;
  const uint32_t max_context = need.max_context;
  const uint64_t needed_blocks = NumSequenceBlocks(need);
  const uint64_t needed_bytes = needed_blocks * layout.BlockStride();
  const uint64_t bytes =
      kv_memory_bytes > 0 ? kv_memory_bytes : std::max(kDefaultKvBytes, needed_bytes);
  const uint64_t blocks = bytes / layout.BlockStride();
  if (blocks >= needed_blocks) return static_cast<uint32_t>(std::min(blocks, kMaxPoolBlocks));
  // A context of 0 means the model's own, so it is no advice.
  const uint64_t besides = uint64_t{layout.state_blocks} + 1;
  const uint64_t fits = blocks > besides ? (blocks - besides) * layout.block_size : 0;
  const std::string or_shorter = fits > 0 ? fmt::format(" or --max-context {}", fits) : "";
  return ResourceExhausted(
      "--kv-memory is too small: one sequence of --max-context {} tokens and a block need {} "
      "bytes, given are {}; give --kv-memory {}{}",
      max_context, needed_bytes, bytes, needed_bytes, or_shorter);
}

}  // namespace baton::worker
