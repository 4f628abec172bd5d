#include "kvcache/handoff_action.h"

namespace baton::kv {

std::string_view HandoffOutcomeName(HandoffOutcome outcome) {
  switch (outcome) {
    case HandoffOutcome::kNone:
      return "none";
    case HandoffOutcome::kApplied:
      return "applied";
    case HandoffOutcome::kRevoked:
      return "revoked";
    case HandoffOutcome::kLeaseExpired:
      return "lease expired";
    case HandoffOutcome::kCancelled:
      return "cancelled";
    case HandoffOutcome::kPeerDown:
      return "peer down";
    case HandoffOutcome::kTransferFault:
      return "transfer fault";
    case HandoffOutcome::kChainMismatch:
      return "chain mismatch";
    case HandoffOutcome::kBadMessage:
      return "bad message";
    case HandoffOutcome::kPeerGaveUp:
      return "peer gave up";
  }
  return "unknown";
}

FailedPart FailedPartOf(HandoffOutcome outcome) {
  switch (outcome) {
    case HandoffOutcome::kNone:
    case HandoffOutcome::kApplied:
    case HandoffOutcome::kPeerGaveUp:
      return FailedPart::kNotTold;
    case HandoffOutcome::kCancelled:
      return FailedPart::kComputation;
    case HandoffOutcome::kRevoked:
    case HandoffOutcome::kLeaseExpired:
    case HandoffOutcome::kPeerDown:
    case HandoffOutcome::kTransferFault:
    case HandoffOutcome::kChainMismatch:
    case HandoffOutcome::kBadMessage:
      return FailedPart::kHandOff;
  }
  return FailedPart::kNotTold;
}

HandoffOutcome OutcomeOf(const Revoke& revoke) {
  return revoke.failed_part == FailedPart::kComputation ? HandoffOutcome::kPeerGaveUp
                                                        : HandoffOutcome::kRevoked;
}

Revoke RevokeUnknown(const TransferKey& key, bool from_decode) {
  return {key, fmt::format("transfer {} is not known here", key.transfer), from_decode};
}

}  // namespace baton::kv
