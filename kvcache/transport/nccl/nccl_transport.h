// NcclTransport: KV between the memories of two devices by NCCL. Connections, control messages and
// who is alive are a KvEndpoint's; the bytes go over one communicator of two ranks for each pair
// and direction, which is built when the first slice is offered, never waited for, and aborted when
// anything takes too long. README.md, "NCCL", has the way of a batch.
//
// One thread ("kv-nccl") owns communicators, staging and the device's use; it polls while something
// is under way and sleeps otherwise.
//
// Invariants (beside KvTransport's)
//  1. A peer that is slow, silent or dead holds back only its own slices, and buffers no longer
//  than
//     its deadlines (NcclTimers).
//  2. A byte of a block is read or written only by kernels; no communicator ever sees a block.
//  3. What a failed communicator did not deliver is sent again over the next one; a slice is done
//     once all the same (KvTransport's invariant 3).
//
// Owner: the worker. The table, the device and the memory outlive it. The device is this
// transport's alone, but its memory may be another's of the same GPU.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

#include <memory>

#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/nccl/nccl_parts.h"
#include "kvcache/transport/transport_inbox.h"

namespace baton {

// How a transport is set up.
struct NcclTransportOptions {
  const nccl::NcclTable* table = nullptr;
  SliceDevice device;
  NcclTimers timers;
  NcclLimits limits;
  TransportInboxLimits inbox;
  const Clock* clock = &SystemClock();
};

// What became of its communicators; they only grow.
struct NcclStats {
  uint64_t built = 0;
  uint64_t batches = 0;   // sent, and received
  uint64_t overruns = 0;  // control messages dropped: too many waited for the thread
  std::array<uint64_t, kNumNcclDropReasons> dropped{};
};

// The interface of what is described above. Beside KvTransport's calls: the endpoint's addresses
// and peers are set on the endpoint itself.
class NcclTransport : public KvTransport {
 public:
  // `endpoint` is not started and has the device memory's layout. InvalidArgument for a slice that
  // no kernel takes or a buffer that is smaller than one; ResourceExhausted when the device has no
  // room for the buffers.
  static StatusOr<std::unique_ptr<NcclTransport>> Create(const NcclTransportOptions& options,
                                                         std::unique_ptr<KvEndpoint> endpoint);
  virtual KvEndpoint* endpoint() = 0;
  virtual NcclStats CommunicatorStats() const = 0;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
