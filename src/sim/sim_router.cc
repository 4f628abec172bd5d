#include "src/sim/sim_router.h"

#include <algorithm>
#include <utility>

#include "src/sim/sim_codec.h"
#include "src/sim/sim_worker.h"

namespace baton::sim {

using engine::RequestKey;
using engine::RequestKind;
using engine::RequestSpec;
using obs::RegisterBatonMetrics;
using router::GenerateRequest;
using router::LeaseId;
using router::LeaseStream;
using router::PlacementSpec;
using router::PrefixBatch;
using router::ResponseSink;
using router::RouterCore;
using router::RouterCoreConfig;
using router::SessionRef;
using router::WorkerDescription;
using router::WorkerLoadReport;
using router::WorkerName;
using router::WorkerRequestStatus;
using router::WorkerSession;
using router::WorkerToken;

namespace {

constexpr int64_t kConnectTimeoutUs = 1'000'000;
// A worker that was asked to leave is started again so long after its end.
constexpr int64_t kDownUs = 300'000;
// Bytes of an order beside its tokens, and of small messages.
constexpr size_t kOrderBytes = 128;
constexpr size_t kSmallBytes = 64;

template <typename T>
void Drop(std::vector<std::shared_ptr<T>>* list, const std::shared_ptr<T>& gone) {
  list->erase(std::remove(list->begin(), list->end(), gone), list->end());
}

}  // namespace

// The core's end of a session.
class SimSession final : public WorkerSession {
 public:
  explicit SimSession(std::shared_ptr<SimSessionStream> stream) : stream_(std::move(stream)) {}
  ~SimSession() override {
    if (!std::exchange(stream_->router_open, false)) return;
    Drop(&stream_->router->streams_, stream_);
    Send(0, [stream = stream_] { stream->worker->OnSessionClosed(stream); });
  }

  void StartPrefill(const PlacementSpec& spec, const WorkerName& decode) override {
    SendOrder(ToEngineSpec(spec, RequestKind::kSource, decode.incarnation));
  }
  void StartDecode(const PlacementSpec& spec, const WorkerName* prefill) override {
    const RequestKind kind = prefill == nullptr ? RequestKind::kLocal : RequestKind::kDest;
    SendOrder(ToEngineSpec(spec, kind, prefill == nullptr ? Incarnation() : prefill->incarnation));
  }
  void StartEmbedding(const PlacementSpec& spec) override {
    SendOrder(ToEngineSpec(spec, RequestKind::kEmbed, Incarnation()));
  }
  void Cancel(RequestUid uid, uint32_t attempt) override {
    if (stream_->router->is_dying()) return;
    Send(kSmallBytes, [stream = stream_, key = RequestKey{uid, attempt}] {
      stream->worker->OnCancel(stream, key);
    });
  }
  void Renew(uint32_t lease_ms) override {
    Send(kSmallBytes, [stream = stream_, lease_us = int64_t{lease_ms} * 1000] {
      stream->worker->OnRenew(stream, lease_us);
    });
  }

 private:
  template <typename F>
  void Send(size_t num_bytes, F&& action) {
    SimRouter& router = *stream_->router;
    router.fabric().network->Send(router.process(), stream_->worker->process(), num_bytes,
                                  std::forward<F>(action));
  }
  void SendOrder(RequestSpec spec) {
    const size_t num_bytes = kOrderBytes + 4 * spec.tokens.size();
    Send(num_bytes,
         [stream = stream_, order = std::make_unique<RequestSpec>(std::move(spec))]() mutable {
           stream->worker->OnOrder(stream, std::move(order));
         });
  }

  const std::shared_ptr<SimSessionStream> stream_;
};

// The core's end of a registration.
class SimLeaseStream final : public LeaseStream {
 public:
  explicit SimLeaseStream(std::shared_ptr<SimLease> lease) : lease_(std::move(lease)) {}
  ~SimLeaseStream() override { Close(); }

  void Accept(uint32_t /*heartbeat_ms*/) override {
    Send([lease = lease_] { lease->accepted = lease->worker_open; });
  }
  void Refuse(std::string_view reason) override {
    // A life that ended without a word may stand in the table for a moment: it asks again.
    if (reason.find("is taken by another process") == std::string_view::npos) {
      lease_->router->fabric().violate("refused", std::string(reason));
    }
    Close();
  }
  void SendPeers(const std::vector<const WorkerDescription*>& peers) override {
    std::vector<SimPeer> list;
    for (const WorkerDescription* peer : peers) {
      SimWorker* const worker = lease_->router->FindWorker(peer->name.worker_id);
      if (worker != nullptr) list.push_back({worker, peer->name.incarnation});
    }
    Send([lease = lease_, list = std::move(list)] { lease->worker->OnPeers(lease, list); });
  }
  void AskPrefixResync() override {
    Send([lease = lease_] { lease->feed.TellAll(); });
  }
  void AskDrain(uint32_t /*timeout_ms*/) override {
    Send([lease = lease_] { lease->worker->Leave(kDownUs); });
  }

 private:
  template <typename F>
  void Send(F&& action) {
    SimRouter& router = *lease_->router;
    router.fabric().network->Send(router.process(), lease_->worker->process(), kSmallBytes,
                                  std::forward<F>(action));
  }
  void Close() {
    if (!std::exchange(lease_->router_open, false)) return;
    Drop(&lease_->router->leases_, lease_);
    Send([lease = lease_] { lease->worker->OnLeaseClosed(lease); });
  }

