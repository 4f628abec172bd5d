// The system calls of the transport's sockets, with errors as values. All sockets are non-blocking
// and close-on-exec. Any thread; nothing here blocks but ResolveTcp.
#ifndef BATON_KVCACHE_TRANSPORT_SOCKET_IO_H_
#define BATON_KVCACHE_TRANSPORT_SOCKET_IO_H_

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton::kv {

// A socket address of either family.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size_bytes = 0;
};

// Addresses of a name that are tried; it may have any number of them.
inline constexpr size_t kMaxAddressesOfName = 16;

// Whether ResolveTcp may ask a server.
enum class NameLookUp : uint8_t { kAllowed, kForbidden };
// "host:port" or "[v6]:port": its addresses, the one to be tried first in front. A name is looked
// up, which may block. InvalidArgument for a bad form, Unavailable when the name is not known (or
// is one, where that is forbidden).
StatusOr<std::vector<SocketAddress>> ResolveTcp(std::string_view text,
                                                NameLookUp names = NameLookUp::kAllowed);
// An abstract unix address; InvalidArgument unless 1..107 bytes.
StatusOr<SocketAddress> UnixAddress(std::string_view name);
// The bytes that name the host: of a tcp address without its port, and without the half of an IPv6
// address that a host chooses itself. All unix sockets have one name: they are this host's.
std::string HostPart(const SocketAddress& address);
// "host:port" of what `fd` is bound to; "" when it is not.
std::string BoundTcpAddress(int fd);

// A listening socket. Unavailable naming `text` when the address is taken or not ours.
StatusOr<UniqueFd> ListenOn(const SocketAddress& address, std::string_view text);
// Begins to connect; the socket becomes writable when that is decided (see ConnectError).
StatusOr<UniqueFd> StartConnect(const SocketAddress& address);
// 0 = connected; otherwise the errno of the attempt.
int ConnectError(int fd);
// Sets what a data connection needs: no delay, big buffers, keep-alive.
void TuneDataSocket(int fd, bool is_tcp);
// Effective user of the process at the other end of a unix socket; nothing known =
// PermissionDenied.
StatusOr<uint32_t> PeerUserId(int fd);

// How a transfer of bytes ended.
enum class IoResult : uint8_t { kDone, kWouldBlock, kEndOfFile, kError };

// A system call's outcome: the bytes moved (kDone), or the errno (kError).
struct IoOutcome {
  IoResult result = IoResult::kDone;
  size_t bytes = 0;
  int error = 0;
};

// Descriptors that travel together.
inline constexpr size_t kMaxPassedFds = 8;

// Descriptors that came beside bytes.
struct PassedFds {
  size_t max = 1;             // that are taken, up to kMaxPassedFds; the kernel closes the others
  std::vector<UniqueFd> fds;  // of the last ones that came
};

// Writes as much as goes. `pass_fds`, at most kMaxPassedFds, travel beside the first byte.
IoOutcome SendParts(int fd, std::span<const iovec> parts, std::span<const int> pass_fds = {});
// Reads what is there. Descriptors that come beside it replace those in `passed` when that is
// given, and are otherwise closed by the kernel.
IoOutcome ReceiveParts(int fd, std::span<iovec> parts, PassedFds* passed = nullptr);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_SOCKET_IO_H_
