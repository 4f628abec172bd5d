#include "src/router/grpc_registry_service.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/router/router_core.h"
#include "src/router/worker_codec.h"
#include "src/router/worker_link.h"
#include "src/rpc/credentials.h"

namespace baton::router {

using obs::RefusalReason;
using rpc::HasVerifiedCertificate;

namespace {

// Directives that wait for the network; a worker that takes none for so long is cut off.
constexpr size_t kMaxQueuedDirectives = 64;
// Reports of one worker that wait for the router's thread; then its stream is not read until the
// router has caught up, and gRPC's flow control slows the worker.
constexpr int kMaxUnhandled = 16;
// Anybody may knock; one line a second says so.
constexpr int64_t kRefusalLogIntervalUs = 1'000'000;

// One worker's lease stream. Lives until gRPC has finished with it.
class LeaseReactor final : public grpc::ServerBidiReactor<v1::WorkerReport, v1::RouterDirective>,
                           public std::enable_shared_from_this<LeaseReactor> {
 public:
  LeaseReactor(std::shared_ptr<RouterInbox> inbox, ModelCatalog* catalog, LeaseId lease,
               Incarnation router_incarnation, const WireRange& wire)
      : inbox_(std::move(inbox)),
        catalog_(catalog),
        lease_(lease),
        router_incarnation_(router_incarnation),
        wire_(wire) {}

  void Start() {
    self_ = shared_from_this();
    StartRead(&incoming_);
  }

  Incarnation router_incarnation() const { return router_incarnation_; }

  void Send(v1::RouterDirective directive) {
    MutexLock lock(mutex_);
    if (finished_) return;
    if (outgoing_.size() >= kMaxQueuedDirectives) {
      return FinishLocked({grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker does not read"});
    }
    outgoing_.push_back(std::move(directive));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  // Ends the stream once everything queued is written.
  void FinishWhenWritten(grpc::Status status) {
    MutexLock lock(mutex_);
    if (finished_ || finish_when_written_) return;  // the first reason stands
    if (outgoing_.empty()) return FinishLocked(std::move(status));
    finish_with_ = std::move(status);
    finish_when_written_ = true;
  }

  void OnReadDone(bool ok) override {
    if (!ok) return FinishWhenWritten(grpc::Status::OK);
    const bool is_registering = !said_hello_;
    const Status handled = Handle();
    if (!handled.ok()) return EndFor(handled, is_registering);
    MutexLock lock(mutex_);
    read_paused_ = true;
    ReadOnLocked();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    outgoing_.pop_front();
    if (finished_) return;
    if (!ok) return FinishLocked({grpc::StatusCode::UNAVAILABLE, "the worker is gone"});
    if (!outgoing_.empty()) return StartWrite(&outgoing_.front());
    if (finish_when_written_) FinishLocked(finish_with_);
  }

  void OnCancel() override { FinishWhenWritten(grpc::Status::CANCELLED); }

  void OnDone() override {
    bool is_resolving = false;
    {
      MutexLock lock(mutex_);
      is_done_ = true;
      is_resolving = is_resolving_;
    }
    if (!is_resolving) PostClosed();  // else OnResolved does: the core hears of a lease's end last
    self_.reset();                    // may destroy this
  }

  void FillAck(v1::RouterDirective* directive, std::string_view refusal) const {
    EncodeAck(router_incarnation_, refusal, directive->mutable_ack());
  }

 private:
  Status Handle();
  // Ends the stream for a report that cannot be taken; see EndOfRegistration for a hello.
  void EndFor(const Status& fault, bool is_registering);
  Status HandleHello();
  // The hello's model is known, or why it is none.
  void OnResolved(WorkerDescription worker, ModelCatalog::Resolved model);
  Status HandlePrefix();
  void PostClosed() {
    inbox_->Post(
        [lease = lease_](RouterCore& core, int64_t /*now_us*/) { core.OnLeaseClosed(lease); });
  }
  // Posts what `task` does and counts it until the router's thread has done it.
  void PostReport(RouterTask task);
  // The router's thread has handled a report.
  void OnHandled() {
    MutexLock lock(mutex_);
    --num_unhandled_;
    ReadOnLocked();
  }
  void ReadOnLocked() BATON_REQUIRES(mutex_) {
    if (!read_paused_ || finished_ || finish_when_written_) return;
    // A report after the hello is handled after it, and the hello's tokenizer may have to be built.
    if (num_unhandled_ >= kMaxUnhandled || is_resolving_) return;
    read_paused_ = false;
    StartRead(&incoming_);
  }

  void FinishLocked(grpc::Status status) BATON_REQUIRES(mutex_) {
    finished_ = true;
    Finish(std::move(status));
  }

  const std::shared_ptr<RouterInbox> inbox_;
  ModelCatalog* const catalog_;
  const LeaseId lease_;
  const Incarnation router_incarnation_;
  const WireRange wire_;
  std::shared_ptr<LeaseReactor> self_;  // from Start to OnDone
  v1::WorkerReport incoming_;           // owned by the read under way
  bool said_hello_ = false;             // only touched between two reads

  Mutex mutex_;
  // The front one is being written.
  std::deque<v1::RouterDirective> outgoing_ BATON_GUARDED_BY(mutex_);
  bool finish_when_written_ BATON_GUARDED_BY(mutex_) = false;
  grpc::Status finish_with_ BATON_GUARDED_BY(mutex_);
  bool finished_ BATON_GUARDED_BY(mutex_) = false;
  int num_unhandled_ BATON_GUARDED_BY(mutex_) = 0;
  bool read_paused_ BATON_GUARDED_BY(mutex_) = false;
  bool is_resolving_ BATON_GUARDED_BY(mutex_) = false;  // the hello's tokenizer is being looked for
  bool is_done_ BATON_GUARDED_BY(mutex_) = false;       // gRPC has finished with it
};

// Ends a stream that is not taken; gRPC's last call frees it.
class RefusingReactor final
    : public grpc::ServerBidiReactor<v1::WorkerReport, v1::RouterDirective> {
 public:
  explicit RefusingReactor(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

// The core's handle of a lease stream.
class GrpcLeaseStream final : public LeaseStream {
 public:
  explicit GrpcLeaseStream(std::shared_ptr<LeaseReactor> reactor) : reactor_(std::move(reactor)) {}
  ~GrpcLeaseStream() override { reactor_->FinishWhenWritten(grpc::Status::OK); }

  void Accept(uint32_t /*heartbeat_ms*/) override {
    v1::RouterDirective directive;
    reactor_->FillAck(&directive, "");
    reactor_->Send(std::move(directive));
  }
  void Refuse(std::string_view reason) override {
    v1::RouterDirective directive;
    reactor_->FillAck(&directive, reason);
    reactor_->Send(std::move(directive));
    reactor_->FinishWhenWritten({grpc::StatusCode::FAILED_PRECONDITION, std::string(reason)});
  }
  void SendPeers(const std::vector<const WorkerDescription*>& peers) override {
    v1::RouterDirective directive;
    EncodePeers(peers, directive.mutable_peers());
    reactor_->Send(std::move(directive));
  }
  void AskPrefixResync() override {
    v1::RouterDirective directive;
    directive.mutable_resync();
    reactor_->Send(std::move(directive));
  }
  void AskDrain(uint32_t timeout_ms) override {
    v1::RouterDirective directive;
    directive.mutable_drain()->set_timeout_ms(timeout_ms);
    reactor_->Send(std::move(directive));
  }

 private:
  const std::shared_ptr<LeaseReactor> reactor_;
};

void LeaseReactor::PostReport(RouterTask task) {
  {
    MutexLock lock(mutex_);
    ++num_unhandled_;
  }
  inbox_->Post([self = shared_from_this(), task = std::move(task)](RouterCore& core,
                                                                   int64_t now_us) mutable {
    task(core, now_us);
    self->OnHandled();
  });
}

void LeaseReactor::EndFor(const Status& fault, bool is_registering) {
  const std::string reason(fault.message());
  const RegistrationEnd end = EndOfRegistration(fault);
  if (!end.refusal) {
    BATON_LOG_WARN("a worker's registration has to wait: {}", reason);
    return FinishWhenWritten({end.code, reason});
  }
  if (is_registering) {
    BATON_LOG_ERROR("a worker's registration is refused: {}", reason);
    inbox_->Post(
        [why = *end.refusal](RouterCore& core, int64_t /*now_us*/) { core.CountRefusals(why, 1); });
  } else {
    BATON_LOG_ERROR("a worker's registration ends for what it reports: {}", reason);
  }
  v1::RouterDirective directive;
  FillAck(&directive, reason);
  Send(std::move(directive));
  FinishWhenWritten({end.code, reason});
}

Status LeaseReactor::Handle() {
  switch (incoming_.kind_case()) {
    case v1::WorkerReport::kHello:
      if (said_hello_) return InvalidArgument("a second hello on one lease stream");
      said_hello_ = true;
      return HandleHello();
    case v1::WorkerReport::kLoad:
      if (!said_hello_) return InvalidArgument("a load report before the hello");
      PostReport([lease = lease_, load = DecodeLoad(incoming_.load())](RouterCore& core,
                                                                       int64_t now_us) mutable {
        core.OnWorkerLoad(lease, std::move(load), now_us);
      });
      return OkStatus();
    case v1::WorkerReport::kPrefix:
      return HandlePrefix();
    case v1::WorkerReport::KIND_NOT_SET:
      return OkStatus();  // a kind that a newer worker knows
  }
  return OkStatus();
}

Status LeaseReactor::HandleHello() {
  BATON_ASSIGN_OR_RETURN(WorkerDescription worker, DecodeHello(incoming_.hello(), wire_));
  ModelClaim claim = TakeClaim(incoming_.mutable_hello());
  {
    MutexLock lock(mutex_);
    is_resolving_ = true;
  }
  catalog_->Resolve(std::move(claim), [self = shared_from_this(), worker = std::move(worker)](
                                          ModelCatalog::Resolved model) mutable {
    self->OnResolved(std::move(worker), std::move(model));
  });
  return OkStatus();
}

void LeaseReactor::OnResolved(WorkerDescription worker, ModelCatalog::Resolved model) {
  if (model.ok()) {
    worker.model = *std::move(model);
    auto stream = std::make_unique<GrpcLeaseStream>(shared_from_this());
    PostReport([lease = lease_, worker = std::move(worker), stream = std::move(stream)](
                   RouterCore& core, int64_t now_us) mutable {
      core.OnWorkerHello(lease, std::move(worker), std::move(stream), now_us);
    });
  } else {
    EndFor(model.status(), /*is_registering=*/true);
  }
  bool is_done = false;
  {
    MutexLock lock(mutex_);
    is_resolving_ = false;
    is_done = is_done_;
    ReadOnLocked();
  }
  if (is_done) PostClosed();
}

Status LeaseReactor::HandlePrefix() {
  if (!said_hello_) return InvalidArgument("prefix events before the hello");
  BATON_ASSIGN_OR_RETURN(PrefixBatch batch, DecodePrefix(incoming_.prefix()));
  PostReport([lease = lease_, batch = std::move(batch)](RouterCore& core, int64_t now_us) {
    core.OnPrefixEvents(lease, batch, now_us);
  });
  return OkStatus();
}

}  // namespace

RegistrationEnd EndOfRegistration(const Status& fault) {
  if (absl::IsUnavailable(fault)) return {grpc::StatusCode::UNAVAILABLE, std::nullopt};
  if (absl::IsFailedPrecondition(fault)) {
    return {grpc::StatusCode::FAILED_PRECONDITION, RefusalReason::kWireVersion};
  }
  return {grpc::StatusCode::INVALID_ARGUMENT, RefusalReason::kMalformed};
}

grpc::ServerBidiReactor<v1::WorkerReport, v1::RouterDirective>* GrpcRegistryService::Register(
    grpc::CallbackServerContext* context) {
  if (wants_certificates_ && !HasVerifiedCertificate(*context->auth_context())) {
    if (num_strangers_->fetch_add(1) == 0) {
      inbox_->Post([strangers = num_strangers_](RouterCore& core, int64_t /*now_us*/) {
        core.CountRefusals(RefusalReason::kCertificate, strangers->exchange(0));
      });
    }
    const int64_t now_us = SystemClock().NowUs();
    // Only what is logged moves the mark: else a stranger who tries every half second is logged
    // once.
    int64_t logged_us = refusal_logged_us_.load();
    const bool is_due = now_us - logged_us >= kRefusalLogIntervalUs;
    if (is_due && refusal_logged_us_.compare_exchange_strong(logged_us, now_us)) {
      BATON_LOG_WARN("a worker without a certificate is refused: {}", context->peer());
    }
    return new RefusingReactor({grpc::StatusCode::UNAUTHENTICATED,
                                "workers register with a certificate (--tls-cert, --tls-key, "
                                "--tls-ca)"});
  }
  const LeaseId lease(next_lease_.fetch_add(1, std::memory_order_relaxed));
  auto reactor =
      std::make_shared<LeaseReactor>(inbox_, &catalog_, lease, router_incarnation_, wire_);
  reactor->Start();
  return reactor.get();
}

}  // namespace baton::router
