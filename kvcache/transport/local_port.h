// LocalPort and LocalCore: the inside of LocalHub. A port is one worker's transport. The core
// serves all ports of a hub, turn by turn. Internal to kvcache/transport.
//
// The core's serve mutex is held for a turn, and while a port joins or leaves. It guards what its
// ports serve (kServing). Callers of a port touch its inbox only.
#ifndef BATON_KVCACHE_TRANSPORT_LOCAL_PORT_H_
#define BATON_KVCACHE_TRANSPORT_LOCAL_PORT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "kvcache/transport/frame.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/local_transport.h"
#include "kvcache/transport/receive_table.h"
#include "kvcache/transport/transport_counters.h"
#include "kvcache/transport/transport_inbox.h"
#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/base/thread.h"

namespace baton::kv {

class LocalPort;

// The right of a thread that holds a core's serve mutex to what the ports of that core serve. A
// port cannot name the mutex of another port, so clang's analysis checks this instead. No data.
class BATON_CAPABILITY("role") ServeRole {};
inline constexpr ServeRole kServing{};

// Holds a serve mutex, and that right.
class BATON_SCOPED_CAPABILITY ServeLock {
 public:
  // The two bodies are what the attributes promise; the right is nothing that could be taken.
  explicit ServeLock(Mutex& mutex) BATON_ACQUIRE(mutex, kServing) BATON_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~ServeLock() BATON_RELEASE() BATON_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }
  ServeLock(const ServeLock&) = delete;
  ServeLock& operator=(const ServeLock&) = delete;

 private:
  Mutex& mutex_;
};

// Serves the ports of one hub; shared by the hub and its ports.
class LocalCore {
 public:
  LocalCore(bool own_thread, const Clock* clock);
  void StopThread();

  // Connects `port` with every port that has joined; Leave ends that.
  void Join(LocalPort* port, KvTransportSink* sink);
  void Leave(LocalPort* port);

  // The result of a turn.
  struct Turn {
    bool did_work = false;
    int64_t due_us = 0;  // when time alone makes work, 0 = never
  };
  Turn Serve();
  void Wake();
  int64_t NowUs() const { return clock_->NowUs(); }

 private:
  void Loop();
  // Waits for work or for `due_us`; false when the thread has to stop.
  bool WaitForWork(int64_t due_us);

  const Clock* const clock_;
  Mutex serve_mutex_;
  std::vector<LocalPort*> ports_ BATON_GUARDED_BY(serve_mutex_);
  uint64_t next_epoch_ BATON_GUARDED_BY(serve_mutex_) = 1;

  Mutex wake_mutex_;
  CondVar wake_;
  bool work_ BATON_GUARDED_BY(wake_mutex_) = false;
  bool stop_ BATON_GUARDED_BY(wake_mutex_) = false;
  Thread thread_;
};

// One worker's transport; see the file comment.
class LocalPort final : public KvTransport {
 public:
  LocalPort(std::shared_ptr<LocalCore> core, LocalWorker worker);
  ~LocalPort() override;

  Status Start(KvTransportSink* sink) override;
  void Stop() override;
  Status SendControl(Incarnation peer, std::string bytes) override;
  Status SendSlices(Incarnation peer, std::span<const SliceRef> slices) override;
  void CloseSend(Incarnation peer, TransferId transfer) override;
  Status OpenReceive(ReceiveSpec spec) override;
  void CloseReceive(TransferId transfer) override;
  TransportStats Stats() const override { return counters_.Snapshot(); }
  std::vector<LinkInfo> Links() const override { return board_.Read(); }

  void Join(KvTransportSink* sink) BATON_REQUIRES(kServing);
  void Leave() BATON_REQUIRES(kServing);
  void Connect(LocalPort* other, uint64_t epoch) BATON_REQUIRES(kServing);
  void Disconnect(LocalPort* other) BATON_REQUIRES(kServing);
  void DeliverLinkEvents() BATON_REQUIRES(kServing);
  bool ExecuteCommands() BATON_REQUIRES(kServing);
  // Moves a bounded number of slices; false when none waited.
  bool MoveSlices(int64_t now_us) BATON_REQUIRES(kServing);
  // Reports progress and drops what waited too long; returns when it is due again, 0 = never.
  int64_t ServeTimers(int64_t now_us) BATON_REQUIRES(kServing);

