#include "src/worker/registration.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "grpcpp/create_channel.h"

#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/rpc/cluster_channel.h"
#include "src/rpc/credentials.h"

namespace baton::worker {

using limits::kHeartbeatMs;
using limits::kMaxClusterMessageBytes;
using limits::kMaxHeartbeatMs;
using limits::kMinHeartbeatMs;
using rpc::ClusterChannelArguments;
using rpc::MakeChannelCredentials;

namespace {

constexpr int64_t kFirstBackoffUs = 100'000;
constexpr int64_t kMaxBackoffUs = 2'000'000;
// Reports that wait after a write; more means that the router does not read.
constexpr size_t kMaxQueuedReports = 8;
constexpr int kMinLookUpGapMs = 1000;
// The ping timeout to a router, in place of kKeepaliveTimeoutMs: a worker has no other place to go
// to, and a router that loses its leases computes all of its streams again.
constexpr int kRouterTimeoutMs = 5000;

}  // namespace

// One life of the lease stream to one router. Owned by the Registration until done(): the channel
// must not be destroyed on a thread of gRPC, which would then wait for itself.
class RouterStream : public grpc::ClientBidiReactor<v1::WorkerReport, v1::RouterDirective> {
 public:
  // `address`: of the router.
  RouterStream(Registration* owner, std::string address)
      : address_(std::move(address)), owner_(owner) {}

  const std::string& address() const { return address_; }

  void Begin(v1::RouterRegistry::Stub* stub, const v1::WorkerHello& hello) {
    stub->async()->Register(&context_, this);
    v1::WorkerReport report;
    *report.mutable_hello() = hello;
    Send(std::move(report));
    StartRead(&incoming_);
    StartCall();
  }

  void Send(v1::WorkerReport report) {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (outbox_.size() >= kMaxQueuedReports) {
      context_.TryCancel();
      return;
    }
    outbox_.push_back(std::move(report));
    if (!writing_) WriteNextLocked();
  }

  // A message that can wait is sent only then: heartbeats come first.
  bool has_room() const {
    MutexLock lock(mutex_);
    return !closed_ && outbox_.size() < kMaxQueuedReports / 2;
  }

  // gRPC has finished with the stream.
  bool done() const {
    MutexLock lock(mutex_);
    return done_;
  }
  void WaitDone() {
    MutexLock lock(mutex_);
    while (!done_) done_change_.Wait(mutex_);
  }

  // Once done: why the router never said anything; "" when it did, or when this side ended it.
  std::string failure() const {
    MutexLock lock(mutex_);
    return failure_;
  }

  // Ends the stream; it is done soon after.
  void Cancel() {
    {
      MutexLock lock(mutex_);
      owner_ = nullptr;
    }
    context_.TryCancel();
  }

  // The news that arrived since the last call.
  struct News {
    bool closed = false;
    std::optional<v1::RegisterAck> ack;
    std::optional<v1::PeerList> peers;
    std::optional<v1::DrainCommand> drain;
    bool resync = false;
  };
  News Take() {
    MutexLock lock(mutex_);
    News news = std::move(news_);
    news_ = News{};
    news_.closed = news.closed;
    return news;
  }
  bool accepted() const {
    MutexLock lock(mutex_);
    return accepted_ && !closed_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      MarkClosed();
      context_.TryCancel();
      return;
    }
    {
      MutexLock lock(mutex_);
      heard_ = true;
      if (incoming_.has_ack()) {
        news_.ack = incoming_.ack();
        accepted_ = incoming_.ack().refusal().empty();
      }
      if (incoming_.has_peers()) news_.peers = incoming_.peers();
      if (incoming_.has_drain()) news_.drain = incoming_.drain();
      if (incoming_.has_resync()) news_.resync = true;
    }
    WakeOwner();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok && !outbox_.empty() && !closed_) WriteNextLocked();
  }

  void OnDone(const grpc::Status& status) override {
    MarkClosed();
    MutexLock lock(mutex_);
    if (!heard_ && status.error_code() != grpc::StatusCode::CANCELLED) {
      failure_ = status.error_message();
    }
    done_ = true;
    done_change_.NotifyAll();  // under the lock: the owner may destroy this right after
  }

 private:
  void WriteNextLocked() BATON_REQUIRES(mutex_) {
    outgoing_ = std::move(outbox_.front());
    outbox_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  }

  void MarkClosed() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
      news_.closed = true;
    }
    WakeOwner();
  }

  // Called after the news are there, so that the owner's next turn takes them. The owner is called
  // without the lock and is there: it lives until done_, which only OnDone sets, and gRPC calls
  // OnDone after its other callbacks have returned.
  void WakeOwner() BATON_EXCLUDES(mutex_) {
    Registration* owner = nullptr;
    {
      MutexLock lock(mutex_);
      owner = owner_;
    }
    if (owner != nullptr) owner->Wake();
  }

  const std::string address_;
  grpc::ClientContext context_;
  v1::RouterDirective incoming_;

  mutable Mutex mutex_;
  Registration* owner_ BATON_GUARDED_BY(mutex_);  // null once the stream is cancelled
  std::deque<v1::WorkerReport> outbox_ BATON_GUARDED_BY(mutex_);
  v1::WorkerReport outgoing_ BATON_GUARDED_BY(mutex_);
  bool writing_ BATON_GUARDED_BY(mutex_) = false;
  bool closed_ BATON_GUARDED_BY(mutex_) = false;
  bool accepted_ BATON_GUARDED_BY(mutex_) = false;
  bool heard_ BATON_GUARDED_BY(mutex_) = false;
  std::string failure_ BATON_GUARDED_BY(mutex_);
  bool done_ BATON_GUARDED_BY(mutex_) = false;
  CondVar done_change_;
  News news_ BATON_GUARDED_BY(mutex_);
};

