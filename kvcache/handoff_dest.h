// HandoffDest: the decode worker's side of one hand-off, from the reserved blocks to the sequences
// that own them. Pure and copyable: time is an argument, effects are actions. Engine thread.
//
// States (kvcache/HANDOFF.md, "Decode worker: destination blocks"):
//   reserved   blocks are reserved, the receive is open, the grant is on its way
//   receiving  slices arrive
//   verified   every slice arrived with its checksum, and the prefill worker's chain equals ours;
//              the receive closes
//   bound      the sequences own the blocks; stays one lease to answer repeated messages
//   draining   given up; the transport may still write the blocks
//   released   nothing is held; the object may be erased
// The table in handoff_dest.cc (printed by DestTableText) is the whole behaviour; an event that it
// does not list in a state changes nothing.
//
// Invariants
//  1. BindBlocks only after all slices, a matching Seal, and the transport's ReceiveClosed: one
//     writer per block, and no token is sampled from an unverified slice.
//  2. Exactly one of BindBlocks and ReleaseBlocks happens, once; FailRequest at most once, never
//     after BindBlocks.
//  3. UnpinBlocks exactly once, after the transport confirmed ReceiveClosed.
//  4. Every state has a deadline: lease (reserved, receiving, bound) or the transport's bounded
//     answer (verified, draining).
#ifndef BATON_KVCACHE_HANDOFF_DEST_H_
#define BATON_KVCACHE_HANDOFF_DEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/handoff_action.h"
#include "kvcache/handoff_messages.h"

namespace baton::kv {

enum class DestState : uint8_t {
  kReserved = 0,
  kReceiving = 1,
  kVerified = 2,
  kBound = 3,
  kDraining = 4,
  kReleased = 5,
};
inline constexpr size_t kNumDestStates = 6;
std::string_view DestStateName(DestState state);

// The facts that the decode worker knows of the hand-off when it has reserved the blocks.
struct DestSpec {
  TransferKey key;  // with the transfer id drawn for it
  Incarnation decode_incarnation;
  std::vector<uint32_t> generations;  // of the blocks to be filled, in ordinal order; >= 1
  uint32_t num_held = 0;              // blocks before them, which we have or no row of ours sees
  uint32_t num_state = 0;             // of the blocks to be filled, the last hold the fixed state
  uint64_t layout_id = 0;
  uint64_t slice_bytes = 0;
  uint32_t num_layers = 0;
  uint32_t num_tokens = 0;  // prompt (and replayed output)
  uint32_t num_choices = 1;
  uint32_t vocab_size = 0;
  uint32_t next_output_index = 1;  // output index that the decode worker must sample first
  std::vector<ChainLink> chain;    // our own, of the same tokens
  HandoffTimers timers;

  friend bool operator==(const DestSpec&, const DestSpec&) = default;
};

// See the file comment.
class HandoffDest {
 public:
  // State reserved; nothing happens before OnStart.
  explicit HandoffDest(DestSpec spec);

  // Opens the receive and sends the grant.
  void OnStart(int64_t now_us, HandoffActions* actions);
  void OnSeal(const Seal& seal, int64_t now_us, HandoffActions* actions);
  void OnRenew(const Renew& renew, int64_t now_us, HandoffActions* actions);
  void OnRevoke(const Revoke& revoke, int64_t now_us, HandoffActions* actions);
  // Dispatches a message by its kind; those that only the prefill worker receives are counted and
  // ignored.
  void OnMessage(const HandoffMessage& message, int64_t now_us, HandoffActions* actions);
  // The transport verified `num_slices` slices so far, of num_blocks() times num_layers.
  // `complete`: all of them.
  void OnReceiveProgress(uint32_t num_slices, bool complete, int64_t now_us,
                         HandoffActions* actions);
  // Slices arrived that the prefill worker had queued before ours, the last at `last_us`. Silence
  // counts from then. The caller decides which slices these are, and for how long it calls this.
  void OnQueueProgress(int64_t last_us);
  // A slice arrived damaged, stale, or is known to be missing.
  void OnBadSlice(SliceId slice, std::string_view reason, int64_t now_us, HandoffActions* actions);
  // The transport touches the blocks no more.
  void OnReceiveClosed(int64_t now_us, HandoffActions* actions);
  // The router cancelled the request, or the engine gave it up: the caller reports why.
  void OnCancel(std::string_view reason, int64_t now_us, HandoffActions* actions);
  void OnPeerDown(std::string_view reason, int64_t now_us, HandoffActions* actions);
  // Call at NextDeadlineUs() or more often.
  void OnTick(int64_t now_us, HandoffActions* actions);

