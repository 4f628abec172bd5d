// FaultTransport: a KvTransport that hands everything on to another one and, by a seed, damages
// some of the slices and control messages on their way out. For tests of what sits above.
#ifndef BATON_KVCACHE_TRANSPORT_FAULT_TRANSPORT_H_
#define BATON_KVCACHE_TRANSPORT_FAULT_TRANSPORT_H_

#include <cstdint>
#include <memory>

#include "kvcache/transport/kv_transport.h"

namespace baton::kv {

// Share of outgoing items (0..1) that meet each fault.
struct FaultRatios {
  double drop_slice = 0;
  double duplicate_slice = 0;
  double corrupt_slice = 0;  // offered with a wrong checksum, so the receiver finds the bytes bad
  double delay_slice = 0;    // held back until the next call or Release
  double drop_control = 0;
  double duplicate_control = 0;
  double delay_control = 0;
};

// How often each fault was done.
struct FaultCounts {
  uint64_t dropped = 0;
  uint64_t duplicated = 0;
  uint64_t corrupted = 0;
  uint64_t delayed = 0;
};

// The decorator; see the file comment. Any thread.
class FaultTransport : public KvTransport {
 public:
  // `inner` outlives it. Equal seeds and equal calls give equal faults.
  static std::unique_ptr<FaultTransport> Create(KvTransport* inner, const FaultRatios& ratios,
                                                uint64_t seed);
  // Sends what is held back.
  virtual void Release() = 0;
  virtual FaultCounts Counts() const = 0;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_FAULT_TRANSPORT_H_
