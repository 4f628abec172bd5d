// KvStore: a worker's KV blocks as its engine sees them: where kernels read and write them, and
// what has to be done before a transport reads a slice and after it has written one.
//
//   host      kernels and transports use the arena; nothing moves
//   mirrored  kernels use a device's memory, transports the arena; both have the same blocks under
//             the same indices, and bytes cross when a slice is sealed and when a request is bound:
//               computed here: device --Seal--> arena -> the peer
//               received here: the peer -> arena --Adopt--> device
//   device    kernels and transports use a device's memory; nothing moves
//
// A model that several ranks compute has one of the last two: each rank has the heads that are its
// own in blocks of its own, on its device. A slice that crosses has all heads of a block together,
// so peers may have another number of ranks: the arena does, and transports of device memory put a
// slice together from all ranks (KvMemory).
//
// Neither side of a mirrored store is ever a copy that must be kept up to date: a block's bytes are
// on the device, and in the arena only from Seal to the end of its transfer, or from its arrival to
// Adopt.
//
// Sealed slices are copied and hashed in a stream of their own, beside the work in the device's
// stream: they are stored, so nothing there writes them.
//
// Engine thread. The parts that it is made of outlive it. Invariants
//  1. All memory is taken when it is made, but that of blocks that are not ready.
//  2. A device that fails ends the process: nothing that it computed is to be trusted (invariant 2
//     of Accelerator), and routers resume this worker's requests elsewhere.
#ifndef BATON_ENGINE_KV_STORE_H_
#define BATON_ENGINE_KV_STORE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kernels/cuda/kernel_table.h"
#include "kvcache/block_pool.h"
#include "kvcache/kv_arena.h"
#include "kvcache/kv_memory.h"
#include "kvcache/kv_view.h"
#include "src/device/accelerator.h"

namespace baton::engine {

// The processes that can map a store's blocks on a device.
enum class KvSharing : uint8_t {
  kPrivate,  // this process
  kHost,     // and others of this host that get its descriptor (Accelerator::ExportShared)
};

// See the file comment.
class KvStore {
 public:
  // A store whose blocks are in the arena itself, and ready as they are there.
  static std::unique_ptr<KvStore> OnHost(kv::KvArena* arena);
  // A store on the device, beside the arena, which the device pins: all of the arena's blocks are
  // ready. When the device does not pin it, one line of the log says why, and copies wait.
  // ResourceExhausted when the device has no room for its blocks.
  static StatusOr<std::unique_ptr<KvStore>> Mirrored(device::Accelerator* device,
                                                     const kv::KvArena* arena);
  // A mirrored store of several ranks, each with a device; ranks may share one device. Their number
  // divides the layout's KV heads.
  static StatusOr<std::unique_ptr<KvStore>> Ranked(std::span<device::Accelerator* const> ranks,
                                                   const kv::KvArena* arena);
  // A store on devices alone, one of each rank; ranks may share one device. `kernels` are the first
  // device's, which reaches the memory of the others; slices have sizes that KvScatter takes from
  // so many ranks (InvalidArgument otherwise). ResourceExhausted as above; FailedPrecondition when
  // a device's memory cannot be shared as asked.
  static StatusOr<std::unique_ptr<KvStore>> OnDevice(std::span<device::Accelerator* const> ranks,
                                                     const kernels::cuda::KernelTable* kernels,
                                                     const kv::KvLayout& layout,
                                                     uint32_t num_blocks,
                                                     KvSharing sharing = KvSharing::kPrivate);
  // OnDevice with one rank.
  static StatusOr<std::unique_ptr<KvStore>> OnDevice(device::Accelerator* device,
                                                     const kernels::cuda::KernelTable* kernels,
                                                     const kv::KvLayout& layout,
                                                     uint32_t num_blocks,
                                                     KvSharing sharing = KvSharing::kPrivate) {
    return OnDevice({&device, 1}, kernels, layout, num_blocks, sharing);
  }
  virtual ~KvStore() = default;

  // The blocks that kernels use; on a device, those that a transport of device memory uses too.
  const kv::KvMemory& memory() const { return memory_; }
  const kv::KvLayout& layout() const { return memory_.layout; }
  kv::KvView view() const {
    return {memory_.ranks.empty() ? memory_.base : nullptr, &memory_.layout, memory_.num_blocks,
            memory_.ranks};
  }

  // One layer of the blocks is stored for good, and the host knows it (by LayerHook or Forward):
  // its checksums (SliceChecksum), [blocks.size()]. From now on a transport may read it.
  virtual void Seal(std::span<const kv::BlockHandle> blocks, uint32_t layer,
                    std::span<uint64_t> checksums) = 0;
  // A transport has written all layers of the blocks: from now on kernels may read them.
  virtual void Adopt(std::span<const kv::BlockHandle> blocks) = 0;
  // Copies a whole block to another one, after the kernels' work and before what they do next.
  // Where a transport shares the memory it is done when the call returns.
  virtual void Copy(uint32_t from, uint32_t to) = 0;
  // How far the blocks have memory. Extend makes [0, num_blocks) ready (kv_arena.h), and waits for
  // another thread's call. Any thread.
  virtual kv::ReadyBlocks ready() const { return {memory_.num_blocks, memory_.num_blocks}; }
  virtual kv::ReadyBlocks Extend(uint32_t /*num_blocks*/) { return ready(); }

 protected:
  explicit KvStore(kv::KvMemory memory) : memory_(std::move(memory)) {}

 private:
  const kv::KvMemory memory_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_KV_STORE_H_