Registration::Registration(RegistrationConfig config) : config_(std::move(config)) {
  constexpr int kFirstTryGapMs = 50;
  grpc::ChannelArguments arguments = ClusterChannelArguments(kFirstTryGapMs, kRouterTimeoutMs);
  arguments.SetMaxSendMessageSize(kMaxClusterMessageBytes);
  // Behind a name a router that comes back may have another address (a pod has); gRPC would ask for
  // it only once in 30 s.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kMinLookUpGapMs);
  const auto credentials = MakeChannelCredentials(config_.tls);
  for (const std::string& address : config_.routers) {
    Router router;
    router.address = address;
    router.channel = grpc::CreateCustomChannel(address, credentials, arguments);
    router.stub = v1::RouterRegistry::NewStub(router.channel);
    routers_.push_back(std::move(router));
  }
  state_ = Unavailable("no router was asked yet");
  thread_ = Thread("register", [this] { Loop(); });
}

Registration::~Registration() { Stop(); }

void Registration::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyOne();
  thread_.Join();
  for (Router& router : routers_) Close(router);
  for (const std::unique_ptr<RouterStream>& stream : closing_) stream->WaitDone();
}

void Registration::Close(Router& router) {
  if (!router.stream) return;
  router.stream->Cancel();
  closing_.push_back(std::move(router.stream));
}

void Registration::Wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  wake_.NotifyOne();
}

void Registration::ReportNow() { Wake(); }

Status Registration::state() const {
  MutexLock lock(mutex_);
  return state_;
}

void Registration::Loop() {
  auto next_beat = std::chrono::steady_clock::now();
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    const bool beats = now >= next_beat;
    Tick(SystemClock().NowUs(), beats);
    const auto latest_beat = now + std::chrono::milliseconds(HeartbeatMs());
    next_beat = beats ? latest_beat : std::min(next_beat, latest_beat);
    MutexLock lock(mutex_);
    while (!stop_ && !woken_ && wake_.WaitUntil(mutex_, next_beat)) {
    }
    if (stop_) return;
    woken_ = false;
  }
}

int64_t Registration::HeartbeatMs() const {
  uint32_t shortest = kHeartbeatMs;
  for (const Router& router : routers_) {
    if (router.heartbeat_ms == 0) continue;
    shortest = std::min(shortest, router.heartbeat_ms);
  }
  return std::clamp(shortest, kMinHeartbeatMs, kMaxHeartbeatMs);
}

void Registration::Tick(int64_t now_us, bool beats) {
  v1::WorkerLoad load = config_.load();
  load.set_sequence_number(++sequence_number_);
  bool accepted = false;
  std::string why;
  for (Router& router : routers_) {
    TickRouter(router, load, now_us, beats);
    const Status state = StateOf(router);
    accepted |= state.ok();
    if (!state.ok()) why += (why.empty() ? "" : "; ") + std::string(state.message());
  }
  TellPrefixes();
  if (std::exchange(peers_changed_, false)) ApplyPeers();
  LetGoOfClosed();
  {
    MutexLock lock(mutex_);
    state_ = accepted ? OkStatus() : Unavailable("{}", why);
  }
  GiveUpIfRefused(now_us);
}

void Registration::LetGoOfClosed() {
  std::erase_if(closing_, [this](const auto& stream) {
    if (!stream->done()) return false;
    const std::string failure = stream->failure();
    for (Router& router : routers_) {
      if (router.address != stream->address() || failure.empty()) continue;
      // A wrong certificate or address shows as such a failure. The log gets the same words once.
      if (router.failure != failure) BATON_LOG_WARN("router {}: {}", router.address, failure);
      router.failure = failure;
    }
    return true;
  });
}

