// `baton router`, `baton prefill` and `baton decode`: one process of a deployment each.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "src/base/log.h"
#include "src/base/size_text.h"
#include "src/cli/child_process.h"
#include "src/cli/commands.h"
#include "src/cli/compute_threads.h"
#include "src/cli/flags.h"
#include "src/cli/model_store.h"
#include "src/cli/role_signals.h"
#include "src/cli/telemetry_flags.h"
#include "src/cli/worker_flags.h"
#include "src/worker/advertise.h"
#include "src/worker/worker_process.h"

namespace baton {
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
  WorkerTuning tuning;
  TelemetryFlags telemetry;
};

void Declare(FlagSet& flags, WorkerFlags& f) {
  flags.AddAddress("--router", f.routers, "gRPC address of a router; several with commas");
  flags.AddAddress("--listen", f.listen, "gRPC address of this worker");
  flags.AddAddress("--kv-listen", f.kv_listen,
                   "address for KV data; default: the host of --listen and a free port");
  flags.Add("--advertise", f.advertise,
            "HOST or HOST:PORT by which others reach this worker; default: the host of --listen");
  flags.AddAddress("--admin", f.admin, "address for health and metrics");
  flags.Add("--model", f.model, "a .gguf file, a Hugging Face folder or a catalogue name");
  flags.Add("--worker-id", f.worker_id, "stable name, 1 to 64 of [a-z0-9-]");
  flags.Add("--threads", f.threads, kThreadsRange, "compute threads; 0 = one per processor");
  DeclareTuning(flags, f.tuning);
  DeclareTelemetry(flags, f.telemetry);
}

// What is wrong with the command line itself, whatever files and machines there are.
Status CheckFlags(const FlagSet& flags, const WorkerFlags& f) {
  BATON_RETURN_IF_ERROR(CheckTuning(f.tuning));
  BATON_RETURN_IF_ERROR(CheckTelemetry(f.telemetry));
  if (f.routers.empty()) {
    return InvalidArgument("--router is missing: the gRPC address of a router");
  }
  if (f.model.empty()) {
    return InvalidArgument("--model is missing: a .gguf file, a model folder or smollm2:135m");
  }
  if (flags.Given("--worker-id")) BATON_RETURN_IF_ERROR(CheckWorkerId(f.worker_id));
  return CheckAdvertise(f.advertise);
}

StatusOr<WorkerConfig> BuildConfig(const WorkerFlags& f, WorkerRole role) {
  WorkerConfig config;
  BATON_ASSIGN_OR_RETURN(const ModelFile model, ResolveModel(f.model));
  BATON_ASSIGN_OR_RETURN(config.cluster_secret, ReadClusterSecret(f.tuning.secret_file));
  config.tls = f.tuning.tls;
  config.prefix_cache = f.tuning.prefix_cache == "on";
  BATON_ASSIGN_OR_RETURN(config.device, ParseDeviceKind(f.tuning.device));
  BATON_ASSIGN_OR_RETURN(config.isa, ParseIsa(f.tuning.isa));
  BATON_ASSIGN_OR_RETURN(config.transport, ParseTransportKind(f.tuning.transport));
  config.nccl_library = f.tuning.nccl_library;
  if (!f.tuning.kv_memory.empty()) {
    BATON_ASSIGN_OR_RETURN(config.kv_memory_bytes, ParseSize(f.tuning.kv_memory));
  }
  config.role = role;
  config.keeps_packed = f.tuning.device_weights == "packed" ||
                        (f.tuning.device_weights == "auto" && role == WorkerRole::kDecode);
  config.worker_id = f.worker_id.empty() ? fmt::format("{}-0", WorkerRoleName(role)) : f.worker_id;
  config.routers = f.routers;
  config.listen = f.listen;
  config.kv_listen = f.kv_listen;
  config.advertise = f.advertise;
  config.admin = f.admin;
  config.model_path = model.path;
  config.model_id = model.id;
  config.num_threads = NumComputeThreads(f.threads);
  config.max_context = static_cast<uint32_t>(f.tuning.max_context);
  config.kv_dtype = f.tuning.kv_dtype == "f32" ? KvDtype::kF32 : KvDtype::kBf16;
  config.drain_timeout_ms = f.tuning.drain_timeout_s * 1000;
  config.allow_inexact = f.tuning.allow_inexact;
  config.metric_aliases = AliasesOf(f.telemetry);
  config.otlp_endpoint = f.telemetry.otlp_endpoint;
  return config;
}

int RunWorker(WorkerRole role, const std::vector<std::string>& args) {
  const std::string name = WorkerRoleName(role);
  FlagSet flags(name, role == WorkerRole::kPrefill ? "A worker that computes prompts."
                                                   : "A worker that generates tokens.");
  WorkerFlags f;
  Declare(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status s = CheckFlags(flags, f); !s.ok()) return Fail(name, s, kExitUsage);
  StatusOr<WorkerConfig> config = BuildConfig(f, role);
  if (!config.ok()) return Fail(name, config.status());
  const StatusOr<LogLevel> level = ParseLogLevel(f.tuning.log_level);
  if (!level.ok()) return Fail(name, level.status(), kExitUsage);
  ApplyLogFormat(f.telemetry);
  if (const Status s = InitLog({.role = config->worker_id, .level = *level, .file = ""}); !s.ok()) {
    return Fail(name, s);
  }
  RoleSignals signals;
  const std::string worker_id = config->worker_id;
  StatusOr<std::unique_ptr<WorkerProcess>> worker = WorkerProcess::Start(*std::move(config));
  if (!worker.ok()) return Fail(name, worker.status());
  signals.SetStarted();
  SendReportToParent({{"role", name},
                      {"worker_id", worker_id},
                      {"incarnation", (*worker)->incarnation()},
                      {"pid", std::to_string(::getpid())},
                      {"grpc", (*worker)->grpc_address()},
                      {"admin", (*worker)->admin_address()},
                      {"kv", (*worker)->kv_address()},
                      {"device", (*worker)->DescribeDevice()}});
  signals.Wait([&worker] { return (*worker)->drain_asked() || !(*worker)->failure().ok(); });
  const Status drained = (*worker)->Drain(signals.stop_now());
  FlushLog();
  if (const Status failure = (*worker)->failure(); !failure.ok()) return Fail(name, failure);
  return drained.ok() ? kExitOk : Fail(name, drained);
}

}  // namespace

int RunPrefill(const std::vector<std::string>& args) {
  return RunWorker(WorkerRole::kPrefill, args);
}

int RunDecode(const std::vector<std::string>& args) { return RunWorker(WorkerRole::kDecode, args); }

}  // namespace baton
