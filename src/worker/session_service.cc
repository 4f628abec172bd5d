#include "src/worker/session_service.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/engine/cancellable_starts.h"
#include "src/worker/request_codec.h"
#include "src/worker/worker_spans.h"

namespace baton::worker {

using engine::CancellableStarts;
using engine::RequestKey;
using engine::RequestSpec;
using engine::RequestState;
using engine::RequestStatus;
using engine::SessionId;
using engine::TokenEvent;
using scheduler::FinishReason;

// One router's stream. Kept alive by the service's table and by gRPC until OnDone.
class SessionReactor : public grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>,
                       public std::enable_shared_from_this<SessionReactor> {
 public:
  SessionReactor(SessionService* service, SessionId id, grpc::CallbackServerContext* call)
      : service_(service), id_(id), call_(call) {}

  // Starts reading; `self` keeps the reactor alive until gRPC is done with it.
  void Begin(std::shared_ptr<SessionReactor> self) {
    self_ = std::move(self);
    StartRead(&incoming_);
  }

  // Adds one token to the step message that will be written next. Engine thread.
  void AddToken(const TokenEvent& event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_ || closing_) return;
    ToProto(event, pending_.mutable_step()->add_events());
    ++num_queued_;
    if (num_queued_ > service_->limits_.max_queued_events) CutOff();
  }

  // Writes what waits, unless a write is under way. Engine thread.
  void Flush() {
    std::lock_guard<std::mutex> lock(mutex_);
    MaybeWrite();
  }

  void SendStatus(const RequestStatus& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    starts_.OnState(status.key, status.state);
    QueueStatus(status);
  }

  void Close(const grpc::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    End(status);
  }

  // Ends the stream after what waits to be written; nothing is added any more.
  void CloseWhenWritten(const grpc::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_ || closing_) return;
    closing_ = true;
    final_status_ = status;
    MaybeWrite();
    if (!writing_) End(status);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      service_->engine_->CloseSession(id_);
      Close(grpc::Status::OK);
      return;
    }
    const Status status = Handle(incoming_);
    if (!status.ok()) {
      BATON_LOG_WARN("session {}: {}", id_, std::string(status.message()));
      service_->engine_->CloseSession(id_);
      Close(grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                         std::string(status.message())));
      return;
    }
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) {
      End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router has gone"));
      return;
    }
    if (ended_) {
      FinishOnce();
      return;
    }
    MaybeWrite();
    if (closing_ && !writing_) End(final_status_);
  }

  void OnCancel() override {
    service_->engine_->CloseSession(id_);
    Close(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    service_->engine_->CloseSession(id_);
    service_->Forget(id_);
    const std::shared_ptr<SessionReactor> last = std::move(self_);  // may destroy *this at return
  }

 private:
  Status Handle(const v1::RouterMessage& message) {
    if (message.has_hello()) return HandleHello(message.hello());
    if (!greeted_) return FailedPrecondition("the first message is no hello");
    if (message.has_start_prefill() || message.has_start_decode()) return HandleStart(message);
    if (message.has_cancel()) {
      const RequestKey key = RequestKeyFromProto(message.cancel());
      if (TakeCancel(key)) service_->engine_->Cancel(key);
      return OkStatus();
    }
    if (message.has_renew()) {
      service_->engine_->Renew(id_, int64_t{message.renew().lease_ms()} * 1000);
      return OkStatus();
    }
    return OkStatus();  // a kind of a newer version
  }

  Status HandleHello(const v1::SessionHello& hello) {
    if (greeted_) return FailedPrecondition("a second hello");
    // Before anything else: what the rest means is the version's to say.
    if (const WireRange& own = service_->limits_.wire; !own.Holds(hello.wire_version())) {
      return FailedPrecondition("wire version {} is not spoken here, only {}", hello.wire_version(),
                                ToString(own));
    }
    if (Incarnation(hello.worker_incarnation()) != service_->limits_.incarnation) {
      return FailedPrecondition("the session is for incarnation {:016x}, this one is {:016x}",
                                hello.worker_incarnation(), service_->limits_.incarnation.value());
    }
    greeted_ = true;
    v1::WorkerMessage answer;
    *answer.mutable_hello() = hello;
    std::lock_guard<std::mutex> lock(mutex_);
    Queue(std::move(answer));
    return OkStatus();
  }

  // A request that cannot be started is answered, it does not end the session.
  Status HandleStart(const v1::RouterMessage& message) {
    RequestSpec spec;
    Status status = RequestSpecFromProto(message, service_->limits_, &spec);
    spec.session = id_;
    const RequestKey key = spec.key;
    if (status.ok()) {
      const bool is_new = NoteStart(key);
      if (service_->spans_ != nullptr) {
        service_->spans_->OnStart(key, SpanIdsFromProto(message));
      }
      status = service_->engine_->TryStart(std::move(spec));
      if (status.ok()) return OkStatus();
      if (is_new) ForgetStart(key);
      if (is_new && service_->spans_ != nullptr) service_->spans_->Forget(key);
    }
    RequestStatus rejected;
    rejected.session = id_;
    rejected.key = key;
    rejected.state = RequestState::kRejected;
    rejected.status = status;
    if (absl::IsResourceExhausted(status)) rejected.retry_after_ms = limits::kRetryHintMs;
    std::lock_guard<std::mutex> lock(mutex_);
    QueueStatus(rejected);
    return OkStatus();
  }

  bool NoteStart(const RequestKey& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    return starts_.Note(key);
  }
  void ForgetStart(const RequestKey& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    starts_.Forget(key);
  }
  bool TakeCancel(const RequestKey& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    return starts_.TakeCancel(key);
  }

  // Callers of the functions from here on hold mutex_.
  void QueueStatus(const RequestStatus& status) {
    if (ended_ || closing_) return;
    v1::WorkerMessage message;
    ToProto(status, message.mutable_status());
    Queue(std::move(message));
  }

  void Queue(v1::WorkerMessage message) {
    if (pending_.has_step()) {
      outbox_.push_back(std::move(pending_));
      pending_.Clear();
    }
    outbox_.push_back(std::move(message));
    ++num_queued_;
    if (num_queued_ > service_->limits_.max_queued_events) return CutOff();
    MaybeWrite();
  }

  // The write under way waits for a reader, so that an orderly end would wait with it.
  void CutOff() {
    BATON_LOG_ERROR("session {}: {} events wait for a router that does not read; it is cut off",
                    id_, num_queued_);
    End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the router does not read"));
    outbox_.clear();
    pending_.Clear();
    num_queued_ = 0;
    service_->engine_->CloseSession(id_);
    call_->TryCancel();
  }

  void MaybeWrite() {
    if (writing_ || ended_) return;
    if (outbox_.empty()) {
      if (!pending_.has_step()) return;
      outbox_.push_back(std::move(pending_));
      pending_.Clear();
    }
    outgoing_ = std::move(outbox_.front());
    outbox_.pop_front();
    num_queued_ -= std::max<size_t>(1, static_cast<size_t>(outgoing_.step().events_size()));
    writing_ = true;
    StartWrite(&outgoing_);
  }

  void End(const grpc::Status& status) {
    if (!ended_) final_status_ = status;
    ended_ = true;
    if (!writing_) FinishOnce();
  }

  void FinishOnce() {
    if (finished_) return;
    finished_ = true;
    Finish(final_status_);
  }

  SessionService* const service_;
  const SessionId id_;
  grpc::CallbackServerContext* const call_;  // lives until OnDone
  std::shared_ptr<SessionReactor> self_;
  v1::RouterMessage incoming_;  // reading thread
  bool greeted_ = false;        // reading thread

  std::mutex mutex_;  // guards what follows
  CancellableStarts starts_;
  std::deque<v1::WorkerMessage> outbox_;
  size_t num_queued_ = 0;       // tokens and other messages that wait, outgoing_ not counted
  v1::WorkerMessage pending_;   // the step message that is being filled
  v1::WorkerMessage outgoing_;  // being written
  bool writing_ = false;
  bool closing_ = false;  // ended_ follows once all is written
  bool ended_ = false;
  bool finished_ = false;
  grpc::Status final_status_;
};

grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>* SessionService::Session(
    grpc::CallbackServerContext* context) {
  std::shared_ptr<SessionReactor> reactor;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const SessionId id(next_session_++);
    reactor = std::make_shared<SessionReactor>(this, id, context);
    sessions_[id] = reactor;
  }
  SessionReactor* const raw = reactor.get();
  raw->Begin(std::move(reactor));
  return raw;
}

std::shared_ptr<SessionReactor> SessionService::Find(SessionId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

void SessionService::Forget(SessionId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  sessions_.erase(id);
}

void SessionService::OnStepEvents(std::span<const TokenEvent> events) {
  // Nearly always one router: the look-up is done once per run of equal sessions.
  std::shared_ptr<SessionReactor> reactor;
  SessionId current;
  for (const TokenEvent& event : events) {
    if (!reactor || event.session != current) {
      if (reactor) reactor->Flush();
      current = event.session;
      reactor = Find(current);
    }
    if (reactor) reactor->AddToken(event);
    if (spans_ != nullptr && event.finish != FinishReason::kNone) spans_->OnLastToken(event.key);
  }
  if (reactor) reactor->Flush();
}

void SessionService::OnRequestStatus(const RequestStatus& status) {
  if (observer_) observer_(status);
  if (spans_ != nullptr) spans_->OnStatus(status);
  if (const std::shared_ptr<SessionReactor> reactor = Find(status.session)) {
    reactor->SendStatus(status);
  }
}

void SessionService::CloseAll() {
  std::vector<std::shared_ptr<SessionReactor>> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, reactor] : sessions_) all.push_back(reactor);
  }
  for (const auto& reactor : all) {
    reactor->CloseWhenWritten(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker stops"));
  }
}

size_t SessionService::num_sessions() {
  std::lock_guard<std::mutex> lock(mutex_);
  return sessions_.size();
}

}  // namespace baton::worker
