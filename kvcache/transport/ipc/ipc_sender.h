// IpcSender: P's half of an IpcTransport. Queues slices by peer and offers them, a batch at a time;
// the bytes stay where they are until D has pulled them.
//
// Owned by the transport's thread; every call returns at once. Invariants
//  1. Of one peer at most `max_offers` batches are without an answer; a peer that does not answer
//     holds up nobody else.
//  2. An offer is made again until D answers it or all its transfers are closed: a lost word loses
//     no slice. D takes each only once.
//  3. Each slice that was queued is released in the inbox exactly once.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_SENDER_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_SENDER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/btree_map.h"

#include "kvcache/transport/ipc/ipc_parts.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_inbox.h"

namespace baton {

// See the file comment.
class IpcSender {
 public:
  // All outlive it; the sink is set before the first other call.
  IpcSender(const IpcParts* parts, TransportInbox* inbox);
  ~IpcSender();
  void set_sink(KvTransportSink* sink) { sink_ = sink; }

  // One that has this side's pool.
  void AddPeer(Incarnation peer);
  // What waits for it is dropped.
  void RemovePeer(Incarnation peer);
  void Enqueue(Incarnation peer, std::span<const SliceRef> slices);
  // Confirmed to the sink at once: this side reads nothing, and what D may still read late fails
  // its checksum when the block was given to another.
  void CloseSend(Incarnation peer, TransferId transfer);
  void HandleDone(Incarnation peer, uint64_t batch);

  // Brings everything on that can be brought on. Returns when to be called again if nothing else
  // happens, 0 = never.
  int64_t Step(int64_t now_us);

 private:
  struct Batch;
  struct Peer;

  Peer* Find(Incarnation peer);
  void OfferMore(Incarnation id, Peer* peer, int64_t now_us);
  void Offer(Incarnation id, Batch* batch, int64_t now_us);

  const IpcParts* const parts_;
  TransportInbox* const inbox_;
  const size_t max_slices_;  // of an offer
  KvTransportSink* sink_ = nullptr;
  uint64_t next_batch_ = 1;
  absl::btree_map<Incarnation, std::unique_ptr<Peer>> peers_;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_SENDER_H_
