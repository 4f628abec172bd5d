// `baton serve`: one router and its workers as processes of this host.
#include <fcntl.h>
#include <signal.h>
#include <stdio_ext.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_join.h"

#include "src/base/errno_text.h"
#include "src/base/file_lock.h"
#include "src/base/hex.h"
#include "src/base/log_sink.h"
#include "src/base/print.h"
#include "src/base/quoted_text.h"
#include "src/base/random.h"
#include "src/base/size_text.h"
#include "src/base/unique_fd.h"
#include "src/cli/chat_session.h"
#include "src/cli/commands.h"
#include "src/cli/compute_threads.h"
#include "src/cli/flags.h"
#include "src/cli/foreign_flags.h"
#include "src/cli/http_client.h"
#include "src/cli/hub_model.h"
#include "src/cli/model_store.h"
#include "src/cli/objective_flag.h"
#include "src/cli/replace_file.h"
#include "src/cli/router_flags.h"
#include "src/cli/run_folders.h"
#include "src/cli/serve_cores.h"
#include "src/cli/site_flags.h"
#include "src/cli/supervisor.h"
#include "src/cli/telemetry_flags.h"
#include "src/cli/worker_flags.h"
#include "src/device/core_budget.h"
#include "src/device/shared_slots.h"
#include "src/model/hf_folder.h"
#include "src/model/model_report.h"
#include "src/tls/tls_identity.h"

