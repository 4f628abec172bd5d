#include "src/router/local_sessions.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "src/base/clock.h"
#include "src/base/errno_text.h"
#include "src/base/log.h"
#include "src/router/router_core.h"
#include "src/router/worker_codec.h"

namespace baton::router {

using rpc::AcceptLocal;
using rpc::ListenLocal;
using rpc::LocalListener;

namespace {

// Sockets that one turn looks at; others have their turn at once afterwards.
constexpr size_t kMaxEvents = 64;
// Reads of a session that has ended: more than its worker's and the kernel's buffers hold.
constexpr int kMaxRestReads = 1024;
// An idle router's loop turns each second.
constexpr int64_t kMaxWaitUs = 1'000'000;

}  // namespace

RouterTask TaskOf(SessionRef session, const v1::WorkerMessage& message) {
  switch (message.kind_case()) {
    case v1::WorkerMessage::kHello:
      return [session](RouterCore& core, int64_t now_us) { core.OnSessionUp(session, now_us); };
    case v1::WorkerMessage::kStep:
      return
          [session, tokens = DecodeStep(message.step())](RouterCore& core, int64_t now_us) mutable {
            core.OnSessionTokens(session, std::move(tokens), now_us);
          };
    case v1::WorkerMessage::kStatus:
      return [session, status = DecodeStatus(message.status())](RouterCore& core, int64_t now_us) {
        core.OnSessionStatus(session, status, now_us);
      };
    case v1::WorkerMessage::KIND_NOT_SET:
      break;
  }
  return [](RouterCore& /*core*/, int64_t /*now_us*/) {};
}

std::shared_ptr<LocalSessions> LocalSessions::Create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (epoll.valid() && event.valid()) {
    std::shared_ptr<LocalSessions> made(new LocalSessions(std::move(epoll), std::move(event)));
    if (made->Watch(made->event_.get(), 0)) return made;
  }
  BATON_LOG_WARN("workers of this host are read over gRPC: {}", ErrnoText(errno));
  return nullptr;
}

bool LocalSessions::Watch(int fd, uint64_t number) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

std::string LocalSessions::Offer(SessionRef session, std::function<void()> break_session) {
  StatusOr<LocalListener> listener = ListenLocal();
  const uint64_t number = ++last_number_;
  if (!listener.ok() || !Watch(listener->fd.get(), number)) {
    BATON_LOG_WARN("a worker of this host would be read over gRPC: {}",
                   listener.ok() ? ErrnoText(errno) : std::string(listener.status().message()));
    return "";
  }
  sessions_[number] = Session{.ref = session,
                              .listener = std::move(listener->fd),
                              .reader = std::nullopt,
                              .break_session = std::move(break_session)};
  return std::move(listener->name);
}

LocalSessions::Session* LocalSessions::Find(SessionRef ref) {
  for (auto& [number, session] : sessions_) {
    if (session.ref == ref) return &session;
  }
  return nullptr;
}

void LocalSessions::Forget(SessionRef session) {
  absl::erase_if(sessions_, [session](const auto& row) { return row.second.ref == session; });
}

size_t LocalSessions::num_connected() const {
  return static_cast<size_t>(std::count_if(sessions_.begin(), sessions_.end(), [](const auto& row) {
    return row.second.reader.has_value();
  }));
}

// The listener is closed with it: a session has one connection.
void LocalSessions::Accept(uint64_t number, Session* session) {
  StatusOr<UniqueFd> connection = AcceptLocal(session->listener.get());
  if (absl::IsResourceExhausted(connection.status())) {
    // It would wake this thread again at once, for as long as it waits.
    BATON_LOG_WARN("a session is opened anew: {}", std::string(connection.status().message()));
    session->listener.reset();
    return session->break_session();
  }
  if (!connection.ok() || !Watch(connection->get(), number)) return;
  session->reader.emplace(*std::move(connection));
  session->listener.reset();
}

LocalSessions::Reader::Outcome LocalSessions::Read(Session* session, std::vector<RouterTask>* out) {
  return session->reader->Read([&](std::string_view frame) {
    if (!message_.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return false;
    out->push_back(TaskOf(session->ref, message_));
    return true;
  });
}

void LocalSessions::OnReadable(uint64_t number, std::vector<RouterTask>* out) {
  const auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  if (!session.reader.has_value()) return Accept(number, &session);
  const Reader::Outcome outcome = Read(&session, out);
  if (outcome == Reader::Outcome::kRead || outcome == Reader::Outcome::kEmpty) return;
  session.reader.reset();  // gRPC tells the end of the session
  if (outcome == Reader::Outcome::kBroken) session.break_session();
}

void LocalSessions::ReadRest(SessionRef session, std::vector<RouterTask>* out) {
  Session* const found = Find(session);
  if (found == nullptr) return;
  if (!found->reader.has_value()) {
    StatusOr<UniqueFd> connection = AcceptLocal(found->listener.get());
    if (!connection.ok()) return;
    found->reader.emplace(*std::move(connection));
  }
  for (int i = 0; i < kMaxRestReads; ++i) {
    if (Read(found, out) != Reader::Outcome::kRead) return;
  }
}

void LocalSessions::Wait(int64_t deadline_us, std::vector<RouterTask>* out) {
  // In whole milliseconds, rounded up: a timer may be 1 ms late, and the thread wakes for it once.
  const int64_t left_us = std::clamp<int64_t>(deadline_us - SystemClock().NowUs(), 0, kMaxWaitUs);
  std::array<epoll_event, kMaxEvents> events;
  const int num = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                               static_cast<int>((left_us + 999) / 1000));
  for (int i = 0; i < num; ++i) {
    const uint64_t number = events[static_cast<size_t>(i)].data.u64;
    if (number != 0) {
      OnReadable(number, out);
      continue;
    }
    eventfd_t num_wakes = 0;
    ::eventfd_read(event_.get(), &num_wakes);
  }
}

void LocalSessions::Wake() { ::eventfd_write(event_.get(), 1); }

}  // namespace baton::router
