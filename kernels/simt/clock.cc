#include "kernels/simt/clock.h"

#include <algorithm>

#include "kernels/simt/wide.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

// Loops over all slots of a cta, which every sync runs for every thread.
BATON_WIDE void RaiseSlots(uint32_t* into, const uint32_t* from, size_t count) {
  for (size_t i = 0; i < count; ++i) into[i] = std::max(into[i], from[i]);
}

BATON_WIDE void LowerSlots(uint32_t* into, const uint32_t* from, size_t count) {
  for (size_t i = 0; i < count; ++i) into[i] = std::min(into[i], from[i]);
}

void RaiseAll(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  RaiseSlots(into.data(), from.data(), from.size());
}

}  // namespace

bool VectorClock::KnowsForeign(Epoch epoch) const {
  for (const Foreign& other : foreign_) {
    if (other.cta == epoch.cta()) {
      return epoch.slot() < other.slots.size() && other.slots[epoch.slot()] >= epoch.clock();
    }
  }
  return false;
}

void VectorClock::JoinCta(uint32_t cta, const std::vector<uint32_t>& slots) {
  if (cta == cta_) {
    RaiseAll(local_, slots);
    return;
  }
  for (Foreign& known : foreign_) {
    if (known.cta == cta) {
      RaiseAll(known.slots, slots);
      return;
    }
  }
  foreign_.push_back({cta, slots});
}

void VectorClock::Meet(const VectorClock& other) {
  foreign_.clear();
  LowerSlots(local_.data(), other.local_.data(), local_.size());
}

void VectorClock::Join(const VectorClock& other) {
  if (other.local_.empty() && other.foreign_.empty()) return;
  if (local_.empty() && foreign_.empty()) {
    *this = other;
    return;
  }
  JoinCta(other.cta_, other.local_);
  for (const Foreign& known : other.foreign_) JoinCta(known.cta, known.slots);
}

}  // namespace runner
}  // namespace baton::kernels::simt