namespace baton::cli {

using api::RouterConfig;
using device::CoreBudget;
using device::SharedSlots;
using router::ServedNames;
using tls::CheckTlsFlags;
using tls::TlsIdentity;

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxWorkers = 64;
constexpr int64_t kMinSilenceTimeoutS = 10;

// Flags of serve.
struct ServeFlags {
  std::vector<std::string> models;
  int64_t num_prefill = 1;
  int64_t num_decode = 1;
  std::string http = "127.0.0.1:8080";
  std::string grpc = "127.0.0.1:7070";
  std::string admin = "127.0.0.1:9090";
  int64_t threads = 0;
  std::string run_dir;
  // A stream waits 30 s for another worker: the next life of this one has to be there by then.
  int64_t silence_timeout_s = 15;
  bool colocate = false;
  std::string lend_cores = "on";
  std::string share_weights = "auto";
  std::string objective;
  RouterTuning router;
  WorkerTuning tuning;
  TelemetryFlags telemetry;
  SiteFlags sites;
};

// A descriptor of the model's file. With it a worker that starts again serves what this server
// began with, whatever has the name by then. Folders and split models are several files: not valid.
UniqueFd OpenModel(const ModelFile& model) {
  const StatusOr<std::vector<std::string>> parts = PartsOf(model.path);
  std::error_code error;
  const bool is_one_file = fs::is_regular_file(model.path, error) && parts.ok() &&
                           parts->size() == 1 && parts->front() == model.path;
  if (!is_one_file) return UniqueFd();
  UniqueFd file(::open(model.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    Print(stderr, "warning: {} cannot be kept open for workers that start again: {}\n", model.path,
          ErrnoText(errno));
  }
  return file;
}

// Flags that the servers of others have, and the titles of --help.
void Explain(FlagSet& flags) {
  AddForeignHints(flags);
  flags.Arrange("Serving",
                {"--mode", "--max-batch", "--slo", "--queue-wait-ms", "--prefill-wait-ms",
                 "--local-prefill-tokens", "--reasoning-format", "--tool-parser", "--shadow",
                 "--drain-timeout", "--request-timeout", "--sse-ping", "--idle-timeout"});
  flags.Arrange(
      "Addresses and access",
      {"--http", "--grpc", "--admin", "--ui", "--api-keys", "--allowed-hosts", "--cors-origins",
       "--tls-http", "--tls-cert", "--tls-key", "--tls-ca", "--cluster-secret-file"});
  flags.Arrange("Model", {"--max-context", "--served-model-name", "--tensor-parallel",
                          "--device-weights", "--deterministic", "--allow-inexact"});
  flags.Arrange("Workers", {"--prefill", "--decode", "--threads", "--lend-cores", "--share-weights",
                            "--device", "--isa", "--colocate", "--speculate", "--silence-timeout",
                            "--nccl-library", "--cublaslt-library"});
  flags.Arrange("KV memory and transfer",
                {"--kv-memory", "--kv-dtype", "--prefix-cache", "--transport"});
  flags.Arrange("Logs and metrics", {"--run-dir", "--log-level", "--log-format",
                                     "--metrics-aliases", "--otlp-endpoint"});
}

void Declare(FlagSet& flags, ServeFlags& f) {
  flags.AddWhole("MODEL", f.models,
                 "a .gguf file, a Hugging Face folder or a catalogue name (smollm2:135m); several "
                 "are served behind one router, and share --threads and --kv-memory equally");
  flags.Add("--prefill", f.num_prefill, {0, kMaxWorkers}, "prefill workers of each model");
  flags.Add("--decode", f.num_decode, {1, kMaxWorkers}, "decode workers of each model");
  flags.AddAddress("--http", f.http, "address of the OpenAI-compatible API");
  flags.AddAddress("--grpc", f.grpc, "address of the gRPC API");
  flags.AddAddress("--admin", f.admin, "address of the router's health and metrics");
  flags.Add("--threads", f.threads, {0, 1024},
            "compute threads of all workers together; 0 = one per processor, and no more than the "
            "CPU quota rounded up");
  flags.AddText("--run-dir", f.run_dir, "folder for logs and topology.json");
  flags.Add("--silence-timeout", f.silence_timeout_s, {0, 86400},
            "seconds (10 or more) after which a process that does not answer is killed and started "
            "again; 0 = never, as for a debugger");
  flags.Add("--colocate", f.colocate,
            "one prefill and one decode worker in one process: they share a GPU and one copy of "
            "the weights, and KV crosses within the process; both die together");
  flags.AddChoice("--lend-cores", f.lend_cores, {"on", "off"},
                  "a worker without a step to compute lends its threads to the other workers, and "
                  "has them back when it has one; off = each keeps its own part of --threads");
  flags.AddChoice("--share-weights", f.share_weights, {"auto", "on", "off"},
                  "workers of a model on the processor pack its weights together and keep them in "
                  "memory once; auto = where that memory can be on huge pages; off = each has its "
                  "own copy");
  DeclareObjective(flags, f.objective);
  DeclareRouterTuning(flags, f.router);
  DeclareTuning(flags, f.tuning);
  DeclareTelemetry(flags, f.telemetry);
  DeclareSites(flags, f.sites);
  Explain(flags);
}

}  // namespace

void AddServeFlagsElsewhere(FlagSet& flags) {
  FlagSet serve("serve", "");
  ServeFlags values;
  Declare(serve, values);
  flags.AddElsewhere(serve);
}

namespace {

// One process is one worker of each role, and nothing else can reach its KV.
Status CheckColocation(const ServeFlags& f) {
  if (!f.colocate) return OkStatus();
  if (f.router.mode == "aggregated") {
    return InvalidArgument(
        "--mode aggregated has decode workers only: there is nothing to put together by "
        "--colocate");
  }
  for (const auto& [flag, number] :
       {std::pair("--prefill", f.num_prefill), std::pair("--decode", f.num_decode)}) {
    if (number == 1) continue;
    return InvalidArgument("{} {}: --colocate is one prefill and one decode worker", flag, number);
  }
  if (f.tuning.tensor_parallel != "1") {
    return InvalidArgument("--tensor-parallel {}: --colocate is for workers of one GPU",
                           f.tuning.tensor_parallel);
  }
  if (f.tuning.transport != "auto") {
    return InvalidArgument(
        "--transport {}: --colocate hands KV over within the process; leave --transport out",
        f.tuning.transport);
  }
  return OkStatus();
}

Status CheckSupported(const ServeFlags& f) {
  BATON_RETURN_IF_ERROR(CheckColocation(f));
  const std::pair<std::string_view, std::string> addresses[] = {
      {"--http", f.http}, {"--grpc", f.grpc}, {"--admin", f.admin}};
  BATON_RETURN_IF_ERROR(CheckDistinct(addresses));
  BATON_RETURN_IF_ERROR(CheckTlsFlags(f.tuning.tls));
  BATON_RETURN_IF_ERROR(CheckTlsHttp(f.router, f.tuning.tls));
  BATON_RETURN_IF_ERROR(CheckTelemetry(f.telemetry));
  BATON_RETURN_IF_ERROR(SitesOf(f.sites).status());
  BATON_RETURN_IF_ERROR(ParseObjective(f.objective).status());
  RouterConfig router;  // only to see whether it can be made
  BATON_RETURN_IF_ERROR(ApplyRouterTuning(f.router, router));
  BATON_RETURN_IF_ERROR(CheckTuning(f.tuning));
  // A worker that leaves is silent for up to 6 s.
  if (f.silence_timeout_s > 0 && f.silence_timeout_s < kMinSilenceTimeoutS) {
    return InvalidArgument("--silence-timeout {}: give at least {} s, or 0 for never",
                           f.silence_timeout_s, kMinSilenceTimeoutS);
  }
  const bool has_one_worker =
      f.router.mode == "aggregated" && f.num_decode == 1 && f.models.size() == 1;
  if (f.tuning.tensor_parallel != "1" && f.tuning.device != "simt" && !has_one_worker) {
    return InvalidArgument(
        "--tensor-parallel {} needs GPUs of its own for each worker, and serve's workers share "
        "them: give --mode aggregated --decode 1, or start `baton router`, `baton prefill` and "
        "`baton decode`, the workers with a CUDA_VISIBLE_DEVICES each",
        f.tuning.tensor_parallel);
  }
  if (f.tuning.transport == "nccl" && f.tuning.device != "simt") {
    return InvalidArgument(
        "--transport nccl needs a GPU for each worker, and serve computes on one: use cuda_ipc, or "
        "start `baton router`, `baton prefill` and `baton decode`, the workers with a "
        "CUDA_VISIBLE_DEVICES each");
  }
  return OkStatus();
}

// In aggregated mode no worker computes prompts only; a pool that was asked for must not vanish.
Status CheckPools(const FlagSet& flags, const ServeFlags& f) {
  if (f.router.mode != "aggregated" || f.num_prefill == 0) return OkStatus();
  if (!flags.Given("--prefill")) return OkStatus();
  return InvalidArgument(
      "--mode aggregated has no prefill workers, but --prefill is {}; leave --prefill out or "
      "choose "
      "--mode disagg",
      f.num_prefill);
}

// A run folder of our own when none was given; removed at the end.
class RunFolder {
 public:
  explicit RunFolder(const std::string& wanted) : path_(wanted), own_(wanted.empty()) {}
  ~RunFolder() {
    std::error_code ignored;
    if (own_ && !path_.empty()) fs::remove_all(path_, ignored);
  }

