// EvictionQueue: which idle cached block is given up next. An indexed binary heap over block
// indices: the smallest key first, ties by the lower index. Pure; memory is taken at construction
// and no call allocates after it.
#ifndef BATON_KVCACHE_EVICTION_QUEUE_H_
#define BATON_KVCACHE_EVICTION_QUEUE_H_

#include <compare>
#include <cstdint>
#include <vector>

namespace baton::kv {

// How much a cached block is worth keeping; the smallest goes first.
struct EvictionKey {
  uint32_t rank = 0;      // 0: nothing cached is lost with it; see PrefixIndex
  double value = 0;       // see PrefixIndex
  uint64_t last_use = 0;  // between equal values: the one used longest ago goes first

  friend auto operator<=>(const EvictionKey&, const EvictionKey&) = default;
};

// See the file comment.
class EvictionQueue {
 public:
  explicit EvictionQueue(uint32_t num_blocks) : keys_(num_blocks), places_(num_blocks, kAbsent) {
    heap_.reserve(num_blocks);
  }

  bool Contains(uint32_t block) const { return places_[block] != kAbsent; }
  uint32_t size() const { return static_cast<uint32_t>(heap_.size()); }
  // The key that the block has in the queue, or would enter with.
  const EvictionKey& KeyOf(uint32_t block) const { return keys_[block]; }

  void SetKey(uint32_t block, const EvictionKey& key);
  // The block is not in the queue; it enters with its key.
  void Add(uint32_t block);
  // The block is in the queue.
  void Remove(uint32_t block);
  // The block that goes first; the queue is not empty.
  uint32_t First() const { return heap_.front(); }

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;

  bool Before(uint32_t a, uint32_t b) const {
    const auto order = keys_[a] <=> keys_[b];
    return order == 0 ? a < b : order < 0;
  }
  void Put(uint32_t place, uint32_t block) {
    heap_[place] = block;
    places_[block] = place;
  }
  void MoveUp(uint32_t place);
  void MoveDown(uint32_t place);

  std::vector<EvictionKey> keys_;  // [block]
  std::vector<uint32_t> places_;   // [block] -> index in heap_, or kAbsent
  std::vector<uint32_t> heap_;     // block indices
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_EVICTION_QUEUE_H_
