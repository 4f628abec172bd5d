// The messages of one hand-off as plain structs; proto/baton/v1/handoff.proto is their wire form
// and the worker's codec converts. Any order and any duplicate is legal; a receiver trusts no
// field.
#ifndef BATON_KVCACHE_HANDOFF_MESSAGES_H_
#define BATON_KVCACHE_HANDOFF_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kvcache/hash_chain.h"
#include "src/base/failed_part.h"
#include "src/base/ids.h"
#include "src/base/token_logprob.h"

namespace baton::kv {

// Which placement of which request a message speaks of.
struct TransferKey {
  RequestUid uid;
  uint32_t attempt = 0;  // >= 1
  TransferId transfer;   // made by the decode worker; 0 = no grant seen yet

  friend bool operator==(const TransferKey&, const TransferKey&) = default;
};

// A rectangle of (block, layer) slices: ordinals [first_ordinal, +num_ordinals) of the prompt's
// blocks times layers [first_layer, +num_layers).
struct SliceRange {
  uint32_t first_ordinal = 0;
  uint32_t num_ordinals = 0;
  uint32_t first_layer = 0;
  uint32_t num_layers = 0;

  friend bool operator==(const SliceRange&, const SliceRange&) = default;
};

// One (block, layer) slice.
struct SliceId {
  uint32_t ordinal = 0;
  uint32_t layer = 0;

  friend bool operator==(const SliceId&, const SliceId&) = default;
};

// From the decode worker to the prefill worker: the right to fill the decode worker's reserved
// blocks. Sent again to renew the prefill worker's lease.
struct Grant {
  TransferKey key;
  Incarnation decode_incarnation;
  std::vector<uint32_t> generations;  // of each reserved data block, in ordinal order
  uint64_t layout_id = 0;
  uint64_t expected_bytes = 0;  // of the blocks that cross: blocks x layers x slice bytes
  uint32_t ttl_ms = 0;          // the prefill worker counts from receipt and stops a margin early
  // Blocks at the front of the prompt that the decode worker has already, or that no row of its own
  // sees. They do not cross: ordinals on the wire (generations, slices, Nack) count from the block
  // after them.
  uint32_t num_held = 0;

  friend bool operator==(const Grant&, const Grant&) = default;
};

// The first token of one choice, sampled by the prefill worker.
struct FirstToken {
  uint32_t choice = 0;
  TokenId token = 0;
  std::optional<float> logprob;
  std::vector<TokenLogprob> top_logprobs;

  friend bool operator==(const FirstToken&, const FirstToken&) = default;
};

// From the prefill worker to the decode worker: every slice is sealed and sent. The fields are what
// the decode worker needs to continue.
struct Seal {
  TransferKey key;
  std::vector<FirstToken> first_tokens;  // one per choice, ascending
  uint32_t next_output_index = 0;        // output index that the decode worker samples next
  std::vector<ChainLink> chain;          // one per block, the part-full one included
  uint32_t num_slices = 0;
  uint32_t num_tokens = 0;  // prompt tokens whose KV the slices hold
  uint32_t num_cached = 0;  // of them, in the prefill worker's prefix cache; told, not checked

  friend bool operator==(const Seal&, const Seal&) = default;
};

// From the decode worker to the prefill worker: the KV is verified at the destination. The prefill
// worker releases its blocks.
struct Applied {
  TransferKey key;

  friend bool operator==(const Applied&, const Applied&) = default;
};

// From the decode worker to the prefill worker: these slices were missing or bad; none named =
// every slice.
struct Nack {
  TransferKey key;
  std::vector<SliceId> slices;

  friend bool operator==(const Nack&, const Nack&) = default;
};

// Either way: the transfer is over without success; the receiver frees and does not answer.
struct Revoke {
  TransferKey key;
  std::string reason;
  bool from_decode = false;
  // The part that ended it at the sender: the hand-off, or the sender's own part of the request.
  FailedPart failed_part = FailedPart::kNotTold;

  friend bool operator==(const Revoke&, const Revoke&) = default;
};

// From the prefill worker to the decode worker: the prompt is queued, being computed, or sent and
// waiting for Applied. The prefill worker is alive, so the decode worker's lease on it starts over.
struct Renew {
  TransferKey key;

  friend bool operator==(const Renew&, const Renew&) = default;
};

using HandoffMessage = std::variant<Grant, Seal, Applied, Nack, Revoke, Renew>;

// The key of any message.
inline const TransferKey& KeyOf(const HandoffMessage& message) {
  return std::visit([](const auto& m) -> const TransferKey& { return m.key; }, message);
}

}  // namespace baton::kv

#endif  // BATON_KVCACHE_HANDOFF_MESSAGES_H_
