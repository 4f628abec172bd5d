// `baton sim`: a whole cluster in one process, on a simulated clock and network, with faults.
#include <sys/resource.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/print.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/sim/sim_runner.h"

namespace baton::cli {

using loadgen::RandomDraws;
using loadgen::ReadTraceFile;
using loadgen::ScaleTrace;
using loadgen::TraceRow;
using loadgen::TraceScale;
using sim::FaultPlan;
using sim::kMinSimWindow;
using sim::ParseFaults;
using sim::ReplayArguments;
using sim::RunSimulation;
using sim::Shrink;
using sim::SimOptions;
using sim::SimReport;
using sim::SimStepCost;
using sim::SimViolation;
using sim::SimWorkload;
using sim::WorldOptions;

namespace {

constexpr uint32_t kMaxShrinkRuns = 400;

// The flags as they were given.
struct SimFlags {
  int64_t seed = 1;
  int64_t requests = 100'000;
  std::string faults = "all";
  int64_t prefill = 2;
  int64_t decode = 3;
  int64_t routers = 2;
  int64_t jobs = 2;
  int64_t blocks = 192;
  int64_t max_output = SimWorkload::kMaxOutput;
  int64_t step_us = SimStepCost().fixed_us;
  int64_t rate = 250;
  int64_t requests_per_fault = 80;
  std::string only_faults;
  std::string trace;
  std::string time_scale = "1";
  std::string log_level = "off";
  bool states = false;
  int64_t window = 0;
  bool shrink = false;
};

void Declare(FlagSet& flags, SimFlags& values) {
  flags.Add("--seed", values.seed, {0, INT64_MAX}, "the same seed gives the same run, bit for bit");
  flags.Add("--requests", values.requests, {1, 1'000'000'000}, "how many requests are made");
  flags.Add("--faults", values.faults,
            "all, none, or kinds with weights (kill,freeze=3): kill, freeze, one-way, two-way, "
            "delay, duplicate, reorder, flip, slow, memory, clock, drain");
  flags.Add("--requests-per-fault", values.requests_per_fault, {1, 1'000'000},
            "one fault for so many requests, on average");
  flags.Add("--only-faults", values.only_faults,
            "of the plan only the faults with these numbers, such as 3,17");
  flags.Add("--prefill", values.prefill, {1, 64}, "prefill workers");
  flags.Add("--decode", values.decode, {1, 64}, "decode workers");
  flags.Add("--routers", values.routers, {1, 16}, "routers; with one, routers are not killed");
  flags.Add("--blocks", values.blocks, {80, 8192}, "KV blocks of each worker, of 4 tokens");
  flags.Add("--max-output", values.max_output, {1, 512},
            "tokens of an answer at most; above 32 it takes as many --blocks and 64 more");
  flags.Add("--step-us", values.step_us, {1, 1'000'000},
            "what a step takes beside its rows, simulated microseconds");
  flags.Add("--rate", values.rate, {1, 100'000}, "requests a simulated second");
  flags.Add("--jobs", values.jobs, {1, 64},
            "independent clusters, each on a thread, that share the requests");
  flags.Add("--trace", values.trace,
            "take times and lengths from a recorded trace (Mooncake's JSON lines or Azure's CSV, "
            "plain or gzip), scaled to prompts of 256 and answers of --max-output tokens");
  flags.Add("--time-scale", values.time_scale, "stretch the trace: 0.1 = ten times as fast");
  flags.Add("--states", values.states,
            "each sequence of the model has a fixed state beside its KV");
  flags.Add("--window", values.window, {0, 1024},
            "tokens that a row of the model sees, at least 2, so that streams release blocks; 0 = "
            "all");
  flags.Add("--log-level", values.log_level, "debug, info, warn, error or off");
  flags.Add("--shrink", values.shrink,
            "when a promise breaks, search for the shortest run that breaks it");
}

Status ReadOnlyFaults(const std::string& text, SimOptions* options) {
  if (text.empty()) return OkStatus();
  options->only_faults.emplace();
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(part, &number)) {
      return InvalidArgument("--only-faults: '{}' is no number of a fault", part);
    }
    options->only_faults->insert(number);
  }
  return OkStatus();
}

Status ReadTrace(const SimFlags& flags, std::vector<TraceRow>* rows) {
  if (flags.trace.empty()) return OkStatus();
  TraceScale scale;
  scale.spread = true;
  if (!absl::SimpleAtod(flags.time_scale, &scale.time) || !(scale.time > 0 && scale.time <= 1e6)) {
    return InvalidArgument("--time-scale '{}' is no number above 0", flags.time_scale);
  }
  BATON_ASSIGN_OR_RETURN(*rows, ReadTraceFile(flags.trace));
  RandomDraws draws(static_cast<uint64_t>(flags.seed));
  ScaleTrace(scale, draws, *rows);
  return OkStatus();
}

StatusOr<SimOptions> OptionsOf(const SimFlags& flags) {
  SimOptions options;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.num_requests = static_cast<uint64_t>(flags.requests);
  options.shape.num_prefill = static_cast<uint32_t>(flags.prefill);
  options.shape.num_decode = static_cast<uint32_t>(flags.decode);
  options.shape.num_routers = static_cast<uint32_t>(flags.routers);
  options.num_blocks = static_cast<uint32_t>(flags.blocks);
  options.max_output = static_cast<uint32_t>(flags.max_output);
  options.step_us = flags.step_us;
  options.has_states = flags.states;
  options.window = static_cast<uint32_t>(flags.window);
  if (options.window > 0 && options.window < kMinSimWindow) {
    return InvalidArgument("--window {}: a row sees {} tokens at least", options.window,
                           kMinSimWindow);
  }
  // A prompt of 64 blocks, and four choices.
  if (options.max_output > SimWorkload::kMaxOutput &&
      options.num_blocks < options.max_output + 64) {
    return InvalidArgument("--max-output {} takes --blocks {}, not {}", options.max_output,
                           options.max_output + 64, options.num_blocks);
  }
  options.rate = static_cast<double>(flags.rate);
  options.requests_per_fault = static_cast<double>(flags.requests_per_fault);
  BATON_ASSIGN_OR_RETURN(options.faults, ParseFaults(flags.faults));
  BATON_RETURN_IF_ERROR(ReadOnlyFaults(flags.only_faults, &options));
  return options;
}

void PrintViolations(const SimReport& report) {
  for (const SimViolation& violation : report.first_violations) {
    Print("  {}: {} (simulated second {:.3f}, {} requests, {} faults)\n", violation.kind,
          violation.text, static_cast<double>(violation.at_us) * 1e-6, violation.num_requests,
          violation.num_faults);
  }
}

// The first world that breaks a promise is made as short as can be.
void PrintShortest(const SimOptions& options, uint32_t num_worlds, const SimFlags& flags) {
  const std::string trace = flags.trace.empty() ? ""
                                                : fmt::format(" --trace {} --time-scale {}",
                                                              flags.trace, flags.time_scale);

  for (uint32_t world = 0; world < num_worlds; ++world) {
    const auto shrunk = Shrink(WorldOptions(options, num_worlds, world), kMaxShrinkRuns);
    if (!shrunk) continue;
    Print("shortest failing run, after {} tries:\n  baton sim {}{}\n  {}: {}\n", shrunk->num_runs,
          ReplayArguments(shrunk->options), trace, shrunk->violation.kind, shrunk->violation.text);
    if (!shrunk->options.only_faults) return;
    const FaultPlan plan(shrunk->options.seed, shrunk->options.faults, shrunk->options.shape, 1);
    for (const uint32_t index : *shrunk->options.only_faults) {
      Print("  fault {}\n", plan.Get(index).ToString(shrunk->options.shape));
    }
    return;
  }
}

}  // namespace

int RunSim(const std::vector<std::string>& args) {
  SimFlags values;
  FlagSet flags("sim", "simulates a cluster with faults and checks every promise");
  Declare(flags, values);
  if (const auto code = flags.Parse(args)) return *code;
  const auto level = ParseLogLevel(values.log_level);
  if (!level.ok()) return Fail("sim", level.status(), kExitUsage);
  if (const Status status = InitLog({.role = "sim", .level = *level}); !status.ok()) {
    return Fail("sim", status);
  }
  auto options = OptionsOf(values);
  if (!options.ok()) return Fail("sim", options.status(), kExitUsage);
  for (const std::string flag : {"--rate", "--jobs"}) {
    if (values.trace.empty() || !flags.Given(flag)) continue;
    return Fail("sim", InvalidArgument("{}: a --trace is one history with its own times", flag),
                kExitUsage);
  }
  if (values.trace.empty() && flags.Given("--time-scale")) {
    return Fail("sim", InvalidArgument("--time-scale needs --trace"), kExitUsage);
  }
  std::vector<TraceRow> rows;
  if (const Status status = ReadTrace(values, &rows); !status.ok()) return Fail("sim", status);
  auto num_worlds = static_cast<uint32_t>(values.jobs);
  if (!rows.empty()) {
    options->trace = &rows;
    const uint64_t wanted = flags.Given("--requests") ? options->num_requests : rows.size();
    options->num_requests = std::min<uint64_t>(wanted, rows.size());
    num_worlds = 1;  // a trace is one history
  }
  const int64_t begin_us = SystemClock().NowUs();
  const SimReport report = RunSimulation(*options, num_worlds);
  const int64_t elapsed_us = SystemClock().NowUs() - begin_us;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  Print("{}", report.ToTable());
  Print("{:<26} {:.1f}\n", "real seconds", static_cast<double>(elapsed_us) * 1e-6);
  Print("{:<26} {}\n", "peak MiB", usage.ru_maxrss / 1024);
  PrintViolations(report);
  if (report.ok()) return kExitOk;
  std::fflush(stdout);
  if (values.shrink) PrintShortest(*options, num_worlds, values);
  return kExitFailure;
}

}  // namespace baton::cli
