#include "src/worker/session_service.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/engine/cancellable_starts.h"
#include "src/rpc/local_stream.h"
#include "src/worker/worker_spans.h"

namespace baton::worker {

using engine::CancellableStarts;
using engine::RequestKey;
using engine::RequestSpec;
using engine::RequestState;
using engine::RequestStatus;
using engine::SessionId;
using engine::TokenEvent;
using rpc::LocalWriter;
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

  bool is_greeted() const { return greeted_.load(); }

  // Sends the tokens of one step, unless a write is under way: then they wait in the message that
  // is written next. Engine thread. It takes the lock once, however many tokens there are.
  void SendTokens(std::span<const TokenEvent> events) {
    {
      MutexLock lock(mutex_);
      if (ended_ || closing_) return;
      for (const TokenEvent& event : events) {
        ToProto(event, pending_.mutable_step()->add_events());
        if (!event.embedding.empty()) SealPendingLocked();
      }
      num_queued_ += events.size();
      if (num_queued_ > service_->limits_.max_queued_events) CutOffLocked();
      MaybeWriteLocked();
    }
    TellCutOff();
  }

  void SendStatus(const RequestStatus& status) {
    {
      MutexLock lock(mutex_);
      starts_.OnState(status.key, status.state);
      QueueStatusLocked(status);
    }
    TellCutOff();
  }

  void Close(const grpc::Status& status) {
    MutexLock lock(mutex_);
    EndLocked(status);
  }

  // Ends the stream after what waits to be written; nothing is added any more.
  void CloseWhenWritten(const grpc::Status& status) {
    MutexLock lock(mutex_);
    if (ended_ || closing_) return;
    closing_ = true;
    final_status_ = status;
    MaybeWriteLocked();
    if (!is_writing()) EndLocked(status);
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
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) {
      EndLocked(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router has gone"));
      return;
    }
    if (ended_) {
      FinishOnceLocked();
      return;
    }
    MaybeWriteLocked();
    if (closing_ && !is_writing()) EndLocked(final_status_);
  }

  // The local stream, which was full, has room again or has lost its router.
  void OnWritable() {
    MutexLock lock(mutex_);
    full_ = false;
    if (ended_ || !HasSentLocked(local_->Flush())) return;
    MaybeWriteLocked();
    if (closing_ && !is_writing()) EndLocked(final_status_);
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
    if (message.has_start_prefill() || message.has_start_decode() ||
        message.has_start_embedding()) {
      return HandleStart(message);
    }
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
    BATON_RETURN_IF_ERROR(CheckSessionHello(hello, service_->limits_));
    std::optional<LocalWriter> local = ConnectLocal(hello);
    greeted_ = true;
    v1::WorkerMessage answer;
    *answer.mutable_hello() = hello;
    {
      MutexLock lock(mutex_);
      local_ = std::move(local);
      QueueLocked(std::move(answer));
    }
    TellCutOff();
    return OkStatus();
  }

  // The stream of a router of this host; none = it is elsewhere, and gRPC carries the messages.
  std::optional<LocalWriter> ConnectLocal(const v1::SessionHello& hello) {
    if (hello.local_stream().empty()) return std::nullopt;
    StatusOr<LocalWriter> local = LocalWriter::Connect(hello.local_stream());
    if (local.ok()) return *std::move(local);
    BATON_LOG_DEBUG("session {} stays with gRPC: {}", id_, std::string(local.status().message()));
    return std::nullopt;
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
    {
      MutexLock lock(mutex_);
      QueueStatusLocked(rejected);
    }
    TellCutOff();
    return OkStatus();
  }

  bool NoteStart(const RequestKey& key) {
    MutexLock lock(mutex_);
    return starts_.Note(key);
  }
  void ForgetStart(const RequestKey& key) {
    MutexLock lock(mutex_);
    starts_.Forget(key);
  }
  bool TakeCancel(const RequestKey& key) {
    MutexLock lock(mutex_);
    return starts_.TakeCancel(key);
  }

  void QueueStatusLocked(const RequestStatus& status) BATON_REQUIRES(mutex_) {
    if (ended_ || closing_) return;
    v1::WorkerMessage message;
    ToProto(status, message.mutable_status());
    QueueLocked(std::move(message));
  }

  void QueueLocked(v1::WorkerMessage message) BATON_REQUIRES(mutex_) {
    if (pending_.has_step()) SealPendingLocked();
    outbox_.push_back(std::move(message));
    ++num_queued_;
    if (num_queued_ > service_->limits_.max_queued_events) return CutOffLocked();
    MaybeWriteLocked();
  }

  // Nothing is added to the step message any more. A message has one vector at most, so that it
  // stays below what a router reads, however many wait.
  void SealPendingLocked() BATON_REQUIRES(mutex_) {
    outbox_.push_back(std::move(pending_));
    pending_.Clear();
  }

