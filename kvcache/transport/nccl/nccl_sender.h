// NcclSender: the prefill worker's half of an NcclTransport. Queues slices by peer, gathers them
// into staging, offers a batch, and sends it when the decode worker has posted the receive.
//
//   slot: free -> gathering -> offered -> granted -> posting -> moving -> sent -> free
//                                 \___________\_________\_________\_______\-> draining -> free
//
// Owned by the transport's thread; every call returns at once. Invariants
//  1. A source block is read only while a slot gathers from it.
//  2. One operation of a peer is under way, of all peers `max_posted` beside the first ones of
//     communicators; a peer that does not answer holds `max_peer_slots` buffers, and no longer than
//     its deadlines and the end of its communicator. Until something has moved it has one, and all
//     such peers have all buffers but one.
//  3. A peer whose communicators deliver nothing is given up after `max_failures`.
//  4. Slices that the decode worker has not confirmed when a communicator fails go back to the
//     front of its peer's queue, less what was closed.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_SENDER_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_SENDER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"

#include "kvcache/transport/nccl/nccl_parts.h"

namespace baton::kv {

// See the file comment.
class NcclSender final : public SliceSender {
 public:
  // All outlive it.
  NcclSender(const NcclParts* parts, std::unique_ptr<StagingRing> ring);
  ~NcclSender() override;

  bool AddPeer(const PeerUp& peer) override;
  // Aborts its communicator.
  void RemovePeer(Incarnation peer) override;
  void Enqueue(Incarnation peer, std::span<const SliceRef> slices) override;
  void CloseSend(Incarnation peer, TransferId transfer) override;
  bool IsReading(Incarnation peer, TransferId transfer) const override;
  int64_t Step(int64_t now_us) override;

  // An Accept, Grant, Deny, Done or Drop (of a link of ours).
  void Handle(Incarnation peer, const NcclMessage& message, int64_t now_us);

  // Peers to which max_failures communicators in a row delivered nothing, since the last call. The
  // caller that takes them removes them.
  struct LostPeer {
    Incarnation peer;
    std::string why;             // the last one failed
    bool has_delivered = false;  // before, since it was added
  };
  std::vector<LostPeer> TakeLost() { return std::exchange(lost_, {}); }

  // The idle communicator that was used least recently. Evict ends it.
  std::optional<IdleLink> FindIdle() const;
  CommEnder::End Evict(Incarnation peer);

 private:
  struct Link;
  struct Peer;
  struct Batch;

  int64_t NextDueUs(int64_t now_us) const;
  void StepLink(Incarnation id, Peer* peer, int64_t now_us);
  void StepBatch(Batch* batch, int64_t now_us);
  void StartLinks(int64_t now_us);
  void StartLink(Incarnation id, Peer* peer, int64_t now_us);
  void Build(Incarnation id, Link* link, int64_t now_us);
  void StartGathers();
  bool StartGather(Incarnation id, Peer* peer);
  void Offer(Batch* batch, int64_t now_us);
  void Post(Batch* batch, int64_t now_us);
  void Complete(Batch* batch);
  void Deny(Batch* batch);
  // Gives up the peer's communicator and tells the decode worker.
  void Fail(Incarnation id, NcclDropReason reason, const Status& why, int64_t now_us);
  // To the log: at warn once in ten seconds for each peer.
  void Report(Incarnation id, Peer* peer, const Status& why, int64_t now_us);
  // Backs off, and gives the peer up where that was one too many.
  void CountFailure(Incarnation id, Peer* peer, std::string why, int64_t now_us);
  // Aborts it; see invariant 4.
  void DropLink(Incarnation id, Peer* peer);
  void Requeue(Batch* batch);
  void Release(Batch* batch);

  Batch* FindBatch(Incarnation peer, uint64_t number);
  bool IsDone(const Batch& batch) const;
  void TakeTime(const Batch& batch, int64_t now_us);
  uint32_t NumSlots(Incarnation of) const;

  const NcclParts* const parts_;
  const std::unique_ptr<StagingRing> ring_;
  MeasuredRate rate_;
  uint64_t next_link_ = 1;
  uint64_t next_batch_ = 1;
  absl::btree_map<Incarnation, std::unique_ptr<Peer>> peers_;
  Incarnation last_served_;     // who got the last buffer: the others come first
  std::vector<Batch> batches_;  // one a slot
  std::vector<LostPeer> lost_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_SENDER_H_
