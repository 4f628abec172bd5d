#include "src/sim/sim_router.h"

#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/base/wire_versions.h"
#include "src/router/worker_codec.h"
#include "src/sim/sim_draws.h"
#include "src/sim/sim_marks.h"
#include "src/sim/sim_worker.h"

namespace baton::sim {

using engine::RequestKey;
using engine::RequestKind;
using limits::kHeartbeatMs;
using obs::RegisterBatonMetrics;
using router::DecodeHello;
using router::DecodeLoad;
using router::DecodePrefix;
using router::DecodeStatus;
using router::DecodeStep;
using router::EncodeAck;
using router::EncodeCancel;
using router::EncodePeers;
using router::EncodeSessionHello;
using router::EncodeStartDecode;
using router::EncodeStartEmbedding;
using router::EncodeStartPrefill;
using router::GenerateRequest;
using router::LeaseId;
using router::LeaseStream;
using router::PlacementSpec;
using router::PrefixBatch;
using router::ResponseSink;
using router::RouterCore;
using router::RouterCoreConfig;
using router::SessionRef;
using router::TakeClaim;
using router::WorkerDescription;
using router::WorkerLoadReport;
using router::WorkerName;
using router::WorkerRequestStatus;
using router::WorkerSession;
using router::WorkerToken;

namespace {

constexpr int64_t kConnectTimeoutUs = 1'000'000;
// Bytes of an order beside its tokens.
constexpr size_t kOrderBytes = 128;

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
    auto* const message = mail().Blank<v1::RouterMessage>();
    EncodeStartPrefill(spec, decode, message);
    SendOrder(spec, RequestKind::kSource, decode.incarnation, *message);
  }
  void StartDecode(const PlacementSpec& spec, const WorkerName* prefill) override {
    auto* const message = mail().Blank<v1::RouterMessage>();
    EncodeStartDecode(spec, prefill, message);
    const RequestKind kind = prefill == nullptr ? RequestKind::kLocal : RequestKind::kDest;
    SendOrder(spec, kind, prefill == nullptr ? Incarnation() : prefill->incarnation, *message);
  }
  void StartEmbedding(const PlacementSpec& spec) override {
    auto* const message = mail().Blank<v1::RouterMessage>();
    EncodeStartEmbedding(spec, message);
    SendOrder(spec, RequestKind::kEmbed, Incarnation(), *message);
  }
  void Cancel(RequestUid uid, uint32_t attempt) override {
    if (stream_->router->is_dying()) return;
    auto* const message = mail().Blank<v1::RouterMessage>();
    EncodeCancel(uid, attempt, message);
    SendMessage(kSmallBytes, *message, MarkOf(RequestKey{uid, attempt}));
  }
  void Renew(uint32_t lease_ms) override {
    auto* const message = mail().Blank<v1::RouterMessage>();
    message->mutable_renew()->set_lease_ms(lease_ms);
    SendMessage(kSmallBytes, *message, MarkOfNumber(lease_ms));
  }

 private:
  SimMail& mail() { return stream_->router->fabric().mail; }
  template <typename F>
  void Send(size_t num_bytes, F&& action) {
    SimRouter& router = *stream_->router;
    router.fabric().network->Send(router.process(), stream_->worker->process(), num_bytes,
                                  std::forward<F>(action));
  }
  void SendMessage(size_t num_bytes, const v1::RouterMessage& message, uint64_t mark) {
    Send(num_bytes, [stream = stream_, letter = mail().Seal(message, mark)] {
      stream->worker->OnMessage(stream, letter);
    });
  }
  void SendOrder(const PlacementSpec& spec, RequestKind kind, Incarnation peer,
                 const v1::RouterMessage& message) {
    const size_t num_bytes = kOrderBytes + 4 * (spec.prompt->size() + spec.replayed.size());
    SendMessage(num_bytes, message, MarkOf(spec, kind, peer));
  }

  const std::shared_ptr<SimSessionStream> stream_;
};

// The core's end of a registration.
class SimLeaseStream final : public LeaseStream {
 public:
  explicit SimLeaseStream(std::shared_ptr<SimLease> lease) : lease_(std::move(lease)) {}
  ~SimLeaseStream() override { Close(); }

  void Accept(uint32_t /*heartbeat_ms*/) override { SendDirective(Ack("")); }
  void Refuse(std::string_view reason) override {
    // A life that ended without a word may stand in the table for a moment: it asks again.
    if (reason.find("is taken by another process") == std::string_view::npos) {
      lease_->router->fabric().violate("refused", std::string(reason));
    }
    if (!std::exchange(lease_->router_open, false)) return;
    Drop(&lease_->router->leases_, lease_);
    SendDirective(Ack(reason));
  }
  void SendPeers(const std::vector<const WorkerDescription*>& peers) override {
    auto* const directive = mail().Blank<v1::RouterDirective>();
    EncodePeers(peers, directive->mutable_peers());
    SendDirective(mail().Seal(*directive, MarkOf(peers)));
  }
  void AskPrefixResync() override {
    auto* const directive = mail().Blank<v1::RouterDirective>();
    directive->mutable_resync();
    SendDirective(mail().Seal(*directive, 0));
  }
  void AskDrain(uint32_t timeout_ms) override {
    auto* const directive = mail().Blank<v1::RouterDirective>();
    directive->mutable_drain()->set_timeout_ms(timeout_ms);
    SendDirective(mail().Seal(*directive, MarkOfNumber(timeout_ms)));
  }

