// The versions of what crosses between the processes of a cluster, and how two processes agree on
// one. Each names the range that it speaks; they speak the newest version that both ranges hold. A
// release speaks its own version N and N - 1, so that a cluster can be upgraded worker by worker.
// The ranges are compared before anything else of a message is looked at, because everything else
// may look different in another version. Pure; any thread.
#ifndef BATON_BASE_WIRE_VERSIONS_H_
#define BATON_BASE_WIRE_VERSIONS_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "fmt/format.h"

namespace baton {

// Oldest and newest wire version that somebody speaks, 1 <= min <= max.
struct WireRange {
  uint32_t min = 1;
  uint32_t max = 1;

  constexpr bool Holds(uint32_t version) const { return version >= min && version <= max; }
  friend bool operator==(const WireRange&, const WireRange&) = default;
};

// The versions that this build speaks, of worker.proto, handoff.proto and the frames between
// workers.
inline constexpr WireRange kWireVersions = {.min = 1, .max = 1};

// The version that two processes use with each other; 0 = none is spoken by both.
constexpr uint32_t CommonWireVersion(const WireRange& a, const WireRange& b) {
  const uint32_t newest = std::min(a.max, b.max);
  return newest >= std::max(a.min, b.min) ? newest : 0;
}

// "1..2" for messages.
inline std::string ToString(const WireRange& range) {
  return fmt::format("{}..{}", range.min, range.max);
}

}  // namespace baton

#endif  // BATON_BASE_WIRE_VERSIONS_H_
