// SourceTransferSet: the prefill worker's side of all hand-offs of one engine. Each is a
// HandoffSource, which decides, with the blocks and checksums that its actions need. This class
// carries out the actions. Engine thread.
//
// A transfer outlives its request while the transport may still read its blocks.
//
//   computing --- sequence owns the blocks ---> PromptDone --- until ReleaseBlocks ---> removed
//   blocks that cross also carry a transfer reference, until the transport confirmed its close
//
// Invariants
//  1. Between BeginStep and FinishStep only messages are sent, blocks pinned and slices
//     offered; everything that frees waits for FinishStep.
//  2. A slice is offered with the checksum taken when it was sealed.
//  3. Outside a step a turn hashes at most `hash_bytes_per_turn`, or one block if that is more.
#ifndef BATON_ENGINE_SOURCE_TRANSFERS_H_
#define BATON_ENGINE_SOURCE_TRANSFERS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"

#include "kvcache/handoff.h"
#include "src/engine/engine_event.h"
#include "src/engine/engine_options.h"
#include "src/engine/engine_types.h"
#include "src/engine/transfer_parts.h"

namespace baton::engine {

// One hand-off at the prefill worker.
struct SourceTransfer {
  explicit SourceTransfer(const kv::SourceSpec& spec) : machine(spec) {}

  RequestKey key;
  kv::HandoffSource machine;
  Incarnation peer;
  SequenceId sequence;  // of the prompt; owns the blocks until ReleaseBlocks
  bool holds_sequence = true;
  bool granted_reported = false;
  std::vector<kv::BlockHandle> blocks;  // by ordinal; filled when the first chunk is planned
  std::vector<uint64_t> checksums;      // [num_blocks][num_layers], valid where sealed
  std::vector<kv::SliceRange> unsent;   // the transport's queue was full: offered again later
  std::optional<kv::Seal> late_seal;    // of a prompt that is stored, sent once all of it is hashed
  uint32_t num_hashed = 0;              // blocks, of a prompt with a late seal; released ones too
  int64_t first_offer_us = 0;           // of this attempt's slices; 0 = none was offered
  int64_t prompt_done_us = 0;           // 0 = not yet
  int64_t applied_us = 0;       // when the decode worker's word arrived that it has all of it
  kv::HandoffActions deferred;  // came up in a step, done after it
};

// Counters over all hand-offs since the start.
struct SourceStats {
  uint64_t bytes_offered = 0;
  uint64_t slices_offered_in_step = 0;
  // Times of the transfers that a decode worker took over. A transfer lasts from its first offered
  // slice to the arrival of the decode worker's word. The second number is its part after the end
  // of the prompt.
  int64_t transfer_us = 0;
  int64_t exposed_us = 0;
  uint64_t stale_messages = 0;
};

// See the file comment.
class SourceTransferSet {
 public:
  SourceTransferSet(const TransferParts& parts, const EngineConfig& config, TransferOwner* owner);

  // Begins a hand-off of the prompt that `sequence` computes; a parked grant is taken. Never null.
  SourceTransfer* Start(const RequestSpec& spec, SequenceId sequence, int64_t now_us);

  // Sends the same prompt to another decode worker, as a higher attempt; the machine must be able
  // to. A parked grant is taken.
  void Retarget(SourceTransfer* transfer, const RequestSpec& spec, int64_t now_us);

  // From here to FinishStep a step reads and writes the blocks.
  void BeginStep() { in_step_ = true; }
  // The prompt's blocks are known from the plan of its first chunk: those of its tokens, then those
  // of its state.
  void SetBlocks(SourceTransfer* transfer, const scheduler::Sequence& sequence);
  // Hashes one layer of blocks [first_ordinal, +num_ordinals), which are stored for good.
  void HashLayer(SourceTransfer* transfer, uint32_t first_ordinal, uint32_t num_ordinals,
                 uint32_t layer);
  // All layers of those blocks at once, where they are stored for good: hashed, they may cross.
  void HashAndSeal(SourceTransfer* transfer, uint32_t first_ordinal, uint32_t num_ordinals,
                   int64_t now_us);
  // Tells the machine that these slices (all hashed) may cross now.
  void SealLayers(SourceTransfer* transfer, const kv::SliceRange& slices, int64_t now_us);
  // A grant that arrived while layers are computed. False: nothing here waits for it, maybe not
  // yet.
  bool OnGrantInStep(Incarnation peer, const kv::Grant& grant, int64_t now_us);
  // After the step: does what had to wait.
  void FinishStep(int64_t now_us);

