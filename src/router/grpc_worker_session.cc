#include "src/router/grpc_worker_session.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "baton/v1/worker.grpc.pb.h"
#include "src/base/mutex.h"
#include "src/router/local_sessions.h"
#include "src/router/router_core.h"
#include "src/router/worker_codec.h"
#include "src/rpc/cluster_channel.h"
#include "src/rpc/credentials.h"

namespace baton::router {

using rpc::ClusterChannelArguments;
using rpc::MakeChannelCredentials;
using tls::TlsFiles;

// The streams of one connector: counts those that gRPC still uses and holds those that it is done
// with until a thread that is not gRPC's lets them go. Any thread.
class SessionStreams {
 public:
  void OnStarted() {
    MutexLock lock(mutex_);
    ++num_running_;
  }
  // gRPC is done with `stream`; the caller keeps no reference to it.
  void Hold(std::shared_ptr<void> stream) {
    MutexLock lock(mutex_);
    done_.push_back(std::move(stream));
  }
  // After Hold, with everything told.
  void OnEnded() {
    MutexLock lock(mutex_);
    if (--num_running_ == 0) all_ended_.NotifyAll();
  }
  // Not on a thread of gRPC.
  void LetGo() {
    std::vector<std::shared_ptr<void>> done;
    MutexLock lock(mutex_);
    done.swap(done_);
  }
  // Does LetGo once all have ended.
  void WaitAndLetGo() {
    std::vector<std::shared_ptr<void>> done;
    MutexLock lock(mutex_);
    while (num_running_ > 0) all_ended_.Wait(mutex_);
    done.swap(done_);
    lock.Unlock();
  }

 private:
  Mutex mutex_;
  CondVar all_ended_;
  size_t num_running_ BATON_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<void>> done_ BATON_GUARDED_BY(mutex_);
};

namespace {

// Messages of one session that wait for the router's thread.
constexpr int kMaxUnhandled = 16;
// Orders that wait for the network; a worker that takes none for so long is lost.
constexpr size_t kMaxQueuedOrders = 4096;
// Least wait before gRPC tries a lost connection again.
constexpr int kMinReconnectBackoffMs = 100;

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return grpc::CreateCustomChannel(address, credentials,
                                   ClusterChannelArguments(kMinReconnectBackoffMs));
}

// One stream. Lives until gRPC has finished with it, which may be after its session is destroyed.
class SessionStream final : public grpc::ClientBidiReactor<v1::RouterMessage, v1::WorkerMessage>,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(std::shared_ptr<RouterInbox> inbox, std::shared_ptr<SessionStreams> streams,
                std::shared_ptr<LocalSessions> locals, SessionRef ref,
                std::shared_ptr<grpc::Channel> channel)
      : inbox_(std::move(inbox)),
        streams_(std::move(streams)),
        locals_(std::move(locals)),
        ref_(ref),
        stub_(v1::WorkerService::NewStub(std::move(channel))) {}

  void Start(const v1::RouterMessage& hello) {
    self_ = shared_from_this();
    streams_->OnStarted();
    stub_->async()->Session(&context_, this);
    AddHold();  // until Close: writes come from outside of gRPC's callbacks
    StartRead(&incoming_);
    {
      MutexLock lock(mutex_);
      outgoing_.push_back(hello);
      StartWrite(&outgoing_.front());
    }
    StartCall();
  }

