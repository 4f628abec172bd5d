// `baton router`, `baton prefill` and `baton decode`: one process of a deployment each.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "src/base/log.h"
#include "src/base/open_files.h"
#include "src/base/size_text.h"
#include "src/cli/child_process.h"
#include "src/cli/commands.h"
#include "src/cli/compute_threads.h"
#include "src/cli/flags.h"
#include "src/cli/foreign_flags.h"
#include "src/cli/model_store.h"
#include "src/cli/objective_flag.h"
#include "src/cli/role_signals.h"
#include "src/cli/site_flags.h"
#include "src/cli/telemetry_flags.h"
#include "src/cli/worker_flags.h"
#include "src/rpc/protobuf_log.h"
#include "src/worker/advertise.h"
#include "src/worker/worker_group.h"

namespace baton::cli {

using device::ParseDeviceKind;
using kernels::ParseIsa;
using kv::ParseTransportKind;
using router::ServiceObjective;
using worker::CheckAdvertise;
using worker::CheckWorkerId;
using worker::HostOf;
using worker::WorkerConfig;
using worker::WorkerGroup;
using worker::WorkerProcess;

namespace {

// Flags of prefill and decode.
struct WorkerFlags {
  std::vector<std::string> routers;
  std::string listen = "127.0.0.1:0";
  std::string kv_listen;
  std::string advertise;
  std::string admin = "127.0.0.1:0";
  std::string model;
  std::string worker_id;
  int64_t threads = 0;
  std::string colocate_decode;  // prefill only; "" = alone in the process
  int64_t colocate_threads = 0;
  std::string objective;
  WorkerTuning tuning;
  TelemetryFlags telemetry;
  SiteFlags sites;
};

void Declare(FlagSet& flags, WorkerFlags& f) {
  flags.AddAddress("--router", f.routers, "gRPC address of a router; several with commas");
  flags.AddAddress("--listen", f.listen, "gRPC address of this worker");
  flags.AddAddress("--kv-listen", f.kv_listen,
                   "address for KV data; default: the host of --listen and a free port");
  flags.AddText(
      "--advertise", f.advertise,
      "HOST or HOST:PORT by which others reach this worker; default: the host of --listen");
  flags.AddAddress("--admin", f.admin, "address for health and metrics");
  flags.AddText("--model", f.model, "a .gguf file, a Hugging Face folder or a catalogue name");
  flags.AddText("--worker-id", f.worker_id, "stable name, 1 to 64 of [a-z0-9-]");
  flags.Add("--threads", f.threads, kThreadsRange, "compute threads; 0 = one per processor");
  DeclareTuning(flags, f.tuning);
  DeclareObjective(flags, f.objective);
  DeclareTelemetry(flags, f.telemetry);
  DeclareSites(flags, f.sites);
  AddForeignHints(flags);
  AddServeFlagsElsewhere(flags);
}

void DeclareColocation(FlagSet& flags, WorkerFlags& f) {
  flags.AddText(
      "--colocate-decode", f.colocate_decode,
      "a decode worker of this name in the same process: both compute with one copy of the "
      "weights, each has --kv-memory of its own, KV crosses within the process and to no "
      "other, and both leave together; its ports are free ones of the same hosts");
  flags.Add("--colocate-threads", f.colocate_threads, kThreadsRange,
            "compute threads of --colocate-decode; 0 = as many as --threads");
}

Status CheckColocation(const FlagSet& flags, const WorkerFlags& f) {
  if (f.colocate_decode.empty()) {
    if (!flags.Given("--colocate-threads")) return OkStatus();
    return InvalidArgument("--colocate-threads goes with --colocate-decode");
  }
  BATON_RETURN_IF_ERROR(WithPrefix(CheckWorkerId(f.colocate_decode), "--colocate-decode"));
  if (f.colocate_decode == (f.worker_id.empty() ? "prefill-0" : f.worker_id)) {
    return InvalidArgument("--colocate-decode {} is the name of the prefill worker too",
                           f.colocate_decode);
  }
  if (f.tuning.transport != "auto") {
    return InvalidArgument(
        "--transport {}: --colocate-decode hands KV over within the process; leave --transport out",
        f.tuning.transport);
  }
  if (f.tuning.tensor_parallel != "1") {
    return InvalidArgument("--tensor-parallel {}: --colocate-decode is for workers of one GPU",
                           f.tuning.tensor_parallel);
  }
  if (flags.Given("--kv-listen")) {
    return InvalidArgument(
        "--kv-listen {}: --colocate-decode hands KV over within the process, and nobody listens",
        f.kv_listen);
  }
  const size_t colon = f.advertise.rfind(':');
  if (colon != std::string::npos && f.advertise.find(']', colon) == std::string::npos) {
    return InvalidArgument(
        "--advertise {}: with --colocate-decode a host without a port, because "
        "each worker has its own",
        f.advertise);
  }
  return OkStatus();
}

// Finds an error in the command line itself, whatever files and machines there are.
Status CheckFlags(const FlagSet& flags, const WorkerFlags& f) {
  BATON_RETURN_IF_ERROR(CheckTuning(f.tuning));
  BATON_RETURN_IF_ERROR(CheckTelemetry(f.telemetry));
  BATON_RETURN_IF_ERROR(ParseObjective(f.objective).status());
  BATON_RETURN_IF_ERROR(SitesOf(f.sites).status());
  if (f.routers.empty()) {
    return InvalidArgument("--router is missing: the gRPC address of a router");
  }
  if (f.model.empty()) {
    return InvalidArgument("--model is missing: a .gguf file, a model folder or smollm2:135m");
  }
  if (flags.Given("--worker-id")) BATON_RETURN_IF_ERROR(CheckWorkerId(f.worker_id));
  BATON_RETURN_IF_ERROR(CheckColocation(flags, f));
  return CheckAdvertise(f.advertise);
}

// The file that `serve` has opened for its workers; none in a process that it did not start, or for
// a model of several files.
std::optional<ModelFile> InheritedModel() {
  const char* text = std::getenv(kModelFdVariable);
  if (text == nullptr) return std::nullopt;
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int fd = -1;
  if (!absl::SimpleAtoi(parts.first, &fd) || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return std::nullopt;
  }
  return ModelFile{.path = fmt::format("/proc/self/fd/{}", fd), .id = parts.second};
}

// The core budget that `serve` shares out among its workers; nothing in other processes.
void TakeInheritedCores(WorkerConfig& config) {
  const char* text = std::getenv(kCoresFdVariable);
  if (text == nullptr) return;
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int fd = -1;
  uint32_t member = 0;
  if (!absl::SimpleAtoi(parts.first, &fd) || !absl::SimpleAtoi(parts.second, &member) ||
      ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    BATON_LOG_WARN("{}={} is no descriptor and member: this worker lends no cores",
                   kCoresFdVariable, text);
    return;
  }
  config.core_budget_fd = fd;
  config.core_member = member;
}

// The memory in which the workers of one model keep its packed weights; nothing in other processes.
void TakeInheritedWeights(WorkerConfig& config) {
  const char* text = std::getenv(kWeightsFdVariable);
  if (text == nullptr) return;
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int fd = -1;
  const bool is_known = parts.second == "huge" || parts.second == "any";
  if (!absl::SimpleAtoi(parts.first, &fd) || !is_known || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    BATON_LOG_WARN("{}={} is no descriptor and kind of pages: this worker shares no weights",
                   kWeightsFdVariable, text);
    return;
  }
  config.shared_weights = {.fd = fd, .needs_huge_pages = parts.second == "huge"};
}

// MODEL. A worker of `serve` takes the open file that the server began with, as the other workers
// do. The name may be another file's by now, or become so before the worker opens it.
StatusOr<ModelFile> ModelOf(const WorkerFlags& f) {
  StatusOr<ModelFile> named = ResolveModel(f.model);
  const std::optional<ModelFile> inherited = InheritedModel();
  if (!inherited) return named;
  std::error_code error;
  const bool is_same =
      named.ok() && std::filesystem::equivalent(named->path, inherited->path, error);
  if (is_same) return ModelFile{.path = inherited->path, .id = named->id};
  BATON_LOG_WARN("{} is not the file that this server began with; that one is served on", f.model);
  return *inherited;
}

StatusOr<WorkerConfig> BuildConfig(const WorkerFlags& f, WorkerRole role) {
  WorkerConfig config;
  BATON_ASSIGN_OR_RETURN(const ModelFile model, ModelOf(f));
  BATON_RETURN_IF_ERROR(CheckModelId(model));
  BATON_ASSIGN_OR_RETURN(config.cluster_secret, ReadClusterSecret(f.tuning.secret_file));
  config.tls = f.tuning.tls;
  config.prefix_cache = f.tuning.prefix_cache == "on";
  config.speculate = SpeculateModeOf(f.tuning);
  BATON_ASSIGN_OR_RETURN(config.device, ParseDeviceKind(f.tuning.device));
  BATON_ASSIGN_OR_RETURN(config.isa, ParseIsa(f.tuning.isa));
  BATON_ASSIGN_OR_RETURN(config.transport, ParseTransportKind(f.tuning.transport));
  config.nccl_library = f.tuning.nccl_library;
  config.deterministic = f.tuning.deterministic;
  config.cublaslt_library = f.tuning.cublaslt_library;
  config.plan_folder = PlansFolder();
  if (!f.tuning.kv_memory.empty()) {
    BATON_ASSIGN_OR_RETURN(config.kv_memory_bytes, ParseSize(f.tuning.kv_memory));
  }
  config.role = role;
  config.keeps_packed =
      KeepsPacked(f.tuning, role == WorkerRole::kPrefill && f.colocate_decode.empty());
  config.worker_id = f.worker_id.empty() ? fmt::format("{}-0", WorkerRoleName(role)) : f.worker_id;
  config.routers = f.routers;
  config.listen = f.listen;
  config.kv_listen = f.kv_listen;
  config.advertise = f.advertise;
  config.admin = f.admin;
  config.model_path = model.path;
  config.model_argument = f.model;
  config.model_id = model.id;
  config.num_threads = NumComputeThreads(f.threads);
  TakeInheritedCores(config);
  TakeInheritedWeights(config);
  config.num_ranks = static_cast<uint32_t>(std::stoul(f.tuning.tensor_parallel));
  config.max_context = static_cast<uint32_t>(f.tuning.max_context);
  config.max_batch = static_cast<uint32_t>(f.tuning.max_batch);
  BATON_ASSIGN_OR_RETURN(const ServiceObjective objective, ParseObjective(f.objective));
  config.itl_objective_us = objective.itl_us;
  config.kv_dtype = KvDtypeOf(f.tuning);
  config.drain_timeout_ms = f.tuning.drain_timeout_s * 1000;
  config.allow_inexact = f.tuning.allow_inexact;
  config.metric_aliases = AliasesOf(f.telemetry);
  config.otlp_endpoint = f.telemetry.otlp_endpoint;
  BATON_ASSIGN_OR_RETURN(config.sites, SitesOf(f.sites));
  return config;
}

// The configuration of the process's other worker, which decodes. It has the first worker's
// settings, but for its name, its ports and --colocate-threads.
WorkerConfig ColocatedConfig(const WorkerFlags& f, const WorkerConfig& first) {
  WorkerConfig config = first;
  config.role = WorkerRole::kDecode;
  config.worker_id = f.colocate_decode;
  config.listen = HostOf(first.listen) + ":0";
  config.admin = HostOf(first.admin) + ":0";
  config.core_member = first.core_member + 1;
  if (f.colocate_threads > 0) config.num_threads = NumComputeThreads(f.colocate_threads);
  return config;
}

StatusOr<std::vector<WorkerConfig>> BuildConfigs(const WorkerFlags& f, WorkerRole role) {
  std::vector<WorkerConfig> configs(1);
  BATON_ASSIGN_OR_RETURN(configs.front(), BuildConfig(f, role));
  if (!f.colocate_decode.empty()) configs.push_back(ColocatedConfig(f, configs.front()));
  return configs;
}

// One line for each worker.
void ReportWorkers(const WorkerGroup& group) {
  for (const std::unique_ptr<WorkerProcess>& worker : group.workers()) {
    SendReportToParent({{"role", WorkerRoleName(worker->role())},
                        {"worker_id", worker->worker_id()},
                        {"incarnation", worker->incarnation()},
                        {"pid", std::to_string(::getpid())},
                        {"grpc", worker->grpc_address()},
                        {"admin", worker->admin_address()},
                        {"kv", worker->kv_address()},
                        {"device", worker->DescribeDevice()}});
  }
}

int RunWorker(WorkerRole role, const std::vector<std::string>& args) {
  const std::string name = WorkerRoleName(role);
  FlagSet flags(name, role == WorkerRole::kPrefill ? "A worker that computes prompts."
                                                   : "A worker that generates tokens.");
  WorkerFlags f;
  Declare(flags, f);
  if (role == WorkerRole::kPrefill) DeclareColocation(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status s = CheckFlags(flags, f); !s.ok()) return Fail(name, s, kExitUsage);
  StatusOr<std::vector<WorkerConfig>> configs = BuildConfigs(f, role);
  if (!configs.ok()) return Fail(name, configs.status());
  const StatusOr<LogLevel> level = ParseLogLevel(f.tuning.log_level);
  if (!level.ok()) return Fail(name, level.status(), kExitUsage);
  ApplyLogFormat(f.telemetry);
  std::string log_name = configs->front().worker_id;
  if (!f.colocate_decode.empty()) log_name += "+" + f.colocate_decode;
  if (const Status s = InitLog({.role = log_name, .level = *level, .file = ""}); !s.ok()) {
    return Fail(name, s);
  }
  RaiseOpenFilesLimit();
  if (const Status s = CheckOpenFilesLimit(); !s.ok()) return Fail(name, s);
  RoleSignals signals;
  const StatusOr<std::unique_ptr<WorkerGroup>> group = WorkerGroup::Start(*std::move(configs));
  if (!group.ok()) return Fail(name, group.status());
  WorkerGroup& workers = **group;
  signals.SetStarted();
  ReportWorkers(workers);
  signals.Wait([&workers] {
    return workers.drain_asked() || !workers.failure().ok() || rpc::HasLostPort();
  });
  const Status drained = workers.Drain(signals.stop_now());
  const bool is_good = drained.ok() && workers.failure().ok() && !rpc::HasLostPort();
  signals.LimitEnd(kEndLimit, is_good ? kExitOk : kExitFailure);
  workers.Stop();
  FlushLog();
  if (const Status failure = workers.failure(); !failure.ok()) return Fail(name, failure);
  if (const Status lost = rpc::LostPort(); !lost.ok()) return Fail(name, lost);
  return drained.ok() ? kExitOk : Fail(name, drained);
}

}  // namespace

int RunPrefill(const std::vector<std::string>& args) {
  return RunWorker(WorkerRole::kPrefill, args);
}

int RunDecode(const std::vector<std::string>& args) { return RunWorker(WorkerRole::kDecode, args); }

}  // namespace baton::cli
