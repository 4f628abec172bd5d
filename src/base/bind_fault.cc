#include "src/base/bind_fault.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "src/base/errno_text.h"
#include "src/base/host_port.h"
#include "src/base/unique_fd.h"

namespace baton {
namespace {

// 0, or the errno of listening there.
int TryToListen(const addrinfo& at) {
  const UniqueFd socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  const int on = 1;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), at.ai_addr, at.ai_addrlen) != 0) return errno;
  return ::listen(socket.get(), 1) == 0 ? 0 : errno;
}

}  // namespace

std::string BindFault(const std::string& address) {
  const StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return std::string(parsed.status().message());
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code =
      ::getaddrinfo(parsed->host.c_str(), std::to_string(parsed->port).c_str(), &hints, &found);
  if (code != 0) {
    return fmt::format("the name {} cannot be resolved: {}", parsed->host,
                       code == EAI_SYSTEM ? ErrnoText(errno) : ::gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int fault = TryToListen(*at);
    if (fault == 0) continue;
    if (fault == EADDRINUSE) {
      return fmt::format("port {} is in use; choose another one", parsed->port);
    }
    if (fault == EADDRNOTAVAIL) {
      return fmt::format("this host has no address {}; 0.0.0.0 or [::] means all that it has",
                         parsed->host);
    }
    if (fault == EACCES) {
      return fmt::format("port {} needs a privilege that this user lacks", parsed->port);
    }
    return ErrnoText(fault);
  }
  return "the address cannot be bound";
}

}  // namespace baton