void Registration::TellPrefixes() {
  if (config_.prefixes == nullptr) return;
  config_.prefixes->Take(&prefix_changes_);
  prefix_copy_.Apply(prefix_changes_);
  for (Router& router : routers_) {
    if (!router.stream || !router.stream->accepted()) continue;
    router.prefixes.Take(prefix_changes_, prefix_copy_);
    while (router.prefixes.has_batch() && router.stream->has_room()) {
      v1::WorkerReport report;
      *report.mutable_prefix() = router.prefixes.NextBatch();
      router.stream->Send(std::move(report));
    }
  }
}

Status Registration::StateOf(const Router& router) const {
  if (router.stream && router.stream->accepted()) return OkStatus();
  if (router.refusal.empty()) {
    return Unavailable("router {} does not answer{}{}", router.address,
                       router.failure.empty() ? "" : ": ", router.failure);
  }
  return FailedPrecondition("router {} refuses this worker: {}", router.address, router.refusal);
}

void Registration::GiveUpIfRefused(int64_t now_us) {
  if (gave_up_ || routers_.empty()) return;
  for (const Router& router : routers_) {
    if (router.refusal.empty()) return;
    if (now_us - router.refused_since_us < config_.refused_give_up_us) return;
  }
  gave_up_ = true;
  if (config_.on_refused) config_.on_refused(StateOf(routers_.front()));
}

void Registration::TakeAck(Router& router, const v1::RegisterAck& ack, int64_t now_us) {
  if (!ack.refusal().empty()) {
    if (router.refusal.empty()) router.refused_since_us = now_us;
    if (router.refusal != ack.refusal()) {
      BATON_LOG_ERROR("router {} refuses this worker: {}", router.address, ack.refusal());
    }
    router.refusal = ack.refusal();
    return;
  }
  BATON_LOG_INFO("{} is registered with router {}", config_.hello.worker().worker_id(),
                 router.address);
  router.refusal.clear();
  router.failure.clear();
  router.heartbeat_ms = ack.heartbeat_ms();
  router.was_up = true;
  router.told_silent = false;
  router.backoff_us = 0;
  router.prefixes.TellAll();
}

void Registration::TickRouter(Router& router, const v1::WorkerLoad& load, int64_t now_us,
                              bool beats) {
  const bool is_new = !router.stream;
  if (is_new) {
    if (now_us < router.retry_us) return;
    router.stream = std::make_unique<RouterStream>(this, router.address);
    router.stream->Begin(router.stub.get(), config_.hello);
  }
  const RouterStream::News news = router.stream->Take();
  if (news.ack) TakeAck(router, *news.ack, now_us);
  if (news.peers) {
    router.peers.assign(news.peers->peers().begin(), news.peers->peers().end());
    peers_changed_ = true;
  }
  if (news.resync) router.prefixes.TellAll();
  if (news.drain) config_.on_drain(news.drain->timeout_ms());
  const bool refused = news.ack && !news.ack->refusal().empty();
  if (!refused && news.closed) router.refusal.clear();  // no answer is not a refusal
  if (refused || news.closed) return Retry(router, now_us);
  // A hello has a whole tokenizer and may take seconds. One load may wait behind it and no more:
  // more would look like a router that does not read.
  if (!is_new && !router.stream->accepted()) return;
  // Many links may come at once. Reports of each would look like that too; the next heartbeat has
  // them all.
  if (!beats && !router.stream->has_room()) return;
  v1::WorkerReport report;
  *report.mutable_load() = load;
  router.stream->Send(std::move(report));
}

void Registration::Retry(Router& router, int64_t now_us) {
  if (std::exchange(router.was_up, false)) {
    BATON_LOG_WARN("lost router {}; trying again", router.address);
    router.told_silent = true;
  } else if (router.refusal.empty() && !std::exchange(router.told_silent, true)) {
    BATON_LOG_WARN("router {} does not answer; trying again until it does (--router)",
                   router.address);
  }
  Close(router);
  // The peers stay until the router comes back or names others: running hand-offs do not need it.
  router.backoff_us = router.refusal.empty()
                          ? std::clamp(router.backoff_us * 2, kFirstBackoffUs, kMaxBackoffUs)
                          : config_.refused_retry_us;
  router.retry_us = now_us + router.backoff_us;
}

void Registration::ApplyPeers() {
  std::vector<v1::Peer> all;
  for (const Router& router : routers_) {
    for (const v1::Peer& peer : router.peers) {
      const bool known = std::any_of(all.begin(), all.end(), [&peer](const v1::Peer& other) {
        return other.worker().incarnation() == peer.worker().incarnation();
      });
      if (!known) all.push_back(peer);
    }
  }
  config_.on_peers(all);
}

}  // namespace baton::worker
