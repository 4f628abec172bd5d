#include "src/api/router_process.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "grpc/grpc.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"

#include "src/api/answer_budget.h"
#include "src/api/api_workers.h"
#include "src/api/cluster_events.h"
#include "src/api/grpc_call_state.h"
#include "src/api/grpc_services.h"
#include "src/api/http_api.h"
#include "src/api/kept_streams.h"
#include "src/api/key_ring.h"
#include "src/api/openai_json.h"
#include "src/api/reflection_v1.h"
#include "src/api/trace_json.h"
#include "src/base/bind_fault.h"
#include "src/base/hex.h"
#include "src/base/host_port.h"
#include "src/base/keepalive.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/base/random.h"
#include "src/http/http_server.h"
#include "src/obs/admin_server.h"
#include "src/otlp/otlp_exporter.h"
#include "src/router/grpc_registry_service.h"
#include "src/router/grpc_worker_session.h"
#include "src/router/link_metrics.h"
#include "src/router/router.h"
#include "src/rpc/credentials.h"
#include "src/rpc/protobuf_log.h"
#include "src/tls/tls_identity.h"

namespace baton::api {

using http::HttpServer;
using http::HttpServerOptions;
using http::SiteCheck;
using obs::AddMetricAliases;
using obs::AdminProviders;
using obs::AdminServer;
using obs::MetricAliasRole;
using obs::MetricsRegistry;
using obs::RegisterSpanMetrics;
using obs::SpanMetrics;
using otlp::OtlpConfig;
using otlp::OtlpExporter;
using otlp::OtlpTarget;
using otlp::OtlpTargetAtStart;
using otlp::ProcessEnvironment;
using router::GrpcRegistryService;
using router::GrpcWorkerConnector;
using router::LinkMetricsText;
using router::ProcessView;
using router::RequestTrace;
using router::RequestView;
using router::Router;
using router::RouterCoreConfig;
using router::RouterInbox;
using router::Topology;
using rpc::ClientCertificate;
using rpc::MakeServerCredentials;
using rpc::TakeOverGrpcLog;
using rpc::TakeOverProtobufLog;
using tls::TlsIdentity;

namespace {

constexpr int kNumHttpThreads = 2;
constexpr int kNumApiThreads = 2;
constexpr int64_t kDrainPollUs = 50'000;
// For so long no request runs before a drain ends: whoever has just read an answer may be sending
// the next request over the same connection.
constexpr int64_t kQuietUs = 300'000;
// Time that gRPC may take to end calls that were already told to end.
constexpr int64_t kLastCallsUs = 2'000'000;
// A loop that has not turned for so long does not make progress.
constexpr int64_t kLiveLimitUs = 5'000'000;
constexpr auto kAdminWait = std::chrono::milliseconds(500);

StatusOr<HostPort> ParseListenAddress(const std::string& flag, const std::string& text) {
  StatusOr<HostPort> address = ParseHostPort(text);
  if (!address.ok()) return WithPrefix(address.status(), flag);
  return address;
}

std::chrono::system_clock::time_point SystemTimeIn(int64_t us) {
  return std::chrono::system_clock::now() + std::chrono::microseconds(us);
}

// A connection whose host has vanished, or that nobody uses, is a descriptor.
void AddKeepalive(const ServerKeepalive& keepalive, grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive.time_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive.timeout_ms);
  // Pings go on where there is no call, and clients may do the same.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as it takes
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, keepalive.max_idle_ms);
}

// Lets the admin server's thread wait for an answer of the router's thread, which gives one
// within a turn of its loop, or none when it stops.
template <typename T>
class LoopAnswer {
 public:
  void Set(StatusOr<T> answer) {
    MutexLock lock(mutex_);
    answer_ = std::move(answer);
    answered_.NotifyAll();
  }
  StatusOr<T> Wait() {
    const auto deadline = std::chrono::steady_clock::now() + kAdminWait;
    MutexLock lock(mutex_);
    while (!answer_.has_value() && answered_.WaitUntil(mutex_, deadline)) {
    }
    if (answer_.has_value()) return *std::move(answer_);
    return Unavailable("the router's loop did not answer within {} ms", kAdminWait.count());
  }

 private:
  Mutex mutex_;
  CondVar answered_;
  std::optional<StatusOr<T>> answer_ BATON_GUARDED_BY(mutex_);
};

