// IpcSender: the prefill worker's half of an IpcTransport. Queues slices by peer and offers them, a
// batch at a time. The bytes stay where they are until the decode worker has pulled them.
//
// Owned by the transport's thread; every call returns at once. Invariants
//  1. At most `max_offers` batches of one peer are without an answer; a peer that does not answer
//     holds up nobody else.
//  2. An offer is made again until the decode worker answers it or all its transfers are closed: a
//     lost word loses no slice. The decode worker takes each slice only once.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_SENDER_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_SENDER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/btree_map.h"

#include "kvcache/transport/ipc/ipc_parts.h"

namespace baton::kv {

// See the file comment.
class IpcSender final : public SliceSender {
 public:
  // They outlive it.
  explicit IpcSender(const IpcParts* parts);
  ~IpcSender() override;

  // False for one that has not this side's pool: who was not dialled.
  bool AddPeer(const PeerUp& peer) override;
  void RemovePeer(Incarnation peer) override;
  void Enqueue(Incarnation peer, std::span<const SliceRef> slices) override;
  void CloseSend(Incarnation peer, TransferId transfer) override;
  // Always false. The decode worker may read a block late; when the block was given to another,
  // that slice fails its checksum.
  bool IsReading(Incarnation, TransferId) const override { return false; }
  int64_t Step(int64_t now_us) override;

  void HandleDone(Incarnation peer, uint64_t batch);

 private:
  struct Batch;
  struct Peer;

  void OfferMore(Incarnation id, Peer* peer, int64_t now_us);
  void Offer(Incarnation id, Batch* batch, int64_t now_us);

  const IpcParts* const parts_;
  const size_t max_slices_;  // of an offer
  uint64_t next_batch_ = 1;
  absl::btree_map<Incarnation, std::unique_ptr<Peer>> peers_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_SENDER_H_
