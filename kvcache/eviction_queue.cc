#include "kvcache/eviction_queue.h"

#include "src/base/check.h"

namespace baton::kv {

void EvictionQueue::SetKey(uint32_t block, const EvictionKey& key) {
  keys_[block] = key;
  if (!Contains(block)) return;
  MoveUp(places_[block]);
  MoveDown(places_[block]);
}

void EvictionQueue::Add(uint32_t block) {
  BATON_CHECK(!Contains(block), "block {} is in the queue already", block);
  heap_.push_back(block);
  places_[block] = size() - 1;
  MoveUp(size() - 1);
}

void EvictionQueue::Remove(uint32_t block) {
  BATON_CHECK(Contains(block), "block {} is not in the queue", block);
  const uint32_t place = places_[block];
  const uint32_t last = heap_.back();
  heap_.pop_back();
  places_[block] = kAbsent;
  if (last == block) return;
  Put(place, last);
  MoveUp(place);
  MoveDown(places_[last]);
}

void EvictionQueue::MoveUp(uint32_t place) {
  const uint32_t block = heap_[place];
  while (place > 0) {
    const uint32_t parent = (place - 1) / 2;
    if (!Before(block, heap_[parent])) break;
    Put(place, heap_[parent]);
    place = parent;
  }
  Put(place, block);
}

void EvictionQueue::MoveDown(uint32_t place) {
  const uint32_t block = heap_[place];
  while (true) {
    uint32_t child = 2 * place + 1;
    if (child >= size()) break;
    if (child + 1 < size() && Before(heap_[child + 1], heap_[child])) ++child;
    if (!Before(heap_[child], block)) break;
    Put(place, heap_[child]);
    place = child;
  }
  Put(place, block);
}

}  // namespace baton::kv
