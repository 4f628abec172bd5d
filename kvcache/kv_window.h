// KvWindow: which blocks of a sequence its rows see, where every layer of a model has a window.
// Pure.
#ifndef BATON_KVCACHE_KV_WINDOW_H_
#define BATON_KVCACHE_KV_WINDOW_H_

#include <algorithm>
#include <cstdint>

namespace baton::kv {

// See the file comment. The row at position p sees the tokens [p - size + 1, p].
struct KvWindow {
  uint32_t size = 0;  // tokens; 0 = some layer sees all
  uint32_t block_size = 16;

  // Blocks at the front that no row from position `num_tokens` >= 1 on sees. The block before that
  // position is never one of them: a hand-off moves one at least.
  uint32_t NumUnseen(uint32_t num_tokens) const {
    if (size == 0 || num_tokens < size) return 0;
    return std::min((num_tokens + 1 - size) / block_size, (num_tokens - 1) / block_size);
  }
  // Blocks that `num_rows` >= 1 rows after each other see at most, wherever the first one is.
  // UINT32_MAX = all.
  uint32_t MaxSeen(uint32_t num_rows) const {
    if (size == 0) return UINT32_MAX;
    // The first and the last token may be alone in their blocks.
    return (size + num_rows - 1 + 2 * (block_size - 1)) / block_size;
  }
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_KV_WINDOW_H_
