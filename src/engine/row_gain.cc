#include "src/engine/row_gain.h"

#include <algorithm>

namespace baton::engine {
namespace {

// A step counts as so many times its average at most: the system held it up. One that is held up
// for twice its time would otherwise make eight steps look as if guesses cost nothing. A machine
// that is half as fast for good is known as such after 22 steps.
constexpr double kHeldUp = 1.25;
// The next rows may cost so many times what the last known ones did: they may begin a tile.
constexpr double kCostlier = 2;

}  // namespace

double RowGain::StepUs(uint32_t num_rows) const {
  return num_rows <= kMaxRows ? step_us_[num_rows] : 0;
}

void RowGain::Measure(uint32_t num_rows, uint32_t num_guesses, uint32_t num_more,
                      int64_t elapsed_us) {
  const uint32_t all_rows = num_rows + num_guesses;
  if (elapsed_us <= 0 || num_rows == 0 || all_rows > kMaxRows) return;
  const double own_us = StepUs(num_rows);
  double took_us = static_cast<double>(elapsed_us);
  Steps& steps = steps_[all_rows];
  if (!IsKnown(steps)) steps = {};
  ++num_steps_;
  // A first step with guesses has no average yet: no row costs more than each of the step's own.
  const double usual_us = steps.num > 0     ? steps.average_us
                          : num_guesses > 0 ? own_us * all_rows / num_rows
                                            : 0;
  if (usual_us > 0) took_us = std::min(took_us, kHeldUp * usual_us);
  steps.num = std::min(steps.num + 1, kAveraged);
  steps.average_us += (took_us - steps.average_us) / steps.num;
  steps.last = num_steps_;
  DrawLines();
  balance_us_ += kAllowance * took_us;
  if (num_guesses > 0 && own_us > 0) {
    // Tokens that came for nothing would have taken this share of steps of their own.
    balance_us_ += own_us * (1 + static_cast<double>(num_more) / num_rows) - took_us;
  }
  balance_us_ = std::min(balance_us_, kMaxBalanceSteps * (own_us > 0 ? own_us : took_us));
}

void RowGain::DrawLines() {
  step_us_.fill(0);
  uint32_t below = 0;  // the last known number of rows; 0 = none
  for (uint32_t rows = 1; rows <= kMaxRows; ++rows) {
    if (!IsKnown(steps_[rows])) continue;
    step_us_[rows] = steps_[rows].average_us;
    for (uint32_t i = below; i > 0 && step_us_[i] > step_us_[rows]; --i) {
      step_us_[i] = step_us_[rows];
    }
    const double slope = (step_us_[rows] - step_us_[below]) / (rows - below);
    for (uint32_t i = below + 1; below > 0 && i < rows; ++i) {
      step_us_[i] = step_us_[below] + slope * (i - below);
    }
    below = rows;
  }
}

uint32_t RowGain::Choose(uint32_t num_rows, double expected, std::span<const double> gains) const {
  const double now_us = StepUs(num_rows);
  if (now_us == 0 || balance_us_ < 0) return 0;
  double best = kMargin * expected / now_us;  // tokens a microsecond
  uint32_t num_best = 0;
  uint32_t num_known = 0;
  for (; num_known < gains.size(); ++num_known) {
    const double then_us = StepUs(num_rows + num_known + 1);
    if (then_us == 0) break;
    const double rate = (expected + gains[num_known]) / then_us;
    if (rate <= best) continue;
    best = rate;
    num_best = num_known + 1;
  }
  if (num_known == gains.size()) return num_best;
  const uint32_t num_tried =
      std::min(std::max(1u, 2 * num_known), static_cast<uint32_t>(gains.size()));
  const double least_us = StepUs(num_rows + num_known);
  if ((expected + gains[num_tried - 1]) / least_us <= best) return num_best;
  // A first row costs no more than its share of a step in which every row costs the same.
  const double cost_us =
      num_known == 0 ? now_us / num_rows : kCostlier * (least_us - now_us) * num_tried / num_known;
  const double won_us = now_us * gains[num_tried - 1] / num_rows;
  return balance_us_ >= cost_us - won_us / 2 ? num_tried : num_best;
}

}  // namespace baton::engine