  DestState state() const { return state_; }
  HandoffOutcome outcome() const { return ending_.outcome; }
  bool finished() const { return state_ == DestState::kReleased; }
  const DestSpec& spec() const { return spec_; }
  const TransferKey& key() const { return spec_.key; }
  // Blocks that cross.
  uint32_t num_blocks() const { return static_cast<uint32_t>(spec_.generations.size()); }
  uint64_t expected_bytes() const;
  // Slices that did not arrive yet.
  uint64_t num_outstanding() const {
    return uint64_t{num_blocks()} * spec_.num_layers - num_slices_;
  }
  uint32_t num_slices() const { return num_slices_; }
  // When slices count as missing; INT64_MAX = not before they are sealed, nor when all are here.
  int64_t gap_at_us() const { return gap_at_us_; }
  // The prefill worker's seal, once it arrived and was accepted.
  const std::optional<Seal>& seal() const { return seal_; }
  // When the first and the last slice arrived; 0 = not yet.
  int64_t first_slice_us() const { return first_slice_us_; }
  int64_t last_slice_us() const { return last_slice_us_; }
  int64_t NextDeadlineUs() const;
  uint32_t num_stale() const { return num_stale_; }

  friend bool operator==(const HandoffDest&, const HandoffDest&) = default;
  // All that decides what it does next but its constant spec; texts and num_stale are left out.
  template <typename H>
  friend H AbslHashValue(H state, const HandoffDest& d) {
    return H::combine(std::move(state), d.state_, d.ending_.outcome, d.num_slices_, d.complete_,
                      d.opened_, d.seal_.has_value(), d.bad_, d.num_full_nacks_, d.lease_until_us_,
                      d.regrant_at_us_, d.gap_at_us_);
  }

 private:
  enum class Event : uint8_t;
  enum class Op : uint8_t;
  struct Table;
  friend std::string DestTableText();
  friend std::string DestDiagramText();

  // Looks the event up in the table, takes the transition and does its operations.
  void Dispatch(Event event, int64_t now_us, HandoffActions* actions);
  void Perform(Op op, int64_t now_us, HandoffActions* actions);
  void HeardFromPeer(int64_t now_us);
  // True before the fate of the transfer is decided.
  bool IsOpen() const { return state_ == DestState::kReserved || state_ == DestState::kReceiving; }
  bool Matches(const TransferKey& key);
  // How this seal would end the hand-off; outcome none = it is right.
  HandoffEnding JudgeSeal(const Seal& seal) const;
  Grant MakeGrant() const;

  DestSpec spec_;
  DestState state_ = DestState::kReserved;
  HandoffEnding ending_;
  std::optional<Seal> seal_;
  bool opened_ = false;  // the transport knows the transfer; its blocks carry references
  bool complete_ = false;
  uint32_t num_slices_ = 0;
  std::vector<uint8_t> bad_;  // [num_blocks][num_layers] Nacks sent, empty before the first
  uint32_t num_full_nacks_ = 0;
  uint32_t num_stale_ = 0;
  int64_t first_slice_us_ = 0;
  int64_t last_slice_us_ = 0;
  int64_t lease_until_us_ = INT64_MAX;
  int64_t regrant_at_us_ = INT64_MAX;
  int64_t gap_at_us_ = INT64_MAX;
  // State of the event that is being handled; empty between events.
  HandoffEnding candidate_;    // how it would end the hand-off
  std::vector<SliceId> nack_;  // what the Nack to be sent names
};

// The transition table as text: one line "state | event | next | operations", as in HANDOFF.md.
std::string DestTableText();
// Its moves as a Mermaid diagram, as in HANDOFF.md.
std::string DestDiagramText();

}  // namespace baton::kv

#endif  // BATON_KVCACHE_HANDOFF_DEST_H_
