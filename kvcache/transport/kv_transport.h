// KvTransport: copies (block, layer) slices between the blocks of two workers and carries their
// control messages. It knows bytes, blocks and peers; sequences and requests are not its business.
//
// Implementations: KvEndpoint (shm and tcp), NcclTransport and IpcTransport (device memory),
// LocalPort, which a LocalHub makes (one process).
// tests/kvcache/transport/conformance_test.cc holds all of them to this page.
//
// Prefill side: SendSlices offers sealed slices, CloseSend ends a transfer. Decode side:
// OpenReceive names the blocks that a transfer may fill, CloseReceive ends it. Every call only
// posts to the transport's inbox: it never blocks, and either takes all it is given or fails and
// changes nothing.
//
// Invariants
//  1. Calls of one thread take effect in order. Control messages may overtake slices.
//  2. A byte of an own block is written only between OpenReceive and OnReceiveClosed of a transfer
//     that lists it; read only between SendSlices and OnSendClosed of a transfer that names it.
//  3. A slice counts as done only after the bytes *in the own block* gave the prefill worker's
//     checksum; it is done once, whatever is sent again.
//  4. A transfer takes frames from one connection only: the one that is up when it is opened, or
//     else the first that brings a frame. After OnPeerDown of that peer nothing of it arrives any
//     more.
//  5. Sink calls come from one thread, in order; after Stop returns there are none.
#ifndef BATON_KVCACHE_TRANSPORT_KV_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_KV_TRANSPORT_H_

#include <span>
#include <string>
#include <vector>

#include "kvcache/transport/transport_types.h"
#include "src/base/ids.h"
#include "src/base/status.h"

namespace baton::kv {

// Receives the transport's events. Called on the transport's thread, which serves all peers: an
// implementation only posts to an inbox. It may call back into the transport.
class KvTransportSink {
 public:
  virtual ~KvTransportSink() = default;

  // A connection is ready. Precedes every other event of that connection.
  virtual void OnPeerUp(const PeerUp& peer) = 0;
  // The connection is gone, within 50 ms of an end of file, or the transport has given the peer up
  // for a time; what was queued for the peer is dropped. Transfers with it stay open until they are
  // closed, and get nothing more.
  virtual void OnPeerDown(Incarnation peer, const Status& status) = 0;
  // A whole, checksummed control message.
  virtual void OnControl(Incarnation peer, std::string bytes) = 0;
  // `slices_done` of blocks x layers are verified. At completion, when a layer group is complete in
  // all blocks, and otherwise at most every millisecond.
  virtual void OnReceiveProgress(TransferId transfer, uint32_t slices_done, bool complete) = 0;
  // A slice of an open transfer was refused (bad checksum or stale generation).
  virtual void OnBadSlice(const BadSlice& slice) = 0;
  // No thread of the transport touches the transfer's destination blocks any more.
  virtual void OnReceiveClosed(TransferId transfer) = 0;
  // No thread of the transport reads the source blocks of this transfer any more. (A peer that
  // pulls may still read a block late; its copy then fails the checksum.)
  virtual void OnSendClosed(Incarnation peer, TransferId transfer) = 0;
};

// The interface; see the file comment. Any thread may call; calls of different threads interleave.
class KvTransport {
 public:
  virtual ~KvTransport() = default;

  // Begins to call `sink`, which outlives Stop. Once, before any other call.
  virtual Status Start(KvTransportSink* sink) = 0;
  // Closes all connections and joins the thread; then no block is touched. Idempotent. Transfers
  // that were open get no confirmation.
  virtual void Stop() = 0;

  // Sends at most limits::kMaxControlBytes to `peer`. Without a connection the message waits for
  // one until the ttl (2 s) and is then dropped and counted. ResourceExhausted when the queue is
  // full.
  virtual Status SendControl(Incarnation peer, std::string bytes) = 0;
  // Offers slices to `peer`; all or none. Unavailable when no connection is up, ResourceExhausted
  // when too many slices wait for it already: offer them again after the next step. Allocates
  // nothing in steady state.
  virtual Status SendSlices(Incarnation peer, std::span<const SliceRef> slices) = 0;
  // Ends the sending of a transfer: what waits is dropped, and OnSendClosed follows exactly once
  // for each call, also for an unknown transfer.
  virtual void CloseSend(Incarnation peer, TransferId transfer) = 0;

  // Accepts slices of a transfer from now on. InvalidArgument when a size is outside its limits or
  // a block outside the arena, ResourceExhausted when too many transfers are open.
  virtual Status OpenReceive(ReceiveSpec spec) = 0;
  // Ends a transfer: OnReceiveClosed follows exactly once for each call, also for an unknown
  // transfer, within 50 ms.
  virtual void CloseReceive(TransferId transfer) = 0;

  virtual TransportStats Stats() const = 0;
  virtual std::vector<LinkInfo> Links() const = 0;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_KV_TRANSPORT_H_
