#include "src/worker/worker_process.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "grpcpp/server_builder.h"

#include "src/base/bind_fault.h"
#include "src/base/clock.h"
#include "src/base/hex.h"
#include "src/base/keepalive.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/base/random.h"
#include "src/base/size_text.h"
#include "src/device/core_share.h"
#include "src/engine/answer_guide.h"
#include "src/engine/first_step_cost.h"
#include "src/engine/first_token.h"
#include "src/engine/prefix_journal.h"
#include "src/model/compute_device.h"
#include "src/model/device_model.h"
#include "src/model/hf_folder.h"
#include "src/model/model.h"
#include "src/otlp/otlp_exporter.h"
#include "src/rpc/cluster_channel.h"
#include "src/rpc/credentials.h"
#include "src/rpc/protobuf_log.h"
#include "src/text/grammar_cache.h"
#include "src/tls/tls_identity.h"
#include "src/wire/answer_grammar.h"
#include "src/worker/advertise.h"
#include "src/worker/fast_library.h"
#include "src/worker/handoff_codec.h"
#include "src/worker/hello_codec.h"
#include "src/worker/kv_parts.h"
#include "src/worker/late_work.h"
#include "src/worker/machine_rates.h"
#include "src/worker/memory_sum.h"
#include "src/worker/model_text.h"
#include "src/worker/peer_updates.h"
#include "src/worker/registration.h"
#include "src/worker/request_codec.h"
#include "src/worker/session_service.h"
#include "src/worker/worker_admin.h"
#include "src/worker/worker_drain.h"
#include "src/worker/worker_load.h"
#include "src/worker/worker_spans.h"

namespace baton::worker {

using device::Accelerator;
using device::CoreShare;
using device::DeviceKind;
using device::DeviceKindName;
using device::StageSink;
using device::ThreadPool;
using engine::AnswerGuides;
using engine::ComputeFirstToken;
using engine::Engine;
using engine::EngineConfig;
using engine::FirstStepCost;
using engine::OfOneRank;
using engine::OutputRowTokens;
using engine::PrefixJournal;
using engine::RequestState;
using engine::RequestStatus;
using engine::RooflineModelOf;
using engine::SpeculateMode;
using engine::SpeculateModeName;
using kv::ChainKeyCheck;
using kv::DeriveChainKey;
using kv::HostId;
using kv::kDefaultTenant;
using kv::KvDtype;
using kv::KvDtypeName;
using kv::KvEndpoint;
using kv::KvMemory;
using kv::PeerAddress;
using kv::TransportKind;
using limits::kMaxBatchTokens;
using limits::kMaxClusterMessageBytes;
using limits::kMaxPromptLogRows;
using model::CheckDeviceInBuild;
using model::ComputeDevice;
using model::DeviceModel;
using model::FastMode;
using model::GgufFile;
using model::LoadedModel;
using model::Model;
using model::OpenComputeDevice;
using model::OpenModelFile;
using otlp::OtlpConfig;
using otlp::OtlpExporter;
using otlp::OtlpTarget;
using otlp::OtlpTargetAtStart;
using otlp::ProcessEnvironment;
using rpc::ClientCertificate;
using rpc::MakeServerCredentials;
using rpc::TakeOverGrpcLog;
using rpc::TakeOverProtobufLog;
using scheduler::RooflineModel;
using scheduler::SchedulerConfig;
using scheduler::StepShape;
using scheduler::StepWeights;
using text::GrammarCache;
using tls::TlsIdentity;

namespace {

constexpr uint32_t kCpuBlockSize = 16;
// A tile of attention's keys is then one block.
constexpr uint32_t kDeviceBlockSize = 64;
// How long a prompt whose decode worker is lost keeps its blocks for another: a router that lives
// places it again within milliseconds.
constexpr int64_t kStrandUs = 3'000'000;

std::string RanksText(uint32_t num_ranks, size_t num_peers) {
  if (num_ranks == 1) return "";
  return num_peers > 0 ? fmt::format(" and {} others, a rank of the model on each", num_peers)
                       : fmt::format(", all {} ranks of the model on it", num_ranks);
}

}  // namespace

// In the order of construction; destroyed in reverse.
struct WorkerProcess::Parts {
  WorkerConfig config;
  Colocation colocation;
  Incarnation incarnation = RandomIncarnation();
  std::string incarnation_text;
  ModelText text;
  int64_t loaded_unix_s = 0;

