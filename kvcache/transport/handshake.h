// Handshake: the introduction of two workers on a new connection, as a pure state machine: frames
// in, frames to send out. Time, sockets and the passing of the arena are the connection's business.
//
//   dialler                      acceptor
//   Hello(intro)          ->     checks versions, incarnation, layout, numerics
//   checks the same       <-     HelloAck(intro, proof)
//   HelloProof(proof)     ->     checks the proof
//   ready                 <-     Welcome                              ready
//
// Whatever does not fit ends it with the reason that the counters name. A dialler writes its Hello
// in the form of the oldest version that it speaks.
#ifndef BATON_KVCACHE_TRANSPORT_HANDSHAKE_H_
#define BATON_KVCACHE_TRANSPORT_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcache/transport/frame.h"

namespace baton::kv {

// The facts that one side knows about itself and about the peer that it wants to meet.
struct HandshakeOptions {
  Introduction self;  // epoch: the one to give to the connection, if this side accepts
  std::string cluster_secret;
};

// One introduction; the connection's thread.
class Handshake {
 public:
  // A frame to send.
  struct Reply {
    FrameKind kind = FrameKind::kHello;
    std::vector<std::byte> payload;
  };

  // `dialled`: this side connected and speaks first; self.expected names whom it wants.
  Handshake(HandshakeOptions options, bool dialled);

  // The dialler's first frame.
  Reply Start();
  // Takes one frame. On success fills `reply` when one is due (has_reply) and may become ready. On
  // failure reason() says why and the introduction is over.
  Status OnFrame(FrameKind kind, std::span<const std::byte> payload);

  bool has_reply() const { return has_reply_; }
  // The frame that is due; once.
  Reply TakeReply();

  // Both sides are proven. (The acceptor then still owes kWelcome, once it has mapped the arena.)
  bool ready() const { return state_ == State::kReady; }
  CloseReason reason() const { return reason_; }
  // The facts that the other side told about itself; proven only when ready.
  const Introduction& peer() const { return peer_; }
  // The connection's epoch; 0 until the acceptor has named it.
  uint64_t epoch() const;

 private:
  // The message that this side waits for, or the end.
  enum class State : uint8_t {
    kExpectHello,
    kExpectAck,
    kExpectProof,
    kExpectWelcome,
    kReady,
    kFailed
  };
  using IntroductionBytes = std::array<std::byte, kIntroductionBytes>;

  Status Fail(CloseReason reason, Status status);
  // Before anything else of an introduction is looked at, its size included.
  Status CheckWire(std::span<const std::byte> payload);
  Status CheckPeer();
  Status OnHello(std::span<const std::byte> payload);
  Status OnAck(std::span<const std::byte> payload);
  Status OnProof(std::span<const std::byte> payload);

  HandshakeOptions options_;
  const bool dialled_;
  State state_;
  CloseReason reason_ = CloseReason::kNone;
  Introduction peer_;
  IntroductionBytes hello_{};  // as sent
  IntroductionBytes ack_{};
  bool has_reply_ = false;
  Reply reply_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_HANDSHAKE_H_
