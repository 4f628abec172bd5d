// LocalSessions: messages of the workers of this host, which the router's thread reads itself
// (src/rpc/local_stream.h). One wake-up of that thread brings a message from its worker to the
// core.
//
// Offer makes a name for a session's hello. The session is local once its worker has connected
// there: then all its messages come this way, the worker's hello first. Its orders and its end stay
// with gRPC, so a worker that dies is noticed as ever.
//
// Invariants
//  1. Messages of a session keep their order. What the worker sent before its session ended is
//     handled before the end (ReadRest).
//  2. A turn of the thread reads at most one LocalReader::kReadBytes of each worker. What is not
//     read waits in the kernel and then at the worker, which cuts a router off that never reads.
//
// Threads: the router's thread, or the one that ends it, except for Wake.
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

// The core's work for a message of a worker; none for a kind of a newer version.
RouterTask TaskOf(SessionRef session, const v1::WorkerMessage& message);

// See the file comment.
class LocalSessions final : public InboxSource {
 public:
  // Null, with a warning, where the system gives no event descriptor.
  static std::shared_ptr<LocalSessions> Create();

  // The name where `session` may connect; "" = there is no such socket. `break_session` is called
  // on the router's thread when the worker has sent what no worker sends, or when this process can
  // open no more files for it.
  std::string Offer(SessionRef session, std::function<void()> break_session);
  // Nothing more is read of the session. No-op for one that is not here.
  void Forget(SessionRef session);
  // The session's worker has sent its last message: tasks of what is left go to `out`.
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
  v1::WorkerMessage message_;  // the one being read; it keeps its memory
};

}  // namespace baton::router

#endif  // BATON_ROUTER_LOCAL_SESSIONS_H_