class RouterProcessImpl final : public RouterProcess {
 public:
  explicit RouterProcessImpl(const RouterConfig& config)
      : config_(config),
        incarnation_(RandomIncarnation()),
        inbox_(std::make_shared<RouterInbox>()),
        connector_(inbox_, incarnation_, config.tls, config.wire),
        registry_service_(inbox_, incarnation_, !config.tls.empty(), config.wire,
                          config.expected_tokenizers) {
    metrics_.SetConstantLabel("role", "router");
    metrics_.SetConstantLabel("worker", "router-0");
    metrics_.SetConstantLabel("model", "");
  }
  ~RouterProcessImpl() override { Stop(); }

  Status Start();

  std::string grpc_address() const override { return AddressOf(&grpc_address_); }
  std::string http_address() const override { return AddressOf(&http_address_); }
  std::string admin_address() const override { return AddressOf(&admin_address_); }
  std::string incarnation() const override { return HexFromU64(incarnation_.value()); }
  bool ready() const override { return router_->ready(); }
  void Drain(const std::function<bool()>& keep_waiting) override;
  void Stop() override;

 private:
  Status StartGrpc();
  Status StartHttp();
  Status StartAdmin();
  void StopGrpc();
  std::string AddressOf(const std::string* address) const {
    MutexLock lock(addresses_mutex_);
    return *address;
  }
  void SetAddress(std::string* address, std::string value) {
    MutexLock lock(addresses_mutex_);
    *address = std::move(value);
  }
  ApiParts Parts() const {
    return {.submitter = router_.get(),
            .workers = workers_.get(),
            .answers = answers_.get(),
            .splits_reasoning = config_.splits_reasoning,
            .tool_style = config_.tool_style,
            .slow_client_us = config_.core.slow_client_us,
            .sse_ping_ms = config_.sse_ping_ms,
            .events = events_.get(),
            .serves_ui = config_.serves_ui,
            .keys = keys_.get(),
            .streams = streams_.get(),
            .tool_metrics = &tool_metrics_};
  }
  void SetHealth(bool ready);
  void AddRouterRow(Topology* topology) const;
  std::optional<ClusterLook> LookAtCluster();
  StatusOr<std::string> RequestsForAdmin();
  StatusOr<std::string> TraceForAdmin();
  StatusOr<std::string> TopologyForAdmin();
  StatusOr<std::string> DrainForAdmin(std::string_view worker_id, uint32_t timeout_s);
  // Polls until `done` or `until_us`; false: `keep_waiting` ended it.
  static bool WaitFor(const std::function<bool()>& done, int64_t until_us,
                      const std::function<bool()>& keep_waiting);

  const RouterConfig config_;
  const Incarnation incarnation_;
  const std::shared_ptr<RouterInbox> inbox_;
  MetricsRegistry metrics_;
  const SpanMetrics span_metrics_ = RegisterSpanMetrics(&metrics_);
  const ToolMetrics tool_metrics_{&metrics_};
  // Outlives the router, whose sinks write to it.
  const std::unique_ptr<KeptStreams> streams_ = std::make_unique<KeptStreams>(&metrics_);
  std::unique_ptr<OtlpExporter> spans_;  // null without --otlp-endpoint; outlives the router
  GrpcWorkerConnector connector_;
  GrpcRegistryService registry_service_;

  // In the order in which they start; each uses the ones before it.
  std::unique_ptr<Router> router_;
  std::unique_ptr<KeyRing> keys_;  // null without --api-keys
  const std::unique_ptr<AnswerBudget> answers_ = std::make_unique<AnswerBudget>();
  std::unique_ptr<ApiWorkers> workers_;
  std::unique_ptr<ClusterEvents> events_;
  std::unique_ptr<HttpApi> http_api_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<AdminServer> admin_;
  std::atomic<bool> grpc_is_shut_{false};  // grpc_shutdown_ has done its work
  Thread grpc_shutdown_;
  // Guards the addresses: who asks for the topology over one port does not wait for the others.
  mutable Mutex addresses_mutex_;
  // Each is "" until it listens.
  std::string grpc_address_ BATON_GUARDED_BY(addresses_mutex_);
  std::string http_address_ BATON_GUARDED_BY(addresses_mutex_);
  std::string admin_address_ BATON_GUARDED_BY(addresses_mutex_);
  bool stopped_ = false;
};

