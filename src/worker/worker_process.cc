#include "src/worker/worker_process.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "grpcpp/server_builder.h"

#include "src/base/bind_fault.h"
#include "src/base/hex.h"
#include "src/base/keepalive.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/base/random.h"
#include "src/base/size_text.h"
#include "src/device/core_share.h"
#include "src/engine/answer_guide.h"
#include "src/engine/first_token.h"
#include "src/engine/prefix_journal.h"
#include "src/model/compute_device.h"
#include "src/otlp/otlp_exporter.h"
#include "src/rpc/credentials.h"
#include "src/rpc/protobuf_log.h"
#include "src/text/grammar_cache.h"
#include "src/tls/tls_identity.h"
#include "src/worker/advertise.h"
#include "src/worker/handoff_codec.h"
#include "src/worker/hello_codec.h"
#include "src/worker/kv_parts.h"
#include "src/worker/late_work.h"
#include "src/worker/machine_rates.h"
#include "src/worker/memory_sum.h"
#include "src/worker/peer_updates.h"
#include "src/worker/registration.h"
#include "src/worker/request_codec.h"
#include "src/worker/session_service.h"
#include "src/worker/worker_admin.h"
#include "src/worker/worker_drain.h"
#include "src/worker/worker_facts.h"
#include "src/worker/worker_load.h"
#include "src/worker/worker_model.h"
#include "src/worker/worker_schedule.h"
#include "src/worker/worker_spans.h"

namespace baton::worker {

using device::Accelerator;
using device::CoreShare;
using device::StageSink;
using engine::AnswerGuides;
using engine::ComputeFirstToken;
using engine::Engine;
using engine::EngineConfig;
using engine::PrefixJournal;
using engine::RequestState;
using engine::RequestStatus;
using kv::KvEndpoint;
using kv::KvMemory;
using kv::PeerAddress;
using limits::kMaxClusterMessageBytes;
using model::ComputeDevice;
using otlp::OtlpConfig;
using otlp::OtlpExporter;
using otlp::OtlpTarget;
using otlp::OtlpTargetAtStart;
using otlp::ProcessEnvironment;
using rpc::ClientCertificate;
using rpc::MakeServerCredentials;
using rpc::TakeOverGrpcLog;
using rpc::TakeOverProtobufLog;
using scheduler::StepShape;
using text::GrammarCache;
using tls::TlsIdentity;

namespace {

// How long a prompt whose decode worker is lost keeps its blocks for another: a router that lives
// places it again within milliseconds.
constexpr int64_t kStrandUs = 3'000'000;

}  // namespace

// In the order of construction; destroyed in reverse.
struct WorkerProcess::Parts {
  WorkerConfig config;
  Colocation colocation;
  Incarnation incarnation = RandomIncarnation();
  std::string incarnation_text;
  WorkerModel model;
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

  Status LoadModel();
  Status MakeEngine();
  void CheckTokenizer();
  Status TryOneToken();
  Status StartServer();
  void Register();
  Status StartAdmin();
  Status StartSpans();
  Status Ready();
  std::shared_ptr<Registration> CurrentRegistration();
  void ReportLinks();
  v1::WorkerHello Hello() const;
  v1::WorkerLoad Load();
};

Status WorkerProcess::Parts::LoadModel() {
  if (colocation.first == nullptr) return model.Load(config, colocation.hub != nullptr);
  Parts& first = *colocation.first->parts_;
  BATON_RETURN_IF_ERROR(model.Share(config, first.model));
  BATON_LOG_INFO("{} computes with the weights of {}", config.worker_id, first.config.worker_id);
  return OkStatus();
}

Status WorkerProcess::Parts::MakeEngine() {
  BATON_ASSIGN_OR_RETURN(
      kv, KvParts::Create(config, model.device,
                          {.layout = model.loaded->layout(),
                           .max_context = model.loaded->max_context(),
                           .window_blocks = SchedulerOf(config, model).WindowBlocks(),
                           .numerics_id = model.loaded->numerics_id(),
                           .incarnation = incarnation,
                           .hub = colocation.hub}));
  if (const KvEndpoint* endpoint = kv->endpoint()) {
    kv_address = AdvertisedOnHost(config.advertise, config.listen, endpoint->tcp_address());
  }

  const bool prefill = config.role == WorkerRole::kPrefill;
  sessions = std::make_unique<SessionService>(
      SessionLimits{.incarnation = incarnation,
                    .prefill = prefill,
                    .vocab_size = model.loaded->config().vocab_size,
                    .max_context = model.loaded->max_context()});
  EngineConfig engine_config;
  engine_config.scheduler = SchedulerOf(config, model);
  // Beside another worker it has a part of the GPU.
  if (colocation.hub == nullptr) EstimateSteps(model, &engine_config.scheduler);
  engine_config.handoff.strand_us = kStrandUs;
  engine_config.prefix_cache = config.prefix_cache;
  engine_config.speculate = config.speculate;
  engine_config.max_context = model.loaded->max_context();
  engine_config.incarnation = incarnation;
  engine_config.cluster_secret = config.cluster_secret;
  engine_config.eog_tokens = model.text.eog_tokens;
  engine_config.pooling = model.loaded->config().pooling;
  if (config.prefix_cache) {
    prefixes = std::make_unique<PrefixJournal>(kv->store()->memory().num_blocks);
  }
  const auto on_step = [this](const StepShape& shape, int64_t elapsed_us) {
    admin->OnStep(shape, elapsed_us);
  };
  grammars = std::make_unique<GrammarCache>([this] { return model.text.Build(); });
  guides = std::make_unique<AnswerGuides>(grammars.get(),
                                          [this](int64_t took_us) { admin->OnMask(took_us); });
  const ComputeDevice& device = model.device;
  StageSink* const stages = device.accelerator == nullptr ? nullptr : device.accelerator->stages();
  // A device's steps neither take cores nor give them back.
  CoreShare* const steps_cores = device.accelerator == nullptr ? model.cores.get() : nullptr;
  BATON_ASSIGN_OR_RETURN(engine, Engine::Create(engine_config, {.model = model.loaded.get(),
                                                                .kv = kv->store(),
                                                                .transport = kv->transport(),
                                                                .wire = &wire,
                                                                .listener = sessions.get(),
                                                                .prefixes = prefixes.get(),
                                                                .on_step = on_step,
                                                                .guides = guides.get(),
                                                                .stages = stages,
                                                                .cores = steps_cores,
                                                                .pool = model.SamplingPool()}));
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
  const Status status = is_taken ? OkStatus() : model.text.Build().status();
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
    BATON_RETURN_IF_ERROR(model.loaded->Prepare(kv->store()->view()));
  }
  const StatusOr<TokenId> token = ComputeFirstToken(model.loaded.get(), kv->store()->view());
  return token.ok() ? OkStatus() : FaultOfModel(config, token.status());
}

