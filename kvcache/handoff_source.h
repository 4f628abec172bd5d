// HandoffSource: P's side of one hand-off, from the start of the prompt to the release of its
// blocks. Pure and copyable: time is an argument, effects are actions. Engine thread.
//
// States (handoff specification, "P's source blocks"):
//   computing  the prompt waits or is computed; no grant yet
//   sealed     the prompt is complete; no grant yet
//   exporting  granted while computing: each slice crosses as soon as it is sealed
//   exported   all slices and the Seal are sent; waits for Applied
//   draining   the request let go of the blocks; the transport may still read them
//   free       nothing is held; the object may be erased
// The table in handoff_source.cc (printed by SourceTableText) is the whole behaviour; an event that
// it does not list in a state changes nothing.
//
// Invariants
//  1. A slice is exported only after it was sealed and a grant of this attempt and of the expected
//     incarnation arrived; what is sealed is immutable until ReleaseBlocks.
//  2. ReleaseBlocks, and exactly one of CompleteRequest, FailRequest or an own cancel, happen once.
//  3. Every pinned block is unpinned exactly once, after the transport confirmed SendClosed.
//  4. In state free no reference is held; every state but free has a deadline or an owner that will
//     end it (computing: the router's request lease).
#ifndef BATON_KVCACHE_HANDOFF_SOURCE_H_
#define BATON_KVCACHE_HANDOFF_SOURCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/handoff_action.h"
#include "kvcache/handoff_messages.h"

namespace baton {

enum class SourceState : uint8_t {
  kComputing = 0,
  kSealed = 1,
  kExporting = 2,
  kExported = 3,
  kDraining = 4,
  kFree = 5,
};
inline constexpr size_t kNumSourceStates = 6;
std::string_view SourceStateName(SourceState state);

// What P knows of the hand-off when the request starts.
struct SourceSpec {
  RequestUid uid;
  uint32_t attempt = 1;
  Incarnation decode_incarnation;  // grants of another life of D are void
  uint64_t layout_id = 0;
  uint64_t slice_bytes = 0;
  uint32_t num_blocks = 0;  // of the prompt, the part-full one included; >= 1
  uint32_t num_layers = 0;  // >= 1
  HandoffTimers timers;

  friend bool operator==(const SourceSpec&, const SourceSpec&) = default;
};

// See the file comment.
class HandoffSource {
 public:
  // State computing; nothing is sent before D's grant.
  explicit HandoffSource(const SourceSpec& spec);

  // D's grant, first or again. A grant of another attempt or incarnation is void and counted.
  void OnGrant(const Grant& grant, int64_t now_us, HandoffActions* actions);
  // The engine wrote these slices for good (layer hook; the last chunk seals the part-full block,
  // zero-filled). Sealing a slice twice is a broken invariant.
  void OnLayersSealed(const SliceRange& slices, int64_t now_us, HandoffActions* actions);
  // All slices are sealed and the first tokens sampled. `seal.key` is filled in here.
  void OnPromptDone(Seal seal, int64_t now_us, HandoffActions* actions);
  void OnNack(const Nack& nack, int64_t now_us, HandoffActions* actions);
  void OnApplied(const Applied& applied, int64_t now_us, HandoffActions* actions);
  void OnRevoke(const Revoke& revoke, int64_t now_us, HandoffActions* actions);
  // Dispatches a message by its kind; those that only D receives are counted and ignored.
  void OnMessage(const HandoffMessage& message, int64_t now_us, HandoffActions* actions);
  // The router cancelled the request, or the engine gave it up: the caller reports why. `reason`
  // goes to D.
  void OnCancel(std::string_view reason, int64_t now_us, HandoffActions* actions);
  void OnPeerDown(std::string_view reason, int64_t now_us, HandoffActions* actions);
  // The transport touches the blocks no more: the answer to CloseSend, or by itself when it cannot
  // send.
  void OnSendClosed(int64_t now_us, HandoffActions* actions);
  // Call at NextDeadlineUs() or more often.
  void OnTick(int64_t now_us, HandoffActions* actions);

  SourceState state() const { return state_; }
  HandoffOutcome outcome() const { return ending_.outcome; }
  bool finished() const { return state_ == SourceState::kFree; }
  bool granted() const { return grant_.has_value(); }
  const SourceSpec& spec() const { return spec_; }
  TransferKey key() const;
  // Generations of D's blocks from ordinal num_held() on; empty before the grant.
  const std::vector<uint32_t>& generations() const;
  // Blocks at the front that D has already: they are sealed here, and neither pinned nor exported.
  uint32_t num_held() const { return grant_ ? grant_->num_held : 0; }
  // The time at which OnTick has something to do; INT64_MAX = never.
  int64_t NextDeadlineUs() const;
  // Messages that were void: other attempt, incarnation or transfer.
  uint32_t num_stale() const { return num_stale_; }

  friend bool operator==(const HandoffSource&, const HandoffSource&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const HandoffSource& s) {
    return H::combine(std::move(state), s.state_, s.ending_.outcome, s.sealed_, s.exported_,
                      s.nacks_, s.num_full_nacks_, s.grant_.has_value(), s.seal_.has_value(),
                      s.num_pinned_, s.lease_until_us_, s.renew_at_us_);
  }

 private:
  enum class Event : uint8_t;
  enum class Op : uint8_t;
  struct Table;
  friend std::string SourceTableText();

  // Looks the event up in the table, takes the transition and does its operations.
  void Dispatch(Event event, int64_t now_us, HandoffActions* actions);
  void Perform(Op op, int64_t now_us, HandoffActions* actions);
  void ExportSealed(HandoffActions* actions);
  void Resend(HandoffActions* actions);
  template <typename Wanted>
  void ExportWhere(Wanted wanted, HandoffActions* actions);
  void ExportRange(const SliceRange& slices, HandoffActions* actions);
  void HeardFromPeer(int64_t now_us);
  // True when the grant's numbers are those of this request.
  bool GrantFits(const Grant& grant);
  // Notes what a Nack asks for; false when a slice has used up its limit.
  bool CountNack(const Nack& nack);
  bool Matches(const TransferKey& key);
  size_t SliceIdx(uint32_t ordinal, uint32_t layer) const;

  SourceSpec spec_;
  SourceState state_ = SourceState::kComputing;
  HandoffEnding ending_;
  std::optional<Grant> grant_;
  std::optional<Seal> seal_;
  std::vector<bool> sealed_;    // [num_blocks][num_layers]
  std::vector<bool> exported_;  // [num_blocks][num_layers], sent at least once
  std::vector<uint8_t> nacks_;  // [num_blocks][num_layers], empty before the first
  uint32_t num_sealed_ = 0;
  uint32_t num_due_ = 0;  // of num_sealed_, those that cross
  uint32_t num_exported_ = 0;
  uint32_t num_pinned_ = 0;  // from ordinal num_held() on
  uint32_t num_full_nacks_ = 0;
  uint32_t num_stale_ = 0;
  int64_t lease_until_us_ = INT64_MAX;
  int64_t renew_at_us_ = INT64_MAX;
  // Of the event being handled; empty between events.
  HandoffEnding candidate_;  // how it would end the hand-off
  SliceRange fresh_;         // what it sealed
  std::vector<SliceId> resend_;
  bool resend_all_ = false;
};

// The transition table as text: one line "state | event | next | operations", as in README.md.
std::string SourceTableText();

}  // namespace baton

#endif  // BATON_KVCACHE_HANDOFF_SOURCE_H_