  Status Create() {
    if (own_) {
      StatusOr<std::string> made = MakeRunFolder();
      if (!made.ok()) return made.status();
      path_ = *std::move(made);
    }
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) return Unavailable("cannot create --run-dir {}: {}", path_, error.message());
    path_ = fs::absolute(path_, error).string();
    if (error) return Unavailable("--run-dir {}: {}", path_, error.message());
    return Lock();
  }

  // Keeps the logs because something went wrong.
  void Keep() { own_ = false; }
  const std::string& path() const { return path_; }

 private:
  // Two servers in one folder would overwrite each other's secret and topology.
  Status Lock() {
    lock_.reset(::open((path_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock_.valid()) return Unavailable("--run-dir {}: {}", path_, ErrnoText(errno));
    // Only a server that tidies can hold the lock of a folder that was just made, for a moment.
    const LockTry lock = TryFileLock(lock_.get(), LOCK_EX | (own_ ? 0 : LOCK_NB));
    switch (lock.state) {
      case LockState::kTaken:
        return OkStatus();
      case LockState::kHeld:
        return FailedPrecondition("--run-dir {} is used by another `baton serve`; give another one",
                                  path_);
      case LockState::kNoLocks:
        Print(stderr,
              "--run-dir {}: this file system has no locks ({}), so a second `baton serve` in that "
              "folder would not be noticed\n",
              path_, ErrnoText(lock.error));
        return OkStatus();
      case LockState::kFailed:
        break;
    }
    return Unavailable("cannot lock {}/lock: {}", path_, ErrnoText(lock.error));
  }

  std::string path_;
  bool own_;
  UniqueFd lock_;  // held while the server lives; closed in the children
};

// 32 random bytes that only this user can read; workers of this server prove they know them.
std::string NewSecret() {
  std::string secret;
  for (int i = 0; i < 4; ++i) secret += HexFromU64(RandomU64());
  return secret;
}

// Files of old run folders are cleaned away; whoever starts later must have the same secret.
void RestoreSecret(const std::string& path, const std::string& secret) {
  if (::access(path.c_str(), F_OK) == 0) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const Status status = ReplaceFile(path, secret, 0600);
  if (!status.ok()) PrintToStderr("{}\n", std::string(status.message()));
}

// The workers of each model.
std::vector<ServeWorkers> WorkersOf(const ServeFlags& f) {
  return ShareAmongModels(
      {.num_prefill = f.num_prefill, .num_decode = f.num_decode, .threads = f.threads},
      f.models.size());
}

// A model that is served: its argument, its file, its descriptor and its workers.
struct ServedModel {
  std::string argument;
  ModelFile file;
  UniqueFd fd;       // not valid: see OpenModel
  UniqueFd weights;  // memory for the packed weights; not valid: each worker has its own
  ServeWorkers workers;
  int64_t idx = 0;  // its place among the models: workers of all models have names of their own
};

// --kv-memory of one worker: several models share what each worker of one would have.
Status ShareKvMemory(ServeFlags& f) {
  if (f.models.size() < 2 || f.tuning.kv_memory.empty()) return OkStatus();
  BATON_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(f.tuning.kv_memory));
  f.tuning.kv_memory = std::to_string(bytes / f.models.size());
  return OkStatus();
}

ChildSpec WorkerSpec(const ServeFlags& f, const ChildReport& router, const ServedModel& model,
                     const std::string& role, int64_t idx) {
  const bool is_prefill = role == "prefill";
  const ThreadShare share = ShareThreads(model.workers);
  const int64_t threads = is_prefill ? share.prefill : share.decode;
  const int64_t first_idx = model.idx * (is_prefill ? f.num_prefill : f.num_decode);
  ChildSpec spec;
  spec.role = role;
  spec.name = fmt::format("{}-{}", role, first_idx + idx);
  spec.model_fd = model.fd.get();
  spec.model_id = model.file.id;
  spec.weights_fd = model.weights.get();
  spec.weights_need_huge_pages = f.share_weights == "auto";
  spec.args = {
      "--router=" + router.at("grpc"), "--worker-id=" + spec.name,
      "--model=" + model.argument,     "--listen=127.0.0.1:0",
      "--admin=127.0.0.1:0",           fmt::format("--threads={}", NumComputeThreads(threads))};
  if (!f.colocate) spec.args.emplace_back("--kv-listen=127.0.0.1:0");
  // All workers of serve share a device, where a prefill worker's own copy in bf16 would take three
  // times what theirs do.
  WorkerTuning tuning = f.tuning;
  if (tuning.device_weights == "auto") tuning.device_weights = "packed";
  AppendTuning(tuning, spec.args);
  AppendObjective(f.objective, spec.args);
  AppendTelemetry(f.telemetry, spec.args);
  AppendSites(f.sites, spec.args);
  return spec;
}

// The workers of one model, appended to `specs`.
void AddWorkerSpecs(const ServeFlags& f, const ChildReport& router, const ServedModel& model,
                    std::vector<ChildSpec>* specs) {
  if (f.colocate) {
    ChildSpec both = WorkerSpec(f, router, model, "prefill", 0);
    const std::string decode = fmt::format("decode-{}", model.idx);
    const int64_t threads = NumComputeThreads(ShareThreads(model.workers).decode);
    both.args.push_back("--colocate-decode=" + decode);
    both.args.push_back(fmt::format("--colocate-threads={}", threads));
    both.name += "+" + decode;
    both.num_reports = 2;
    specs->push_back(std::move(both));
    return;
  }
  for (int64_t i = 0; i < f.num_prefill; ++i) {
    specs->push_back(WorkerSpec(f, router, model, "prefill", i));
  }
  for (int64_t i = 0; i < f.num_decode; ++i) {
    specs->push_back(WorkerSpec(f, router, model, "decode", i));
  }
}

// Why the model has no chats; "" = it has. A model without a chat template, or with a broken one,
// is served all the same. The supervisor's thread waits for the answer: before clients know of the
// server, and for half a second.
std::string WhyNoChats(const std::string& http_address, const std::string& model) {
  constexpr int64_t kLimitMs = 500;
  const StatusOr<HttpUrl> url = ParseHttpUrl("http://" + http_address);
  if (!url.ok()) return "";
  ChatOptions options;
  options.url = *url;
  options.model = model;
  return ChatSession(std::move(options)).WhyNoChats(kLimitMs);
}

// Names are given to models that are served, and to no other one. `ids`: of all of them.
Status CheckServedNames(const ServeFlags& f, const std::vector<std::string>& ids) {
  BATON_ASSIGN_OR_RETURN(const ServedNames names, ServedNames::Parse(f.router.served_names));
  const std::string all = absl::StrJoin(ids, ", ");
  for (const std::string& other : names.Models()) {
    if (std::ranges::find(ids, other) != ids.end()) continue;
    return InvalidArgument("--served-model-name: {} is not served, {} {}", QuotedForMessage(other),
                           all, ids.size() == 1 ? "is" : "are");
  }
  if (ids.size() == 1) return OkStatus();
  if (!names.NamesOf("", false).empty()) {
    return InvalidArgument(
        "--served-model-name {}: with several models say which one is meant: "
        "{}=NAME",
        f.router.served_names, ids.front());
  }
  for (const std::string& id : ids) {
    for (const std::string& name : names.NamesOf(id, false)) {
      if (name == id || std::ranges::find(ids, name) == ids.end()) continue;
      return InvalidArgument(
          "--served-model-name: {} cannot be called {}, which is the id of "
          "another model here",
          id, name);
    }
  }
  return OkStatus();
}

// InvalidArgument: there is no model, one is given twice, or there are more workers than may be.
Status CheckModels(const ServeFlags& f) {
  if (f.models.empty()) {
    return InvalidArgument("MODEL is missing: a .gguf file, a model folder or smollm2:135m");
  }
  for (size_t i = 0; i < f.models.size(); ++i) {
    BATON_RETURN_IF_ERROR(CheckPullName(f.models[i]));
    for (size_t j = 0; j < i; ++j) {
      if (f.models[i] != f.models[j]) continue;
      return InvalidArgument("MODEL {} is given twice, as argument {} and as argument {}",
                             f.models[i], j + 1, i + 1);
    }
  }
  const int64_t num_models = std::ssize(f.models);
  const int64_t most = num_models * std::max(f.num_prefill, f.num_decode);
  if (num_models > 1 && most > kMaxWorkers) {
    return InvalidArgument(
        "{} models with --prefill {} and --decode {} each have more than {} "
        "workers of a role",
        num_models, f.num_prefill, f.num_decode, kMaxWorkers);
  }
  return OkStatus();
}

bool MayComputeHere(const ServeFlags& f) {
  return f.tuning.device == "auto" || f.tuning.device == "cpu";
}

// Memory for the packed weights of one model. It takes a page until a worker joins it.
UniqueFd MakeSharedWeights(const ServeFlags& f) {
  if (f.share_weights == "off" || !MayComputeHere(f)) return UniqueFd();
  StatusOr<UniqueFd> file = SharedSlots::CreateFile();
  if (file.ok()) return *std::move(file);
  Print(stderr, "warning: weights are not shared, each worker has its own copy: {}\n",
        std::string(file.status().message()));
  return UniqueFd();
}

// Resolves or fetches each model. `*is_usage`: the error is one of the command line.
StatusOr<std::vector<ServedModel>> ResolveModels(const ServeFlags& f, bool* is_usage) {
  std::vector<ServedModel> models;
  const std::vector<ServeWorkers> workers = WorkersOf(f);
  std::vector<std::string> ids;
  for (size_t i = 0; i < f.models.size(); ++i) {
    // Before gigabytes are fetched.
    Status usage;
    const auto check = [&](const ModelFile& file) {
      for (size_t j = 0; j < i; ++j) {
        if (ids[j] != file.id) continue;
        usage = InvalidArgument(
            "the models {} and {} have the same id {}: give one file or folder "
            "another name",
            f.models[j], f.models[i], QuotedForMessage(file.id));
        return usage;
      }
      ids.push_back(file.id);
      if (ids.size() == f.models.size()) usage = CheckServedNames(f, ids);
      return usage;
    };
    StatusOr<ModelFile> file = ResolveOrPullModel(f.models[i], check);
    *is_usage = !usage.ok();
    if (!file.ok()) return file.status();
    ServedModel model{.argument = f.models[i],
                      .file = *std::move(file),
                      .fd = UniqueFd(),
                      .weights = MakeSharedWeights(f),
                      .workers = workers[i],
                      .idx = static_cast<int64_t>(i)};
    model.fd = OpenModel(model.file);
    models.push_back(std::move(model));
  }
  return models;
}

std::string IdsOf(const std::vector<ServedModel>& models, const std::string& separator) {
  std::vector<std::string> ids;
  for (const ServedModel& model : models) ids.push_back(model.file.id);
  return absl::StrJoin(ids, separator);
}

// The cores that the workers share; null when each keeps its own.
std::unique_ptr<CoreBudget> SharedCores(const ServeFlags& f) {
  if (f.lend_cores == "off" || !MayComputeHere(f)) return nullptr;
  StatusOr<std::unique_ptr<CoreBudget>> budget = MakeCoreBudget(WorkersOf(f));
  if (budget.ok()) return *std::move(budget);
  Print(stderr, "warning: cores are not lent, each worker keeps its own: {}\n",
        std::string(budget.status().message()));
  return nullptr;
}

// How threads and KV memory are shared, a line each; of one model the threads alone.
std::string SharesText(const ServeFlags& f, const std::vector<ServedModel>& models, bool lends) {
  if (models.size() == 1) return ThreadsLine(models.front().workers, lends) + "\n";
  std::string text;
  for (const ServedModel& model : models) {
    const ThreadShare share = ShareThreads(model.workers);
    text += fmt::format("{}: {} compute threads of the models' equal shares: ", model.file.id,
                        model.workers.threads);
    if (f.num_prefill > 0) text += fmt::format("{} a prefill worker, ", share.prefill);
    text += fmt::format("{} a decode worker{}\n", share.decode,
                        lends ? "; a worker without work lends its own" : "");
  }
  const std::string memory =
      f.tuning.kv_memory.empty()
          ? "the larger of 1 GiB and one sequence of --max-context"
          : fmt::format("{} bytes, an equal share of --kv-memory", f.tuning.kv_memory);
  return text + fmt::format("KV memory of each worker: {}\n", memory);
}

// Gives each worker its place in the budget, and takes the cores of those that have ended.
void LendCores(CoreBudget* budget, SupervisorConfig* config) {
  config->workers = [budget, start = std::move(config->workers)](const ChildReport& router) {
    std::vector<ChildSpec> specs = start(router);
    uint32_t member = 0;
    for (ChildSpec& spec : specs) {
      spec.cores_fd = budget->fd();
      spec.core_member = member;
      member += static_cast<uint32_t>(spec.num_reports);
    }
    return specs;
  };
  config->on_death = [budget](const ChildSpec& ended) {
    if (ended.cores_fd < 0) return;
    for (uint32_t i = 0; i < ended.num_reports; ++i) budget->Vacate(ended.core_member + i);
  };
}

// Says on stderr which models have no chats, and gives their names. A model with names of its own
// goes by them alone; the only one goes by none.
std::vector<std::string> WarnWithoutChats(const std::vector<ServedModel>& models,
                                          const ServedNames& names,
                                          const std::string& http_address) {
  std::vector<std::string> without;
  const bool is_only = models.size() == 1;
  for (const ServedModel& model : models) {
    const std::vector<std::string> own = names.NamesOf(model.file.id, false);
    const std::string name = own.empty() ? model.file.id : own.front();
    const std::string why = WhyNoChats(http_address, is_only ? "" : name);
    if (why.empty()) continue;
    Print(stderr, "warning: {}chat requests will be refused: {}\n", is_only ? "" : name + ": ",
          why);
    without.push_back(name);
  }
  return without;
}

// The line that says where clients reach the server. `without_chats`: names of models.
std::string ReadyLine(const std::vector<ServedModel>& models,
                      const std::vector<std::string>& without_chats, const ChildReport& router,
                      const std::string& scheme, bool has_page) {
  const std::string base = fmt::format("{}://{}", scheme, router.at("http"));
  const bool has_chats = without_chats.size() < models.size();
  std::string line =
      models.size() == 1 ? models.front().file.id : IdsOf(models, ", ") + ": the server";
  line += fmt::format(" is ready: {}/v1", base);
  if (!has_chats) line += "  no chats";
  if (has_chats && !without_chats.empty()) {
    line += "  no chats with " + absl::StrJoin(without_chats, ", ");
  }
  if (has_page) line += fmt::format("  {}page {}/ui", has_chats ? "chat " : "", base);
  return line + fmt::format("  grpc {}  admin http://{}\n", router.at("grpc"), router.at("admin"));
}

SupervisorConfig BuildConfig(const ServeFlags& f, const std::vector<ServedModel>& models,
                             const RunFolder& folder, CoreBudget* budget) {
  SupervisorConfig config;
  config.run_dir = folder.path();
  config.model_id = IdsOf(models, ",");
  config.has_several_models = models.size() > 1;
  config.drain_timeout_s = f.tuning.drain_timeout_s;
  config.silence_timeout_s = f.silence_timeout_s;
  const std::string& dir = folder.path();
  config.router = {
      .role = "router", .name = "router-0", .args = {}, .log_file = dir + "/router-0.log"};
  config.router.args = {"--grpc=" + f.grpc,
                        "--http=" + f.http,
                        "--admin=" + f.admin,
                        fmt::format("--drain-timeout={}", f.tuning.drain_timeout_s),
                        "--cluster-secret-file=" + f.tuning.secret_file,
                        "--log-level=" + f.tuning.log_level};
  for (const ServedModel& model : models) {
    config.router.args.push_back("--expect-model=" + model.file.id);
    if (model.fd.valid()) config.router.tokenizer_fds.push_back(model.fd.get());
  }
  AppendRouterTuning(f.router, config.router.args);
  AppendObjective(f.objective, config.router.args);
  AppendTls(f.tuning.tls, config.router.args);
  AppendTelemetry(f.telemetry, config.router.args);
  AppendSites(f.sites, config.router.args);
  config.workers = [f, dir, &models](const ChildReport& router) {
    std::vector<ChildSpec> specs;
    for (const ServedModel& model : models) AddWorkerSpecs(f, router, model, &specs);
    for (ChildSpec& spec : specs) spec.log_file = fmt::format("{}/{}.log", dir, spec.name);
    return specs;
  };
  if (budget != nullptr) LendCores(budget, &config);
  const bool lends = budget != nullptr && budget->num_members() > 1;
  const std::string shares = SharesText(f, models, lends);
  const std::string scheme = f.router.tls_http == "on" ? "https" : "http";
  // Asking needs a key, or an authority that signs for this address.
  const bool may_ask = f.router.api_keys.empty() && scheme == "http";
  config.on_ready = [&models, shares, scheme, may_ask, has_page = f.router.ui == "on",
                     names = *ServedNames::Parse(f.router.served_names)](
                        const ChildReport& router, const std::vector<ChildReport>& workers) {
    const std::vector<std::string> without_chats =
        may_ask ? WarnWithoutChats(models, names, router.at("http")) : std::vector<std::string>();
    for (const ChildReport& worker : workers) {
      Print("{:<10} pid {:<8} {}\n", worker.at("worker_id"), worker.at("pid"), worker.at("device"));
    }
    Print("{}", shares);
    Print("{}", ReadyLine(models, without_chats, router, scheme, has_page));
    // For information: a server's work is done whether or not anybody can read of it.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      ::__fpurge(stdout);
      std::clearerr(stdout);
    }
    SendReportToParent({{"http", router.at("http")}, {"grpc", router.at("grpc")}});
  };
  return config;
}

// The faults of the models' files by their header, of a start that came to no model: a user who
// mends the port would meet them next. "" = there are none.
std::string FaultsOf(const std::vector<ServedModel>& models) {
  std::string faults;
  for (const ServedModel& model : models) {
    const auto file = model::OpenModelFile(model.file.path);
    const Status status = file.ok() ? model::CheckServable(**file) : file.status();
    if (status.ok()) continue;
    faults +=
        fmt::format("; {}: {}", QuotedForMessage(model.argument), std::string(status.message()));
  }
  return faults;
}

}  // namespace