Status RouterProcessImpl::Start() {
  if (!config_.api_keys_file.empty()) {
    BATON_ASSIGN_OR_RETURN(keys_, KeyRing::Create(config_.api_keys_file));
    keys_->Watch();
  }
  RouterCoreConfig core = config_.core;
  core.metric_aliases = config_.metric_aliases;
  BATON_ASSIGN_OR_RETURN(std::optional<OtlpTarget> collector,
                         OtlpTargetAtStart(config_.otlp_endpoint, ProcessEnvironment));
  if (collector.has_value()) {
    spans_ = std::make_unique<OtlpExporter>(
        // All routers of a cluster have the same name; an instance must be the only one of its id.
        OtlpConfig{.target = *std::move(collector),
                   .role = "router",
                   .worker_id = "router-0-" + incarnation()},
        span_metrics_);
    core.spans = spans_.get();
  }
  router_ = std::make_unique<Router>(core, inbox_, &connector_, &metrics_);
  AddMetricAliases(config_.metric_aliases, MetricAliasRole::kRouter, router_->metrics(), &metrics_);
  workers_ = std::make_unique<ApiWorkers>(kNumApiThreads);
  streams_->Watch();
  events_ =
      std::make_unique<ClusterEvents>([this] { return LookAtCluster(); }, config_.sse_ping_ms);
  http_api_ =
      std::make_unique<HttpApi>(Parts(), [this](Topology* topology) { AddRouterRow(topology); });
  BATON_RETURN_IF_ERROR(StartGrpc());
  BATON_RETURN_IF_ERROR(StartHttp());
  BATON_RETURN_IF_ERROR(StartAdmin());
  // Last: from here on the router's thread may touch the server.
  router_->SetReadyListener([this](bool ready) { SetHealth(ready); });
  return OkStatus();
}

Status RouterProcessImpl::StartGrpc() {
  BATON_ASSIGN_OR_RETURN(const HostPort address,
                         ParseListenAddress("--grpc", config_.grpc_address));
  services_ = MakeApiServices(Parts());
  TakeOverProtobufLog();
  TakeOverGrpcLog();
  grpc::EnableDefaultHealthCheckService(true);
  // Reflection knows the types that are linked in, and the library's own service uses none.
  (void)grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();  // v1alpha
  EnableReflectionV1();
  grpc::ServerBuilder builder;
  int port = 0;
  // Clients of the public API share the port with the workers and have no certificate of the
  // cluster; the registry refuses whoever shows none.
  builder.AddListeningPort(config_.grpc_address,
                           MakeServerCredentials(config_.tls, ClientCertificate::kIfGiven), &port);
  // Without this a second router on the same port would silently share its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  AddKeepalive(config_.keepalive, &builder);
  // Calls above kMaxMetadataBytes are refused one by one; the library ends the connection instead.
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxConnectionMetadataBytes);
  builder.SetMaxReceiveMessageSize(limits::kMaxClusterMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("grpc").Resize(config_.grpc_memory_bytes));
  for (const auto& service : services_) builder.RegisterService(service.get());
  builder.RegisterService(&registry_service_);
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || port == 0) {
    return FailedPrecondition("--grpc {}: {}", config_.grpc_address,
                              BindFault(config_.grpc_address));
  }
  SetAddress(&grpc_address_, config_.grpc_address.substr(0, config_.grpc_address.rfind(':')) + ":" +
                                 std::to_string(port));
  SetHealth(false);
  return OkStatus();
}

Status RouterProcessImpl::StartHttp() {
  BATON_ASSIGN_OR_RETURN(const HostPort address,
                         ParseListenAddress("--http", config_.http_address));
  HttpServerOptions options;
  options.host = address.host;
  options.port = address.port;
  options.num_threads = kNumHttpThreads;
  options.thread_name = "http";
  options.error_formatter = http_api_->AsErrorFormatter();
  options.idle_timeout_ms = config_.idle_timeout_ms;
  options.sites = config_.sites;
  options.sites.check = SiteCheck::kPosts;
  if (config_.serves_https) options.tls = config_.tls;
  StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(options, http_api_->AsHandler());
  if (!server.ok()) return WithPrefix(server.status(), "--http");
  http_ = *std::move(server);
  SetAddress(&http_address_, http_->address());
  return OkStatus();
}

