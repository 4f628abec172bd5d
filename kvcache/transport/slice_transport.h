// SliceTransport: the frame of the transports between memories of devices (NcclTransport,
// IpcTransport). A KvEndpoint has the connections and the words, and knows which peers live. Posts
// of callers wait in an inbox. Two halves move the slices. One thread owns the device's use, both
// halves and the table of open transfers. It polls while something is under way, else it sleeps.
//
// Invariants (beside KvTransport's)
//  1. Halves and sink know a peer from Introduce to Withdraw, with a new epoch each time. Withdraw
//     comes at the end of the peer's connection at the latest. A word of a peer that they do not
//     know reaches neither.
//  2. The owner's control messages arrive as they were sent, whatever they begin with.
//  3. A closed transfer gets nothing more, and is confirmed once no half touches its blocks.
//
// Owner: the worker; the device and the memory outlive it. The device is this transport's alone,
// but its memory may be another's of the same GPU. The derived class owns the halves, which are set
// before Start, and calls Stop in its destructor.
#ifndef BATON_KVCACHE_TRANSPORT_SLICE_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_SLICE_TRANSPORT_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "kvcache/transport/endpoint_events.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/receive_table.h"
#include "kvcache/transport/slice_device.h"
#include "kvcache/transport/slice_message.h"
#include "kvcache/transport/transport_inbox.h"
#include "src/base/mutex.h"
#include "src/base/thread.h"

namespace baton::kv {

// The prefill worker's half. It belongs to the transport's thread; every call returns at once.
class SliceSender {
 public:
  virtual ~SliceSender() = default;
  // Whether slices may go to it.
  virtual bool AddPeer(const PeerUp& peer) = 0;
  // Drops the slices that wait for the peer. Each slice that was queued is released in the inbox
  // once.
  virtual void RemovePeer(Incarnation peer) = 0;
  virtual void Enqueue(Incarnation peer, std::span<const SliceRef> slices) = 0;
  // Drops what waits of a transfer, and reads no more of its blocks than it reads already.
  virtual void CloseSend(Incarnation peer, TransferId transfer) = 0;
  virtual bool IsReading(Incarnation peer, TransferId transfer) const = 0;
  // Brings everything on that can be brought on. Returns when to be called again if nothing else
  // happens: now_us = at once (something is under way), 0 = never.
  virtual int64_t Step(int64_t now_us) = 0;
};

// The decode worker's half. It belongs to the transport's thread, and every call returns at once.
// SliceParts::receives judges slices before they are written. It judges them again, with the hash
// of what was stored, before they count.
class SliceReceiver {
 public:
  virtual ~SliceReceiver() = default;
  virtual void AddPeer(const PeerUp& peer, uint64_t epoch) = 0;
  // Work that runs for the peer is not counted any more.
  virtual void RemovePeer(Incarnation peer) = 0;
  virtual bool IsWriting(TransferId transfer) const = 0;
  virtual int64_t Step(int64_t now_us) = 0;
};

// The parts of the frame that the halves use.
struct SliceParts {
  TransportInbox* inbox = nullptr;
  ReceiveTable* receives = nullptr;
  TransportCounters* counters = nullptr;
  // Sends a message of the transport's form; false when it cannot be queued.
  std::function<bool(Incarnation, std::string)> post;
  // The bytes of a peer's connection, null when it is gone.
  std::function<LinkCounters*(Incarnation)> link_counters;
};

// The peer of a half's table; null: it is not connected.
template <typename Peers>
auto FindPeer(Peers& peers, Incarnation peer) {
  const auto entry = peers.find(peer);
  return entry == peers.end() ? nullptr : entry->second.get();
}

// How a frame is set up.
struct SliceFrameOptions {
  TransportKind kind = TransportKind::kAuto;
  const char* thread_name = "";
  SliceMessageForm form;
  SliceDevice device;
  TransportInboxLimits inbox;
  const Clock* clock = nullptr;
};

// The interface and its frame; see the file comment. Beside KvTransport's calls: the endpoint's
// addresses and peers are set on the endpoint itself.
class SliceTransport : public KvTransport {
 public:
  Status Start(KvTransportSink* sink) override;
  void Stop() override;
  Status SendControl(Incarnation peer, std::string bytes) override;
  Status SendSlices(Incarnation peer, std::span<const SliceRef> slices) override;
  void CloseSend(Incarnation peer, TransferId transfer) override;
  Status OpenReceive(ReceiveSpec spec) override;
  void CloseReceive(TransferId transfer) override;
  TransportStats Stats() const override;
  std::vector<LinkInfo> Links() const override;
  KvEndpoint* endpoint() const { return endpoint_.get(); }

 protected:
  // `endpoint` is not started and has the device memory's layout.
  SliceTransport(const SliceFrameOptions& options, std::unique_ptr<KvEndpoint> endpoint);
  void SetHalves(SliceSender* sender, SliceReceiver* receiver);
  SliceParts Parts();
  // Control messages dropped: too many waited for the thread.
  uint64_t overruns() const { return events_.overruns(); }

  // The thread's from here on.
  void Introduce(PeerUp up);
  // The opposite, and forgets what Explain said; no more than that for a peer that is not
  // introduced.
  void Withdraw(Incarnation peer, const Status& why);
  // Says in Links why a connected peer is not introduced.
  void Explain(Incarnation peer, std::string why);

  // A message of the transport's form, of a peer that is introduced.
  virtual void HandleWord(Incarnation peer, const std::string& bytes, int64_t now_us) = 0;
  // A connection, which may be introduced later; any message of it until then; its end.
  virtual void HandleUp(PeerUp up) { Introduce(std::move(up)); }
  // NOLINTNEXTLINE(performance-unnecessary-value-param): what overrides it keeps the bytes.
  virtual void HandleEarly(Incarnation /*peer*/, std::string /*bytes*/, int64_t /*now_us*/) {}
  virtual void HandleDown(Incarnation /*peer*/) {}
  // StepMore is called after each Step of the halves, EndMore after their last call.
  virtual int64_t StepMore(int64_t /*now_us*/) { return 0; }
  virtual void EndMore() {}

  void HandleControl(Incarnation peer, std::string bytes, int64_t now_us);

 private:
  void Run();
  int64_t Turn();
  void Execute(TransportCommand* command);
  void Handle(EndpointEvent* event, int64_t now_us);
  void ConfirmClosed();

  // Constant after Start.
  const SliceFrameOptions options_;
  const std::unique_ptr<KvEndpoint> endpoint_;
  SliceSender* sender_ = nullptr;
  SliceReceiver* receiver_ = nullptr;
  KvTransportSink* sink_ = nullptr;

  TransportCounters counters_;
  TransportInbox inbox_;
  EndpointEvents events_;

  mutable Mutex links_mutex_;  // the thread alone changes the next two
  absl::flat_hash_map<Incarnation, std::unique_ptr<LinkCounters>> link_counters_
      BATON_GUARDED_BY(links_mutex_);  // introduced
  absl::flat_hash_map<Incarnation, std::string> explanations_
      BATON_GUARDED_BY(links_mutex_);  // connected, not introduced

  // Owned by the thread.
  ReceiveTable receives_;
  std::vector<EndpointEvent> taken_events_;
  TransportBatch batch_;
  absl::flat_hash_map<Incarnation, uint64_t> epochs_;  // of the peers that are introduced
  uint64_t next_epoch_ = 1;
  std::vector<TransferId> closing_receives_;
  std::vector<std::pair<Incarnation, TransferId>> closing_sends_;

  Thread thread_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_SLICE_TRANSPORT_H_