  std::unique_ptr<CoreShare> cores;  // null: the pool's threads may always run
  std::unique_ptr<ThreadPool> pool;
  ComputeDevice device;
  std::unique_ptr<Accelerator> part_of_next;  // of the device, until the next worker takes it
  std::unique_ptr<LoadedModel> model;
  std::unique_ptr<KvParts> kv;
  std::unique_ptr<PeerUpdates> peers;  // null without an endpoint: it has met the only peer it can
  std::unique_ptr<PrefixJournal> prefixes;  // null without a prefix cache
  ProtoHandoffWire wire;
  std::unique_ptr<SessionService> sessions;
  std::unique_ptr<GrammarCache> grammars;
  std::unique_ptr<AnswerGuides> guides;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<grpc::Server> server;
  std::string grpc_address;
  std::string kv_address;
  std::string admin_address;
  Mutex registration_mutex;
  // Shared by the admin port for the time of a question.
  std::shared_ptr<Registration> registration BATON_GUARDED_BY(registration_mutex);
  Status failure BATON_GUARDED_BY(registration_mutex);
  std::unique_ptr<WorkerAdmin> admin;
  std::unique_ptr<OtlpExporter> exporter;  // null without --otlp-endpoint
  std::unique_ptr<WorkerSpans> spans;
  std::unique_ptr<LateWork> late_work;

  std::atomic<bool> draining{false};
  std::atomic<bool> drain_asked{false};
  std::atomic<int64_t> drain_timeout_ms{0};  // of the config, or of who asked
  std::atomic<bool> stopped{false};

