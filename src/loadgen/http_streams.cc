#include "src/loadgen/http_streams.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/base/check.h"
#include "src/base/errno_text.h"
#include "src/base/host_port.h"
#include "src/base/open_files.h"

namespace baton::loadgen {
namespace {

constexpr size_t kReadBytes = 256 * 1024;
constexpr int kMaxEvents = 512;
constexpr int kProbeMs = 2000;
constexpr int64_t kNapUs = 50;
// A server that closes a kept connection does so without regard to a request that is on its way;
// the news of it takes a round trip. A close after that is about the request.
constexpr int64_t kCrossingUs = 500'000;

// `text` as a JSON string. Bytes that are no UTF-8 become U+FFFD.
std::string Quoted(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string PromptJson(const StreamRequest& request) {
  std::string body;
  if (request.api == StreamApi::kChat) {
    body = "\"messages\":[";
    for (const TurnText& turn : request.messages) {
      if (body.back() != '[') body += ',';
      body += fmt::format("{{\"role\":\"{}\",\"content\":", turn.role) + Quoted(turn.content) + "}";
    }
    return body + "]";
  }
  if (request.token_ids.empty()) return "\"prompt\":" + Quoted(request.prompt);
  body = "\"prompt\":[";
  for (const uint32_t id : request.token_ids) {
    if (body.back() != '[') body += ',';
    body += std::to_string(id);
  }
  return body + "]";
}

// When the bytes of a read reached the kernel, on the realtime clock; nothing without a stamp.
std::optional<int64_t> StampUs(msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec stamp{};
    std::memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
    return int64_t{stamp.tv_sec} * 1'000'000 + stamp.tv_nsec / 1000;
  }
  return std::nullopt;
}

int64_t RealtimeUs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

// Raises the limit of open files, and grows the kernel's table of them now: in a process of several
// threads each doubling waits for all processors, which held the client up for 10 ms (measured).
void MakeRoomForFiles(int epoll) {
  RaiseOpenFilesLimit();
  const uint64_t last = std::min<uint64_t>(OpenFilesLimit(), 16384) - 1;
  const UniqueFd high(fcntl(epoll, F_DUPFD_CLOEXEC, static_cast<int>(last)));
}

// epoll_wait with microseconds. The system call may be missing (Linux before 5.11) or forbidden (a
// sandbox's filter). `exact` then turns false, and short sleeps make up a wait below a millisecond.
int WaitUs(int epoll, epoll_event* events, int64_t timeout_us, bool& exact) {
  if (exact) {
    const timespec timeout = {timeout_us / 1'000'000, timeout_us % 1'000'000 * 1000};
    const int ready = epoll_pwait2(epoll, events, kMaxEvents, &timeout, nullptr);
    if (ready >= 0 || errno == EINTR) return ready;
    exact = false;
  }
  if (timeout_us > 0 && timeout_us < 1000) {
    const timespec nap = {0, std::min(timeout_us, kNapUs) * 1000};
    (void)nanosleep(&nap, nullptr);
  }
  const auto timeout_ms = static_cast<int>(std::min<int64_t>(timeout_us / 1000, 1000));
  const int ready = epoll_wait(epoll, events, kMaxEvents, timeout_ms);
  BATON_CHECK(ready >= 0 || errno == EINTR);
  return ready;
}

// Whether a failed socket() or connect() is for want of something on this machine: files, ports,
// memory.
bool IsLocal(int error) {
  return error == EMFILE || error == ENFILE || error == EADDRNOTAVAIL || error == ENOBUFS ||
         error == ENOMEM;
}

// 0 when something accepts a connection there within kProbeMs, else the errno.
int Probe(const SocketAddress& bytes) {
  const auto* address = reinterpret_cast<const sockaddr*>(bytes.data());
  const UniqueFd fd(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  if (connect(fd.get(), address, static_cast<socklen_t>(bytes.size())) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waited = {fd.get(), POLLOUT, 0};
  if (poll(&waited, 1, kProbeMs) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  (void)getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

StatusOr<SocketAddress> FirstReachable(const std::vector<SocketAddress>& addresses) {
  if (addresses.size() == 1) return addresses.front();
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& address : addresses) {
    error = Probe(address);
    if (error == 0) return address;
  }
  return Unavailable("none of {} addresses answers: {}", addresses.size(), ErrnoText(error));
}

StatusOr<std::unique_ptr<HttpStreams>> HttpStreams::Create(const HttpTarget& target) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found);
  if (error != 0) {
    return NotFound("{}:{} cannot be resolved: {}", target.host, target.port, gai_strerror(error));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(one->ai_addr);
    addresses.emplace_back(bytes, bytes + one->ai_addrlen);
  }
  freeaddrinfo(found);
  StatusOr<SocketAddress> address = FirstReachable(addresses);
  if (!address.ok()) {
    return WithPrefix(address.status(), fmt::format("{}:{}", target.host, target.port));
  }
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return Unavailable("no epoll: {}", ErrnoText(errno));
  MakeRoomForFiles(epoll.get());
  // Timers of this thread fire within a microsecond instead of 50.
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  return std::unique_ptr<HttpStreams>(
      new HttpStreams(target, *std::move(address), std::move(epoll)));
}

HttpStreams::HttpStreams(const HttpTarget& target, SocketAddress address, UniqueFd epoll)
    : target_(target),
      address_(std::move(address)),
      epoll_(std::move(epoll)),
      buffer_(kReadBytes) {}

HttpStreams::~HttpStreams() = default;

std::string HttpStreams::Encode(std::string_view name, const StreamRequest& request) const {
  std::string body = "{";
  if (!target_.model.empty()) body += "\"model\":" + Quoted(target_.model) + ",";
  body += PromptJson(request);
  body += fmt::format(
      ",\"max_tokens\":{},\"temperature\":0,\"stream\":true,\"stream_options\":"
      "{{\"include_usage\":true}}{}}}",
      request.max_tokens, request.ignore_eos ? ",\"ignore_eos\":true" : "");
  const char* path = request.api == StreamApi::kChat ? "/v1/chat/completions" : "/v1/completions";
  std::string head = fmt::format(
      "POST {}{} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\n"
      "Accept: text/event-stream\r\nX-Request-Id: {}\r\nContent-Length: {}\r\n",
      target_.base_path, path, BracketedHost(target_.host), target_.port, name, body.size());
  if (!target_.api_key.empty()) head += "Authorization: Bearer " + target_.api_key + "\r\n";
  return head + "\r\n" + body;
}

void HttpStreams::Start(uint64_t id, std::string encoded, StreamSink& sink) {
  if (idle_.empty()) {
    if (Connection* fresh = Open(id)) Assign(*fresh, id, std::move(encoded));
    return;
  }
  Connection& connection = *connections_.at(idle_.back());
  idle_.pop_back();
  Assign(connection, id, std::move(encoded));
  Send(connection, sink);
}

HttpStreams::Connection* HttpStreams::Open(uint64_t id) {
  const auto* address = reinterpret_cast<const sockaddr*>(address_.data());
  UniqueFd fd(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    early_ends_.push_back(
        {id, RequestOutcome::kLocalError, fmt::format("no socket: {}", ErrnoText(errno))});
    return nullptr;
  }
  const int on = 1;
  (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)setsockopt(fd.get(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  if (connect(fd.get(), address, static_cast<socklen_t>(address_.size())) != 0 &&
      errno != EINPROGRESS) {
    const auto outcome =
        IsLocal(errno) ? RequestOutcome::kLocalError : RequestOutcome::kConnectFailed;
    early_ends_.push_back({id, outcome,
                           fmt::format("connecting to {}:{} failed: {}", target_.host, target_.port,
                                       ErrnoText(errno))});
    return nullptr;
  }
  auto connection = std::make_unique<Connection>();
  connection->fd = std::move(fd);
  Connection* result = connection.get();
  connections_[result->fd.get()] = std::move(connection);
  Watch(*result, EPOLLOUT, EPOLL_CTL_ADD);
  return result;
}

void HttpStreams::Assign(Connection& connection, uint64_t id, std::string encoded) {
  connection.phase = Phase::kSending;
  connection.id = id;
  connection.out = std::move(encoded);
  connection.out_sent = 0;
  connection.reply.Reset();
  connection.answer = StreamAnswer();
  connection.answer_begun = false;
  by_id_[id] = &connection;
}

void HttpStreams::Watch(Connection& connection, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &connection;
  (void)epoll_ctl(epoll_.get(), operation, connection.fd.get(), &event);
}

void HttpStreams::Cancel(uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  Connection& connection = *found->second;
  by_id_.erase(found);
  Close(connection);
}

void HttpStreams::Poll(int64_t until_us, StreamSink& sink) {
  graveyard_.clear();
  for (EarlyEnd& early : std::exchange(early_ends_, {})) {
    StreamEnd end;
    end.at_us = SystemClock().NowUs();
    end.outcome = early.outcome;
    end.error = std::move(early.error);
    sink.OnEnd(early.id, std::move(end));
    until_us = 0;
  }
  epoll_event events[kMaxEvents];
  const int64_t wait_us = std::max<int64_t>(0, until_us - SystemClock().NowUs());
  const int ready = WaitUs(epoll_.get(), events, wait_us, exact_waits_);
  for (int i = 0; i < ready; ++i) {
    OnReady(*static_cast<Connection*>(events[i].data.ptr), events[i].events, sink);
  }
}

void HttpStreams::OnReady(Connection& connection, uint32_t events, StreamSink& sink) {
  if (!connection.fd) return;  // closed earlier in this batch
  if (connection.phase == Phase::kSending && (events & (EPOLLERR | EPOLLHUP)) != 0 &&
      !connection.reused) {
    int error = 0;
    socklen_t size = sizeof error;
    (void)getsockopt(connection.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    OnClosed(connection, Unavailable("{}", ErrnoText(error)), sink);
    return;
  }
  if (connection.phase == Phase::kSending && (events & EPOLLOUT) != 0) Send(connection, sink);
  if (connection.fd && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) Receive(connection, sink);
}

void HttpStreams::Send(Connection& connection, StreamSink& sink) {
  if (connection.out_sent == 0) {
    connection.sent_at_us = SystemClock().NowUs();
    sink.OnSent(connection.id, connection.sent_at_us);
  }
  while (connection.out_sent < connection.out.size()) {
    const ssize_t sent =
        send(connection.fd.get(), connection.out.data() + connection.out_sent,
             connection.out.size() - connection.out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      Watch(connection, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
      return;
    }
    // The reading side learns of a broken connection and may still find the server's reason there.
    if (sent < 0) break;
    connection.out_sent += static_cast<size_t>(sent);
  }
  connection.phase = Phase::kReading;
  Watch(connection, EPOLLIN, EPOLL_CTL_MOD);
}

void HttpStreams::Receive(Connection& connection, StreamSink& sink) {
  iovec piece = {buffer_.data(), buffer_.size()};
  alignas(cmsghdr) char control[128];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(connection.fd.get(), &message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    const Status why = got == 0 ? OkStatus() : Unavailable("{}", ErrnoText(errno));
    OnClosed(connection, why, sink);
    return;
  }
  int64_t at_us = SystemClock().NowUs();
  if (const std::optional<int64_t> stamp_us = StampUs(message)) {
    // A step of the wall clock between stamp and now is not a lag.
    const int64_t lag_us = std::clamp<int64_t>(RealtimeUs() - *stamp_us, 0, 10'000'000);
    at_us -= lag_us;
    sink.OnLag(lag_us);
  }
  Take(connection, {std::string_view(buffer_.data(), static_cast<size_t>(got)), at_us}, sink);
}

void HttpStreams::Take(Connection& connection, const Arrival& arrival, StreamSink& sink) {
  if (connection.phase == Phase::kIdle) {
    Close(connection);  // bytes that nobody asked for
    return;
  }
  const bool streaming = connection.phase != Phase::kDraining;
  const StatusOr<size_t> used =
      connection.reply.Push(arrival.bytes, [&](std::string_view body) -> Status {
        if (!streaming) return OkStatus();
        if (!std::exchange(connection.answer_begun, true)) {
          connection.answer.Begin(connection.reply.status(), connection.reply.content_type());
        }
        return connection.answer.Push(
            body, [&](std::string_view text) { sink.OnText(connection.id, arrival.at_us, text); });
      });
  if (!streaming) {
    if (used.ok()) {
      Recycle(connection);
    } else {
      Close(connection);
    }
    return;
  }
  if (!used.ok() || connection.reply.done() || connection.answer.done()) {
    EndStream(connection, arrival.at_us, used.status(), sink);
  }
}

bool HttpStreams::CrossedClose(const Connection& connection) {
  // The server cannot have judged a request that was not even sent whole.
  return connection.reused && (connection.out_sent < connection.out.size() ||
                               SystemClock().NowUs() - connection.sent_at_us < kCrossingUs);
}

void HttpStreams::OnClosed(Connection& connection, const Status& why, StreamSink& sink) {
  if (connection.phase == Phase::kIdle || connection.phase == Phase::kDraining) {
    Close(connection);
    return;
  }
  if (!connection.reply.started()) {
    const uint64_t id = connection.id;
    const bool retry = CrossedClose(connection);
    const bool connected = connection.out_sent > 0 || connection.reused;
    std::string encoded = std::move(connection.out);
    if (retry) {
      by_id_.erase(id);
      Close(connection);
      if (Connection* fresh = Open(id)) Assign(*fresh, id, std::move(encoded));
      return;
    }
    StreamEnd end;
    end.at_us = SystemClock().NowUs();
    end.outcome = connected ? RequestOutcome::kBrokeOff : RequestOutcome::kConnectFailed;
    end.error = connected
                    ? "the connection closed before the answer"
                    : fmt::format("connecting to {}:{} failed: {}", target_.host, target_.port,
                                  std::string(why.message().data(), why.message().size()));
    by_id_.erase(id);
    Close(connection);
    sink.OnEnd(id, std::move(end));
    return;
  }
  EndStream(connection, SystemClock().NowUs(), connection.reply.PushEnd(), sink);
}

void HttpStreams::EndStream(Connection& connection, int64_t at_us, const Status& transport,
                            StreamSink& sink) {
  if (!std::exchange(connection.answer_begun, true)) {
    connection.answer.Begin(connection.reply.status(), connection.reply.content_type());
  }
  StreamEnd end = connection.answer.Finish(transport);
  // Bytes that are no HTTP are as malformed as bytes that are no event stream.
  if (!transport.ok() && !connection.reply.headers_done()) {
    end.outcome = RequestOutcome::kMalformed;
    end.error = std::string(transport.message().data(), transport.message().size());
  }
  end.at_us = at_us;
  const uint64_t id = connection.id;
  by_id_.erase(id);
  if (transport.ok() && end.outcome != RequestOutcome::kMalformed &&
      connection.reply.keep_alive()) {
    Recycle(connection);
  } else {
    Close(connection);
  }
  sink.OnEnd(id, std::move(end));
}

void HttpStreams::Recycle(Connection& connection) {
  if (!connection.reply.done()) {
    connection.phase = Phase::kDraining;
    return;
  }
  connection.phase = Phase::kIdle;
  connection.reused = true;
  idle_.push_back(connection.fd.get());
}

void HttpStreams::Close(Connection& connection) {
  const int fd = connection.fd.get();
  std::erase(idle_, fd);
  const auto found = connections_.find(fd);
  graveyard_.push_back(std::move(found->second));
  connections_.erase(found);
  connection.fd.reset();
}

}  // namespace baton::loadgen
