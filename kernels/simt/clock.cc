#include "kernels/simt/clock.h"

#include <algorithm>

namespace baton::simt {
inline namespace runner {
namespace {

void RaiseAll(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

bool Clock::KnowsForeign(Epoch epoch) const {
  for (const Foreign& other : foreign_) {
    if (other.cta == epoch.cta()) {
      return epoch.slot() < other.slots.size() && other.slots[epoch.slot()] >= epoch.clock();
    }
  }
  return false;
}

void Clock::JoinCta(uint32_t cta, const std::vector<uint32_t>& slots) {
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

void Clock::Meet(const Clock& other) {
  foreign_.clear();
  for (size_t i = 0; i < local_.size(); ++i) local_[i] = std::min(local_[i], other.local_[i]);
}

void Clock::Join(const Clock& other) {
  if (other.local_.empty() && other.foreign_.empty()) return;
  if (local_.empty() && foreign_.empty()) {
    *this = other;
    return;
  }
  JoinCta(other.cta_, other.local_);
  for (const Foreign& known : other.foreign_) JoinCta(known.cta, known.slots);
}

}  // namespace runner
}  // namespace baton::simt
