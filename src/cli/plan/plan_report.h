// A plan at its two ends, as text, JSON and Helm values. Pure; any thread.
//
// A plan has two ends instead of one number. A device is planned at its limits (no build is faster)
// and at half of them, which a first step is trusted to reach. A measured machine is planned at its
// fastest and at its slowest repetition. People should act on the second, cautious end.
#ifndef BATON_CLI_PLAN_PLAN_REPORT_H_
#define BATON_CLI_PLAN_PLAN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/cli/plan/measured_steps.h"
#include "src/model/model_config.h"
#include "src/model/state_pools.h"
#include "src/plan/aggregated_plan.h"
#include "src/plan/cluster_plan.h"
#include "src/plan/split_length.h"

namespace baton::cli {

// A model as a plan sees it.
struct PlannedModel {
  std::string id;         // its name in the API
  std::string file_name;  // without folders
  uint64_t file_bytes = 0;
  model::ModelConfig config;
};

// Where a worker runs; one of `limits` and `measured` is set.
struct PlannedDevice {
  std::string name;  // "NVIDIA H200", "cpu"
  const scheduler::DeviceLimits* limits = nullptr;
  std::optional<MeasuredSteps> measured;
  uint64_t memory_bytes = 0;    // of one worker; 0 = not bounded
  double link_bytes_per_s = 0;  // as given; 0 = the device's own, if it is known
  double cost_per_hour = 0;     // of one worker; 0 = not given
  double watts = 0;             // of one worker; 0 = not given

  // Type of stored K and V: the measured one, or bf16 on a device.
  kv::KvDtype kv_dtype() const { return measured ? measured->kv_dtype : kv::KvDtype::kBf16; }
};

// One end of the band.
struct PlanEnd {
  std::string name;  // "at the limits"
  plan::PlanInput input;
  std::optional<scheduler::StepWeights>
      first_cost;  // a worker's estimate there before it has measured
  StatusOr<plan::ClusterPlan> plan = plan::ClusterPlan();
  plan::Comparison aggregated;  // of a plan that is there
  plan::SplitLength split;      // of a plan that is there
};

struct PlanReplays;  // plan_replay.h

// Both ends, and the model, load and place that were planned.
struct PlanReport {
  PlannedModel model;
  PlannedDevice device;
  plan::PlanLoad load;
  plan::PlanObjective objective;
  model::StateManifest state;  // the memory that a worker keeps for a sequence
  PlanEnd best;
  PlanEnd cautious;
};

// NotFound when `measured` is of another model; Unimplemented for a model that the device does not
// compute; InvalidArgument when load and context disagree; PlanCluster's error when not even the
// best end has a plan. A cautious end without a plan stays in the report with its reason.
StatusOr<PlanReport> MakePlan(PlannedModel model, PlannedDevice device, const plan::PlanLoad& load,
                              const plan::PlanObjective& objective);

// The window of the model's attention, as steps are charged for it.
plan::KeyWindow KeyWindowOf(const model::ModelConfig& config);

// Bytes of the weights in bf16, as a GPU holds them with --device-weights bf16. Norms are left out
// (0.003 % of an 8B model).
uint64_t DeviceWeightBytes(const model::ModelConfig& config);

// The verdict in words, with the numbers that it follows from.
std::string VerdictText(const PlanReport& report, const PlanEnd& end);
// The report for a terminal, and as one JSON object with the same numbers. The object also has the
// results of simulations, if there were any.
std::string PlanText(const PlanReport& report);
std::string PlanJson(const PlanReport& report, const PlanReplays* replays = nullptr);
// values.yaml for deploy/helm/baton by the cautious end; its error when it has no plan. If the
// verdict is not to split, the values have a router in mode aggregated, and decode workers alone.
StatusOr<std::string> PlanValues(const PlanReport& report);

// Money and energy of a million tokens. 0 = the price or the watts were not given.
struct PlanCost {
  double cost_per_million_output = 0;
  double cost_per_million_tokens = 0;  // prompts and answers together
  double kwh_per_million_output = 0;
  double kwh_per_million_tokens = 0;
};
PlanCost CostOf(const PlanReport& report, uint32_t num_workers);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_PLAN_REPORT_H_
