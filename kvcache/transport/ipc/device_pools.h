// DevicePools: this worker's KV pool on a device as a descriptor for others, and the pools of
// peers, mapped to be read.
//
// Invariants
//  1. What a descriptor of a peer claims is compared with what it is (Accelerator::ImportShared)
//     before it is mapped; whatever it is, nothing but a refusal follows.
//  2. A mapping lives as long as anybody holds its PeerPool, whatever became of the peer. Its bytes
//     may change at any time: whoever copies from it verifies the copy.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_
#define BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "kvcache/kv_memory.h"
#include "kvcache/transport/pool_exchange.h"
#include "src/device/accelerator.h"

namespace baton {

// A peer's blocks, readable by this device's kernels.
struct PeerPool {
  const std::byte* base = nullptr;
  uint32_t num_blocks = 0;
};

// See the file comment. Outlives all its PeerPools. Take is the endpoint's, the rest is for any
// thread.
class DevicePools final : public PoolExchange {
 public:
  // `device` allocated `memory` by AllocateShared; both outlive the pools. Errors of ExportShared
  // and Share.
  static StatusOr<std::unique_ptr<DevicePools>> Create(Accelerator* device, const KvMemory& memory);

  int fd() const override { return fd_.get(); }
  uint32_t num_blocks() const override { return memory_.num_blocks; }
  Status Take(Incarnation peer, uint32_t num_blocks, UniqueFd fd) override;
  // What the oldest Take of this peer mapped, once; null when there is none.
  std::shared_ptr<const PeerPool> Claim(Incarnation peer);
  // Mappings that exist.
  uint32_t num_mapped() const;

 private:
  explicit DevicePools(const KvMemory& memory) : memory_(memory) {}
  void Release(const PeerPool* pool);

  const KvMemory memory_;
  UniqueFd fd_;

  mutable std::mutex mutex_;  // guards the rest
  std::unique_ptr<Accelerator> importer_;
  uint32_t num_mapped_ = 0;
  std::deque<std::pair<Incarnation, std::shared_ptr<const PeerPool>>> taken_;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_
