// IpcTransport: KV between the memories of devices of one host: D has mapped P's whole pool, which
// P handed over once, and pulls slices straight from P's blocks into its own. Connections, words
// and who is alive are a KvEndpoint's (a unix socket). README.md, "CUDA IPC", has the way of a
// slice.
//
// One thread ("kv-ipc") owns the device's use; it polls while something is under way and sleeps
// otherwise.
//
// Invariants (beside KvTransport's)
//  1. Slices go from who dialled to who accepted: the other direction is Unavailable.
//  2. No host memory ever holds a slice. P's device does nothing for a transfer.
//  3. A peer that is slow, silent or dead holds back only its own slices.
//
// Owner: the worker. The device and the memory outlive it. The device is this transport's alone,
// but its memory may be another's of the same GPU.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_TRANSPORT_H_

#include <memory>

#include "kvcache/transport/ipc/device_pools.h"
#include "kvcache/transport/ipc/ipc_parts.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/slice_device.h"
#include "kvcache/transport/transport_inbox.h"

namespace baton {

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

// The interface of what is described above. Beside KvTransport's calls: the endpoint's addresses
// and peers are set on the endpoint itself.
class IpcTransport : public KvTransport {
 public:
  // `endpoint` is not started, has the device memory's layout and `pools` among its options.
  // InvalidArgument for a slice that no kernel takes; ResourceExhausted when the device has no room
  // for the lists.
  static StatusOr<std::unique_ptr<IpcTransport>> Create(const IpcTransportOptions& options,
                                                        std::unique_ptr<DevicePools> pools,
                                                        std::unique_ptr<KvEndpoint> endpoint);
  virtual KvEndpoint* endpoint() = 0;
  virtual IpcStats OfferStats() const = 0;
  // Pools of peers that are mapped now.
  virtual uint32_t num_mapped() const = 0;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_TRANSPORT_H_
