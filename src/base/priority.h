// Priority of a request among those that wait: 0 is normal, and the smaller goes first. It never
// takes a place from one that runs.
//
// It ages: a request of priority p waits as though it had come p times kPriorityStepUs later. So it
// is overtaken only by requests that come within that time after it, and never starves.
#ifndef BATON_BASE_PRIORITY_H_
#define BATON_BASE_PRIORITY_H_

#include <cstdint>

namespace baton {

inline constexpr int32_t kMinPriority = -1000;
inline constexpr int32_t kMaxPriority = 1000;
// The default --queue-wait-ms: within it priorities are strict.
inline constexpr int64_t kPriorityStepUs = 10'000'000;

// When a request that came at `arrival_us` counts as having come. `priority` in its range.
constexpr int64_t AgedArrivalUs(int64_t arrival_us, int32_t priority) {
  return arrival_us + priority * kPriorityStepUs;
}

}  // namespace baton

#endif  // BATON_BASE_PRIORITY_H_