  void MakePool();
  // Null: the engine thread reads all rows of logits itself.
  bool LeavesCores() const;
  ThreadPool* SamplingPool() const;
  Status LoadModel();
  Status ShareModel(Parts& first);
  Status LoadWeights(const GgufFile& file);
  Status LoadOnDevice(const GgufFile& file);
  SchedulerConfig SchedulerLimits() const;
  // With what the model adds.
  SchedulerConfig SchedulerOfModel() const;
  void EstimateSteps(SchedulerConfig* scheduler) const;
  Status MakeEngine();
  void CheckTokenizer();
  Status TryOneToken();
  Status StartServer();
  void Register();
  Status StartAdmin();
  Status StartSpans();
  Status Ready();
  std::shared_ptr<Registration> CurrentRegistration();
  Status OfModel(const Status& fault) const;
  v1::WorkerHello Hello() const;
  v1::WorkerLoad Load();
  MemoryFacts Memory() const;
  std::string ThreadsText() const;
};

// A fault of the model, as the operator named it.
Status WorkerProcess::Parts::OfModel(const Status& fault) const {
  const bool is_named = !config.model_argument.empty();
  return WithPrefix(fault, "--model " + (is_named ? config.model_argument : config.model_path));
}

// Loading is computing too: the cores are held until the engine takes over.
void WorkerProcess::Parts::MakePool() {
  uint32_t num_threads = config.num_threads;
  if (config.core_budget_fd >= 0) {
    StatusOr<std::unique_ptr<CoreShare>> share =
        CoreShare::Attach(config.core_budget_fd, config.core_member);
    if (share.ok()) {
      cores = *std::move(share);
      num_threads = cores->max_cores();
      cores->BeginStep();
    } else {
      BATON_LOG_WARN("{} lends no cores and borrows none, it has {} threads: core budget: {}",
                     config.worker_id, config.num_threads, std::string(share.status().message()));
    }
  }
  pool = std::make_unique<ThreadPool>(
      ThreadPool::Options{.num_threads = num_threads, .cores = cores.get()});
}

// A device's steps leave the cores of the host to other workers, where there are any.
bool WorkerProcess::Parts::LeavesCores() const {
  return device.accelerator != nullptr && cores != nullptr && !cores->is_alone();
}

// Without cores of the budget, threads that need a seat would never run.
ThreadPool* WorkerProcess::Parts::SamplingPool() const {
  return LeavesCores() ? nullptr : pool.get();
}

Status WorkerProcess::Parts::LoadModel() {
  StatusOr<std::unique_ptr<GgufFile>> opened = OpenModelFile(config.model_path);
  if (!opened.ok()) return OfModel(opened.status());
  const std::unique_ptr<GgufFile> file = *std::move(opened);
  BATON_ASSIGN_OR_RETURN(text, ModelText::Read(*file, config.model_path));
  if (text.eog_tokens.empty()) {
    BATON_LOG_WARN("no token of the model ends an answer: each goes on until max_tokens");
  }
  MakePool();
  BATON_RETURN_IF_ERROR(LoadWeights(*file));
  loaded_unix_s = SystemClock().WallUnixMs() / 1000;
  return OkStatus();
}

// Takes what `first` has read; its weights are there once.
Status WorkerProcess::Parts::ShareModel(Parts& first) {
  text = first.text;
  loaded_unix_s = first.loaded_unix_s;
  MakePool();
  device.kernels = first.device.kernels;
  device.why_processor = first.device.why_processor;
  device.accelerator = std::move(first.part_of_next);
  BATON_ASSIGN_OR_RETURN(
      model, first.model->Share({.pool = pool.get(), .device = device.accelerator.get()}));
  BATON_LOG_INFO("{} computes with the weights of {}", config.worker_id, first.config.worker_id);
  return OkStatus();
}

Status WorkerProcess::Parts::LoadWeights(const GgufFile& file) {
  const bool is_auto = config.device == DeviceKind::kUnspecified;
  // Each type of K and V but bf16 is one of the processor or one of devices.
  const bool needs_cpu =
      is_auto && (config.kv_dtype == KvDtype::kF32 || config.kv_dtype == KvDtype::kQ8);
  const bool needs_device = config.kv_dtype == KvDtype::kFp8;
  StatusOr<ComputeDevice> opened =
      OpenComputeDevice(needs_cpu ? DeviceKind::kCpu : config.device, config.num_ranks,
                        /*awaits_others=*/config.transport == TransportKind::kNccl);
  if (!opened.ok() && config.num_ranks > 1) {
    return WithPrefix(opened.status(), fmt::format("--tensor-parallel {}", config.num_ranks));
  }
  BATON_ASSIGN_OR_RETURN(device, std::move(opened));
  if (needs_cpu && CheckDeviceInBuild(DeviceKind::kCuda).ok()) {
    device.why_processor =
        fmt::format("--kv-dtype {} is of the processor", KvDtypeName(config.kv_dtype));
  }
  if (device.accelerator != nullptr) {
    if (config.speculate != SpeculateMode::kOff) {
      return Unimplemented(
          "--speculate {}: device {} computes one token of a sequence in a step; "
          "use off, or --device cpu",
          SpeculateModeName(config.speculate), DeviceKindName(device.accelerator->kind()));
    }
    Status status = LoadOnDevice(file);
    if (needs_device && absl::IsUnimplemented(status)) {
      return WithPrefix(status, "--kv-dtype fp8 needs a device");
    }
    const bool may_leave = is_auto && config.num_ranks == 1;
    if (!may_leave || !absl::IsUnimplemented(status)) return status;
    part_of_next.reset();
    device = ComputeDevice{};
    device.why_processor = std::string(status.message());
    BATON_LOG_WARN("{}; computing on the processor", device.why_processor);
  }
  if (needs_device) {
    return FailedPrecondition(
        "--kv-dtype fp8 is for devices, and this worker would compute on the processor, which "
        "stores K and V in bf16 or f32, or in q8");
  }
  if (!config.cublaslt_library.empty()) {
    BATON_LOG_WARN("--cublaslt-library {} is not used: it is for GPUs", config.cublaslt_library);
  }
  BATON_ASSIGN_OR_RETURN(model, Model::Load(file, {.pool = pool.get(),
                                                   .isa = config.isa,
                                                   .kv_dtype = config.kv_dtype,
                                                   .block_size = kCpuBlockSize,
                                                   .max_rows = kMaxBatchTokens,
                                                   .max_context = config.max_context,
                                                   .tokenizer_id = text.tokenizer_id,
                                                   .sharing = config.shared_weights}));
  return OkStatus();
}

Status WorkerProcess::Parts::LoadOnDevice(const GgufFile& file) {
  const SchedulerConfig limits = SchedulerLimits();
  if (colocation.hub != nullptr) {
    BATON_ASSIGN_OR_RETURN(part_of_next, device.accelerator->Split());
  }
  std::vector<Accelerator*> peers = device.accelerators();
  peers.erase(peers.begin());
  BATON_ASSIGN_OR_RETURN(const FastMode fast, FindFastMode(config, device.accelerator->kind()));
  StatusOr<std::unique_ptr<DeviceModel>> loaded = DeviceModel::Load(
      file, {.device = device.accelerator.get(),
             .kernels = device.kernels,
             .pool = pool.get(),
             .kv_dtype = config.kv_dtype,
             .block_size = kDeviceBlockSize,
             .max_rows = kMaxBatchTokens,
             .max_logit_rows = limits.max_running + limits.max_prefilling + kMaxPromptLogRows,
             .max_context = config.max_context,
             .tokenizer_id = text.tokenizer_id,
             .keeps_packed = config.keeps_packed,
             .fast = fast,
             .num_ranks = config.num_ranks,
             .peers = peers,
             .gate = device.gate.get()});
  if (!loaded.ok()) {
    if (!absl::IsResourceExhausted(loaded.status())) return loaded.status();
    const bool may_pack = !config.keeps_packed && DeviceModel::HasPackable(file);
    const std::string how =
        may_pack ? " whose quantised weights become bf16 (--device-weights packed takes less)"
        : config.num_ranks > 1 ? fmt::format(", divided among {} GPUs", config.num_ranks)
                               : " (--tensor-parallel divides it among GPUs)";
    const char* const beside =
        colocation.hub == nullptr && config.num_ranks == 1
            ? "; a prefill and a decode worker on one GPU hold it once with serve --colocate"
            : "";
    return WithPrefix(loaded.status(), fmt::format("a model file of {}{}{}",
                                                   FormatSize(file.file_bytes()), how, beside));
  }
  BATON_LOG_INFO("computing on {}{}; weights of {}, {} of them packed: {}",
                 device.accelerator->Describe(), RanksText(config.num_ranks, peers.size()),
                 FormatSize((*loaded)->weight_bytes()), FormatSize((*loaded)->packed_bytes()),
                 (*loaded)->load_report().Text());
  model = *std::move(loaded);
  return OkStatus();
}

SchedulerConfig WorkerProcess::Parts::SchedulerLimits() const {
  SchedulerConfig limits;
  limits.max_batch_tokens = kMaxBatchTokens;
  const bool prefills = config.role == WorkerRole::kPrefill;
  limits.role = config.role;
  limits.max_running = config.max_batch;
  limits.itl_objective_us = config.itl_objective_us;
  if (prefills) limits.max_prefilling = std::min(limits.max_prefilling, config.max_batch);
  return limits;
}

SchedulerConfig WorkerProcess::Parts::SchedulerOfModel() const {
  SchedulerConfig limits = SchedulerLimits();
  limits.block_size = model->layout().block_size;
  limits.output_row_tokens = OutputRowTokens(model->config());
  // Kernels of devices are not proved to read nothing before a window.
  if (device.accelerator == nullptr) limits.window = model->config().window_of_all();
  return limits;
}

// Estimates the steps of a GPU whose limits are known; everything else is learnt from the first
// steps.
void WorkerProcess::Parts::EstimateSteps(SchedulerConfig* scheduler) const {
  if (device.accelerator == nullptr || device.accelerator->kind() != DeviceKind::kCuda) return;
  if (colocation.hub != nullptr) return;  // it has a part of the GPU
  RooflineModel roofline = RooflineModelOf(model->config(), model->bytes_read_per_step());
  roofline.kv_bytes_per_token = model->layout().BytesPerToken();
  const auto num_devices = static_cast<uint32_t>(device.accelerators().size());
  roofline = OfOneRank(roofline, model->config(), num_devices);
  const StatusOr<StepWeights> cost = FirstStepCost(device.accelerator->product(), roofline);
  if (cost.ok()) {
    scheduler->first_cost = *cost;
  } else {
    BATON_LOG_INFO("{}; the first steps are small", std::string(cost.status().message()));
  }
}

Status WorkerProcess::Parts::MakeEngine() {
  BATON_ASSIGN_OR_RETURN(kv, KvParts::Create(config, device,
                                             {.layout = model->layout(),
                                              .max_context = model->max_context(),
                                              .window_blocks = SchedulerOfModel().WindowBlocks(),
                                              .numerics_id = model->numerics_id(),
                                              .incarnation = incarnation,
                                              .hub = colocation.hub}));
  if (const KvEndpoint* endpoint = kv->endpoint()) {
    kv_address = AdvertisedOnHost(config.advertise, config.listen, endpoint->tcp_address());
  }

  const bool prefill = config.role == WorkerRole::kPrefill;
  sessions =
      std::make_unique<SessionService>(SessionLimits{.incarnation = incarnation,
                                                     .prefill = prefill,
                                                     .vocab_size = model->config().vocab_size,
                                                     .max_context = model->max_context()});
  EngineConfig engine_config;
  engine_config.scheduler = SchedulerOfModel();
  EstimateSteps(&engine_config.scheduler);
  engine_config.handoff.strand_us = kStrandUs;
  engine_config.prefix_cache = config.prefix_cache;
  engine_config.speculate = config.speculate;
  engine_config.max_context = model->max_context();
  engine_config.incarnation = incarnation;
  engine_config.cluster_secret = config.cluster_secret;
  engine_config.eog_tokens = text.eog_tokens;
  engine_config.pooling = model->config().pooling;
  if (config.prefix_cache) {
    prefixes = std::make_unique<PrefixJournal>(kv->store()->memory().num_blocks);
  }
  const auto on_step = [this](const StepShape& shape, int64_t elapsed_us) {
    admin->OnStep(shape, elapsed_us);
  };
  grammars = std::make_unique<GrammarCache>([this] { return text.Build(); });
  guides = std::make_unique<AnswerGuides>(grammars.get(),
                                          [this](int64_t took_us) { admin->OnMask(took_us); });
  StageSink* const stages = device.accelerator == nullptr ? nullptr : device.accelerator->stages();
  // A device's steps neither take cores nor give them back.
  CoreShare* const steps_cores = device.accelerator == nullptr ? cores.get() : nullptr;
  BATON_ASSIGN_OR_RETURN(engine, Engine::Create(engine_config, {.model = model.get(),
                                                                .kv = kv->store(),
                                                                .transport = kv->transport(),
                                                                .wire = &wire,
                                                                .listener = sessions.get(),
                                                                .prefixes = prefixes.get(),
                                                                .on_step = on_step,
                                                                .guides = guides.get(),
                                                                .stages = stages,
                                                                .cores = steps_cores,
                                                                .pool = SamplingPool()}));
  sessions->set_engine(engine.get());
  sessions->set_observer([this](const RequestStatus& status) {
    if (status.state == RequestState::kVerified) admin->OnVerified(status);
  });
  return OkStatus();
}

// A tokenizer that cannot be built ends the worker. A router that has taken it, and so may send it
// requests, has built the tokenizer from the same bytes.
void WorkerProcess::Parts::CheckTokenizer() {
  const std::shared_ptr<Registration> current = CurrentRegistration();
  const bool is_taken = current != nullptr && current->state().ok();
  const Status status = is_taken ? OkStatus() : text.Build().status();
  // Parsing the model file and its tokenizer leaves tens of MB of free memory in the heap.
  (void)::malloc_trim(0);
  if (status.ok()) return;
  MutexLock lock(registration_mutex);
  failure = status;
}

// A worker that is ready has produced a token: with these weights, on this device, in this pool.
Status WorkerProcess::Parts::TryOneToken() {
  // A prefill worker's steps are prompts, but for requests that nobody else can decode.
  if (config.role != WorkerRole::kPrefill) {
    BATON_RETURN_IF_ERROR(model->Prepare(kv->store()->view()));
  }
  const StatusOr<TokenId> token = ComputeFirstToken(model.get(), kv->store()->view());
  return token.ok() ? OkStatus() : OfModel(token.status());
}

Status WorkerProcess::Parts::StartServer() {
  TakeOverProtobufLog();
  TakeOverGrpcLog();
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxClusterMessageBytes);
  // Another process on the same port would silently share our connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddListeningPort(config.listen,
                           MakeServerCredentials(config.tls, ClientCertificate::kRequired), &port);
  builder.RegisterService(sessions.get());
  server = builder.BuildAndStart();
  if (!server || port == 0) {
    return Unavailable("--listen {}: {}", config.listen, BindFault(config.listen));
  }
  grpc_address =
      AdvertisedAddress(config.advertise, fmt::format("{}:{}", HostOf(config.listen), port));
  return OkStatus();
}

