#include "src/rpc/local_stream.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/errno_text.h"
#include "src/base/hex.h"
#include "src/base/limits.h"
#include "src/base/random.h"

namespace baton::rpc {
namespace {

// All names begin so; 32 digits follow.
constexpr std::string_view kNamePrefix = "baton-session-";
constexpr size_t kNameBytes = kNamePrefix.size() + 32;
constexpr size_t kLengthBytes = 4;
// A session has one connection.
constexpr int kBacklog = 1;

struct Address {
  sockaddr_un unix{};
  socklen_t size_bytes = 0;
};

// Abstract: the first byte of the path stays NUL.
StatusOr<Address> AddressOf(std::string_view name) {
  Address address;
  static_assert(kNameBytes < sizeof(address.unix.sun_path));
  address.unix.sun_family = AF_UNIX;
  if (name.size() != kNameBytes || !name.starts_with(kNamePrefix)) {
    return InvalidArgument("local_stream is no name of a session's socket");
  }
  std::memcpy(address.unix.sun_path + 1, name.data(), name.size());
  address.size_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd NewSocket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

bool IsOfThisUser(int fd) {
  ucred peer{};
  socklen_t size_bytes = sizeof(peer);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size_bytes) == 0 &&
         peer.uid == ::geteuid();
}

const sockaddr* AsSocketAddress(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.unix);
}

}  // namespace

StatusOr<LocalListener> ListenLocal() {
  const RequestUid random = RandomRequestUid();
  LocalListener listener{
      .name = std::string(kNamePrefix) + HexFromU64(random.hi) + HexFromU64(random.lo),
      .fd = NewSocket()};
  BATON_ASSIGN_OR_RETURN(const Address address, AddressOf(listener.name));
  const bool listens =
      listener.fd.valid() &&
      ::bind(listener.fd.get(), AsSocketAddress(address), address.size_bytes) == 0 &&
      ::listen(listener.fd.get(), kBacklog) == 0;
  if (!listens) return Unavailable("a unix socket for a session: {}", ErrnoText(errno));
  return listener;
}

StatusOr<UniqueFd> AcceptLocal(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid() && IsOfThisUser(fd.get())) return fd;
  const bool is_short =
      !fd.valid() && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
  if (is_short) return ResourceExhausted("a session's unix socket: {}", ErrnoText(errno));
  return Unavailable("nobody of this user waits");
}

StatusOr<LocalWriter> LocalWriter::Connect(std::string_view name) {
  BATON_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  UniqueFd fd = NewSocket();
  if (!fd.valid() || ::connect(fd.get(), AsSocketAddress(address), address.size_bytes) != 0) {
    return Unavailable("the router's unix socket: {}", ErrnoText(errno));
  }
  if (!IsOfThisUser(fd.get())) {
    return PermissionDenied("the router's unix socket belongs to another user");
  }
  return LocalWriter(std::move(fd));
}

LocalWriter::Outcome LocalWriter::Send(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  frame_.resize(kLengthBytes + size);
  auto* const out = reinterpret_cast<uint8_t*>(frame_.data());
  for (size_t i = 0; i < kLengthBytes; ++i) out[i] = static_cast<uint8_t>(size >> (8 * i));
  message.SerializeWithCachedSizesToArray(out + kLengthBytes);
  num_sent_ = 0;
  return Flush();
}

LocalWriter::Outcome LocalWriter::Flush() {
  while (num_sent_ < frame_.size()) {
    const ssize_t sent = ::send(fd_.get(), frame_.data() + num_sent_, frame_.size() - num_sent_,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      num_sent_ += static_cast<size_t>(sent);
    } else if (errno != EINTR) {
      return errno == EAGAIN ? Outcome::kFull : Outcome::kGone;
    }
  }
  return Outcome::kSent;
}

int64_t LocalReader::TakeFrames(std::string_view bytes,
                                absl::FunctionRef<bool(std::string_view)> take) {
  size_t done = 0;
  while (bytes.size() - done >= kLengthBytes) {
    size_t size = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) {
      size |= size_t{static_cast<uint8_t>(bytes[done + i])} << (8 * i);
    }
    if (size > limits::kMaxClusterMessageBytes) return -1;
    if (bytes.size() - done - kLengthBytes < size) break;
    if (!take(bytes.substr(done + kLengthBytes, size))) return -1;
    done += kLengthBytes + size;
  }
  return static_cast<int64_t>(done);
}

LocalReader::Outcome LocalReader::Read(absl::FunctionRef<bool(std::string_view)> take) {
  std::array<char, kReadBytes> bytes;
  ssize_t num_read = 0;
  do {
    num_read = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  } while (num_read < 0 && errno == EINTR);
  if (num_read < 0) return errno == EAGAIN ? Outcome::kEmpty : Outcome::kEnd;
  if (num_read == 0) return Outcome::kEnd;
  const std::string_view read(bytes.data(), static_cast<size_t>(num_read));
  // Mostly a read has whole frames, because messages are small and each is sent at once.
  const bool is_begin = rest_.empty();
  if (!is_begin) rest_.append(read);
  const int64_t done = TakeFrames(is_begin ? read : rest_, take);
  if (done < 0) return Outcome::kBroken;
  if (is_begin) {
    rest_.assign(read.substr(static_cast<size_t>(done)));
  } else {
    rest_.erase(0, static_cast<size_t>(done));
  }
  return num_read < static_cast<ssize_t>(kReadBytes) ? Outcome::kEmpty : Outcome::kRead;
}

}  // namespace baton::rpc
