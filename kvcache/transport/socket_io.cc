#include "kvcache/transport/socket_io.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "src/base/bind_fault.h"
#include "src/base/errno_text.h"
#include "src/base/host_port.h"

namespace baton::kv {
namespace {

// Socket buffers: 4 MiB is net.core.{r,w}mem_max of common kernels and holds more than 1 ms at 2
// GB/s, the longest the other side's thread is busy elsewhere.
constexpr int kSocketBufferBytes = 4 << 20;
// Limit of the bytes that the kernel has not sent yet, which cannot be taken back: on a slow link
// those of a hand-off that was given up make the next hand-off wait.
constexpr int kMaxNotSentBytes = 1 << 20;
// A host that vanished without a reset is found by these: 2 s idle, then 3 probes a second apart.
constexpr int kKeepIdleS = 2;
constexpr int kKeepIntervalS = 1;
constexpr int kKeepProbes = 3;
// The limit of the same length for a connection on which bytes are under way. There nothing is
// probed: the bytes are sent again for a quarter of an hour, after longer and longer pauses. The
// limit also ends connections to a process that is stopped, once its buffers are full. That is
// before KvEndpointTimers::write_stall_us, and after the router counts the process as dead.
constexpr int kUserTimeoutMs = (kKeepIdleS + kKeepProbes * kKeepIntervalS) * 1000;
constexpr int kBacklog = 128;

void SetOption(int fd, int level, int option, int value) {
  // All of them are tuning: a kernel that refuses one still carries the bytes.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

StatusOr<std::vector<SocketAddress>> ResolveTcp(std::string_view text, NameLookUp names) {
  BATON_ASSIGN_OR_RETURN(const HostPort parts, ParseHostPort(text));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (names == NameLookUp::kForbidden) hints.ai_flags |= AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(parts.host.c_str(), std::to_string(parts.port).c_str(), &hints, &found);
  if (error != 0) return Unavailable("address \"{}\": {}", text, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr && addresses.size() < kMaxAddressesOfName;
       entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size_bytes = entry->ai_addrlen;
  }
  return addresses;
}

StatusOr<SocketAddress> UnixAddress(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte stays NUL: abstract names have no file and vanish with their process.
  if (name.empty() || name.size() > sizeof(address.sun_path) - 1) {
    return InvalidArgument("unix socket name of {} bytes is outside [1, {}]", name.size(),
                           sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  SocketAddress result;
  result.size_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  std::memcpy(&result.storage, &address, result.size_bytes);
  return result;
}

std::string HostPart(const SocketAddress& address) {
  const auto bytes_of = [](const void* data, size_t size) {
    return std::string(static_cast<const char*>(data), size);
  };
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address.storage, sizeof(v4));
    return bytes_of(&v4.sin_addr, sizeof(v4.sin_addr));
  }
  if (address.storage.ss_family != AF_INET6) return "unix";
  sockaddr_in6 v6;
  std::memcpy(&v6, &address.storage, sizeof(v6));
  if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return bytes_of(&v6.sin6_addr, 8);
  return bytes_of(&v6.sin6_addr.s6_addr[12], 4);
}

std::string BoundTcpAddress(int fd) {
  SocketAddress address;
  address.size_bytes = sizeof(address.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size_bytes) != 0) {
    return "";
  }
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const int error =
      getnameinfo(reinterpret_cast<const sockaddr*>(&address.storage), address.size_bytes, host,
                  sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return "";
  const bool is_v6 = address.storage.ss_family == AF_INET6;
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

StatusOr<UniqueFd> ListenOn(const SocketAddress& address, std::string_view text) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Unavailable("socket for {}: {}", text, ErrnoText(errno));
  if (address.storage.ss_family != AF_UNIX) SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  const auto* const raw = reinterpret_cast<const sockaddr*>(&address.storage);
  if (bind(fd.get(), raw, address.size_bytes) != 0 || listen(fd.get(), kBacklog) != 0) {
    const std::string why = ErrnoText(errno);
    const bool is_unix = address.storage.ss_family == AF_UNIX;
    return Unavailable("cannot listen on {}: {}", text,
                       is_unix ? why : BindFault(std::string(text)));
  }
  return fd;
}

StatusOr<UniqueFd> StartConnect(const SocketAddress& address) {
  const bool is_tcp = address.storage.ss_family != AF_UNIX;
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Unavailable("socket: {}", ErrnoText(errno));
  // Before connecting: the receive buffer decides the window that TCP announces.
  TuneDataSocket(fd.get(), is_tcp);
  const auto* const raw = reinterpret_cast<const sockaddr*>(&address.storage);
  // A unix socket with a full backlog says EAGAIN and never becomes writable: that is a failure.
  if (connect(fd.get(), raw, address.size_bytes) != 0 && errno != EINPROGRESS) {
    return Unavailable("connect: {}", ErrnoText(errno));
  }
  return fd;
}

int ConnectError(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

void TuneDataSocket(int fd, bool is_tcp) {
  SetOption(fd, SOL_SOCKET, SO_SNDBUF, kSocketBufferBytes);
  SetOption(fd, SOL_SOCKET, SO_RCVBUF, kSocketBufferBytes);
  if (!is_tcp) return;
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMaxNotSentBytes);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

StatusOr<uint32_t> PeerUserId(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return PermissionDenied("SO_PEERCRED: {}", ErrnoText(errno));
  }
  return credentials.uid;
}

IoOutcome SendParts(int fd, std::span<const iovec> parts, std::span<const int> pass_fds) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
  if (!pass_fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(pass_fds.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(pass_fds.size_bytes());
    std::memcpy(CMSG_DATA(header), pass_fds.data(), pass_fds.size_bytes());
  }
  while (true) {
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent >= 0) return {IoResult::kDone, static_cast<size_t>(sent), 0};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {IoResult::kWouldBlock, 0, 0};
    return {IoResult::kError, 0, errno};
  }
}

IoOutcome ReceiveParts(int fd, std::span<iovec> parts, PassedFds* passed) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
  if (passed != nullptr) {
    message.msg_control = control;
    // CMSG_SPACE is padded, which would let one descriptor more in.
    message.msg_controllen = CMSG_LEN(passed->max * sizeof(int));
  }
  ssize_t received = 0;
  do {
    received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    const bool is_later = errno == EAGAIN || errno == EWOULDBLOCK;
    return is_later ? IoOutcome{IoResult::kWouldBlock, 0, 0}
                    : IoOutcome{IoResult::kError, 0, errno};
  }
  if (passed != nullptr) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      std::vector<int> numbers((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(numbers.data(), CMSG_DATA(header), numbers.size() * sizeof(int));
      passed->fds.clear();
      for (const int number : numbers) passed->fds.emplace_back(number);
    }
  }
  if (received == 0) return {IoResult::kEndOfFile, 0, 0};
  return {IoResult::kDone, static_cast<size_t>(received), 0};
}

}  // namespace baton::kv
