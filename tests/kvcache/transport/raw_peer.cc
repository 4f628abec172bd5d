#include "tests/kvcache/transport/raw_peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "kvcache/transport/socket_io.h"
#include "src/base/check.h"
#include "src/base/xxh3.h"

namespace baton::kv::test {
namespace {

constexpr int kPatienceMs = 20'000;

}  // namespace

RawPeer::RawPeer(const Worker& acceptor, bool over_unix)
    : acceptor_(acceptor.incarnation), layout_(acceptor.arena->layout()) {
  const SocketAddress address = over_unix ? UnixAddress(acceptor.endpoint->unix_name()).value()
                                          : ResolveTcp(acceptor.endpoint->tcp_address())->front();
  StatusOr<UniqueFd> fd = StartConnect(address);
  BATON_CHECK(fd.ok(), "{}", fd.status().ToString());
  fd_ = *std::move(fd);
  pollfd wait{fd_.get(), POLLOUT, 0};
  BATON_CHECK(poll(&wait, 1, kPatienceMs) == 1, "no connection");
  BATON_CHECK(fcntl(fd_.get(), F_SETFL, 0) == 0, "cannot make the socket blocking");
}

RawPeer::RawPeer(int listener) : layout_(SmallLayout()) {
  pollfd wait{listener, POLLIN, 0};
  BATON_CHECK(poll(&wait, 1, kPatienceMs) == 1, "nobody dials");
  fd_.reset(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  BATON_CHECK(fd_.valid(), "accept: errno {}", errno);
}

bool RawPeer::Introduce(const std::string& worker_id, Incarnation self, int pass_fd,
                        uint32_t num_blocks) {
  HandshakeOptions options;
  options.self.incarnation = self;
  options.self.expected = acceptor_;
  options.self.layout_id = layout_.LayoutId();
  options.self.numerics_id = Xxh3Hash64(std::string_view("numerics"));
  options.self.num_blocks = num_blocks;
  options.self.worker_id = worker_id;
  options.cluster_secret = "a secret";
  if (tweak) tweak(&options);
  Handshake handshake(options, true);
  Handshake::Reply hello = handshake.Start();
  FrameHeader header{.kind = hello.kind};
  header.payload_bytes = static_cast<uint32_t>(hello.payload.size());
  header.checksum = Xxh3Hash64(hello.payload.data(), hello.payload.size());
  std::array<std::byte, kFrameHeaderBytes> bytes;
  EncodeFrameHeader(header, bytes);
  const iovec parts[2] = {{bytes.data(), bytes.size()},
                          {hello.payload.data(), hello.payload.size()}};
  (void)SendParts(fd_.get(), parts, std::span(&pass_fd, pass_fd >= 0 ? 1 : 0));
  sent_.insert(sent_.end(), bytes.begin(), bytes.end());
  sent_.insert(sent_.end(), hello.payload.begin(), hello.payload.end());
  while (!handshake.ready()) {
    std::vector<std::byte> payload;
    const std::optional<FrameHeader> frame = Receive(&payload);
    if (!frame.has_value() || !handshake.OnFrame(frame->kind, payload).ok()) return false;
    if (!handshake.has_reply()) continue;
    const Handshake::Reply reply = handshake.TakeReply();
    SendFrame({.kind = reply.kind}, reply.payload);
  }
  epoch_ = handshake.epoch();
  return true;
}

void RawPeer::Send(std::span<const std::byte> bytes) {
  // A peer that hung up is what some tests want.
  while (!bytes.empty()) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    const IoOutcome outcome = SendParts(fd_.get(), {&part, 1});
    if (outcome.result != IoResult::kDone) return;
    sent_.insert(sent_.end(), bytes.begin(),
                 bytes.begin() + static_cast<std::ptrdiff_t>(outcome.bytes));
    bytes = bytes.subspan(outcome.bytes);
  }
}

void RawPeer::SendFrame(FrameHeader header, const std::vector<std::byte>& payload) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  if (header.checksum == 0 && !payload.empty()) {
    header.checksum = Xxh3Hash64(payload.data(), payload.size());
  }
  std::vector<std::byte> bytes(kFrameHeaderBytes);
  EncodeFrameHeader(header, std::span<std::byte, kFrameHeaderBytes>(bytes));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  Send(bytes);
}

bool RawPeer::ReceiveAll(std::byte* out, size_t size) {
  while (size > 0) {
    pollfd wait{fd_.get(), POLLIN, 0};
    if (poll(&wait, 1, kPatienceMs) != 1) return false;
    iovec part{out, size};
    const IoOutcome outcome = ReceiveParts(fd_.get(), {&part, 1});
    if (outcome.result != IoResult::kDone) return false;
    out += outcome.bytes;
    size -= outcome.bytes;
  }
  return true;
}

std::optional<FrameHeader> RawPeer::Receive(std::vector<std::byte>* payload) {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  if (!ReceiveAll(bytes.data(), bytes.size())) return std::nullopt;
  const StatusOr<FrameHeader> header = DecodeFrameHeader(bytes);
  if (!header.ok()) return std::nullopt;
  payload->resize(header->payload_bytes);
  if (!ReceiveAll(payload->data(), payload->size())) return std::nullopt;
  if (header->kind == FrameKind::kClose) {
    told_ = static_cast<CloseReason>(std::to_integer<int>(payload->front()));
  }
  return *header;
}

bool RawPeer::WaitEnd() {
  std::vector<std::byte> payload;
  while (Receive(&payload).has_value()) {
  }
  pollfd wait{fd_.get(), POLLIN, 0};
  if (poll(&wait, 1, kPatienceMs) != 1) return false;
  std::byte rest;
  iovec part{&rest, 1};
  const IoResult result = ReceiveParts(fd_.get(), {&part, 1}).result;
  return result == IoResult::kEndOfFile || result == IoResult::kError;
}

bool RawPeer::HasBytes() {
  std::byte byte;
  return ReceiveAll(&byte, 1);
}

void RawPeer::HalfClose() { (void)shutdown(fd_.get(), SHUT_WR); }

}  // namespace baton::kv::test
