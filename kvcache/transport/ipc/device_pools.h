// DevicePools: this worker's KV pool as descriptors for others, one of each rank that has a part of
// it, and the pools of peers, mapped to be read.
//
// Invariants
//  1. What a descriptor of a peer claims is compared with what it is (Accelerator::ImportShared)
//     before it is mapped; whatever it is, nothing but a refusal follows. As many descriptors as a
//     peer passes, so many ranks it has: their number makes the size of each.
//  2. A mapping lives as long as anybody holds its PeerPool, whatever became of the peer. Its bytes
//     may change at any time: whoever copies from it verifies the copy.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_
#define BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/kv_memory.h"
#include "kvcache/transport/pool_exchange.h"
#include "src/device/accelerator.h"

namespace baton {

// A peer's blocks, to be read by this device's kernels and written by nobody here.
struct PeerPool {
  KvMemory memory;
};

// See the file comment. Outlives all its PeerPools. Take is the endpoint's, the rest is for any
// thread.
class DevicePools final : public PoolExchange {
 public:
  // `ranks` allocated `memory` by AllocateShared, each its own part, and outlive the pools as the
  // memory does; peers' are mapped for the first. Errors of ExportShared and Share.
  static StatusOr<std::unique_ptr<DevicePools>> Create(std::span<Accelerator* const> ranks,
                                                       const KvMemory& memory);

  std::vector<int> fds() const override;
  uint32_t num_blocks() const override { return memory_.num_blocks; }
  Status Take(Incarnation peer, uint32_t num_blocks, std::vector<UniqueFd> fds) override;
  // What the oldest Take of this peer mapped, once; null when there is none.
  std::shared_ptr<const PeerPool> Claim(Incarnation peer);
  // Peers whose pools are mapped.
  uint32_t num_mapped() const;

 private:
  explicit DevicePools(const KvMemory& memory) : memory_(memory) {}
  void Release(const PeerPool* pool);
  // Of what is mapped in `memory`. With mutex_.
  void Unmap(const KvMemory& memory);

  const KvMemory memory_;
  std::vector<UniqueFd> fds_;  // one a rank

  mutable std::mutex mutex_;  // guards the rest
  std::unique_ptr<Accelerator> importer_;
  uint32_t num_mapped_ = 0;
  std::deque<std::pair<Incarnation, std::shared_ptr<const PeerPool>>> taken_;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_