  // The write under way waits for a reader, so that an orderly end would wait with it. Without a
  // write the end is orderly. The lock keeps the call: gRPC is done with it after OnWriteDone,
  // which waits for the lock. The caller goes on with TellCutOff.
  void CutOffLocked() BATON_REQUIRES(mutex_) {
    num_cut_off_.store(num_queued_, std::memory_order_relaxed);
    if (writing_) call_->TryCancel();
    EndLocked(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the router does not read"));
    outbox_.clear();
    pending_.Clear();
    num_queued_ = 0;
  }

  // Ends the session's requests after it was cut off. The engine is called without the lock.
  // Nothing is lost in between: an ended session takes no event, and its first caller here tells.
  void TellCutOff() BATON_EXCLUDES(mutex_) {
    if (num_cut_off_.load(std::memory_order_relaxed) == 0) return;
    const size_t num_events = num_cut_off_.exchange(0, std::memory_order_relaxed);
    if (num_events == 0) return;
    BATON_LOG_ERROR("session {}: {} events wait for a router that does not read; it is cut off",
                    id_, num_events);
    service_->engine_->CloseSession(id_);
  }

  bool is_writing() const BATON_REQUIRES(mutex_) { return writing_ || full_; }

  void MaybeWriteLocked() BATON_REQUIRES(mutex_) {
    while (!is_writing() && !ended_ && TakeNextLocked()) {
      if (local_.has_value()) {
        HasSentLocked(local_->Send(outgoing_));
      } else {
        writing_ = true;
        StartWrite(&outgoing_);
      }
    }
  }

  // Moves the message to be written next to outgoing_; false: there is none.
  bool TakeNextLocked() BATON_REQUIRES(mutex_) {
    if (outbox_.empty()) {
      if (!pending_.has_step()) return false;
      SealPendingLocked();
    }
    outgoing_ = std::move(outbox_.front());
    outbox_.pop_front();
    num_queued_ -= std::max<size_t>(1, static_cast<size_t>(outgoing_.step().events_size()));
    return true;
  }

  // False: the local stream is full, or gone, which ends the session.
  bool HasSentLocked(LocalWriter::Outcome outcome) BATON_REQUIRES(mutex_) {
    if (outcome == LocalWriter::Outcome::kSent) return true;
    if (outcome == LocalWriter::Outcome::kFull) {
      full_ = true;
      service_->full_streams_.Add(local_->fd(),
                                  [self = shared_from_this()] { self->OnWritable(); });
    } else {
      EndLocked(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router has gone"));
    }
    return false;
  }

  void EndLocked(const grpc::Status& status) BATON_REQUIRES(mutex_) {
    if (!ended_) final_status_ = status;
    ended_ = true;
    if (!writing_) FinishOnceLocked();
  }

  void FinishOnceLocked() BATON_REQUIRES(mutex_) {
    if (finished_) return;
    finished_ = true;
    Finish(final_status_);
  }

  SessionService* const service_;
  const SessionId id_;
  grpc::CallbackServerContext* const call_;  // lives until OnDone
  std::shared_ptr<SessionReactor> self_;
  v1::RouterMessage incoming_;  // reading thread
  // Set by the reading thread.
  std::atomic<bool> greeted_{false};
  // Events that waited when it was cut off; 0 = told, or never.
  std::atomic<size_t> num_cut_off_{0};

  Mutex mutex_;
  CancellableStarts starts_ BATON_GUARDED_BY(mutex_);
  std::deque<v1::WorkerMessage> outbox_ BATON_GUARDED_BY(mutex_);
  // Tokens and other messages that wait; outgoing_ is not counted.
  size_t num_queued_ BATON_GUARDED_BY(mutex_) = 0;
  v1::WorkerMessage pending_ BATON_GUARDED_BY(mutex_);   // the step message that is being filled
  v1::WorkerMessage outgoing_ BATON_GUARDED_BY(mutex_);  // being written
  // Takes all messages instead of gRPC; set with the hello or never.
  std::optional<LocalWriter> local_ BATON_GUARDED_BY(mutex_);
  bool writing_ BATON_GUARDED_BY(mutex_) = false;  // gRPC has outgoing_
  bool full_ BATON_GUARDED_BY(mutex_) = false;     // the local stream; OnWritable follows
  bool closing_ BATON_GUARDED_BY(mutex_) = false;  // ended_ follows once all is written
  bool ended_ BATON_GUARDED_BY(mutex_) = false;
  bool finished_ BATON_GUARDED_BY(mutex_) = false;
  grpc::Status final_status_ BATON_GUARDED_BY(mutex_);
};

grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>* SessionService::Session(
    grpc::CallbackServerContext* context) {
  std::shared_ptr<SessionReactor> reactor;
  {
    MutexLock lock(mutex_);
    const SessionId id(next_session_++);
    reactor = std::make_shared<SessionReactor>(this, id, context);
    sessions_[id] = reactor;
  }
  SessionReactor* const raw = reactor.get();
  raw->Begin(std::move(reactor));
  return raw;
}

std::shared_ptr<SessionReactor> SessionService::Find(SessionId id) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

void SessionService::Forget(SessionId id) {
  MutexLock lock(mutex_);
  sessions_.erase(id);
}

void SessionService::OnStepEvents(std::span<const TokenEvent> events) {
  for (const TokenEvent& event : events) {
    if (spans_ != nullptr && event.finish != FinishReason::kNone) spans_->OnLastToken(event.key);
  }
  // Nearly always one router: one look-up and one lock for each run of equal sessions.
  while (!events.empty()) {
    const SessionId session = events.front().session;
    size_t num_equal = 1;
    while (num_equal < events.size() && events[num_equal].session == session) ++num_equal;
    if (const auto reactor = Find(session)) reactor->SendTokens(events.first(num_equal));
    events = events.subspan(num_equal);
  }
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
    MutexLock lock(mutex_);
    for (const auto& [id, reactor] : sessions_) all.push_back(reactor);
  }
  for (const auto& reactor : all) {
    reactor->CloseWhenWritten(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker stops"));
  }
}

size_t SessionService::num_sessions() {
  MutexLock lock(mutex_);
  return sessions_.size();
}

bool SessionService::IsCalled() {
  MutexLock lock(mutex_);
  for (const auto& [id, reactor] : sessions_) {
    if (reactor->is_greeted()) return true;
  }
  return false;
}

}  // namespace baton::worker