  // Between steps.
  void FinishPrompt(SourceTransfer* transfer, kv::Seal seal, int64_t now_us);
  // All blocks of the prompt are stored and none is hashed: the coming ticks do, and then finish
  // it.
  void SealInTurns(SourceTransfer* transfer, kv::Seal seal, int64_t now_us);
  // Takes a message of the decode worker. It belongs to a known hand-off, is a grant to park, or is
  // answered with a Revoke.
  void OnMessage(const PeerMessage& message, int64_t now_us);
  void OnPeerDown(Incarnation peer, std::string_view reason, int64_t now_us);
  void OnSendClosed(Incarnation peer, TransferId transfer, int64_t now_us);
  // The request ended here for another reason: everything is let go, the owner is not told.
  void Cancel(const RequestKey& key, std::string_view reason, int64_t now_us);
  // Leases, renewals, parked grants, offers that found the queue full, and what is to be hashed.
  void Tick(int64_t now_us);
  // When Tick may have something to do; never too late.
  int64_t NextDeadlineUs() const { return std::min(next_deadline_us_, park_.NextDeadlineUs()); }

  // A hand-off of this attempt holds blocks or waits for the transport; its request may be over.
  bool Holds(const RequestKey& key) const { return transfers_.find(key) != transfers_.end(); }
  // Hand-offs that hold blocks or wait for the transport.
  uint32_t num_open() const { return static_cast<uint32_t>(transfers_.size()); }
  const SourceStats& stats() const { return stats_; }
  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    for (const auto& [key, transfer] : transfers_) visit(*transfer);
  }

 private:
  SourceTransfer* Find(const RequestKey& key);
  // Gives the machine a grant. Sends are named by the decode worker and the transfer id that it
  // drew. A send whose name is in use would end, and be ended, with the other. It is answered with
  // a Revoke instead.
  void GiveGrant(SourceTransfer* transfer, const kv::Grant& grant, int64_t now_us);
  // Gives the machine the grant that came before its order, if one did.
  void TakeParked(SourceTransfer* transfer, int64_t now_us);
  // Carries out `actions_`; in a step only what may happen in one, the rest is deferred.
  void Perform(SourceTransfer* transfer, int64_t now_us);
  void PerformOne(SourceTransfer* transfer, kv::HandoffAction action, int64_t now_us);
  void Offer(SourceTransfer* transfer, const kv::SliceRange& slices, int64_t now_us);
  // Offers a range; false when the transport has no room for all of it (the rest is in `unsent`).
  bool OfferSome(SourceTransfer* transfer, kv::SliceRange slices, int64_t now_us);
  void Send(Incarnation peer, const kv::HandoffMessage& message);
  void ReportGrant(SourceTransfer* transfer);
  // Called once the decode worker took it over.
  void TakeTime(const SourceTransfer& transfer);
  void ParkGrant(Incarnation peer, const kv::Grant& grant, int64_t now_us);
  void OfferAgain(SourceTransfer* transfer, int64_t now_us);
  void ExpireParked(int64_t now_us);
  void HashInTurns(int64_t now_us);
  // At most so many of the blocks that are left; how many.
  uint32_t HashSome(SourceTransfer* transfer, uint32_t max_ordinals, int64_t now_us);
  void NoteDeadline(const SourceTransfer& transfer);
  void EraseFinished();

  const TransferParts parts_;
  const kv::HandoffTimers timers_;
  const uint64_t hash_bytes_per_turn_;
  TransferOwner* const owner_;
  // Ordered: what a tick does follows from its input, not from where memory lies.
  absl::btree_map<RequestKey, std::unique_ptr<SourceTransfer>> transfers_;
  kv::GrantPark park_;
  kv::HandoffActions actions_;  // of the event being handled
  std::vector<kv::SliceRef> refs_;
  std::vector<uint64_t> checksums_;  // of one layer
  std::vector<kv::Grant> expired_;
  bool in_step_ = false;
  bool any_finished_ = false;
  int64_t last_tick_us_ = 0;
  int64_t next_deadline_us_ = INT64_MAX;  // no machine has an earlier one
  SourceStats stats_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_SOURCE_TRANSFERS_H_
