// DestTransferSet: the decode worker's side of all hand-offs of one engine. Each is a HandoffDest,
// which decides, with the reserved blocks that its actions need. This class carries out the
// actions. Engine thread.
//
//   ordinals  [0, num_unseen)         seen by no row of ours: no block is here, and none crosses
//             [num_unseen, num_held)  found in our own prefix index, full; they do not cross
//             [num_held, num_data)    filled by the transport, transfer references until it
//                                     confirmed its close; the last num_state of them hold the
//                                     fixed state
//             [num_data, n)           spare, for the choices to grow into
//   The set holds one request reference of each block until they are bound (then the scheduler's)
//   or released.
//
// A transfer stays a lease after it is bound, to answer repeated messages; it then holds nothing.
#ifndef BATON_ENGINE_DEST_TRANSFERS_H_
#define BATON_ENGINE_DEST_TRANSFERS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"

#include "kvcache/handoff.h"
#include "src/engine/engine_event.h"
#include "src/engine/engine_options.h"
#include "src/engine/engine_types.h"
#include "src/engine/transfer_parts.h"

namespace baton::engine {

// One hand-off at the decode worker.
struct DestTransfer {
  DestTransfer(kv::DestSpec spec, uint32_t unseen) : machine(std::move(spec)), num_unseen(unseen) {}

  RequestKey key;
  kv::HandoffDest machine;
  Incarnation peer;
  const uint32_t num_unseen;            // ordinals before the first block
  std::vector<kv::BlockHandle> blocks;  // held, data, then spare; empty once nothing is held
  bool holds_requests = true;           // one request reference of each block
  bool is_bound = false;                // holds nothing, answers repeated messages
  bool is_pinned = false;               // one transfer reference of each block that crosses
  // How many slices the peer will have delivered when those are here that it had begun to send
  // when this one was sealed, or last asked for again; and how long they are waited for.
  uint64_t queue_end = 0;
  int64_t wait_until_us = 0;
  int64_t told_us = 0;  // when the owner last heard of it, or its first slice came

  // The blocks that cross.
  std::span<const kv::BlockHandle> crossing() const {
    return std::span(blocks).subspan(machine.spec().num_held - num_unseen, machine.num_blocks());
  }
};

// Counters over all hand-offs since the start.
struct DestStats {
  uint64_t bytes_bound = 0;
  uint64_t chain_mismatches = 0;
  uint64_t bad_slices = 0;
  uint64_t stale_messages = 0;
};

// The blocks and the chain that a hand-off needs beside the request.
struct DestStart {
  std::vector<kv::BlockHandle> blocks;  // reserved; one request reference of each is taken over
  uint32_t num_unseen = 0;              // ordinals before `blocks`, of which no row sees a token
  uint32_t num_held = 0;                // ordinals that do not cross: unseen ones and full ones
  uint32_t num_data = 0;                // ordinals of the prompt, all those and state included
  uint32_t num_state = 0;               // of num_data, the last
  std::vector<kv::ChainLink> chain;     // our own, of the prompt
};

// See the file comment.
class DestTransferSet {
 public:
  // `max_bound` transfers are kept after binding, the oldest given up first.
  DestTransferSet(const TransferParts& parts, const EngineConfig& config, uint32_t vocab_size,
                  TransferOwner* owner);

  // Opens the receive and sends the grant.
  void Start(const RequestSpec& spec, DestStart start, int64_t now_us);

  // Takes a message of the prefill worker. It belongs to a known hand-off, or is answered with a
  // Revoke.
  void OnMessage(Incarnation peer, const kv::HandoffMessage& message, int64_t now_us);
  void OnReceiveProgress(const ReceiveProgress& progress, int64_t now_us);
  void OnBadSlice(const kv::BadSlice& slice, int64_t now_us);
  void OnReceiveClosed(TransferId transfer, int64_t now_us);
  void OnPeerDown(Incarnation peer, std::string_view reason, int64_t now_us);
  // The request ended here for another reason: everything is let go, the owner is not told.
  void Cancel(const RequestKey& key, std::string_view reason, int64_t now_us);
  void Tick(int64_t now_us);
  // When Tick may have something to do; never too late.
  int64_t NextDeadlineUs() const { return next_deadline_us_; }

  // Hand-offs that hold blocks.
  uint32_t num_open() const { return static_cast<uint32_t>(transfers_.size()) - num_bound_; }
  const DestStats& stats() const { return stats_; }
  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    for (const auto& [id, transfer] : transfers_) visit(*transfer);
  }

 private:
  // The delivery of one peer.
  struct Delivery {
    uint64_t num_slices = 0;
    int64_t last_us = 0;
  };

  DestTransfer* Find(TransferId transfer);
  DestTransfer* Find(const kv::TransferKey& key);
  // Carries out `actions_` and tells the owner of a new state.
  void Perform(DestTransfer* transfer, kv::DestState before, int64_t now_us);
  void PerformOne(DestTransfer* transfer, kv::HandoffAction action, int64_t now_us);
  // Tells the owner how far a slow one is, now and then.
  void TellProgress(DestTransfer* transfer, int64_t now_us);
  // A connection carries slices in order, and messages before them. So a Seal may come long before
  // the last slice, which waits for the slices of other transfers. Their arrival is no silence,
  // up to what the peer had begun when this one was sealed, or asked for again, and kMaxQueueWaitUs
  // from then.
  void BeginWait(DestTransfer* transfer, int64_t now_us);
  void WaitForQueue(DestTransfer* transfer, int64_t now_us);
  void OpenReceive(DestTransfer* transfer, int64_t now_us);
  void Unpin(DestTransfer* transfer);
  void Release(DestTransfer* transfer);
  void Send(Incarnation peer, const kv::HandoffMessage& message);
  void EraseFinished();
  TransferId OldestBound() const;

  const TransferParts parts_;
  const kv::HandoffTimers timers_;
  const Incarnation incarnation_;
  const uint32_t vocab_size_;
  const uint32_t layers_per_group_;
  const uint32_t max_bound_;
  TransferOwner* const owner_;
  // Ordered: what a tick does follows from its input, not from where memory lies.
  absl::btree_map<TransferId, std::unique_ptr<DestTransfer>> transfers_;
  absl::flat_hash_map<RequestKey, TransferId> by_request_;
  absl::flat_hash_map<Incarnation, Delivery> delivered_;  // of peers that are connected
  uint64_t next_transfer_ = 1;
  uint32_t num_bound_ = 0;
  bool any_finished_ = false;
  int64_t next_deadline_us_ = INT64_MAX;  // no machine has an earlier one
  kv::HandoffActions actions_;            // of the event being handled
  DestStats stats_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_DEST_TRANSFERS_H_
