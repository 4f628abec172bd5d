// AskedPrefixes: what one life of a simulated worker may hold in its prefix cache, told by the
// orders that it was given. Blocks come into a pool by orders alone, so a hit needs an earlier
// order of the same tenant that begins likewise, whatever faults there are. The clients keep one of
// the whole cluster in runs without faults. One thread.
//
// Invariants
//  1. It keeps at most kMaxNames beginnings. Once it has so many, it takes every hit for right.
#ifndef BATON_SIM_ASKED_PREFIXES_H_
#define BATON_SIM_ASKED_PREFIXES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "src/base/xxh3.h"
#include "src/engine/engine_types.h"

namespace baton::sim {

// See the file comment.
class AskedPrefixes {
 public:
  // A life between two kills has a few thousand. The full table takes 2^16 slots of 17 bytes.
  static constexpr size_t kMaxNames = 1 << 15;

  // `block_size`: tokens of the smallest prefix that can be found.
  explicit AskedPrefixes(size_t block_size) : block_size_(block_size) {}

  // An order came. Its prompt alone counts: what follows it is the worker's own.
  void Note(const engine::RequestSpec& spec) {
    if (is_full()) return;
    Start& start = starts_[spec.key];
    start.tenant = spec.tenant;
    start.tokens.assign(spec.tokens.begin(),
                        spec.tokens.begin() + std::min(block_size_, spec.tokens.size()));
    ++num_orders_[NameOf(start, std::min<size_t>(start.tokens.size(), spec.num_prompt_tokens))];
  }
  // The order's end: it still counts for others.
  void Forget(const engine::RequestKey& key) { starts_.erase(key); }

  // Another order could have left the first block of this one in the cache. Several orders may have
  // prompts of less than a block, which their answers fill.
  bool MayBeHeld(const engine::RequestKey& key) const {
    if (is_full()) return true;
    const auto start = starts_.find(key);
    if (start == starts_.end()) return false;
    uint64_t num_orders = 0;  // its own too
    for (size_t length = 1; length <= start->second.tokens.size(); ++length) {
      const auto found = num_orders_.find(NameOf(start->second, length));
      if (found != num_orders_.end()) num_orders += found->second;
    }
    return num_orders > 1;
  }

 private:
  struct Start {
    std::string tenant;
    std::vector<TokenId> tokens;  // at most a block
  };
  bool is_full() const { return num_orders_.size() >= kMaxNames; }
  static uint64_t NameOf(const Start& start, size_t num_tokens) {
    return Xxh3Hash64(start.tokens.data(), num_tokens * sizeof(TokenId), Xxh3Hash64(start.tenant));
  }

  const size_t block_size_;
  absl::flat_hash_map<uint64_t, uint32_t> num_orders_;  // by tenant and first tokens
  std::map<engine::RequestKey, Start> starts_;          // of orders that live
};

}  // namespace baton::sim

#endif  // BATON_SIM_ASKED_PREFIXES_H_
