// The smallest of what several threads find. Any thread.
#ifndef BATON_BASE_ATOMIC_MIN_H_
#define BATON_BASE_ATOMIC_MIN_H_

#include <atomic>
#include <cstdint>

namespace baton {

// *lowest = min(*lowest, value).
inline void LowerTo(uint32_t value, std::atomic<uint32_t>* lowest) {
  uint32_t now = lowest->load();
  while (value < now && !lowest->compare_exchange_weak(now, value)) {
  }
}

}  // namespace baton

#endif  // BATON_BASE_ATOMIC_MIN_H_