Status RouterProcessImpl::StartAdmin() {
  BATON_ASSIGN_OR_RETURN(const HostPort address,
                         ParseListenAddress("--admin", config_.admin_address));
  AdminProviders providers;
  providers.live = [this] {
    const int64_t age_us = SystemClock().NowUs() - router_->last_turn_us();
    if (age_us <= kLiveLimitUs) return OkStatus();
    return Unavailable("the router's loop has not turned for {} ms", age_us / 1000);
  };
  providers.ready = [this] {
    if (router_->draining()) return Unavailable("the server is shutting down");
    return router_->ready() ? OkStatus() : Unavailable("no worker could take a request");
  };
  providers.requests_json = [this] { return RequestsForAdmin(); };
  providers.trace_json = [this] { return TraceForAdmin(); };
  providers.topology_json = [this] { return TopologyForAdmin(); };
  providers.more_metrics = [this] {
    const std::string keys = keys_ == nullptr ? "" : keys_->MetricsText();
    return LinkMetricsText(router_->Links(), "router-0") + keys;
  };
  providers.drain = [this](std::string_view worker_id, uint32_t timeout_s) {
    return DrainForAdmin(worker_id, timeout_s);
  };
  StatusOr<std::unique_ptr<AdminServer>> server = AdminServer::Start(
      address.host, address.port, &metrics_, std::move(providers), config_.sites);
  if (!server.ok()) return WithPrefix(server.status(), "--admin");
  admin_ = *std::move(server);
  SetAddress(&admin_address_, admin_->address());
  return OkStatus();
}

void RouterProcessImpl::SetHealth(bool ready) {
  grpc::HealthCheckServiceInterface* health = grpc_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus(ready);
  for (const char* service : {"baton.v1.ChatService", "baton.v1.CompletionService",
                              "baton.v1.EmbeddingService", "baton.v1.ModelService"}) {
    health->SetServingStatus(service, ready);
  }
  // Workers join while there is no model yet.
  health->SetServingStatus("baton.v1.RouterRegistry", true);
}

void RouterProcessImpl::AddRouterRow(Topology* topology) const {
  ProcessView row;
  row.role = "router";
  row.worker_id = "router-0";
  row.incarnation = incarnation();
  row.pid = static_cast<uint32_t>(getpid());
  row.grpc = grpc_address();
  row.http = http_address();
  row.admin = admin_address();
  row.ready = ready();
  topology->processes.insert(topology->processes.begin(), std::move(row));
}

std::optional<ClusterLook> RouterProcessImpl::LookAtCluster() {
  using Traces = std::vector<std::shared_ptr<const RequestTrace>>;
  auto topology = std::make_shared<LoopAnswer<Topology>>();
  auto traces = std::make_shared<LoopAnswer<Traces>>();
  router_->GetTopology([topology](const Topology& answer) { topology->Set(answer); });
  router_->GetTraces([traces](Traces answer) { traces->Set(std::move(answer)); });
  StatusOr<Topology> known = topology->Wait();
  if (!known.ok()) return std::nullopt;
  StatusOr<Traces> requests = traces->Wait();
  if (!requests.ok()) return std::nullopt;
  AddRouterRow(&*known);
  return ClusterLook{
      .topology = *std::move(known),
      .traces = *std::move(requests),
      .now = {.steady_us = SystemClock().NowUs(), .wall_unix_us = SystemClock().WallUnixUs()}};
}

StatusOr<std::string> RouterProcessImpl::RequestsForAdmin() {
  auto answer = std::make_shared<LoopAnswer<std::string>>();
  router_->GetRequests(
      [answer](const std::vector<RequestView>& requests) { answer->Set(RequestsJson(requests)); });
  return answer->Wait();
}

StatusOr<std::string> RouterProcessImpl::TraceForAdmin() {
  using Traces = std::vector<std::shared_ptr<const RequestTrace>>;
  auto answer = std::make_shared<LoopAnswer<Traces>>();
  router_->GetTraces([answer](Traces traces) { answer->Set(std::move(traces)); });
  BATON_ASSIGN_OR_RETURN(const Traces traces, answer->Wait());
  // Written on this thread: it takes longer than the router's loop may.
  return TraceJson(
      traces, {.steady_us = SystemClock().NowUs(), .wall_unix_us = SystemClock().WallUnixUs()});
}

StatusOr<std::string> RouterProcessImpl::TopologyForAdmin() {
  auto answer = std::make_shared<LoopAnswer<Topology>>();
  router_->GetTopology([answer](const Topology& topology) { answer->Set(topology); });
  BATON_ASSIGN_OR_RETURN(Topology topology, answer->Wait());
  AddRouterRow(&topology);
  return TopologyJson(topology);
}

