#include "kvcache/handoff_action.h"

namespace baton {

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
  }
  return "unknown";
}

Revoke RevokeUnknown(const TransferKey& key, bool from_decode) {
  return {key, fmt::format("transfer {} is not known here", key.transfer), from_decode};
}

}  // namespace baton