Status WorkerProcess::Parts::StartServer() {
  TakeOverProtobufLog();
  TakeOverGrpcLog();
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxClusterMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("grpc").Resize(limits::kMaxGrpcMemoryBytes));
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
  HelloFacts facts = HelloFactsOf(config, model, *kv);
  facts.incarnation = incarnation;
  facts.grpc_address = grpc_address;
  facts.admin_address = admin_address;
  facts.kv_address = kv_address;
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

// A router pairs workers by their links. Until it hears of one, prompts wait for it, or the decode
// worker computes them.
void WorkerProcess::Parts::ReportLinks() {
  if (const auto current = CurrentRegistration()) current->ReportNow();
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
  admin_config.gate = model.device.gate.get();
  admin_config.cores = model.cores.get();
  admin_config.ipc = kv->ipc();
  admin_config.grammars = grammars.get();
  admin_config.ready = [this] { return Ready(); };
  admin_config.block_size = model.loaded->layout().block_size;
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
  BATON_RETURN_IF_ERROR(p.LoadModel());
  BATON_RETURN_IF_ERROR(p.MakeEngine());
  BATON_RETURN_IF_ERROR(p.TryOneToken());
  BATON_RETURN_IF_ERROR(p.StartAdmin());  // before the engine, which counts hand-offs in it
  BATON_RETURN_IF_ERROR(p.StartSpans());
  const bool keeps_cores = p.model.device.accelerator != nullptr && !p.model.LeavesCores();
  if (p.model.cores != nullptr && !keeps_cores) p.model.cores->EndSteps();
  BATON_RETURN_IF_ERROR(p.engine->Start([&p] { p.ReportLinks(); }));
  BATON_RETURN_IF_ERROR(p.StartServer());
  p.late_work = std::make_unique<LateWork>(std::vector<LateWork::Task>{
      [&p](const auto&) { return p.kv->FillNext(); },
      [&p](const std::atomic<bool>& stops) {
        p.admin->SetRates(MeasureRates(*p.model.loaded, p.model.pool->num_threads(), stops));
        return false;
      },
      [&p](const auto&) {
        if (p.colocation.first == nullptr) p.CheckTokenizer();  // both have the same one
        return false;
      }});
  p.Register();
  const KvMemory& pool = p.kv->store()->memory();
  BATON_LOG_INFO("{} serves {} at {}: {}, {}, {} blocks of {} tokens ({}), weights {}",
                 p.config.worker_id, p.config.model_id, p.grpc_address, p.model.ThreadsText(),
                 std::string(p.model.loaded->arithmetic_name()), pool.num_blocks,
                 p.model.loaded->layout().block_size,
                 FormatSize(uint64_t{pool.num_blocks} * pool.layout.BlockStride()),
                 FormatSize(p.model.loaded->weight_bytes()));
  BATON_LOG_INFO("memory of {} by its limits: {}", p.config.worker_id,
                 MemoryText(MemoryNeeds(
                     MemoryFactsOf(p.config, p.model, *p.kv, p.colocation.first == nullptr))));
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
  if (const Accelerator* device = parts_->model.device.accelerator.get()) return device->Describe();
  const std::string& why = parts_->model.device.why_processor;
  return fmt::format("{} on the processor{}", parts_->model.loaded->arithmetic_name(),
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
  p.peers.reset();                 // waits for the look-up that runs
  if (p.exporter) p.exporter->Stop();
  p.admin.reset();
}

}  // namespace baton::worker