  Incarnation incarnation() const { return incarnation_; }
  const std::string& worker_id() const { return worker_id_; }
  const KvLayout& layout() const { return memory_.layout; }
  bool is_on_device() const { return puller_ != nullptr; }

 private:
  // The other end of a connection.
  struct Link {
    LocalPort* port = nullptr;
    uint64_t epoch = 0;
    std::shared_ptr<LinkCounters> counters;
  };
  // A connection that came or went, to be told to the sink.
  struct LinkEvent {
    PeerUp peer;
    bool up = false;
  };
  // A slice on its way.
  struct Outgoing {
    Incarnation peer;
    uint64_t epoch = 0;
    SliceRef slice;
  };
  // A control message that waits for its peer.
  struct Parked {
    Incarnation peer;
    std::string bytes;
    int64_t deadline_us = 0;
  };

  void Execute(TransportCommand* command) BATON_REQUIRES(kServing);
  void SendOrPark(Incarnation peer, std::string bytes) BATON_REQUIRES(kServing);
  void DropOutgoing(Incarnation peer, TransferId transfer, bool all_transfers)
      BATON_REQUIRES(kServing);
  // Takes slices from `sender`, copying them out of its blocks; each is judged before and after.
  void TakeSlices(const LocalPort& sender, std::span<const Outgoing> slices, int64_t now_us)
      BATON_REQUIRES(kServing);
  void CopySlice(const LocalPort& sender, const Outgoing& outgoing, int64_t now_us)
      BATON_REQUIRES(kServing);
  // As CopySlice, on a device: gathers the slices that one launch may copy; FinishPulls copies
  // them.
  void PullSlice(const LocalPort& sender, const Outgoing& outgoing, int64_t now_us)
      BATON_REQUIRES(kServing);
  void FinishPulls(const LocalPort& sender, int64_t now_us) BATON_REQUIRES(kServing);
  void FinishSlice(const LocalPort& sender, const FrameHeader& header, uint64_t checksum,
                   int64_t now_us) BATON_REQUIRES(kServing);
  PeerUp PeerOf(const LocalPort& other) const;
  Link* FindLink(Incarnation peer) BATON_REQUIRES(kServing);
  void PublishLinks() BATON_REQUIRES(kServing);

  const std::shared_ptr<LocalCore> core_;
  const std::string worker_id_;
  const Incarnation incarnation_;
  const KvMemory memory_;
  const bool dials_;
  const std::unique_ptr<SlicePuller> puller_ BATON_PT_GUARDED_BY(kServing);  // null: host memory
  TransportCounters counters_;
  LinkBoard board_;
  TransportInbox inbox_;

  KvTransportSink* sink_ BATON_GUARDED_BY(kServing) = nullptr;
  ReceiveTable receives_ BATON_GUARDED_BY(kServing);
  TransportBatch batch_ BATON_GUARDED_BY(kServing);
  absl::flat_hash_map<Incarnation, Link> links_ BATON_GUARDED_BY(kServing);
  std::vector<LinkEvent> link_events_ BATON_GUARDED_BY(kServing);
  std::deque<Outgoing> outgoing_ BATON_GUARDED_BY(kServing);
  std::deque<Parked> parked_ BATON_GUARDED_BY(kServing);
  std::vector<Outgoing> moving_ BATON_GUARDED_BY(kServing);  // to one peer
  // The slices of the next launch, in one order; no two go to one place.
  std::vector<SlicePuller::Pull> pulls_ BATON_GUARDED_BY(kServing);
  std::vector<FrameHeader> pulled_ BATON_GUARDED_BY(kServing);
  absl::flat_hash_set<uint64_t> destinations_ BATON_GUARDED_BY(kServing);
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_LOCAL_PORT_H_