StatusOr<std::string> RouterProcessImpl::DrainForAdmin(std::string_view worker_id,
                                                       uint32_t timeout_s) {
  auto answer = std::make_shared<LoopAnswer<std::string>>();
  router_->DrainWorker(
      std::string(worker_id), timeout_s * 1000, [answer](const StatusOr<Incarnation>& left) {
        if (!left.ok()) return answer->Set(left.status());
        answer->Set(fmt::format("{{\"incarnation\":\"{}\"}}", HexFromU64(left->value())));
      });
  return answer->Wait();
}

bool RouterProcessImpl::WaitFor(const std::function<bool()>& done, int64_t until_us,
                                const std::function<bool()>& keep_waiting) {
  while (!done() && SystemClock().NowUs() < until_us) {
    if (!keep_waiting()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(kDrainPollUs));
  }
  return true;
}

void RouterProcessImpl::Drain(const std::function<bool()>& keep_waiting) {
  const int64_t grace_end_us = SystemClock().NowUs() + config_.drain_grace_us;
  const int64_t end_us = grace_end_us + config_.drain_timeout_us;
  BATON_LOG_INFO("draining: {} requests run", router_->num_live());
  router_->SetNotReady();
  if (!WaitFor([] { return false; }, grace_end_us, keep_waiting)) return;
  http_->BeginDrain();
  events_->Stop();  // a stream without an end would keep the drain waiting
  streams_->BeginDrain();
  // Sends GOAWAY at once and then waits for the calls, so it gets a thread of its own.
  const auto grpc_deadline =
      SystemTimeIn(std::max<int64_t>(0, end_us - SystemClock().NowUs()) + kLastCallsUs);
  grpc_shutdown_ = Thread("grpc-shutdown", [this, grpc_deadline] {
    grpc_->Shutdown(grpc_deadline);
    grpc_is_shut_.store(true);
  });
  int64_t busy_us = SystemClock().NowUs();
  const auto is_quiet = [this, &busy_us] {
    const int64_t now_us = SystemClock().NowUs();
    const bool is_busy =
        workers_->num_busy() > 0 || router_->num_live() > 0 || http_->num_active_requests() > 0;
    if (is_busy) busy_us = now_us;
    return now_us - busy_us >= kQuietUs;
  };
  WaitFor(is_quiet, end_us, keep_waiting);
}

void RouterProcessImpl::Stop() {
  if (stopped_) return;
  stopped_ = true;
  if (router_ != nullptr) {
    router_->SetReadyListener(nullptr);
    router_->SetNotReady();  // without a drain before it, refusals and /readyz say so too
  }
  // First what takes requests in, then what works on them: a request that is in the middle still
  // gets its end through the router.
  if (events_ != nullptr) events_->Stop();
  if (workers_ != nullptr) workers_->Stop();
  if (router_ != nullptr) {
    // Ends every request and every lease, so that gRPC's calls can finish.
    router_->Stop();
  }
  if (grpc_ != nullptr) StopGrpc();
  if (http_ != nullptr) http_->Stop();
  // After the last request's end, and while /metrics still tells what became of the spans.
  if (spans_ != nullptr) spans_->Stop();
  streams_->Stop();
  if (admin_ != nullptr) admin_->Stop();
}

void RouterProcessImpl::StopGrpc() {
  if (grpc_shutdown_.joinable()) {
    // A shutdown that has begun keeps its own deadline, that of the drain. Messages that a client
    // does not read would wait for it.
    const bool is_shut = WaitFor([this] { return grpc_is_shut_.load(); },
                                 SystemClock().NowUs() + kLastCallsUs, [] { return true; }) &&
                         grpc_is_shut_.load();
    if (!is_shut) grpc_server_cancel_all_calls(grpc_->c_server());
  }
  grpc_->Shutdown(SystemTimeIn(kLastCallsUs));
  grpc_shutdown_.Join();
  grpc_->Wait();
}

}  // namespace

StatusOr<std::unique_ptr<RouterProcess>> RouterProcess::Start(const RouterConfig& config) {
  // gRPC would only log what is wrong with them, connection after connection.
  if (!config.tls.empty()) BATON_RETURN_IF_ERROR(TlsIdentity::Load(config.tls).status());
  auto process = std::make_unique<RouterProcessImpl>(config);
  BATON_RETURN_IF_ERROR(process->Start());
  BATON_LOG_INFO("the router serves {} on {}, gRPC on {}, admin on {}",
                 config.serves_https ? "HTTPS" : "HTTP", process->http_address(),
                 process->grpc_address(), process->admin_address());
  return std::unique_ptr<RouterProcess>(std::move(process));
}

}  // namespace baton::api
