// EndpointEvents: what a KvEndpoint tells a transport that is built over it (NCCL, CUDA IPC), kept
// until that transport's own thread takes it; and that thread's sleep.
//
// Invariants
//  1. Events are taken in the order in which they were told.
//  2. Control messages that wait have limits; beyond them they are dropped and counted. Hand-offs
//     survive any loss by their leases, transports by their deadlines.
#ifndef BATON_KVCACHE_TRANSPORT_ENDPOINT_EVENTS_H_
#define BATON_KVCACHE_TRANSPORT_ENDPOINT_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/transport_counters.h"
#include "src/base/clock.h"
#include "src/base/mutex.h"

namespace baton::kv {

// Something that the endpoint told.
struct EndpointEvent {
  // The kind of event.
  enum class Kind : uint8_t { kUp, kDown, kControl };
  Kind kind = Kind::kControl;
  PeerUp up;
  Incarnation peer;
  Status status;
  std::string bytes;
};

// See the file comment.
class EndpointEvents final : public KvTransportSink {
 public:
  // The endpoint's thread.
  void OnPeerUp(const PeerUp& peer) override;
  void OnPeerDown(Incarnation peer, const Status& status) override;
  void OnControl(Incarnation peer, std::string bytes) override;
  // It carries no slices.
  void OnReceiveProgress(TransferId, uint32_t, bool) override {}
  void OnBadSlice(const BadSlice&) override {}
  void OnReceiveClosed(TransferId) override {}
  void OnSendClosed(Incarnation, TransferId) override {}

  // Any thread. Ends the present Wait, or the next one.
  void Wake();
  // Any thread. Ends the present Wait and every later one.
  void Stop();
  uint64_t overruns() const { return overruns_.value(); }

  // The transport's thread: sleeps until something was told or woke it, or until `due_us` (0 =
  // never, now or before = a poll's pause). Takes what was told into `taken`, which is empty.
  // False once it is stopped.
  bool Wait(const Clock& clock, int64_t due_us, std::vector<EndpointEvent>* taken);

 private:
  void Tell(EndpointEvent event);

  Mutex mutex_;
  bool work_ BATON_GUARDED_BY(mutex_) = false;
  bool stop_ BATON_GUARDED_BY(mutex_) = false;
  std::vector<EndpointEvent> events_ BATON_GUARDED_BY(mutex_);
  size_t event_bytes_ BATON_GUARDED_BY(mutex_) = 0;  // of the control messages in it
  CondVar wake_;
  EventCounter overruns_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_ENDPOINT_EVENTS_H_
