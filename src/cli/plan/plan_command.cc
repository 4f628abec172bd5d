// `baton plan`: pools for a load, from the model's shape and a device's limits or measured steps.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "src/base/log.h"
#include "src/base/print.h"
#include "src/base/regular_file.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/model_store.h"
#include "src/cli/plan/plan_flags.h"
#include "src/cli/plan/plan_replay.h"
#include "src/cli/plan/plan_report.h"
#include "src/model/hf_folder.h"

namespace baton::cli {

using loadgen::TraceRow;
using model::GgufFile;
using model::OpenModelFile;
using model::ReadModelConfig;
using plan::PlanLoad;
using plan::PlanObjective;

namespace {

constexpr size_t kMaxMeasuredBytes = size_t{16} << 20;

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

StatusOr<std::string> PlanAsked(const PlanFlags& f, PlannedDevice device,
                                const PlanObjective& objective) {
  std::vector<TraceRow> rows;  // empty = nothing is simulated
  BATON_ASSIGN_OR_RETURN(const PlanLoad load, PlanLoadOf(f, &rows));
  StatusOr<PlannedModel> model = ReadPlannedModel(f.model);
  if (!model.ok()) return model.status();
  if (!f.measured.empty()) {
    const StatusOr<std::string> text = ReadRegularFile(f.measured, kMaxMeasuredBytes);
    if (!text.ok()) return WithPrefix(text.status(), "--measured " + f.measured);
    StatusOr<MeasuredSteps> steps = ReadMeasuredSteps(*text, KeyWindowOf(model->config));
    if (!steps.ok()) return WithPrefix(steps.status(), "--measured " + f.measured);
    device.measured = *std::move(steps);
  }
  BATON_ASSIGN_OR_RETURN(const PlanReport report,
                         MakePlan(*std::move(model), std::move(device), load, objective));
  if (f.values) return PlanValues(report);
  if (rows.empty()) return f.json ? PlanJson(report) : PlanText(report);
  // The simulated processes would log as real ones do.
  BATON_RETURN_IF_ERROR(InitLog({.role = "plan", .level = LogLevel::kOff}));
  const ReplayAsk ask = {
      .load = f.trace.empty() ? fmt::format("{} requests, Poisson", rows.size())
                              : fmt::format("{} requests of {}", rows.size(),
                                            std::filesystem::path(f.trace).filename().string()),
      .rows = &rows,
      .search = !f.trace.empty(),
      .num_prefill = static_cast<uint32_t>(f.prefill),
      .num_decode = static_cast<uint32_t>(f.decode),
      .on_run = [](const PlanRun& run) { Print(stderr, "{}\n", RunLine(run)); }};
  BATON_ASSIGN_OR_RETURN(const PlanReplays replays, ReplayPlan(report, ask));
  if (f.json) return PlanJson(report, &replays);
  return PlanText(report) + "\n" + ReplayText(replays);
}

}  // namespace

int RunPlan(const std::vector<std::string>& args) {
  FlagSet flags("plan",
                "Says how many prefill and decode workers a load needs within its objectives, and "
                "whether a split helps.");
  PlanFlags f;
  DeclarePlanFlags(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status asked = CheckPlanFlags(f); !asked.ok()) return Fail("plan", asked, kExitUsage);
  const StatusOr<PlanObjective> objective = PlanObjectiveOf(f);
  if (!objective.ok()) return Fail("plan", objective.status(), kExitUsage);
  const StatusOr<PlannedDevice> device = PlannedDeviceOf(f);
  if (!device.ok()) return Fail("plan", device.status(), kExitUsage);
  const StatusOr<std::string> text = PlanAsked(f, *device, *objective);
  if (!text.ok()) return Fail("plan", text.status());
  std::fputs(text->c_str(), stdout);
  return kExitOk;
}

}  // namespace baton::cli
