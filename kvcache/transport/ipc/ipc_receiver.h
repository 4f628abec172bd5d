// IpcReceiver: D's half of an IpcTransport. Takes offers, pulls what is wanted out of the peer's
// pool, and answers.
//
//   slot: free -> pulling -> free          (to pulling again for slices that another slot had)
//
// Owned by the transport's thread; every call returns at once. Invariants
//  1. A block is written only by a pull that is under way; of one slice there is one at most.
//  2. Every slice is judged by the ReceiveTable before it is pulled, and with the hash of what was
//     stored before it counts as filled. A transfer that is being closed gets nothing more.
//  3. A peer's mapping lives until no pull from it is under way, also when the peer is gone.
//  4. A peer has at most `max_peer_slots` launches under way, and kMaxWaitingOffers waiting.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_RECEIVER_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_RECEIVER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"

#include "kvcache/transport/ipc/device_pools.h"
#include "kvcache/transport/ipc/ipc_parts.h"
#include "kvcache/transport/ipc/slice_puller.h"
#include "kvcache/transport/receive_table.h"
#include "kvcache/transport/transport_inbox.h"

namespace baton {

// See the file comment.
class IpcReceiver {
 public:
  // All outlive it; the sink is set before the first other call.
  IpcReceiver(const IpcParts* parts, std::unique_ptr<SlicePuller> puller, const KvMemory& memory,
              TransportInbox* inbox);
  ~IpcReceiver();
  void set_sink(KvTransportSink* sink) { table_.set_sink(sink); }

  // `pool` is null for a peer that passed none: its offers are refused.
  void AddPeer(Incarnation peer, uint64_t epoch, std::shared_ptr<const PeerPool> pool);
  void RemovePeer(Incarnation peer);
  void OpenReceive(ReceiveSpec spec);
  // Confirmed to the sink once no pull writes to the transfer's blocks.
  void CloseReceive(TransferId transfer);
  void HandleOffer(Incarnation peer, IpcMessage offer);

  // Brings everything on that can be brought on. Returns when to be called again if nothing else
  // happens: now_us = at once (something is under way), 0 = never.
  int64_t Step(int64_t now_us);

 private:
  struct Peer;
  struct Batch;

  Peer* Find(Incarnation peer);
  // Both take `now_us` for progress.
  void StepBatch(Batch* batch, int64_t now_us);
  void FinishPull(Batch* batch, int64_t now_us);
  // Begins to pull what is left of the batch; ends it when nothing is.
  void Pull(Batch* batch);
  std::vector<SlicePuller::Pull> AdmitLeft(Batch* batch);
  // Judges one slice: whether it is to be pulled, and from and to where.
  bool Admit(const Batch& batch, const SliceRef& slice, SlicePuller::Pull* pull);
  void StartBatches();
  bool StartBatch(Incarnation id, Peer* peer);
  void ConfirmClosed();
  bool IsClosing(TransferId transfer) const;
  bool IsWriting(TransferId transfer) const;

  const IpcParts* const parts_;
  const std::unique_ptr<SlicePuller> puller_;
  const KvMemory memory_;
  TransportInbox* const inbox_;
  ReceiveTable table_;
  absl::btree_map<Incarnation, std::unique_ptr<Peer>> peers_;
  Incarnation last_served_;     // who got the last slot: the others come first
  std::vector<Batch> batches_;  // one a slot
  std::vector<TransferId> closing_;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_RECEIVER_H_
