#include "src/engine/guess_odds.h"

#include <algorithm>

namespace baton::engine {

size_t GuessOdds::ClassOf(uint32_t num_agreeing) {
  if (num_agreeing < 4) return 0;
  return num_agreeing < 8 ? 1 : 2;
}

GuessOdds GuessOdds::Begun(const GuessOdds& worker) {
  GuessOdds odds;
  odds.odds_ = worker.odds_;
  return odds;
}

void GuessOdds::Note(uint32_t num_agreeing, bool is_right, uint32_t memory) {
  const size_t idx = ClassOf(num_agreeing);
  num_[idx] = std::min(num_[idx] + 1, memory);
  odds_[idx] += ((is_right ? 1.0f : 0.0f) - odds_[idx]) / static_cast<float>(num_[idx]);
}

double GuessOdds::Of(uint32_t num_agreeing) const { return odds_[ClassOf(num_agreeing)]; }

GuessOdds::Gains GuessOdds::GainsOf(uint32_t num_agreeing) const {
  Gains gains;
  double sum = 0;
  double all_right = 1;
  for (uint32_t i = 0; i < gains.size(); ++i) gains[i] = sum += all_right *= Of(num_agreeing + i);
  return gains;
}

uint32_t GuessOdds::NumLikely(uint32_t num_agreeing, uint32_t limit) const {
  double all_right = 1;
  uint32_t num = 0;
  for (; num < limit; ++num) {
    all_right *= Of(num_agreeing + num);
    if (all_right < 0.5) break;
  }
  return num;
}

}  // namespace baton::engine
