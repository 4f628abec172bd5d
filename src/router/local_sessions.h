// LocalSessions: reads the messages of workers of this host, on the router's thread
// (src/rpc/local_stream.h). One wake-up of that thread brings a message to the core.
//
// Offer makes a name for a session's hello. The session is local once its worker has connected to
// that name. Then all messages of the worker come this way, its hello first. Orders and the end of
// the session stay with gRPC, which still notices a worker that dies.
//
// Invariants
//  1. Messages of a session keep their order. What the worker sent before its session ended is
//     handled before the end (ReadRest).
//  2. A turn of the thread reads at most one LocalReader::kReadBytes of each worker. Unread bytes
//     wait in the kernel, then at the worker, which cuts off a router that never reads.
//
// Threads: the router's thread, or the thread that ends it. Any thread may call Wake.
#ifndef BATON_ROUTER_LOCAL_SESSIONS_H_
#define BATON_ROUTER_LOCAL_SESSIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "baton/v1/worker.pb.h"
#include "src/base/unique_fd.h"
#include "src/router/router_inbox.h"
#include "src/router/worker_messages.h"
#include "src/rpc/local_stream.h"

namespace baton::router {

// The core's task for a message of a worker. It does nothing for a kind of a newer version.
RouterTask TaskOf(SessionRef session, const v1::WorkerMessage& message);

// See the file comment.
class LocalSessions final : public InboxSource {
 public:
  // Null, with a warning, where the system gives no event descriptor.
  static std::shared_ptr<LocalSessions> Create();

  // The name to which the worker of `session` may connect; "" = the system has no such sockets. The
  // router's thread calls `break_session` when the worker has sent bytes that are no messages, or
  // when this process can open no more files for it.
  std::string Offer(SessionRef session, std::function<void()> break_session);
  // Stops reading a session. No-op for an unknown session.
  void Forget(SessionRef session);
  // The session's worker has sent its last message: adds the tasks of all unread messages to `out`.
  void ReadRest(SessionRef session, std::vector<RouterTask>* out);
  // Sessions whose worker has connected.
  size_t num_connected() const;

  void Wait(int64_t deadline_us, std::vector<RouterTask>* out) override;
  void Wake() override;

 private:
  using Reader = rpc::LocalReader;
  // A session: listening until its worker has connected.
  struct Session {
    SessionRef ref;
    UniqueFd listener;
    std::optional<Reader> reader;
    std::function<void()> break_session;
  };

  LocalSessions(UniqueFd epoll, UniqueFd event)
      : epoll_(std::move(epoll)), event_(std::move(event)) {}
  bool Watch(int fd, uint64_t number);
  void OnReadable(uint64_t number, std::vector<RouterTask>* out);
  void Accept(uint64_t number, Session* session);
  Reader::Outcome Read(Session* session, std::vector<RouterTask>* out);
  Session* Find(SessionRef ref);

  const UniqueFd epoll_;
  const UniqueFd event_;
  uint64_t last_number_ = 0;  // numbers of sessions are not used again; 0 = event_
  absl::flat_hash_map<uint64_t, Session> sessions_;
  v1::WorkerMessage message_;  // used for every message, so that its memory is kept
};

}  // namespace baton::router

#endif  // BATON_ROUTER_LOCAL_SESSIONS_H_