  const std::shared_ptr<SimLease> lease_;
};

SimRouter::SimRouter(const RouterCoreConfig& config, SimFabric* fabric, SimProcess* process)
    : config_(config),
      fabric_(fabric),
      process_(process),
      metrics_(RegisterBatonMetrics(&registry_)) {}

SimRouter::~SimRouter() {
  dying_ = true;
  core_.reset();
}

void SimRouter::Boot() {
  core_ = std::make_unique<RouterCore>(config_, this, &metrics_);
  Tick();
}

void SimRouter::Kill() {
  dying_ = true;
  core_.reset();
  dying_ = false;
  leases_.clear();
  streams_.clear();
  process_->Kill();
}

void SimRouter::AskToLeave(std::string_view worker_id) {
  (void)core_->DrainWorker(worker_id, /*timeout_ms=*/0);  // it may have gone meanwhile
}

void SimRouter::Tick() {
  core_->Tick(process_->NowUs());
  process_->Post(fabric_->events->now_us() + core_->TickIntervalUs(), [this] { Tick(); });
}

SimWorker* SimRouter::FindWorker(std::string_view worker_id) const {
  for (SimWorker* worker : fabric_->workers) {
    if (worker->name() == worker_id) return worker;
  }
  return nullptr;
}

void SimRouter::Submit(RequestUid uid, GenerateRequest request,
                       std::shared_ptr<ResponseSink> sink) {
  request.received_us = process_->NowUs();
  core_->Submit(uid, std::move(request), std::move(sink), process_->NowUs());
}

void SimRouter::Cancel(RequestUid uid) { core_->Cancel(uid); }

// ---- Streams.

std::unique_ptr<WorkerSession> SimRouter::Connect(SessionRef session,
                                                  const WorkerDescription& worker) {
  auto stream = std::make_shared<SimSessionStream>();
  stream->router = this;
  stream->worker = FindWorker(worker.name.worker_id);
  stream->ref = session;
  streams_.push_back(stream);
  fabric_->network->Send(*process_, stream->worker->process(), kSmallBytes,
                         [stream, wanted = worker.name.incarnation] {
                           stream->worker->OnSessionOpen(stream, wanted);
                         });
  process_->Post(fabric_->events->now_us() + kConnectTimeoutUs, [this, stream] {
    if (!stream->router_up) OnSessionLost(stream, "nobody answers");
  });
  return std::make_unique<SimSession>(stream);
}

void SimRouter::OnSessionUp(const std::shared_ptr<SimSessionStream>& stream) {
  if (!stream->router_open) return;
  stream->router_up = true;
  core_->OnSessionUp(stream->ref, process_->NowUs());
}

void SimRouter::OnSessionLost(const std::shared_ptr<SimSessionStream>& stream,
                              std::string_view why) {
  if (!std::exchange(stream->router_open, false)) return;
  Drop(&streams_, stream);
  fabric_->network->Send(*process_, stream->worker->process(), 0,
                         [stream] { stream->worker->OnSessionClosed(stream); });
  core_->OnSessionDown(stream->ref, why, process_->NowUs());
}

void SimRouter::OnHello(const std::shared_ptr<SimLease>& lease, WorkerDescription description) {
  lease->id = LeaseId(next_lease_++);
  lease->router_open = true;
  leases_.push_back(lease);
  core_->OnWorkerHello(lease->id, std::move(description), std::make_unique<SimLeaseStream>(lease),
                       process_->NowUs());
}

void SimRouter::OnLoad(const std::shared_ptr<SimLease>& lease, WorkerLoadReport load) {
  if (lease->router_open) core_->OnWorkerLoad(lease->id, std::move(load), process_->NowUs());
}

void SimRouter::OnPrefixes(const std::shared_ptr<SimLease>& lease, const PrefixBatch& batch) {
  if (lease->router_open) core_->OnPrefixEvents(lease->id, batch, process_->NowUs());
}

void SimRouter::OnLeaseLost(const std::shared_ptr<SimLease>& lease) {
  if (!std::exchange(lease->router_open, false)) return;
  Drop(&leases_, lease);
  core_->OnLeaseClosed(lease->id);
}

void SimRouter::OnTokens(const std::shared_ptr<SimSessionStream>& stream,
                         std::vector<WorkerToken> tokens) {
  if (!stream->router_open) return;
  core_->OnSessionTokens(stream->ref, std::move(tokens), process_->NowUs());
}

void SimRouter::OnStatus(const std::shared_ptr<SimSessionStream>& stream,
                         const WorkerRequestStatus& status) {
  if (stream->router_open) core_->OnSessionStatus(stream->ref, status, process_->NowUs());
}

void SimRouter::BreakWith(const SimWorker* worker, std::string_view why) {
  const std::vector<std::shared_ptr<SimSessionStream>> streams = streams_;
  for (const auto& stream : streams) {
    if (stream->worker == worker) OnSessionLost(stream, why);
  }
  const std::vector<std::shared_ptr<SimLease>> leases = leases_;
  for (const auto& lease : leases) {
    if (lease->worker == worker) OnLeaseLost(lease);
  }
}

Status SimRouter::CheckEmpty() const {
  if (core_ == nullptr) return Unavailable("{} is dead", process_->name());
  if (core_->num_live() > 0) {
    return Internal("{} has {} live requests", process_->name(), core_->num_live());
  }
  for (const auto& [lease, worker] : core_->registry().workers()) {
    if (worker.placed.num_blocks == 0 && worker.placed.num_tokens == 0 &&
        worker.placed.num_sequences == 0 && worker.num_requests == 0) {
      continue;
    }
    return Internal("{} counts {} blocks, {} tokens and {} requests at {} and has none",
                    process_->name(), worker.placed.num_blocks, worker.placed.num_tokens,
                    worker.num_requests, worker.description.name.worker_id);
  }
  return OkStatus();
}

}  // namespace baton::sim
