#include "scheduler/path_choice.h"

#include <array>
#include <limits>
#include <utility>

#include "scheduler/scheduler_config.h"

namespace baton::scheduler {
namespace {

constexpr double kSecondsPerUs = 1e-6;

// The planned time of a step with decode rows and chunks: as the decode worker's scheduler plans it
// with the same objective.
double MixedStepS(int64_t itl_objective_us) {
  const SchedulerConfig config = {.itl_objective_us = itl_objective_us};
  return static_cast<double>(config.MixedStepUs()) * kSecondsPerUs;
}

}  // namespace

double LocalCostS(const LocalTimes& local, int64_t itl_objective_us) {
  const double alone_s = local.wait_s + local.compute_s;
  if (local.num_streams == 0) return alone_s;
  const double step_limit_s = MixedStepS(itl_objective_us);
  const bool misses = itl_objective_us > 0 && local.step_s + local.block_s > step_limit_s;
  if (misses) return std::numeric_limits<double>::infinity();
  // At least one block of a prompt is computed in every step.
  const double chunk_s = std::max(step_limit_s - local.step_s, local.block_s);
  const double beside_rows_s = alone_s * (1 + local.step_s / chunk_s);
  return beside_rows_s + local.num_streams * local.compute_s;
}

std::optional<RouteReason> ReasonForLocal(const PairTimes& pair, const LocalTimes& local,
                                          int64_t itl_objective_us) {
  const double allowed_s = pair.TotalS() * (1 - kPathMargin);
  if (LocalCostS(local, itl_objective_us) >= allowed_s) return std::nullopt;
  // They sum to the pair's time less the local one without its wait and its streams.
  const std::array<std::pair<double, RouteReason>, 4> losses = {{
      {pair.wait_s, RouteReason::kPrefillQueue},
      {std::max(pair.cross_s - pair.compute_s, 0.0), RouteReason::kSlowLink},
      {pair.compute_s - local.at_prefill_s, RouteReason::kDecodeHit},
      {local.at_prefill_s - local.compute_s, RouteReason::kFasterDecode},
  }};
  return std::max_element(losses.begin(), losses.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

}  // namespace baton::scheduler