  void Send(v1::RouterMessage message) {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (outgoing_.size() >= kMaxQueuedOrders) return CloseLocked();
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Close() {
    MutexLock lock(mutex_);
    CloseLocked();
  }

  // The router's thread has handled a message.
  void OnHandled() {
    MutexLock lock(mutex_);
    if (--num_unhandled_ >= kMaxUnhandled || !read_paused_ || closed_) return;
    read_paused_ = false;
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    outgoing_.pop_front();
    if (!ok) return CloseLocked();
    if (!closed_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close();
    RouterTask task = MakeTask();
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      ++num_unhandled_;
    }
    // Before the next read begins, so that messages keep their order. gRPC does not call OnDone
    // while this runs, whoever closes the stream meanwhile.
    inbox_->Post(std::move(task));
    MutexLock lock(mutex_);
    if (closed_) return;
    if (num_unhandled_ >= kMaxUnhandled) {
      read_paused_ = true;
    } else {
      StartRead(&incoming_);
    }
  }

  void OnDone(const grpc::Status& status) override {
    const std::string reason = status.ok() ? "the worker closed it" : status.error_message();
    // Copies: this may be destroyed as soon as `streams` holds it.
    std::shared_ptr<RouterInbox> inbox = inbox_;
    const std::shared_ptr<SessionStreams> streams = streams_;
    const std::shared_ptr<LocalSessions> locals = locals_;
    const SessionRef ref = ref_;
    streams->Hold(std::move(self_));
    inbox->Post([streams, locals, ref, reason](RouterCore& core, int64_t now_us) {
      std::vector<RouterTask> rest;
      if (locals != nullptr) locals->ReadRest(ref, &rest);
      for (RouterTask& task : rest) task(core, now_us);
      core.OnSessionDown(ref, reason, now_us);
      streams->LetGo();
    });
    inbox.reset();
    streams->OnEnded();
  }

 private:
  void CloseLocked() BATON_REQUIRES(mutex_) {
    if (closed_) return;
    closed_ = true;
    context_.TryCancel();
    RemoveHold();
  }

  // The message just read, as what the router's thread will do with it.
  RouterTask MakeTask() {
    const bool is_hello = incoming_.has_hello();
    return [self = shared_from_this(), is_hello, task = TaskOf(ref_, incoming_)](
               RouterCore& core, int64_t now_us) mutable {
      // The worker stays with gRPC.
      if (is_hello && self->locals_ != nullptr) self->locals_->Forget(self->ref_);
      task(core, now_us);
      self->OnHandled();
    };
  }

  const std::shared_ptr<RouterInbox> inbox_;
  const std::shared_ptr<SessionStreams> streams_;
  const std::shared_ptr<LocalSessions> locals_;  // null = all messages come over gRPC
  const SessionRef ref_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<SessionStream> self_;  // from Start to OnDone
  v1::WorkerMessage incoming_;           // owned by the read under way

  Mutex mutex_;
  // The front one is being written.
  std::deque<v1::RouterMessage> outgoing_ BATON_GUARDED_BY(mutex_);
  int num_unhandled_ BATON_GUARDED_BY(mutex_) = 0;
  bool read_paused_ BATON_GUARDED_BY(mutex_) = false;
  bool closed_ BATON_GUARDED_BY(mutex_) = false;
};

// The core's handle of a stream.
class GrpcWorkerSession final : public WorkerSession {
 public:
  GrpcWorkerSession(std::shared_ptr<SessionStream> stream, std::shared_ptr<LocalSessions> locals,
                    SessionRef ref)
      : stream_(std::move(stream)), locals_(std::move(locals)), ref_(ref) {}
  ~GrpcWorkerSession() override {
    if (locals_ != nullptr) locals_->Forget(ref_);
    stream_->Close();
  }

  void StartPrefill(const PlacementSpec& spec, const WorkerName& decode) override {
    v1::RouterMessage message;
    EncodeStartPrefill(spec, decode, &message);
    stream_->Send(std::move(message));
  }
  void StartDecode(const PlacementSpec& spec, const WorkerName* prefill) override {
    v1::RouterMessage message;
    EncodeStartDecode(spec, prefill, &message);
    stream_->Send(std::move(message));
  }
  void StartEmbedding(const PlacementSpec& spec) override {
    v1::RouterMessage message;
    EncodeStartEmbedding(spec, &message);
    stream_->Send(std::move(message));
  }
  void Cancel(RequestUid uid, uint32_t attempt) override {
    v1::RouterMessage message;
    EncodeCancel(uid, attempt, &message);
    stream_->Send(std::move(message));
  }
  void Renew(uint32_t lease_ms) override {
    v1::RouterMessage message;
    message.mutable_renew()->set_lease_ms(lease_ms);
    stream_->Send(std::move(message));
  }

 private:
  const std::shared_ptr<SessionStream> stream_;
  const std::shared_ptr<LocalSessions> locals_;
  const SessionRef ref_;
};

}  // namespace

GrpcWorkerConnector::GrpcWorkerConnector(std::shared_ptr<RouterInbox> inbox,
                                         Incarnation router_incarnation, const TlsFiles& tls,
                                         const WireRange& wire)
    : inbox_(std::move(inbox)),
      router_incarnation_(router_incarnation),
      credentials_(MakeChannelCredentials(tls)),
      wire_(wire),
      locals_(LocalSessions::Create()),
      streams_(std::make_shared<SessionStreams>()) {
  inbox_->SetSource(locals_);
}

GrpcWorkerConnector::~GrpcWorkerConnector() { streams_->WaitAndLetGo(); }

std::unique_ptr<WorkerSession> GrpcWorkerConnector::Connect(SessionRef session,
                                                            const WorkerDescription& worker) {
  v1::RouterMessage message;
  EncodeSessionHello(router_incarnation_, worker, wire_, message.mutable_hello());
  // Without dns:/// gRPC reads xds:80 as a target of the scheme xds.
  auto stream =
      std::make_shared<SessionStream>(inbox_, streams_, locals_, session,
                                      MakeChannel("dns:///" + worker.grpc_address, credentials_));
  if (locals_ != nullptr) {
    const auto break_session = [weak = std::weak_ptr<SessionStream>(stream)] {
      if (const auto broken = weak.lock()) broken->Close();
    };
    message.mutable_hello()->set_local_stream(locals_->Offer(session, break_session));
  }
  stream->Start(message);
  return std::make_unique<GrpcWorkerSession>(std::move(stream), locals_, session);
}

}  // namespace baton::router
