// HandoffAction: one thing that a hand-off state machine wants done; and the limits that both sides
// share. The engine carries the actions out in order, on its thread, between two steps. It never
// does ReleaseBlocks or FailRequest while a forward pass uses the blocks. It does ExportSlices and
// SendMessage also at a layer hook. P is the prefill worker, D the decode worker.
#ifndef BATON_KVCACHE_HANDOFF_ACTION_H_
#define BATON_KVCACHE_HANDOFF_ACTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/handoff_messages.h"
#include "src/base/status.h"

namespace baton::kv {

// Limits of a hand-off; defaults for one LAN. All times in microseconds unless named otherwise.
struct HandoffTimers {
  uint32_t ttl_ms = 10'000;          // KV lease: how long a side may hear nothing of the other
  int64_t margin_us = 500'000;       // the holder stops this much early, the grantor frees so late
  int64_t frame_gap_us = 2'000'000;  // sealed, not complete, and nothing came for so long -> Nack
  uint32_t max_nacks = 8;            // per slice, and for whole-transfer Nacks; then a fault
  // How long the prefill worker keeps the blocks of a prompt whose decode worker is lost, for a
  // Retarget to another one; 0 = not at all. A router that retargets does so within its 2 s of
  // detection.
  int64_t strand_us = 0;

  int64_t ttl_us() const { return int64_t{ttl_ms} * 1000; }
  // Four renewals fit in a lease, so that three may be lost.
  int64_t renew_us() const { return ttl_us() / 4; }
  friend bool operator==(const HandoffTimers&, const HandoffTimers&) = default;
};

// How a hand-off ended.
enum class HandoffOutcome : uint8_t {
  kNone = 0,           // still going on
  kApplied = 1,        // verified at the destination
  kRevoked = 2,        // the other side ended it
  kLeaseExpired = 3,   // the other side fell silent
  kCancelled = 4,      // our own request was cancelled
  kPeerDown = 5,       // the data connection ended
  kTransferFault = 6,  // slices stayed bad or missing, or could not be sent
  kChainMismatch = 7,  // the prefill worker's chain is not that of our prompt
  kBadMessage = 8,     // the peer sent values that contradict the request
  kPeerGaveUp = 9,     // the other side ended it since its own part of the request ended
};
std::string_view HandoffOutcomeName(HandoffOutcome outcome);

// The reason that a side tells the other one when it ends a hand-off so. The side that hears a
// Revoke reads the same from it.
FailedPart FailedPartOf(HandoffOutcome outcome);
HandoffOutcome OutcomeOf(const Revoke& revoke);

// How a hand-off ended and what its request is told.
struct HandoffEnding {
  HandoffOutcome outcome = HandoffOutcome::kNone;
  StatusCode code = StatusCode::kOk;
  std::string reason;

  Status status() const { return Status(code, reason); }
  friend bool operator==(const HandoffEnding&, const HandoffEnding&) = default;
};
// The ending that `status` tells.
inline HandoffEnding Ending(HandoffOutcome outcome, const Status& status) {
  return {outcome, status.code(), std::string(status.message())};
}

// The kinds of action; fields of HandoffAction used by each are in brackets.
enum class HandoffActionKind : uint8_t {
  kSendMessage = 0,       // [message] to the peer on the data connection
  kPinBlocks = 1,         // P [slices.first_ordinal, num_ordinals]: AddTransferRef, label exported
  kExportSlices = 2,      // P [slices]: hand to KvTransport::SendSlices
  kCloseSend = 3,         // P: KvTransport::CloseSend; OnSendClosed comes later
  kOpenReceive = 4,       // D: AddTransferRef on the data blocks, KvTransport::OpenReceive
  kLabelReceiving = 5,    // D: SetState(kReceiving) on the data blocks
  kCloseReceive = 6,      // D: KvTransport::CloseReceive; OnReceiveClosed comes later
  kUnpinBlocks = 7,       // P [slices.first_ordinal, num_ordinals], D all: DropTransferRef
  kBindBlocks = 8,        // D: the request references go to the sequences, which now run
  kReleaseBlocks = 9,     // both: drop the request's references to all its blocks
  kCompleteRequest = 10,  // P: handed off; the request is over here
  kFailRequest = 11,      // both [status, outcome]: the request is over here with an error
  kStranded = 12,         // P [status, outcome]: D is lost; the blocks wait for a Retarget
};

// One thing to do; see HandoffActionKind.
struct HandoffAction {
  HandoffActionKind kind = HandoffActionKind::kSendMessage;
  HandoffMessage message;
  SliceRange slices;
  Status status;
  HandoffOutcome outcome = HandoffOutcome::kNone;
  // For the prefill worker: the decode worker and the transfer that messages, pins, slices and
  // closes belong to. After a Retarget these are not always the current ones.
  Incarnation peer;
  TransferId transfer;
};

// Appended to by each event; the caller clears and reuses it.
using HandoffActions = std::vector<HandoffAction>;

// The answer to a message about a transfer that this worker does not know (any more); nothing is
// answered to a Revoke.
Revoke RevokeUnknown(const TransferKey& key, bool from_decode);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_HANDOFF_ACTION_H_
