// IpcTransport: KV between the memories of devices of one host. The decode worker has mapped the
// prefill worker's whole pool, which the prefill worker handed over once. It pulls slices straight
// from the prefill worker's blocks into its own. Words go over a unix socket. NOTES.md, "CUDA
// IPC", has the way of a slice. Its thread is "kv-ipc".
//
// Invariants (beside SliceTransport's)
//  1. Slices go from who dialled to who accepted: the other direction is Unavailable.
//  2. No host memory ever holds a slice. The prefill worker's device does nothing for a transfer.
//  3. A peer that is slow, silent or dead holds back only its own slices.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_TRANSPORT_H_

#include <memory>

#include "kvcache/transport/ipc/device_pools.h"
#include "kvcache/transport/ipc/ipc_parts.h"
#include "kvcache/transport/slice_transport.h"

namespace baton::kv {

// How a transport is set up.
struct IpcTransportOptions {
  SliceDevice device;
  IpcTimers timers;
  IpcLimits limits;
  TransportInboxLimits inbox;
  const Clock* clock = &SystemClock();
};

// They only grow.
struct IpcStats {
  uint64_t offers = 0;    // answered by peers, and answered here
  uint64_t late = 0;      // made again because no answer came in time, and such that came here
  uint64_t protocol = 0;  // messages that no honest peer sends
  uint64_t overruns = 0;  // control messages dropped: too many waited for the thread
};

class IpcReceiver;
class IpcSender;

// See the file comment.
class IpcTransport final : public SliceTransport {
 public:
  // `endpoint` is not started, has the device memory's layout and `pools` among its options.
  // InvalidArgument for a slice that no kernel takes; ResourceExhausted when the device has no room
  // for the lists, or the host none that may be pinned.
  static StatusOr<std::unique_ptr<IpcTransport>> Create(const IpcTransportOptions& options,
                                                        std::unique_ptr<DevicePools> pools,
                                                        std::unique_ptr<KvEndpoint> endpoint);
  ~IpcTransport() override;

  IpcStats OfferStats() const;
  // Pools of peers that are mapped now.
  uint32_t num_mapped() const { return pools_->num_mapped(); }

 private:
  IpcTransport(const IpcTransportOptions& options, std::unique_ptr<DevicePools> pools,
               std::unique_ptr<KvEndpoint> endpoint);
  void HandleWord(Incarnation peer, const std::string& bytes, int64_t now_us) override;

  const std::unique_ptr<DevicePools> pools_;  // outlive the receiver, which uses what they mapped
  IpcCounters counters_;
  IpcParts parts_;
  std::unique_ptr<IpcSender> sender_;
  std::unique_ptr<IpcReceiver> receiver_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_TRANSPORT_H_
