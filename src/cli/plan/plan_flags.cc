#include "src/cli/plan/plan_flags.h"

#include <span>

#include "src/base/limits.h"
#include "src/base/nearest_name.h"
#include "src/base/size_text.h"
#include "src/cli/plan/plan_replay.h"
#include "src/loadgen/quantity.h"

namespace baton::cli {

using limits::kMaxContextTokens;
using loadgen::ParseNumber;
using loadgen::ParseTimeUs;
using loadgen::RandomDraws;
using loadgen::ReadTraceFile;
using loadgen::ScaleTrace;
using loadgen::TraceRow;
using loadgen::TraceScale;
using plan::PlanLoad;
using plan::PlanObjective;
using scheduler::DeviceLimits;
using scheduler::FindDevice;
using scheduler::KnownDevices;
using sim::PoissonRows;

namespace {

// The seed for what a load does not say: when its requests come, and their tokens.
constexpr uint64_t kReplaySeed = 1;

Status Missing(std::string_view flag, std::string_view example) {
  return InvalidArgument("{} is missing, e.g. {} {}", flag, flag, example);
}

// 0 for an empty text.
StatusOr<double> Positive(std::string_view flag, const std::string& text) {
  if (text.empty()) return 0.0;
  const StatusOr<double> number = ParseNumber(text);
  if (!number.ok() || *number <= 0) {
    return InvalidArgument("{}: '{}' is not a number above 0", flag, text);
  }
  return *number;
}

StatusOr<double> Time(std::string_view flag, const std::string& text) {
  const StatusOr<int64_t> us = ParseTimeUs(text);
  if (!us.ok()) return WithPrefix(us.status(), std::string(flag));
  if (*us == 0) return InvalidArgument("{}: '{}' is not above 0", flag, text);
  return static_cast<double>(*us);
}

Status UnknownDevice(const std::string& name) {
  std::vector<std::string_view> known = {"cpu"};
  std::string list = "cpu";
  for (const DeviceLimits& device : KnownDevices()) {
    known.push_back(device.name);
    list += fmt::format(", \"{}\"", device.name);
  }
  const std::string nearest = NearestName(name, std::span<const std::string_view>(known));
  return InvalidArgument("--device: the limits of '{}' are not known{}; known are {}", name,
                         nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest),
                         list);
}

}  // namespace

void DeclarePlanFlags(FlagSet& flags, PlanFlags& f) {
  const FlagSet::Range tokens = {1, kMaxContextTokens};
  flags.Add("MODEL", f.model, "a .gguf file, a Hugging Face folder or a catalogue name");
  flags.Add("--device", f.device, "where a worker runs: cpu, or a GPU as its driver calls it");
  flags.Add("--input", f.input, tokens, "tokens of a prompt");
  flags.Add("--output", f.output, tokens, "tokens of an answer");
  flags.Add("--rate", f.rate, "requests a second");
  flags.Add("--ttft", f.ttft, "objective: time to the first token of 99 % of requests, e.g. 500ms");
  flags.Add("--itl", f.itl, "objective: gap between tokens, e.g. 50ms");
  flags.Add("--measured", f.measured, "step times on cpu: a result of `baton bench model --json`");
  flags.Add("--memory", f.memory, "memory of one worker, e.g. 16GiB; default the device's");
  flags.Add("--link", f.link, "GB/s from a prefill to a decode worker (baton topo, doctor)");
  flags.Add("--cost-per-hour", f.cost_per_hour, "of one worker, in any currency");
  flags.Add("--watts", f.watts, "of one worker");
  flags.Add("--simulate", f.simulate,
            "replay the load with the shipped router and scheduler on simulated workers, under "
            "several policies");
  flags.Add("--trace", f.trace,
            "lengths and times of a recorded trace (Mooncake's JSON lines or Azure's CSV, plain or "
            "gzip) in place of --input, --output and --rate; finds the pools by simulation");
  flags.Add("--time-scale", f.time_scale, "stretch the trace: 0.5 = twice the rate");
  flags.Add("--requests", f.requests, {10, 1'000'000},
            "simulate at most so many requests, the first of a trace");
  flags.Add("--prefill", f.prefill, {0, 256}, "simulate so many prefill workers; 0 = the plan's");
  flags.Add("--decode", f.decode, {0, 256}, "simulate so many decode workers; 0 = the plan's");
  flags.Add("--values", f.values, "print values.yaml for the Helm chart instead");
  flags.Add("--json", f.json, "JSON instead of text");
}

