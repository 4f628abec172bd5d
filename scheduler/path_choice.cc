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

double PairCostS(const PathTimes& times) {
  const PairTimes& pair = times.pair;
  const LocalTimes& local = times.local;
  const bool decodes = local.num_streams + local.num_waiting > 0;
  if (times.prefill_share == 0 || !decodes) return pair.TotalS();
  const double longer = 1 / times.prefill_share;
  const double beside_s = pair.wait_s * longer + std::max(pair.compute_s * longer, pair.cross_s);
  return beside_s + (local.num_streams + local.num_waiting) * pair.compute_s;
}

double LocalCostS(const PathTimes& times, int64_t itl_objective_us) {
  const LocalTimes& local = times.local;
  const bool prefills = times.prefill_share > 0 && times.pair.num_waiting > 0;
  const double longer = prefills ? 1 / (1 - times.prefill_share) : 1;
  const double passed_s = prefills ? times.pair.num_waiting * local.compute_s : 0;
  const double alone_s = (local.wait_s + local.compute_s) * longer;
  if (local.num_streams == 0) return alone_s + passed_s;
  const double step_limit_s = MixedStepS(itl_objective_us);
  const bool misses = itl_objective_us > 0 && local.step_s + local.block_s > step_limit_s;
  if (misses) return std::numeric_limits<double>::infinity();
  // At least one block of a prompt is computed in every step.
  const double chunk_s = std::max(step_limit_s - local.step_s, local.block_s);
  const double beside_rows_s = alone_s * (1 + local.step_s / chunk_s);
  return beside_rows_s + local.num_streams * local.compute_s * longer + passed_s;
}

std::optional<RouteReason> ReasonForLocal(const PathTimes& times, int64_t itl_objective_us) {
  const PairTimes& pair = times.pair;
  const LocalTimes& local = times.local;
  const double pair_s = PairCostS(times);
  const double allowed_s = pair_s * (1 - kPathMargin);
  if (LocalCostS(times, itl_objective_us) >= allowed_s) return std::nullopt;
  // They sum to the pair's cost less the local time without its wait and its streams.
  const std::array<std::pair<double, RouteReason>, 4> losses = {{
      {pair.wait_s, RouteReason::kPrefillQueue},
      {std::max(pair.cross_s - pair.compute_s, 0.0), RouteReason::kSlowLink},
      {pair.compute_s - local.at_prefill_s, RouteReason::kDecodeHit},
      {local.at_prefill_s - local.compute_s + pair_s - pair.TotalS(), RouteReason::kFasterDecode},
  }};
  return std::max_element(losses.begin(), losses.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

}  // namespace baton::scheduler