v1::WorkerHello WorkerProcess::Parts::Hello() const {
  HelloFacts facts;
  facts.worker_id = config.worker_id;
  facts.incarnation = incarnation;
  facts.role = config.role;
  facts.layout_id = model->layout().LayoutId();
  facts.weights_id = model->weights_id();
  facts.tokenizer_id = text.tokenizer_id;
  facts.numerics_id = model->numerics_id();
  facts.layout_text = model->layout().ToString();
  facts.numerics_text = model->numerics_text();
  facts.varies_with_batch = !model->is_deterministic();
  facts.grpc_address = grpc_address;
  facts.admin_address = admin_address;
  facts.kv_address = kv_address;
  if (const KvEndpoint* endpoint = kv->endpoint()) facts.kv_unix = endpoint->unix_name();
  facts.host_id = HostId();
  facts.pid = static_cast<uint32_t>(::getpid());
  facts.model_id = config.model_id;
  facts.max_context = model->max_context();
  facts.block_size = model->layout().block_size;
  facts.state_blocks = model->layout().state_blocks;
  facts.window_blocks = SchedulerOfModel().WindowBlocks();
  facts.kv_bytes_per_token = model->layout().BytesPerToken();
  facts.num_blocks = kv->store()->memory().num_blocks;
  facts.max_running = config.max_batch;
  facts.tokenizer = text.tokenizer;
  facts.transports = kv->kinds();
  facts.allow_inexact = config.allow_inexact;
  facts.vocab_size = model->config().vocab_size;
  if (prefixes) {
    facts.chain_check = ChainKeyCheck(DeriveChainKey(config.cluster_secret, kDefaultTenant));
  }
  facts.grammar_version = wire::kAnswerGrammarVersion;
  facts.logs_prompts = true;
  const model::ModelConfig& shape = model->config();
  if (GivesVector(shape.pooling)) {
    facts.embedding_size = shape.hidden_size;
  } else {
    facts.embedding_refusal = std::string(PoolingName(shape.pooling));
  }
  facts.loaded_unix_s = loaded_unix_s;
  v1::WorkerHello hello;
  ToProto(facts, &hello);
  return hello;
}

