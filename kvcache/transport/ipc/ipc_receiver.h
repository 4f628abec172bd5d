// IpcReceiver: the decode worker's half of an IpcTransport. Takes offers, pulls what is wanted out
// of the peer's pool, and answers.
//
//   slot: free -> pulling -> free          (to pulling again for slices that another slot had)
//
// Owned by the transport's thread; every call returns at once. Invariants
//  1. A block is written only by a pull that is under way; of one slice there is one at most.
//  2. A peer's mapping lives until no pull from it is under way, also when the peer is gone.
//  3. A peer has at most `max_peer_slots` launches under way, and kMaxWaitingOffers waiting.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_RECEIVER_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_RECEIVER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"

#include "kvcache/transport/ipc/device_pools.h"
#include "kvcache/transport/ipc/ipc_message.h"
#include "kvcache/transport/ipc/ipc_parts.h"
#include "kvcache/transport/ipc/slice_puller.h"

namespace baton::kv {

// See the file comment.
class IpcReceiver final : public SliceReceiver {
 public:
  // All outlive it.
  IpcReceiver(const IpcParts* parts, std::unique_ptr<SlicePuller> puller, const KvMemory& memory,
              DevicePools* pools);
  ~IpcReceiver() override;

  // A peer that passed no pool offers in vain.
  void AddPeer(const PeerUp& peer, uint64_t epoch) override;
  void RemovePeer(Incarnation peer) override;
  bool IsWriting(TransferId transfer) const override;
  int64_t Step(int64_t now_us) override;

  void HandleOffer(Incarnation peer, IpcMessage offer);

 private:
  struct Peer;
  struct Batch;

  // StepBatch and FinishPull take `now_us` for progress.
  void StepBatch(Batch* batch, int64_t now_us);
  void FinishPull(Batch* batch, int64_t now_us);
  // Begins to pull what is left of the batch; ends it when nothing is.
  void Pull(Batch* batch);
  std::vector<SlicePuller::Pull> AdmitLeft(Batch* batch);
  // Judges one slice: whether it is to be pulled, and from and to where.
  bool Admit(const Batch& batch, const SliceRef& slice, SlicePuller::Pull* pull);
  void StartBatches();
  bool StartBatch(Incarnation id, Peer* peer);

  const IpcParts* const parts_;
  const std::unique_ptr<SlicePuller> puller_;
  const KvMemory memory_;
  DevicePools* const pools_;
  absl::btree_map<Incarnation, std::unique_ptr<Peer>> peers_;
  Incarnation last_served_;     // who got the last slot: the others come first
  std::vector<Batch> batches_;  // one a slot
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_RECEIVER_H_