 private:
  SimMail& mail() { return lease_->router->fabric().mail; }
  SimLetter Ack(std::string_view refusal) {
    const Incarnation router = lease_->router->incarnation();
    auto* const directive = mail().Blank<v1::RouterDirective>();
    EncodeAck(router, refusal, directive->mutable_ack());
    return mail().Seal(*directive, MarkOfAck(router.value(), kHeartbeatMs, refusal));
  }
  template <typename F>
  void Send(F&& action) {
    SimRouter& router = *lease_->router;
    router.fabric().network->Send(router.process(), lease_->worker->process(), kSmallBytes,
                                  std::forward<F>(action));
  }
  void SendDirective(SimLetter letter) {
    Send([lease = lease_, letter = std::move(letter)] {
      lease->worker->OnDirective(lease, letter);
    });
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

Incarnation SimRouter::incarnation() const {
  return Incarnation(StreamSeed(process_->index(), DrawPurpose::kRouter, process_->life()) | 1);
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
  auto* const message = fabric_->mail.Blank<v1::RouterMessage>();
  EncodeSessionHello(incarnation(), worker, kWireVersions, message->mutable_hello());
  const uint64_t mark = MarkOfSession(incarnation().value(), worker.name.incarnation.value(),
                                      CommonWireVersion(kWireVersions, kWireVersions));
  fabric_->network->Send(*process_, stream->worker->process(), kSmallBytes,
                         [stream, letter = fabric_->mail.Seal(*message, mark)] {
                           stream->worker->OnMessage(stream, letter);
                         });
  process_->Post(fabric_->events->now_us() + kConnectTimeoutUs, [this, stream] {
    if (!stream->router_up) OnSessionLost(stream, "nobody answers");
  });
  return std::make_unique<SimSession>(stream);
}

// As SessionStream (grpc_worker_session.cc) does.
void SimRouter::OnMessage(const std::shared_ptr<SimSessionStream>& stream,
                          const SimLetter& letter) {
  if (!stream->router_open) return;
  const auto* const message = fabric_->mail.Open<v1::WorkerMessage>(letter);
  if (message == nullptr) return;
  switch (message->kind_case()) {
    case v1::WorkerMessage::kHello: {
      const v1::SessionHello& hello = message->hello();
      fabric_->mail.Check("SessionHello", letter.mark,
                          MarkOfSession(hello.router_incarnation(), hello.worker_incarnation(),
                                        hello.wire_version()));
      stream->router_up = true;
      return core_->OnSessionUp(stream->ref, process_->NowUs());
    }
    case v1::WorkerMessage::kStep: {
      std::vector<WorkerToken> tokens = DecodeStep(message->step());
      fabric_->mail.Check("StepEvents", letter.mark, MarkOf(tokens));
      return core_->OnSessionTokens(stream->ref, std::move(tokens), process_->NowUs());
    }
    case v1::WorkerMessage::kStatus: {
      const WorkerRequestStatus status = DecodeStatus(message->status());
      fabric_->mail.Check("RequestStatus", letter.mark, MarkOf(status));
      return core_->OnSessionStatus(stream->ref, status, process_->NowUs());
    }
    case v1::WorkerMessage::KIND_NOT_SET:
      break;
  }
  fabric_->mail.Refuse("WorkerMessage", InvalidArgument("it is of no kind"));
}

void SimRouter::OnSessionLost(const std::shared_ptr<SimSessionStream>& stream,
                              std::string_view why) {
  if (!std::exchange(stream->router_open, false)) return;
  Drop(&streams_, stream);
  fabric_->network->Send(*process_, stream->worker->process(), 0,
                         [stream] { stream->worker->OnSessionClosed(stream); });
  core_->OnSessionDown(stream->ref, why, process_->NowUs());
}

// As LeaseReactor (grpc_registry_service.cc) does.
void SimRouter::OnReport(const std::shared_ptr<SimLease>& lease, const SimLetter& letter) {
  auto* const report = fabric_->mail.Open<v1::WorkerReport>(letter);
  if (report == nullptr) return;
  switch (report->kind_case()) {
    case v1::WorkerReport::kHello:
      return OnHello(lease, letter, report->mutable_hello());
    case v1::WorkerReport::kLoad: {
      WorkerLoadReport load = DecodeLoad(report->load());
      fabric_->mail.Check("WorkerLoad", letter.mark, MarkOf(load));
      if (lease->router_open) core_->OnWorkerLoad(lease->id, std::move(load), process_->NowUs());
      return;
    }
    case v1::WorkerReport::kPrefix: {
      const StatusOr<PrefixBatch> batch = DecodePrefix(report->prefix());
      if (!batch.ok()) return fabric_->mail.Refuse("PrefixEvents", batch.status());
      fabric_->mail.Check("PrefixEvents", letter.mark, MarkOf(*batch));
      if (lease->router_open) core_->OnPrefixEvents(lease->id, *batch, process_->NowUs());
      return;
    }
    case v1::WorkerReport::KIND_NOT_SET:
      break;
  }
  fabric_->mail.Refuse("WorkerReport", InvalidArgument("it is of no kind"));
}

void SimRouter::OnHello(const std::shared_ptr<SimLease>& lease, const SimLetter& letter,
                        v1::WorkerHello* hello) {
  StatusOr<WorkerDescription> worker = DecodeHello(*hello);
  if (!worker.ok()) return fabric_->mail.Refuse("WorkerHello", worker.status());
  fabric_->mail.Check("WorkerHello", letter.mark, MarkOf(*worker, TakeClaim(hello)));
  worker->model = lease->worker->model();
  lease->id = LeaseId(next_lease_++);
  lease->router_open = true;
  leases_.push_back(lease);
  core_->OnWorkerHello(lease->id, *std::move(worker), std::make_unique<SimLeaseStream>(lease),
                       process_->NowUs());
}

void SimRouter::OnLeaseLost(const std::shared_ptr<SimLease>& lease) {
  if (!std::exchange(lease->router_open, false)) return;
  Drop(&leases_, lease);
  core_->OnLeaseClosed(lease->id);
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
