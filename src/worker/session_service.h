// SessionService: the worker's end of its sessions. One bidirectional stream per router carries all
// requests of that router. Each engine step's tokens go out as one message.
//
// Threads: gRPC's own threads read; OnStepEvents and OnRequestStatus come on the engine thread,
// which starts the write itself. The write of a step of 16 tokens costs some 20 us, a step takes
// milliseconds, and another thread would cost a wake-up. A router of this host gets the messages
// over a unix socket (src/rpc/local_stream.h): one system call, and no thread of this process
// wakes. The thread `session-full` waits for a router that reads late.
//
// Invariants
//  1. A session's first message is a hello for this incarnation; anything else ends it.
//  2. The end of a stream, however it comes, closes the session in the engine exactly once.
//  3. At most max_queued_events tokens and states wait for a router that does not read. At one more
//     its session is cut off and closed in the engine.
//  4. A cancel reaches the engine only for a start of this session that may run and has no cancel
//     yet (CancellableStarts). So there are no more cancels than starts, which may be refused.
#ifndef BATON_WORKER_SESSION_SERVICE_H_
#define BATON_WORKER_SESSION_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "baton/v1/worker.grpc.pb.h"
#include "src/base/mutex.h"
#include "src/engine/engine.h"
#include "src/engine/engine_types.h"
#include "src/worker/request_codec.h"
#include "src/worker/writable_watch.h"

namespace baton::worker {

class SessionReactor;
class WorkerSpans;

// See the file comment. The engine must be set before the server starts and outlive it.
class SessionService : public v1::WorkerService::CallbackService, public engine::EngineListener {
 public:
  explicit SessionService(const SessionLimits& limits) : limits_(limits) {}
  void set_engine(engine::Engine* engine) { engine_ = engine; }
  // The engine thread calls `observer` with every state. Set it before the engine starts.
  void set_observer(std::function<void(const engine::RequestStatus&)> observer) {
    observer_ = std::move(observer);
  }
  // `spans` makes spans of the requests; null = none. Set it before the server starts.
  void set_spans(WorkerSpans* spans) { spans_ = spans; }

  grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>* Session(
      grpc::CallbackServerContext* context) override;

  void OnStepEvents(std::span<const engine::TokenEvent> events) override;
  void OnRequestStatus(const engine::RequestStatus& status) override;

  // Ends all streams after their waiting messages, so that a shutdown of the server does not wait
  // for routers. The shutdown itself ends the stream of a router that does not read.
  void CloseAll();
  // Streams that gRPC has not finished with.
  size_t num_sessions();
  // True while a router has a session here (its hello was taken).
  bool IsCalled();

 private:
  friend class SessionReactor;
  std::shared_ptr<SessionReactor> Find(engine::SessionId id);
  void Forget(engine::SessionId id);

  const SessionLimits limits_;
  engine::Engine* engine_ = nullptr;
  std::function<void(const engine::RequestStatus&)> observer_;
  WorkerSpans* spans_ = nullptr;
  Mutex mutex_;  // held for look-ups only
  uint64_t next_session_ BATON_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<engine::SessionId, std::shared_ptr<SessionReactor>> sessions_
      BATON_GUARDED_BY(mutex_);
  WritableWatch full_streams_;  // its callbacks keep their reactors
};

}  // namespace baton::worker

#endif  // BATON_WORKER_SESSION_SERVICE_H_
