// `baton plan`: pools for a load, from the model's shape and a device's limits or measured steps.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "benchmarks/loadgen/quantity.h"
#include "src/base/nearest_name.h"
#include "src/base/regular_file.h"
#include "src/base/size_text.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/model_store.h"
#include "src/cli/plan/plan_report.h"
#include "src/model/hf_folder.h"

namespace baton {
namespace {

constexpr size_t kMaxMeasuredBytes = size_t{16} << 20;

// What was typed.
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
  bool values = false;
  bool json = false;
};

void Declare(FlagSet& flags, PlanFlags& f) {
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
  flags.Add("--values", f.values, "print values.yaml for the Helm chart instead");
  flags.Add("--json", f.json, "JSON instead of text");
}

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

// The command line without what needs the model or a file.
StatusOr<PlannedDevice> DeviceOf(const PlanFlags& f) {
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

StatusOr<PlanLoad> LoadOf(const PlanFlags& f) {
  if (f.model.empty()) {
    return InvalidArgument("MODEL is missing: a .gguf file, a model folder or smollm2:135m");
  }
  if (f.input == 0) return Missing("--input", "2048");
  if (f.output == 0) return Missing("--output", "256");
  if (f.rate.empty()) return Missing("--rate", "4");
  PlanLoad load;
  load.input_tokens = static_cast<uint32_t>(f.input);
  load.output_tokens = static_cast<uint32_t>(f.output);
  BATON_ASSIGN_OR_RETURN(load.rate_per_s, Positive("--rate", f.rate));
  return load;
}

StatusOr<PlanObjective> ObjectiveOf(const PlanFlags& f) {
  if (f.ttft.empty()) return Missing("--ttft", "500ms");
  if (f.itl.empty()) return Missing("--itl", "50ms");
  if (f.values && f.json) return InvalidArgument("give one of --values and --json");
  PlanObjective objective;
  BATON_ASSIGN_OR_RETURN(objective.ttft_us, Time("--ttft", f.ttft));
  BATON_ASSIGN_OR_RETURN(objective.itl_us, Time("--itl", f.itl));
  return objective;
}

// Reads headers only, no weights.
StatusOr<PlannedModel> ReadPlannedModel(const std::string& name) {
  BATON_ASSIGN_OR_RETURN(const ModelFile found, ResolveModel(name));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenModelFile(found.path));
  PlannedModel model;
  BATON_ASSIGN_OR_RETURN(model.config, ReadModelConfig(*file));
  model.id = found.id;
  // "folder/" has no file name of its own.
  const std::filesystem::path path(found.path);
  model.file_name = (path.has_filename() ? path : path.parent_path()).filename().string();
  model.file_bytes = file->file_bytes();
  return model;
}

StatusOr<std::string> PlanAsked(const PlanFlags& f, PlannedDevice device, const PlanLoad& load,
                                const PlanObjective& objective) {
  if (!f.measured.empty()) {
    const StatusOr<std::string> text = ReadRegularFile(f.measured, kMaxMeasuredBytes);
    if (!text.ok()) return WithPrefix(text.status(), "--measured " + f.measured);
    StatusOr<MeasuredSteps> steps = ReadMeasuredSteps(*text);
    if (!steps.ok()) return WithPrefix(steps.status(), "--measured " + f.measured);
    device.measured = *std::move(steps);
  }
  StatusOr<PlannedModel> model = ReadPlannedModel(f.model);
  if (!model.ok()) return model.status();
  BATON_ASSIGN_OR_RETURN(const PlanReport report,
                         MakePlan(*std::move(model), std::move(device), load, objective));
  if (f.values) return PlanValues(report);
  return f.json ? PlanJson(report) : PlanText(report);
}

}  // namespace

int RunPlan(const std::vector<std::string>& args) {
  FlagSet flags("plan",
                "Says how many prefill and decode workers a load needs within its objectives, and "
                "whether a split helps.");
  PlanFlags f;
  Declare(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const StatusOr<PlanLoad> load = LoadOf(f);
  if (!load.ok()) return Fail("plan", load.status(), kExitUsage);
  const StatusOr<PlanObjective> objective = ObjectiveOf(f);
  if (!objective.ok()) return Fail("plan", objective.status(), kExitUsage);
  const StatusOr<PlannedDevice> device = DeviceOf(f);
  if (!device.ok()) return Fail("plan", device.status(), kExitUsage);
  const StatusOr<std::string> text = PlanAsked(f, *device, *load, *objective);
  if (!text.ok()) return Fail("plan", text.status());
  std::fputs(text->c_str(), stdout);
  return kExitOk;
}

}  // namespace baton