v1::WorkerLoad WorkerProcess::Parts::Load() {
  v1::WorkerLoad load;
  FillLoad(engine->Snapshot(), kv->transport()->Links(), &load);
  load.set_draining(draining.load());
  load.set_ready(!draining.load());
  return load;
}

std::string WorkerProcess::Parts::ThreadsText() const {
  if (cores == nullptr || cores->is_alone()) return fmt::format("{} threads", pool->num_threads());
  return fmt::format("{} threads of its own, up to {} while others lend theirs",
                     cores->num_home_cores(), cores->max_cores());
}

MemoryFacts WorkerProcess::Parts::Memory() const {
  const KvMemory& memory = kv->store()->memory();
  MemoryFacts facts;
  facts.weight_bytes = colocation.first == nullptr ? model->weight_bytes() : 0;
  if (const auto* on_cpu = dynamic_cast<const Model*>(model.get())) {
    facts.workspace_bytes = on_cpu->workspace_bytes();
    facts.shares_weights = on_cpu->sharing().shared_bytes > 0;
  }
  facts.num_blocks = memory.num_blocks;
  facts.block_bytes = memory.layout.BlockStride();
  facts.host_copy_bytes = kv->host_copy_bytes();
  facts.staging_bytes = kv->staging_bytes();
  facts.tokenizer_bytes = text.tokenizer.size();
  facts.num_layers = memory.layout.num_layers;
  facts.max_context = model->max_context();
  facts.vocab_size = model->config().vocab_size;
  facts.hidden_size = model->config().hidden_size;
  facts.num_threads = SamplingPool() == nullptr ? 1 : SamplingPool()->num_threads();
  facts.num_routers = config.routers.size();
  facts.has_prefix_cache = prefixes != nullptr;
  facts.has_guesses = config.role == WorkerRole::kDecode && config.speculate != SpeculateMode::kOff;
  facts.has_endpoint = kv->endpoint() != nullptr;
  facts.has_tls = !config.tls.empty();
  return facts;
}

