// The flags of `baton plan`, and the values that follow from them alone.
#ifndef BATON_CLI_PLAN_PLAN_FLAGS_H_
#define BATON_CLI_PLAN_PLAN_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/cli/flags.h"
#include "src/cli/plan/plan_report.h"
#include "src/loadgen/trace_reader.h"

namespace baton::cli {

// The flags as they were typed.
struct PlanFlags {
  std::string model;
  std::string device;
  std::string rate;
  std::string ttft;
  std::string itl;
  std::string measured;
  std::string memory;
  std::string link;
  std::string cost_per_hour;
  std::string watts;
  int64_t input = 0;
  int64_t output = 0;
  std::string trace;
  std::string time_scale = "1";
  int64_t requests = 2000;
  int64_t prefill = 0;
  int64_t decode = 0;
  bool simulate = false;
  bool values = false;
  bool json = false;
};

void DeclarePlanFlags(FlagSet& flags, PlanFlags& f);
// InvalidArgument naming the flag that is missing, wrong, or does not go with another.
Status CheckPlanFlags(const PlanFlags& f);
// Without what a measurement says, which is another file.
StatusOr<PlannedDevice> PlannedDeviceOf(const PlanFlags& f);
StatusOr<plan::PlanObjective> PlanObjectiveOf(const PlanFlags& f);
// `f` must have been checked. `rows` gets the requests where they are to be simulated; a trace is
// read.
StatusOr<plan::PlanLoad> PlanLoadOf(const PlanFlags& f, std::vector<loadgen::TraceRow>* rows);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_PLAN_FLAGS_H_
