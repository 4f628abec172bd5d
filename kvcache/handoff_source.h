// HandoffSource: the prefill worker's side of the hand-off of one prompt, from its start to the
// release of its blocks. Pure and copyable: time is an argument, effects are actions. Engine
// thread.
//
// States (kvcache/HANDOFF.md, "Prefill worker: source blocks"):
//   computing  the prompt waits or is computed; no grant of this attempt yet
//   sealed     the prompt is complete; no grant of this attempt yet
//   exporting  granted while computing: each slice crosses as soon as it is sealed
//   exported   all slices and the Seal are sent; waits for Applied
//   stranded   the decode worker is lost; the blocks wait for a Retarget, and computing goes on
//   draining   the request let go of the blocks; the transport may still read them
//   free       nothing is held; the object may be erased
// The table in handoff_source.cc (printed by SourceTableText) is the whole behaviour; an event that
// it does not list in a state changes nothing.
//
// A prompt is sent to one decode worker at a time. Retarget turns to the next one. Then the attempt
// rises, the grant is void at once, and what is computed and sealed stays. The blocks that one
// grant pinned are one *send*; an old send may still be closing while the next one begins.
//
// Invariants
//  1. A slice is exported only after it was sealed and a grant of the current attempt and of the
//     expected incarnation arrived; what is sealed is immutable until ReleaseBlocks.
//  2. ReleaseBlocks, and exactly one of CompleteRequest, FailRequest or an own cancel, happen once.
//  3. Each send pins a block once and unpins it exactly once, after the transport confirmed
//     SendClosed of that send.
//  4. In state free no reference is held. Every other state has a deadline or an owner that will
//     end it (computing: the router's request lease; draining: the transport's bounded answer).
//  5. After Retarget nothing of an older attempt has an effect but its SendClosed; nothing counts
//     as exported or refused for the new decode worker.
//  6. Each time the decode worker is lost, Stranded is told once and lasts at most `strand_us`;
//     with 0 the request fails in the same call and Stranded is not told.
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

namespace baton::kv {

enum class SourceState : uint8_t {
  kComputing = 0,
  kSealed = 1,
  kExporting = 2,
  kExported = 3,
  kStranded = 4,
  kDraining = 5,
  kFree = 6,
};
inline constexpr size_t kNumSourceStates = 7;
std::string_view SourceStateName(SourceState state);

// The facts that the prefill worker knows of the hand-off when the request starts.
struct SourceSpec {
  RequestUid uid;
  uint32_t attempt = 1;
  Incarnation decode_incarnation;  // grants of another life of the decode worker are void
  uint64_t layout_id = 0;
  uint64_t slice_bytes = 0;
  uint32_t num_blocks = 0;    // of the prompt, the part-full one included; >= 1
  uint32_t num_released = 0;  // of them, at the front: they are gone, so a grant leaves them out
  uint32_t num_layers = 0;    // >= 1
  HandoffTimers timers;

  friend bool operator==(const SourceSpec&, const SourceSpec&) = default;
};

// See the file comment.
class HandoffSource {
 public:
  // Sends that close at one time. With so many nothing is retargeted. The transport confirms a
  // close within 50 ms, so a router would have to move a request that often in this time.
  static constexpr size_t kMaxClosingSends = 8;

  // State computing; nothing is sent before the decode worker's grant.
  explicit HandoffSource(const SourceSpec& spec);

  // The decode worker's grant, first or again. A grant of another attempt or incarnation is void
  // and counted. So is one with the transfer id of a send of ours to that decode worker that is
  // still closing.
  void OnGrant(const Grant& grant, int64_t now_us, HandoffActions* actions);
  // The engine wrote these slices for good (layer hook; the last chunk seals the part-full block,
  // zero-filled). Sealing a slice twice is a broken invariant.
  void OnLayersSealed(const SliceRange& slices, int64_t now_us, HandoffActions* actions);
  // All slices are sealed and the first tokens sampled. `seal.key` is filled in here.
  void OnPromptDone(Seal seal, int64_t now_us, HandoffActions* actions);
  // The router sends the same prompt to another decode worker: `attempt` is higher than ours, or
  // this is void and counted. Only while CanRetarget(); afterwards nothing happens and the prompt
  // starts anew.
  void OnRetarget(uint32_t attempt, Incarnation decode, int64_t now_us, HandoffActions* actions);
  void OnNack(const Nack& nack, int64_t now_us, HandoffActions* actions);
  void OnApplied(const Applied& applied, int64_t now_us, HandoffActions* actions);
  void OnRevoke(const Revoke& revoke, int64_t now_us, HandoffActions* actions);
  // Dispatches a message by its kind; those that only the decode worker receives are counted and
  // ignored.
  void OnMessage(const HandoffMessage& message, int64_t now_us, HandoffActions* actions);
  // The router cancelled the request, or the engine gave it up: the caller reports why. `reason`
  // goes to the decode worker.
  void OnCancel(std::string_view reason, int64_t now_us, HandoffActions* actions);
  void OnPeerDown(std::string_view reason, int64_t now_us, HandoffActions* actions);
  // The transport reads the blocks of this send no more: the answer to CloseSend, or by itself when
  // it cannot send. Unknown ones are counted.
  void OnSendClosed(Incarnation decode, TransferId transfer, int64_t now_us,
                    HandoffActions* actions);
  // Call at NextDeadlineUs() or more often.
  void OnTick(int64_t now_us, HandoffActions* actions);