void WorkerProcess::Parts::Register() {
  RegistrationConfig registration_config;
  registration_config.routers = config.routers;
  registration_config.tls = config.tls;
  registration_config.hello = Hello();
  registration_config.load = [this] { return Load(); };
  registration_config.prefixes = prefixes.get();
  // Decode workers listen; one that drains gets a list of those that may take its KV over.
  if (KvEndpoint* const endpoint = kv->endpoint()) {
    peers = std::make_unique<PeerUpdates>(
        [endpoint](const std::vector<PeerAddress>& list, const std::function<bool()>& is_old) {
          return endpoint->SetPeers(list, is_old);
        });
  }
  registration_config.on_peers = [this](const std::vector<v1::Peer>& list) {
    if (peers != nullptr) peers->Set(PeerAddresses(list, kv->kinds()));
  };
  registration_config.on_drain = [this](int64_t timeout_ms) {
    if (timeout_ms > 0) drain_timeout_ms.store(timeout_ms);
    drain_asked.store(true);
  };
  registration_config.on_refused = [this](const Status& why) {
    MutexLock lock(registration_mutex);
    failure = why;
  };
  auto made = std::make_shared<Registration>(std::move(registration_config));
  MutexLock lock(registration_mutex);
  registration = std::move(made);
}

std::shared_ptr<Registration> WorkerProcess::Parts::CurrentRegistration() {
  MutexLock lock(registration_mutex);
  return registration;
}

