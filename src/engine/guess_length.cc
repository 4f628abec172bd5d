#include "src/engine/guess_length.h"

#include <algorithm>

#include "scheduler/proposer.h"

namespace baton::engine {

using scheduler::kMaxProposals;

namespace {

// Weight of the newest guess in the acceptance.
constexpr float kNewest = 0.1f;

}  // namespace

uint32_t GuessLength::Next() {
  if (pause_ == 0) return length_;
  --pause_;
  return 0;
}

void GuessLength::Note(uint32_t num_proposed, uint32_t num_accepted) {
  for (uint32_t i = 0; i < num_accepted; ++i) acceptance_ += kNewest * (1 - acceptance_);
  // Guesses after the first wrong one were verified against another text, and say nothing.
  if (num_accepted < num_proposed) acceptance_ -= kNewest * acceptance_;
  if (num_accepted == num_proposed) {
    num_losses_ = 0;
    // A text that had no more guesses to offer does not make them longer.
    if (num_proposed >= length_) length_ = std::min(2 * length_, kMaxProposals);
    return;
  }
  length_ = std::max({1u, length_ / 2, num_accepted});
  if (num_accepted > 0) {
    num_losses_ = 0;
    return;
  }
  ++num_losses_;
  if (num_losses_ < kMaxLosses) return;
  length_ = 1;
  pause_ = std::min(kFirstPause << std::min(num_losses_ - kMaxLosses, 8u), kMaxPause);
}

}  // namespace baton::engine
