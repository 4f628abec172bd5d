#include "scheduler/batch_limit.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"

namespace baton::scheduler {
namespace {

// Weight of the newest step in the average of its size: about the last 32 steps count.
constexpr double kNewest = 1.0 / 32;
// One step that the system held up counts for so many times the average of its size.
constexpr double kMostHeldUp = 4;
// Averages of fewer steps say nothing.
constexpr uint32_t kFewestSteps = 4;
// Older measurements say little: contexts, cores and neighbours change.
constexpr int64_t kForgetUs = 60'000'000;
// Sizes from this part of the limit to twice the limit tell its line; the largest of them must be
// half as large again as the smallest.
constexpr double kNearShare = 0.25;
constexpr double kNearTimes = 2;
constexpr double kLeastSpread = 1.4;
// The limit moves when the best one is so many times as large, or so small a part of it.
constexpr double kRaiseAt = 1.25;
constexpr double kLowerAt = 0.75;
constexpr double kMostRaised = 2;
constexpr double kMostLowered = 2.0 / 3;
// A batch of this share of the limit nearly fills it.
constexpr double kFullShare = 0.75;

}  // namespace

BatchLimitConfig BatchLimitFor(uint32_t most, const StepWeights& first_cost) {
  BatchLimitConfig config;
  config.most = most;
  // A device whose limits are known: the line is known before the first step. All others start
  // with no fixed cost.
  if (first_cost.fixed_us > 0 && first_cost.decode_row_us > 0) {
    const double best = BatchLimit::kRowsPerFixed * first_cost.fixed_us / first_cost.decode_row_us;
    config.first = std::max(config.first, static_cast<uint32_t>(std::min<double>(best, most)));
  }
  return config;
}

BatchLimit::BatchLimit(const BatchLimitConfig& config)
    : config_(config),
      floor_(config.itl_objective_us > 0 ? 1 : std::min(config.least, config.most)),
      limit_(std::clamp(config.first, floor_, std::max(config.most, 1u))) {
  BATON_CHECK(config.most >= 1 && config.least >= 1 && config.itl_objective_us >= 0,
              "a batch of {} to {} rows within {} us", config.least, config.most,
              config.itl_objective_us);
}

void BatchLimit::Measure(uint32_t num_rows, int64_t elapsed_us, int64_t now_us) {
  if (num_rows == 0 || elapsed_us <= 0) return;
  const auto size = std::lower_bound(kSizes.begin(), kSizes.end() - 1, num_rows);
  Level& level = levels_[static_cast<size_t>(size - kSizes.begin())];
  if (now_us - level.measured_us > kForgetUs) level.num_steps = 0;
  ++level.num_steps;
  const double share = std::max(kNewest, 1.0 / level.num_steps);
  double us = static_cast<double>(elapsed_us);
  if (level.num_steps > kFewestSteps) us = std::min(us, kMostHeldUp * level.us);
  level.rows += share * (num_rows - level.rows);
  level.us += share * (us - level.us);
  level.measured_us = now_us;
  // Fewer rows that are slower than the objective say that the limit is too high.
  const double objective_us = static_cast<double>(config_.itl_objective_us);
  const bool is_late = config_.itl_objective_us > 0 && level.us > objective_us;
  if (num_rows < kFullShare * limit_ && !is_late) return;
  steps_us_ += us;
  if (++num_steps_ < kStepsPerLook) return;
  Look(now_us);
  num_steps_ = 0;
  steps_us_ = 0;
}

std::optional<BatchLimit::Line> BatchLimit::Fit(int64_t now_us) const {
  double weight = 0;
  double rows = 0;
  double us = 0;
  double least = 0;
  double most = 0;
  const auto for_each_near = [&](auto&& visit) {
    for (const Level& level : levels_) {
      const bool is_known =
          level.num_steps >= kFewestSteps && now_us - level.measured_us <= kForgetUs;
      const bool is_near = level.rows >= kNearShare * limit_ && level.rows <= kNearTimes * limit_;
      if (is_known && is_near) visit(level, std::min<double>(level.num_steps, 1 / kNewest));
    }
  };
  for_each_near([&](const Level& level, double w) {
    weight += w;
    rows += w * level.rows;
    us += w * level.us;
    least = least == 0 ? level.rows : std::min(least, level.rows);
    most = std::max(most, level.rows);
  });
  if (weight == 0 || most < kLeastSpread * least) return std::nullopt;
  rows /= weight;
  us /= weight;
  double covariance = 0;
  double variance = 0;
  for_each_near([&](const Level& level, double w) {
    covariance += w * (level.rows - rows) * (level.us - us);
    variance += w * (level.rows - rows) * (level.rows - rows);
  });
  const double row_us = std::max(0.0, covariance / variance);
  return Line{.fixed_us = std::max(0.0, us - row_us * rows), .row_us = row_us};
}

double BatchLimit::BestOf(const Line& line) const {
  const double most = config_.most;
  if (line.row_us <= 0) return most;  // a row more costs nothing
  double best = kRowsPerFixed * line.fixed_us / line.row_us;
  if (config_.itl_objective_us > 0) {
    const double left_us = static_cast<double>(config_.itl_objective_us) - line.fixed_us;
    best = std::min(best, left_us / line.row_us);
  }
  return std::clamp<double>(best, floor_, most);
}

void BatchLimit::Look(int64_t now_us) {
  const std::optional<Line> line = Fit(now_us);
  if (!line) return LookWithoutLine();
  const double best = BestOf(*line);
  if (best >= kRaiseAt * limit_) return Set(std::min(best, kMostRaised * limit_));
  if (best <= kLowerAt * limit_) Set(std::max(best, kMostLowered * limit_));
}

void BatchLimit::LookWithoutLine() {
  const bool is_late = config_.itl_objective_us > 0 &&
                       steps_us_ > static_cast<double>(config_.itl_objective_us) * num_steps_;
  // A larger batch tells what a row costs; a smaller one that is short enough needs no line.
  Set(is_late ? kMostLowered * limit_ : kRaiseAt * limit_ + 1);
}

void BatchLimit::Set(double limit) {
  const double rounded = std::floor(std::clamp<double>(limit, floor_, config_.most));
  limit_ = static_cast<uint32_t>(rounded);
}

}  // namespace baton::scheduler