// A request would be served now. A router that takes this worker calls it back at once; one that
// cannot reach the address it was told sends none, nor does one whose links hand over no KV.
Status WorkerProcess::Parts::Ready() {
  if (draining.load()) return Unavailable("draining");
  const std::shared_ptr<Registration> current = CurrentRegistration();
  if (!current) return Unavailable("not registered yet");
  BATON_RETURN_IF_ERROR(current->state());
  if (!sessions->IsCalled()) {
    return Unavailable(
        "registered, but no router reaches this worker at {} (--advertise, --listen)",
        grpc_address);
  }
  return CanHandOff(kv->transport()->Links());
}

Status WorkerProcess::Parts::StartAdmin() {
  WorkerAdminConfig admin_config;
  admin_config.address = config.admin;
  admin_config.role = WorkerRoleName(config.role);
  admin_config.worker_id = config.worker_id;
  admin_config.model = config.model_id;
  admin_config.engine = engine.get();
  admin_config.transport = kv->transport();
  admin_config.nccl = kv->nccl();
  admin_config.gate = device.gate.get();
  admin_config.cores = cores.get();
  admin_config.ipc = kv->ipc();
  admin_config.grammars = grammars.get();
  admin_config.ready = [this] { return Ready(); };
  admin_config.block_size = model->layout().block_size;
  admin_config.itl_objective_us = config.itl_objective_us;
  admin_config.aliases = config.metric_aliases;
  admin_config.sites = config.sites;
  BATON_ASSIGN_OR_RETURN(admin, WorkerAdmin::Start(std::move(admin_config)));
  admin_address = AdvertisedOnHost(config.advertise, config.listen, admin->address());
  return OkStatus();
}

Status WorkerProcess::Parts::StartSpans() {
  BATON_ASSIGN_OR_RETURN(std::optional<OtlpTarget> collector,
                         OtlpTargetAtStart(config.otlp_endpoint, ProcessEnvironment));
  if (!collector.has_value()) return OkStatus();
  exporter = std::make_unique<OtlpExporter>(OtlpConfig{.target = *std::move(collector),
                                                       .role = WorkerRoleName(config.role),
                                                       .worker_id = config.worker_id},
                                            admin->span_metrics());
  spans = std::make_unique<WorkerSpans>(config.worker_id, exporter.get(), admin->span_metrics(),
                                        &SystemClock());
  sessions->set_spans(spans.get());
  return OkStatus();
}

WorkerProcess::WorkerProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

WorkerProcess::~WorkerProcess() { Stop(); }

StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(WorkerConfig config,
                                                              const Colocation& colocation) {
  BATON_RETURN_IF_ERROR(CheckWorkerId(config.worker_id));
  BATON_RETURN_IF_ERROR(CheckAdvertise(config.advertise));
  if (config.routers.empty()) return InvalidArgument("--router is missing");
  // gRPC would only log what is wrong with them, connection after connection.
  if (!config.tls.empty()) BATON_RETURN_IF_ERROR(TlsIdentity::Load(config.tls).status());
  auto parts = std::make_unique<Parts>();
  parts->config = std::move(config);
  parts->colocation = colocation;
  parts->drain_timeout_ms.store(parts->config.drain_timeout_ms);
  parts->incarnation_text = HexFromU64(parts->incarnation.value());
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess(std::move(parts)));
  Parts& p = *worker->parts_;
  BATON_RETURN_IF_ERROR(colocation.first == nullptr ? p.LoadModel()
                                                    : p.ShareModel(*colocation.first->parts_));
  BATON_RETURN_IF_ERROR(p.MakeEngine());
  BATON_RETURN_IF_ERROR(p.TryOneToken());
  BATON_RETURN_IF_ERROR(p.StartAdmin());  // before the engine, which counts hand-offs in it
  BATON_RETURN_IF_ERROR(p.StartSpans());
  const bool keeps_cores = p.device.accelerator != nullptr && !p.LeavesCores();
  if (p.cores != nullptr && !keeps_cores) p.cores->EndSteps();
  BATON_RETURN_IF_ERROR(p.engine->Start());
  BATON_RETURN_IF_ERROR(p.StartServer());
  p.late_work = std::make_unique<LateWork>(std::vector<LateWork::Task>{
      [&p] { return p.kv->FillNext(); },
      [&p] {
        p.admin->SetRates(MeasureRates(*p.model, p.pool->num_threads()));
        return false;
      },
      [&p] {
        if (p.colocation.first == nullptr) p.CheckTokenizer();  // both have the same one
        return false;
      }});
  p.Register();
  const KvMemory& pool = p.kv->store()->memory();
  BATON_LOG_INFO("{} serves {} at {}: {}, {}, {} blocks of {} tokens ({}), weights {}",
                 p.config.worker_id, p.config.model_id, p.grpc_address, p.ThreadsText(),
                 std::string(p.model->arithmetic_name()), pool.num_blocks,
                 p.model->layout().block_size,
                 FormatSize(uint64_t{pool.num_blocks} * pool.layout.BlockStride()),
                 FormatSize(p.model->weight_bytes()));
  BATON_LOG_INFO("memory of {} by its limits: {}", p.config.worker_id,
                 MemoryText(MemoryNeeds(p.Memory())));
  if (IsEverywhere(p.grpc_address)) {
    BATON_LOG_WARN("others are told to reach this worker at {}: give --advertise HOST",
                   p.grpc_address);
  }
  if (p.config.cluster_secret.empty() && p.kv->endpoint() != nullptr) {
    BATON_LOG_WARN("no --cluster-secret-file: any process that reaches the KV port may connect");
  }
  return worker;
}

