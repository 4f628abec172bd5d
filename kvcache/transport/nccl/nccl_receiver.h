// NcclReceiver: the decode worker's half of an NcclTransport. Judges what is offered, posts
// receives into staging, grants them, and scatters what arrived into blocks once its checksums are
// right.
//
//   slot: free -> posting -> moving -> (arrived ->) scattering -> (scattering ->) free
//                     \_________\-> draining -> free
//
// Owned by the transport's thread; every call returns at once. Invariants
//  1. A block is written only by a scatter, of slices that ReceiveTable::Admit has let in just
//     before.
//  2. No block is named twice by the scatters that run.
//  3. One receive of a peer is under way, of all peers `max_posted` beside the first ones of
//     communicators, which have all buffers but one. Batches of a peer are granted
//     in the order of their offers, which is the order in which NCCL matches them.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_RECEIVER_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_RECEIVER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"

#include "kvcache/transport/nccl/nccl_parts.h"

namespace baton::kv {

// See the file comment.
class NcclReceiver final : public SliceReceiver {
 public:
  // All outlive it.
  NcclReceiver(const NcclParts* parts, std::unique_ptr<StagingRing> ring, const KvMemory& memory);
  ~NcclReceiver() override;

  void AddPeer(const PeerUp& peer, uint64_t epoch) override;
  // Aborts its communicator.
  void RemovePeer(Incarnation peer) override;
  bool IsWriting(TransferId transfer) const override;
  int64_t Step(int64_t now_us) override;

  // A Connect, Start, Offer or Drop (of the peer's link).
  void Handle(Incarnation peer, const NcclMessage& message, int64_t now_us);

  // The idle communicator that was used least recently. Evict ends it.
  std::optional<IdleLink> FindIdle() const;
  CommEnder::End Evict(Incarnation peer);

 private:
  struct Link;
  struct Peer;
  struct Batch;

  void Connect(Incarnation id, const NcclMessage& message, int64_t now_us);
  void Join(Incarnation id, Link* link, const nccl::UniqueId& name);
  void TakeOffer(Incarnation id, const NcclMessage& message, int64_t now_us);
  void StepLink(Incarnation id, Peer* peer, int64_t now_us);
  void StepBatch(Batch* batch, int64_t now_us);
  void StartReceives(int64_t now_us);
  void StartReceive(Incarnation id, Peer* peer, int64_t now_us);
  // Scatters what is admitted of the slices that are left, or frees the slot.
  void Scatter(Batch* batch);
  std::vector<StagingRing::Arrival> AdmitLeft(Batch* batch);
  void Receive(Batch* batch, int64_t now_us);
  void FinishScatter(Batch* batch, int64_t now_us);
  int64_t NextDueUs(int64_t now_us) const;

  void Refuse(Incarnation id, uint64_t link, NcclDropReason reason);
  void Fail(Incarnation id, NcclDropReason reason, const Status& why);
  void DropLink(Incarnation id, Peer* peer);
  void Release(Batch* batch);
  FrameHeader HeaderOf(const SliceRef& slice, uint64_t epoch) const;

  const NcclParts* const parts_;
  const std::unique_ptr<StagingRing> ring_;
  const KvMemory memory_;
  MeasuredRate rate_;
  absl::btree_map<Incarnation, std::unique_ptr<Peer>> peers_;
  Incarnation last_served_;
  std::vector<Batch> batches_;  // one a slot
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_RECEIVER_H_
