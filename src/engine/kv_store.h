// KvStore: a worker's KV blocks as its engine sees them: where kernels read and write them, and
// what has to be done before a transport reads a slice and after it has written one.
//
//   host      kernels and transports use the arena; nothing moves
//   mirrored  kernels use a device's memory, transports the arena; both have the same blocks under
//             the same indices, and bytes cross when a slice is sealed and when a request is bound:
//               computed here: device --Seal--> arena -> the peer
//               received here: the peer -> arena --Adopt--> device
//   device    kernels and transports use a device's memory; nothing moves
//   ranked    mirrored, of a model that several ranks compute: each has the heads that are its own
//             in blocks of its own, on its device; the arena has all heads of a block together, so
//             peers may have another number of ranks
//
// Neither side of a mirrored store is ever a copy that must be kept up to date: a block's bytes are
// on the device, and in the arena only from Seal to the end of its transfer, or from its arrival to
// Adopt.
//
// What is sealed is copied and hashed in a stream of its own, beside the work in the device's: it
// is stored, so nothing there writes it.
//
// Engine thread. What it is made of outlives it. Invariants
//  1. All memory is taken when it is made.
//  2. A device that fails ends the process: nothing that it computed is to be trusted (invariant 2
//     of Accelerator), and routers resume this worker's requests elsewhere.
#ifndef BATON_ENGINE_KV_STORE_H_
#define BATON_ENGINE_KV_STORE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/kernel_table.h"
#include "kvcache/block_pool.h"
#include "kvcache/kv_arena.h"
#include "kvcache/kv_memory.h"
#include "kvcache/kv_view.h"
#include "src/device/accelerator.h"

namespace baton {

// Who can map a store's blocks on a device.
enum class KvSharing : uint8_t {
  kPrivate,  // this process
  kHost,     // and others of this host that get its descriptor (Accelerator::ExportShared)
};

// See the file comment.
class KvStore {
 public:
  // In the arena itself.
  static std::unique_ptr<KvStore> OnHost(const KvArena* arena);
  // On the device, beside the arena, which the device pins: one line of the log says why when it
  // does not, and copies wait. ResourceExhausted when the device has no room for its blocks.
  static StatusOr<std::unique_ptr<KvStore>> Mirrored(Accelerator* device, const KvArena* arena);
  // The same of so many ranks, each with a device, or all with one. `num_ranks` divides the
  // layout's KV heads.
  static StatusOr<std::unique_ptr<KvStore>> Ranked(std::span<Accelerator* const> devices,
                                                   uint32_t num_ranks, const KvArena* arena);
  // On the device alone. `kernels` are the device's; slices have sizes that KvScatter takes
  // (InvalidArgument otherwise). ResourceExhausted as above; FailedPrecondition when the device's
  // memory cannot be shared as asked.
  static StatusOr<std::unique_ptr<KvStore>> OnDevice(Accelerator* device,
                                                     const cuda::KernelTable* kernels,
                                                     const KvLayout& layout, uint32_t num_blocks,
                                                     KvSharing sharing = KvSharing::kPrivate);
  virtual ~KvStore() = default;

  // The blocks that kernels use; on a device, those that a transport of device memory uses too. Of
  // ranks no place is told.
  const KvMemory& memory() const { return memory_; }
  const KvLayout& layout() const { return memory_.layout; }
  KvView view() const { return {memory_.base, &memory_.layout, memory_.num_blocks, ranks_}; }

  // One layer of the blocks is stored for good, and the host knows it (by LayerHook or Forward):
  // its checksums (SliceChecksum), [blocks.size()]. From now on a transport may read it.
  virtual void Seal(std::span<const BlockHandle> blocks, uint32_t layer,
                    std::span<uint64_t> checksums) = 0;
  // A transport has written all layers of the blocks: from now on kernels may read them.
  virtual void Adopt(std::span<const BlockHandle> blocks) = 0;
  // A whole block to another one, behind the kernels' work and before what they do next. Where a
  // transport shares the memory it is done when the call returns.
  virtual void Copy(uint32_t from, uint32_t to) = 0;

 protected:
  explicit KvStore(const KvMemory& memory, std::vector<std::byte*> ranks = {})
      : memory_(memory), ranks_(std::move(ranks)) {}

 private:
  const KvMemory memory_;
  const std::vector<std::byte*> ranks_;  // where each rank's blocks lie
};

}  // namespace baton

#endif  // BATON_ENGINE_KV_STORE_H_
