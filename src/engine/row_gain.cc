#include "src/engine/row_gain.h"

#include <algorithm>

namespace baton::engine {
namespace {

// Weight of the newest step in an average.
constexpr double kNewest = 1.0 / 8;
// A step that took so many times its average was held up by the system.
constexpr double kHeldUp = 4;

}  // namespace

size_t RowGain::SlotOf(uint32_t num_rows) {
  if (num_rows < kNumExact) return num_rows;
  return std::min(kNumExact + (num_rows - kNumExact) / 8, kNumSlots - 1);
}

double RowGain::StepUs(uint32_t num_rows) const { return step_us_[SlotOf(num_rows)]; }

double RowGain::Expected(uint32_t num_guesses, double acceptance) {
  double sum = 0;
  double all_right = 1;
  for (uint32_t i = 0; i < num_guesses; ++i) sum += all_right *= acceptance;
  return sum;
}

void RowGain::Measure(uint32_t num_rows, uint32_t num_guesses, uint32_t num_more,
                      int64_t elapsed_us) {
  if (elapsed_us <= 0 || num_rows == 0) return;
  double& average = step_us_[SlotOf(num_rows + num_guesses)];
  const double own = StepUs(num_rows);
  double took_us = static_cast<double>(elapsed_us);
  const double usual = average > 0 ? average : own;
  if (usual > 0) took_us = std::min(took_us, kHeldUp * usual);
  average = average == 0 ? took_us : average + kNewest * (took_us - average);
  balance_us_ += kAllowance * took_us;
  if (num_guesses > 0 && own > 0) {
    // Tokens that came for nothing would have taken this share of steps of their own.
    balance_us_ += own * (1 + static_cast<double>(num_more) / num_rows) - took_us;
  }
  const double limit = kMaxBalanceSteps * (own > 0 ? own : took_us);
  balance_us_ = std::clamp(balance_us_, -limit, limit);
}

bool RowGain::Pays(uint32_t num_rows, uint32_t num_more, double expected, double acceptance,
                   bool may_try) const {
  const double now_us = StepUs(num_rows);
  if (now_us == 0 || balance_us_ < 0) return false;
  const double then_us = StepUs(num_rows + num_more);
  const double then = expected + Expected(num_more, acceptance);
  if (then_us > 0 && then * now_us > kMargin * expected * then_us) return true;
  // Rows that cost no more than as many steps lose one step for each at most.
  return may_try && balance_us_ >= now_us * num_more;
}

}  // namespace baton::engine
