// A peer made by hand: a blocking socket that can introduce itself properly and then say anything.
#ifndef BATON_TESTS_KVCACHE_TRANSPORT_RAW_PEER_H_
#define BATON_TESTS_KVCACHE_TRANSPORT_RAW_PEER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/transport/frame.h"
#include "kvcache/transport/handshake.h"
#include "src/base/unique_fd.h"
#include "tests/kvcache/transport/test_rig.h"

namespace baton::kv::test {

// See the file comment.
class RawPeer {
 public:
  // Connects to the tcp listener of `acceptor`, or to its unix socket.
  RawPeer(const Worker& acceptor, bool over_unix = false);
  // Takes the next connection of `listener`; it cannot Introduce itself.
  explicit RawPeer(int listener);

  // Introduces itself with the rig's secret and layout; `pass_fd` travels with the hello. False
  // when the acceptor refused (see told()).
  bool Introduce(const std::string& worker_id, Incarnation self, int pass_fd = -1,
                 uint32_t num_blocks = 0);
  // Changes what the next Introduce says.
  std::function<void(HandshakeOptions*)> tweak;

  void Send(std::span<const std::byte> bytes);
  void SendFrame(FrameHeader header, const std::vector<std::byte>& payload = {});
  // The next frame's header and payload; nothing at the end of the stream.
  std::optional<FrameHeader> Receive(std::vector<std::byte>* payload);
  // Reads to the end of the stream; false when it does not come.
  bool WaitEnd();
  // Waits for anything; false when the end of the stream comes first.
  bool HasBytes();
  void HalfClose();
  void Hangup() { fd_.reset(); }

  uint64_t epoch() const { return epoch_; }
  // The reason in the acceptor's Close, if it sent one.
  std::optional<CloseReason> told() const { return told_; }
  // Every byte that was sent so far.
  const std::vector<std::byte>& sent() const { return sent_; }

 private:
  bool ReceiveAll(std::byte* out, size_t size);

  const Incarnation acceptor_;
  const KvLayout layout_;
  UniqueFd fd_;
  uint64_t epoch_ = 0;
  std::optional<CloseReason> told_;
  std::vector<std::byte> sent_;
};

}  // namespace baton::kv::test

#endif  // BATON_TESTS_KVCACHE_TRANSPORT_RAW_PEER_H_