// The command line without what needs the model or a file.
StatusOr<PlannedDevice> PlannedDeviceOf(const PlanFlags& f) {
  PlannedDevice device;
  device.name = f.device;
  device.limits = FindDevice(f.device);
  if (f.device.empty()) return Missing("--device", "\"NVIDIA H200\"");
  if (device.limits == nullptr && f.device != "cpu") return UnknownDevice(f.device);
  if (device.limits != nullptr && !f.measured.empty()) {
    return InvalidArgument(
        "--measured: `baton bench model` measures processors; it goes with "
        "--device cpu, not with {}",
        f.device);
  }
  if (device.limits == nullptr && f.measured.empty()) {
    return InvalidArgument(
        "--device cpu needs measured step times: run `baton bench model {} --threads N --cases {} "
        "--json FILE` with the threads of one worker, then give --measured FILE",
        f.model, kPlanBenchCases);
  }
  if (device.limits != nullptr) device.memory_bytes = device.limits->memory_bytes;
  if (!f.memory.empty()) {
    const StatusOr<uint64_t> bytes = ParseSize(f.memory);
    if (!bytes.ok()) return WithPrefix(bytes.status(), "--memory");
    if (*bytes == 0) return InvalidArgument("--memory: '{}' is not above 0", f.memory);
    device.memory_bytes = *bytes;
  }
  BATON_ASSIGN_OR_RETURN(const double gigabytes_per_s, Positive("--link", f.link));
  device.link_bytes_per_s = gigabytes_per_s * 1e9;
  BATON_ASSIGN_OR_RETURN(device.cost_per_hour, Positive("--cost-per-hour", f.cost_per_hour));
  BATON_ASSIGN_OR_RETURN(device.watts, Positive("--watts", f.watts));
  return device;
}

// Checks which flags go together on the command line, before a trace is read.
Status CheckPlanFlags(const PlanFlags& f) {
  if (f.model.empty()) {
    return InvalidArgument("MODEL is missing: a .gguf file, a model folder or smollm2:135m");
  }
  BATON_RETURN_IF_ERROR(Positive("--rate", f.rate).status());
  BATON_RETURN_IF_ERROR(Positive("--time-scale", f.time_scale).status());
  if (f.trace.empty()) {
    if (f.input == 0) return Missing("--input", "2048");
    if (f.output == 0) return Missing("--output", "256");
    if (f.rate.empty()) return Missing("--rate", "4");
    if (f.time_scale != "1") return InvalidArgument("--time-scale goes with --trace");
    const bool sized = f.prefill > 0 || f.decode > 0;
    if (sized && !f.simulate) return InvalidArgument("--prefill and --decode go with --simulate");
    return OkStatus();
  }
  if (f.input != 0 || f.output != 0 || !f.rate.empty()) {
    return InvalidArgument(
        "--trace has the lengths and the rate: leave out --input, --output and "
        "--rate, or the trace");
  }
  if (f.values) {
    return InvalidArgument(
        "--values follow from a steady load: give --input, --output and --rate "
        "instead of --trace");
  }
  return OkStatus();
}

// The load, and its requests where they are to be simulated.
StatusOr<PlanLoad> PlanLoadOf(const PlanFlags& f, std::vector<TraceRow>* rows) {
  if (f.trace.empty()) {
    PlanLoad load;
    load.input_tokens = static_cast<uint32_t>(f.input);
    load.output_tokens = static_cast<uint32_t>(f.output);
    BATON_ASSIGN_OR_RETURN(load.rate_per_s, Positive("--rate", f.rate));
    if (f.simulate) {
      *rows = PoissonRows(static_cast<uint64_t>(f.requests), load.rate_per_s, load.input_tokens,
                          load.output_tokens, kReplaySeed);
    }
    return load;
  }
  TraceScale scale;
  scale.spread = true;
  BATON_ASSIGN_OR_RETURN(scale.time, Positive("--time-scale", f.time_scale));
  BATON_ASSIGN_OR_RETURN(*rows, ReadTraceFile(f.trace));
  RandomDraws draws(kReplaySeed);
  ScaleTrace(scale, draws, *rows);
  if (rows->size() > static_cast<uint64_t>(f.requests)) rows->resize(f.requests);
  return LoadOfTrace(*rows);
}

StatusOr<PlanObjective> PlanObjectiveOf(const PlanFlags& f) {
  if (f.ttft.empty()) return Missing("--ttft", "500ms");
  if (f.itl.empty()) return Missing("--itl", "50ms");
  if (f.values && f.json) return InvalidArgument("give one of --values and --json");
  PlanObjective objective;
  BATON_ASSIGN_OR_RETURN(objective.ttft_us, Time("--ttft", f.ttft));
  BATON_ASSIGN_OR_RETURN(objective.itl_us, Time("--itl", f.itl));
  return objective;
}

}  // namespace baton::cli