  SourceState state() const { return state_; }
  HandoffOutcome outcome() const { return ending_.outcome; }
  bool finished() const { return state_ == SourceState::kFree; }
  // The blocks are still held, for whichever decode worker.
  bool HoldsBlocks() const { return IsOpen() || state_ == SourceState::kStranded; }
  bool CanRetarget() const { return HoldsBlocks() && closing_.size() < kMaxClosingSends; }
  bool granted() const { return grant_.has_value(); }
  // With the attempt and the decode worker of the last Retarget.
  const SourceSpec& spec() const { return spec_; }
  TransferKey key() const;
  // True of the current grant's send and of those that are closing.
  bool IsSending(Incarnation decode, TransferId transfer) const;
  // Generations of the decode worker's blocks from ordinal num_held() on; empty before the grant.
  const std::vector<uint32_t>& generations() const;
  // Blocks at the front that the decode worker has already or never reads: they are sealed here or
  // released, and neither pinned nor exported.
  uint32_t num_held() const { return grant_ ? grant_->num_held : 0; }
  // The time at which OnTick has something to do; INT64_MAX = never.
  int64_t NextDeadlineUs() const;
  // Messages that were void: other attempt, incarnation or transfer.
  uint32_t num_stale() const { return num_stale_; }

  friend bool operator==(const HandoffSource&, const HandoffSource&) = default;
  // All that decides what it does next; texts and num_stale are left out.
  template <typename H>
  friend H AbslHashValue(H state, const HandoffSource& s) {
    return H::combine(std::move(state), s.state_, s.spec_.attempt, s.spec_.decode_incarnation,
                      s.ending_.outcome, s.stranding_.outcome, s.grant_.has_value(),
                      s.key().transfer, s.num_held(), s.seal_.has_value(), s.sealed_, s.exported_,
                      s.nacks_, s.closing_, s.num_sealed_, s.num_due_, s.num_exported_,
                      s.num_pinned_, s.num_full_nacks_, s.lease_until_us_, s.renew_at_us_);
  }

 private:
  enum class Event : uint8_t;
  enum class Op : uint8_t;
  struct Table;
  friend std::string SourceTableText();
  friend std::string SourceDiagramText();

  // The blocks that one grant pinned.
  struct Send {
    Incarnation decode;
    TransferId transfer;
    uint32_t first_ordinal = 0;
    uint32_t num_blocks = 0;

    friend bool operator==(const Send&, const Send&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Send& send) {
      return H::combine(std::move(state), send.decode, send.transfer, send.first_ordinal,
                        send.num_blocks);
    }
  };

  // Looks the event up in the table, takes the transition and does its operations.
  void Dispatch(Event event, int64_t now_us, HandoffActions* actions);
  void Enter(SourceState next, HandoffEnding why, int64_t now_us);
  void Perform(Op op, int64_t now_us, HandoffActions* actions);
  // Appends an action of the current decode worker and transfer.
  HandoffAction& Act(HandoffActionKind kind, HandoffActions* actions) const;
  void Tell(HandoffActionKind kind, const HandoffEnding& why, HandoffActions* actions) const;
  void CloseSend(HandoffActions* actions);
  void Turn(int64_t now_us);
  void ExportSealed(HandoffActions* actions);
  void Resend(HandoffActions* actions);
  template <typename Wanted>
  void ExportWhere(Wanted wanted, HandoffActions* actions);
  void ExportRange(const SliceRange& slices, HandoffActions* actions);
  void HeardFromPeer(int64_t now_us);
  // True when the grant's numbers are those of this request.
  bool GrantFits(const Grant& grant);
  // Notes what a Nack asks for and says which event it is.
  Event JudgeNack(const Nack& nack);
  bool Matches(const TransferKey& key);
  // The current decode worker is not lost.
  bool IsOpen() const { return state_ <= SourceState::kExported; }
  bool IsGranted() const {
    return state_ == SourceState::kExporting || state_ == SourceState::kExported;
  }
  size_t SliceIdx(uint32_t ordinal, uint32_t layer) const;

  SourceSpec spec_;
  SourceState state_ = SourceState::kComputing;
  HandoffEnding ending_;
  HandoffEnding stranding_;  // why the last decode worker was lost
  std::optional<Grant> grant_;
  std::optional<Seal> seal_;
  std::vector<bool> sealed_;    // [num_blocks][num_layers]
  std::vector<bool> exported_;  // [num_blocks][num_layers], sent to this worker at least once
  std::vector<uint8_t> nacks_;  // [num_blocks][num_layers], empty before the first
  std::vector<Send> closing_;   // CloseSend was asked for
  uint32_t num_sealed_ = 0;
  uint32_t num_due_ = 0;  // of num_sealed_, those that cross
  uint32_t num_exported_ = 0;
  uint32_t num_pinned_ = 0;  // by this grant, from ordinal num_held() on
  uint32_t num_full_nacks_ = 0;
  uint32_t num_stale_ = 0;
  int64_t lease_until_us_ = INT64_MAX;  // the decode worker's, or how long it stays stranded
  int64_t renew_at_us_ = INT64_MAX;
  // State of the event that is being handled; empty between events.
  HandoffEnding candidate_;  // how it would end the hand-off
  SliceRange fresh_;         // what it sealed
  std::vector<SliceId> resend_;
  bool resend_all_ = false;
  Send closed_;  // which send it closed
  uint32_t turn_attempt_ = 0;
  Incarnation turn_decode_;
};

// The transition table as text: one line "state | event | next | operations", as in HANDOFF.md.
std::string SourceTableText();
// Its moves as a Mermaid diagram, as in HANDOFF.md.
std::string SourceDiagramText();

}  // namespace baton::kv

#endif  // BATON_KVCACHE_HANDOFF_SOURCE_H_