WorkerRole WorkerProcess::role() const { return parts_->config.role; }
const std::string& WorkerProcess::worker_id() const { return parts_->config.worker_id; }
const std::string& WorkerProcess::grpc_address() const { return parts_->grpc_address; }
const std::string& WorkerProcess::kv_address() const { return parts_->kv_address; }
std::string WorkerProcess::DescribeDevice() const {
  if (const Accelerator* device = parts_->device.accelerator.get()) return device->Describe();
  const std::string& why = parts_->device.why_processor;
  return fmt::format("{} on the processor{}", parts_->model->arithmetic_name(),
                     why.empty() ? "" : fmt::format(" ({})", why));
}
const std::string& WorkerProcess::admin_address() const { return parts_->admin_address; }
const std::string& WorkerProcess::incarnation() const { return parts_->incarnation_text; }
bool WorkerProcess::drain_asked() const { return parts_->drain_asked.load(); }
Status WorkerProcess::failure() const {
  MutexLock lock(parts_->registration_mutex);
  return parts_->failure;
}

Status WorkerProcess::Drain(const std::atomic<bool>* stop_now) {
  WorkerProcess* const self = this;
  return DrainTogether(std::span(&self, 1), stop_now);
}

Status WorkerProcess::DrainTogether(std::span<WorkerProcess* const> workers,
                                    const std::atomic<bool>* stop_now) {
  const bool any_asked = std::any_of(workers.begin(), workers.end(),
                                     [](const WorkerProcess* w) { return w->drain_asked(); });
  int64_t timeout_ms = 0;
  std::vector<DrainingParts> parts;
  parts.reserve(workers.size());
  for (const WorkerProcess* const worker : workers) {
    Parts& p = *worker->parts_;
    if (worker->drain_asked() == any_asked) {
      timeout_ms = std::max(timeout_ms, p.drain_timeout_ms.load());
    }
    p.draining.store(true);
    if (const auto registration = p.CurrentRegistration()) registration->ReportNow();
    parts.push_back({p.engine.get(), p.sessions.get()});
  }
  return DrainEngines(parts, timeout_ms, stop_now);
}

void WorkerProcess::Stop() {
  Parts& p = *parts_;
  if (p.stopped.exchange(true)) return;
  p.late_work.reset();
  std::shared_ptr<Registration> leaving;
  {
    MutexLock lock(p.registration_mutex);
    leaving = std::move(p.registration);
  }
  if (leaving) leaving->Stop();
  leaving.reset();
  if (p.peers) p.peers->Stop();
  if (p.sessions) p.sessions->CloseAll();
  if (p.server) p.server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  if (p.engine) p.engine->Stop();
  if (p.guides) p.guides->Stop();  // it tells the admin port's metrics
  p.peers.reset();                 // waits for a look-up, with nothing behind it
  if (p.exporter) p.exporter->Stop();
  p.admin.reset();
}

}  // namespace baton::worker
