// DevicePools: this worker's KV pool as descriptors for other workers, one descriptor for each rank
// that has a part of it; and the pools of peers, mapped to be read.
//
// Invariants
//  1. The claim of a peer's descriptor is compared with what the descriptor is
//     (Accelerator::ImportShared) before it is mapped. Whatever it is, nothing but a refusal
//     follows. A peer has as many ranks as it passes descriptors: their number makes the size of
//     each.
//  2. A mapping lives as long as anybody holds its PeerPool, whatever became of the peer. Its bytes
//     may change at any time: whoever copies from it verifies the copy.
//  3. Each call that maps or unmaps is a Call of the gate of a divided model, and only Take and the
//     end of a PeerPool wait for one.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_
#define BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/kv_memory.h"
#include "kvcache/transport/pool_exchange.h"
#include "src/base/mutex.h"
#include "src/device/accelerator.h"
#include "src/device/launch_gate.h"

namespace baton::kv {

// A peer's blocks, to be read by this device's kernels and written by nobody here.
struct PeerPool {
  KvMemory memory;
};

// See the file comment. Outlives all its PeerPools. Take is the endpoint's, the rest is for any
// thread.
class DevicePools final : public PoolExchange {
 public:
  // `ranks` allocated `memory` by AllocateShared, each its own part, and outlive the pools as the
  // memory does; peers' are mapped for the first. `gate` outlives them too; null where nothing is
  // launched on several devices. Errors of ExportShared and Share.
  static StatusOr<std::unique_ptr<DevicePools>> Create(std::span<device::Accelerator* const> ranks,
                                                       const KvMemory& memory,
                                                       device::LaunchGate* gate = nullptr);

  std::vector<int> fds() const override;
  uint32_t num_blocks() const override { return memory_.num_blocks; }
  Status Take(Incarnation peer, uint32_t num_blocks, std::vector<UniqueFd> fds) override;
  // The pool that the oldest Take of this peer mapped, given once; null when there is none.
  std::shared_ptr<const PeerPool> Claim(Incarnation peer);
  // Peers whose pools are mapped.
  uint32_t num_mapped() const;

 private:
  DevicePools(const KvMemory& memory, device::LaunchGate* gate) : memory_(memory), gate_(gate) {}
  // Maps what a peer passed, of so many bytes each, into `memory`; all of it or nothing.
  Status Map(const std::vector<UniqueFd>& fds, uint64_t size_bytes, KvMemory* memory);
  void Release(const PeerPool* pool);
  // Unmaps the memory that is mapped in `memory`.
  void Unmap(const KvMemory& memory) BATON_REQUIRES(importer_mutex_);

  const KvMemory memory_;
  device::LaunchGate* const gate_;
  std::vector<UniqueFd> fds_;  // one a rank

  Mutex importer_mutex_;  // guards the device, which one thread uses at a time
  std::unique_ptr<device::Accelerator> importer_ BATON_GUARDED_BY(importer_mutex_);
  mutable Mutex mutex_;  // for copying only
  uint32_t num_mapped_ BATON_GUARDED_BY(mutex_) = 0;
  std::deque<std::pair<Incarnation, std::shared_ptr<const PeerPool>>> taken_
      BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_IPC_DEVICE_POOLS_H_