int RunServe(const std::vector<std::string>& args) {
  FlagSet flags("serve", "Starts a router, prefill workers and decode workers on this host.");
  ServeFlags f;
  Declare(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status status = CheckModels(f); !status.ok()) {
    return Fail("serve", status, kExitUsage);
  }
  if (const Status status = CheckSupported(f); !status.ok()) {
    return Fail("serve", status, kExitUsage);
  }
  if (const Status status = CheckPools(flags, f); !status.ok()) {
    return Fail("serve", status, kExitUsage);
  }
  if (f.router.mode == "aggregated") f.num_prefill = 0;
  ::signal(SIGPIPE, SIG_IGN);  // `serve | head`: what reads its output may end, the server goes on
  // Here once, rather than in every child again and again.
  if (!f.tuning.tls.empty()) {
    const Status status = TlsIdentity::Load(f.tuning.tls).status();
    if (!status.ok()) return Fail("serve", status);
  }
  if (const Status keys = CheckApiKeys(f.router); !keys.ok()) return Fail("serve", keys);
  // Read here once: it may be a pipe, and a process that is started again belongs to these.
  StatusOr<std::string> own_secret = NewSecret();
  if (!f.tuning.secret_file.empty()) own_secret = ReadClusterSecret(f.tuning.secret_file);
  if (!own_secret.ok()) return Fail("serve", own_secret.status());
  bool is_usage = false;
  const StatusOr<std::vector<ServedModel>> models = ResolveModels(f, &is_usage);
  if (!models.ok()) return Fail("serve", models.status(), is_usage ? kExitUsage : kExitFailure);
  if (const Status shared = ShareKvMemory(f); !shared.ok()) {
    return Fail("serve", shared, kExitUsage);
  }
  RunFolder folder(f.run_dir);
  if (const Status status = folder.Create(); !status.ok()) return Fail("serve", status);
  const std::string secret_copy = folder.path() + "/cluster-secret";
  std::error_code ignored;
  const bool is_users = std::filesystem::equivalent(f.tuning.secret_file, secret_copy, ignored);
  const absl::Cleanup remove_copy = [&] {
    if (!is_users) std::filesystem::remove(secret_copy, ignored);
  };
  if (!is_users) {
    const Status status = ReplaceFile(secret_copy, *own_secret, 0600);
    if (!status.ok()) return Fail("serve", status);
  }
  f.tuning.secret_file = secret_copy;
  if (f.router.mode == "disagg" && f.num_prefill == 0) {
    Print(stderr, "--prefill 0: decode workers compute the prompts (path=local)\n");
  }
  const std::unique_ptr<CoreBudget> budget = SharedCores(f);
  SupervisorConfig config = BuildConfig(f, *models, folder, budget.get());
  config.before_restart = [path = f.tuning.secret_file, secret = *own_secret] {
    RestoreSecret(path, secret);
  };
  Supervisor supervisor(std::move(config));
  const Status status = supervisor.Run();
  if (!status.ok()) {
    folder.Keep();
    // One line: what starts Baton may show its user only the last one.
    const std::string faults = supervisor.started_router() ? "" : FaultsOf(*models);
    return Fail("serve", Status(status.code(),
                                fmt::format("{}{}; the logs are in {}",
                                            std::string(status.message()), faults, folder.path())));
  }
  return kExitOk;
}

}  // namespace baton::cli
