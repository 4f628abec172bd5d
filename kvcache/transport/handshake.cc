#include "kvcache/transport/handshake.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/base/random.h"

namespace baton::kv {
namespace {

std::vector<std::byte> BytesOf(const HelloProof& proof) {
  std::vector<std::byte> bytes(proof.size());
  std::memcpy(bytes.data(), proof.data(), proof.size());
  return bytes;
}

// `payload` has kProofBytes.
HelloProof ProofFrom(std::span<const std::byte> payload) {
  HelloProof proof;
  std::memcpy(proof.data(), payload.data(), proof.size());
  return proof;
}

}  // namespace

Handshake::Handshake(HandshakeOptions options, bool dialled)
    : options_(std::move(options)),
      dialled_(dialled),
      state_(dialled ? State::kExpectAck : State::kExpectHello) {
  RandomBytes(options_.self.nonce);
  if (dialled) options_.self.epoch = 0;
}

Handshake::Reply Handshake::Start() {
  BATON_CHECK(dialled_, "only the dialler speaks first");
  EncodeIntroduction(options_.self, hello_);
  return {FrameKind::kHello, {hello_.begin(), hello_.end()}};
}

Handshake::Reply Handshake::TakeReply() {
  BATON_CHECK(has_reply_, "no reply is due");
  has_reply_ = false;
  return std::move(reply_);
}

uint64_t Handshake::epoch() const { return dialled_ ? peer_.epoch : options_.self.epoch; }

Status Handshake::Fail(CloseReason reason, Status status) {
  state_ = State::kFailed;
  reason_ = reason;
  return status;
}

Status Handshake::OnFrame(FrameKind kind, std::span<const std::byte> payload) {
  if (state_ == State::kExpectHello && kind == FrameKind::kHello) return OnHello(payload);
  if (state_ == State::kExpectAck && kind == FrameKind::kHelloAck) return OnAck(payload);
  if (state_ == State::kExpectProof && kind == FrameKind::kHelloProof) return OnProof(payload);
  if (state_ == State::kExpectWelcome && kind == FrameKind::kWelcome) {
    state_ = State::kReady;
    return OkStatus();
  }
  return Fail(CloseReason::kProtocol,
              DataLoss("frame kind {} out of turn in an introduction", static_cast<int>(kind)));
}

Status Handshake::CheckWire(std::span<const std::byte> payload) {
  const StatusOr<WireRange> theirs = DecodeWireRange(payload);
  if (!theirs.ok()) return Fail(CloseReason::kProtocol, theirs.status());
  const WireRange& own = options_.self.wire;
  if (CommonWireVersion(*theirs, own) != 0) return OkStatus();
  return Fail(CloseReason::kWireVersion,
              FailedPrecondition("the peer speaks wire versions {}, this worker {}: none is common",
                                 ToString(*theirs), ToString(own)));
}

Status Handshake::CheckPeer() {
  const Introduction& self = options_.self;
  const Incarnation wanted = dialled_ ? self.expected : peer_.expected;
  const Incarnation found = dialled_ ? peer_.incarnation : self.incarnation;
  if (wanted != found || peer_.incarnation == self.incarnation) {
    return Fail(CloseReason::kWrongPeer,
                FailedPrecondition("incarnation {:x} was wanted, {:x} answers (peer {})",
                                   wanted.value(), found.value(), peer_.worker_id));
  }
  if (peer_.layout_id != self.layout_id) {
    return Fail(CloseReason::kLayout,
                FailedPrecondition("{} has KV layout {:x}, this worker {:x}", peer_.worker_id,
                                   peer_.layout_id, self.layout_id));
  }
  if (peer_.has_pools != self.has_pools) {
    const auto name = [](bool has_pools) { return has_pools ? "on a device" : "in host memory"; };
    return Fail(CloseReason::kArena,
                FailedPrecondition("{} shares blocks {}, this worker {}: --transport cuda_ipc is "
                                   "for both or neither",
                                   peer_.worker_id, name(peer_.has_pools), name(self.has_pools)));
  }
  const bool both_allow = peer_.allow_inexact && self.allow_inexact;
  if (peer_.numerics_id != self.numerics_id && !both_allow) {
    return Fail(CloseReason::kNumerics,
                FailedPrecondition("{} has numerics {:x}, this worker {:x}, and not both allow "
                                   "inexact answers",
                                   peer_.worker_id, peer_.numerics_id, self.numerics_id));
  }
  return OkStatus();
}

Status Handshake::OnHello(std::span<const std::byte> payload) {
  BATON_RETURN_IF_ERROR(CheckWire(payload));
  if (payload.size() != kIntroductionBytes) {
    return Fail(CloseReason::kProtocol, DataLoss("Hello of {} bytes", payload.size()));
  }
  std::copy(payload.begin(), payload.end(), hello_.begin());
  StatusOr<Introduction> peer = DecodeIntroduction(hello_);
  if (!peer.ok()) return Fail(CloseReason::kProtocol, peer.status());
  peer_ = *std::move(peer);
  BATON_RETURN_IF_ERROR(CheckPeer());
  options_.self.expected = peer_.expected;
  EncodeIntroduction(options_.self, ack_);
  const HelloProof proof = MakeHelloProof(options_.cluster_secret, true, hello_, ack_);
  reply_ = {FrameKind::kHelloAck, {ack_.begin(), ack_.end()}};
  const std::vector<std::byte> proof_bytes = BytesOf(proof);
  reply_.payload.insert(reply_.payload.end(), proof_bytes.begin(), proof_bytes.end());
  has_reply_ = true;
  state_ = State::kExpectProof;
  return OkStatus();
}

Status Handshake::OnAck(std::span<const std::byte> payload) {
  BATON_RETURN_IF_ERROR(CheckWire(payload));
  if (payload.size() != kHelloAckBytes) {
    return Fail(CloseReason::kProtocol, DataLoss("HelloAck of {} bytes", payload.size()));
  }
  std::copy_n(payload.begin(), kIntroductionBytes, ack_.begin());
  StatusOr<Introduction> peer = DecodeIntroduction(ack_);
  if (!peer.ok()) return Fail(CloseReason::kProtocol, peer.status());
  peer_ = *std::move(peer);
  if (peer_.epoch == 0) return Fail(CloseReason::kProtocol, DataLoss("HelloAck names epoch 0"));
  BATON_RETURN_IF_ERROR(CheckPeer());
  const HelloProof expected = MakeHelloProof(options_.cluster_secret, true, hello_, ack_);
  if (!SameProof(ProofFrom(payload.subspan(kIntroductionBytes)), expected)) {
    return Fail(CloseReason::kWrongSecret,
                Unauthenticated("{} has another cluster secret", peer_.worker_id));
  }
  reply_ = {FrameKind::kHelloProof,
            BytesOf(MakeHelloProof(options_.cluster_secret, false, hello_, ack_))};
  has_reply_ = true;
  state_ = State::kExpectWelcome;
  return OkStatus();
}

Status Handshake::OnProof(std::span<const std::byte> payload) {
  if (payload.size() != kProofBytes) {
    return Fail(CloseReason::kProtocol, DataLoss("HelloProof of {} bytes", payload.size()));
  }
  const HelloProof expected = MakeHelloProof(options_.cluster_secret, false, hello_, ack_);
  if (!SameProof(ProofFrom(payload), expected)) {
    return Fail(CloseReason::kWrongSecret,
                Unauthenticated("{} has another cluster secret", peer_.worker_id));
  }
  state_ = State::kReady;
  return OkStatus();
}

}  // namespace baton::kv
