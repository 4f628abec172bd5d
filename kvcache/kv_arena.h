// KvArena: the one allocation that holds all KV blocks of a worker, and PeerArena: another worker's
// arena on the same host, mapped read-only.
//
// The arena is a sealed memory file (memfd), cut into equal blocks: block b starts at
// b * layout.BlockStride(). Only the owner's mapping can write: the seals FUTURE_WRITE, SHRINK,
// GROW and SEAL are set right after it is made, so the descriptor can be given away.
//
// Blocks get their memory in the order of their indices: the first ones in Create, the others by
// Extend. Giving memory takes 0.3 s a GiB, for which no start should wait.
//
// Invariants
//  1. A block that is ready() has its memory for good: no access to it can fail for want of memory.
//     The page table is filled by the first access to each page (about 0.3 us). Nobody may touch a
//     block that is not ready.
//  2. Create finds that all blocks' memory is available. Extend looks again every 64 MiB. When the
//     system has no more, the arena ends at the blocks that are ready. Nothing else is lost.
//  3. The descriptor's seals and size never change. A PeerArena maps only a file with these seals
//     and size, and reads no byte beyond as many as its owner has taken memory for. So no act of
//     the peer can make a read here fail (no SIGBUS), or cost more memory than the peer itself has
//     taken.
//  4. The bytes of a PeerArena may change at any time: whoever copies from it verifies the copy.
//
// Create and Map: one thread each. Extend: one thread at a time (KvStore, src/engine). Accessors:
// any thread. BlockPool decides who may touch which block, not the arena. Owner: the worker; it
// outlives engine and transport.
#ifndef BATON_KVCACHE_KV_ARENA_H_
#define BATON_KVCACHE_KV_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache/kv_layout.h"
#include "kvcache/kv_memory.h"
#include "kvcache/ready_blocks.h"
#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton::kv {

// How an arena is made.
struct KvArenaOptions {
  // Bytes that must stay available to the rest of the process and host beside the arena.
  uint64_t reserve_bytes = uint64_t{256} << 20;
  // Blocks that are ready when Create returns; those of the whole arena where it has fewer.
  uint32_t num_ready = std::numeric_limits<uint32_t>::max();
  // Bytes that this process may still take; empty = AvailableMemoryBytes.
  std::function<StatusOr<uint64_t>()> available_bytes;
};

// This worker's own blocks; see the file comment.
class KvArena {
 public:
  // Makes an arena of `num_blocks` >= 1 blocks. InvalidArgument for a bad layout or
  // size; ResourceExhausted naming needed and available bytes (kvcache/available_memory.h) before
  // anything is allocated when memory is short. On failure nothing stays allocated.
  static StatusOr<std::unique_ptr<KvArena>> Create(const KvLayout& layout, uint32_t num_blocks,
                                                   const KvArenaOptions& options = {});
  ~KvArena();
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  // Blocks that have memory, and those that will.
  ReadyBlocks ready() const;
  // Makes blocks [0, num_blocks) ready, as far as there is memory; about 0.3 ms a MiB, and at once
  // where they are.
  ReadyBlocks Extend(uint32_t num_blocks);
  // Once ready() says that the arena ends before its last block: why.
  const Status& shortage() const { return shortage_; }

  const KvLayout& layout() const { return layout_; }
  uint32_t num_blocks() const { return num_blocks_; }
  uint64_t size_bytes() const { return uint64_t{num_blocks_} * layout_.BlockStride(); }
  std::byte* base() const { return base_; }
  KvMemory memory() const { return {base_, layout_, num_blocks_}; }
  // block < num_blocks(), layer < layout().num_layers: the caller's invariant.
  std::byte* Block(BlockIndex block) const {
    return base_ + size_t{block.value()} * layout_.BlockStride();
  }
  // [SliceBytes] of one layer.
  std::byte* Slice(BlockIndex block, uint32_t layer) const {
    return Block(block) + size_t{layer} * layout_.SliceBytes();
  }
  // The sealed memory file, to be passed to a peer; stays owned by the arena.
  int fd() const { return fd_.get(); }

 private:
  KvArena(const KvLayout& layout, uint32_t num_blocks, const KvArenaOptions& options)
      : layout_(layout), num_blocks_(num_blocks), limit_(num_blocks), options_(options) {}
  StatusOr<uint64_t> AvailableBytes() const;
  Status Map();
  Status AllocateNext(uint64_t end);

  const KvLayout layout_;
  const uint32_t num_blocks_;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  // Written by Extend. limit_ falls to num_ready_, so it is written after it, and read after it.
  std::atomic<uint32_t> num_ready_{0};
  std::atomic<uint32_t> limit_;
  const KvArenaOptions options_;
  uint64_t allocated_bytes_ = 0;  // Extend's own
  uint64_t checked_bytes_ = 0;    // Extend's own: memory was found available up to here
  Status shortage_;               // written before limit_ falls, read after
};

// A peer's blocks, read-only; see invariants 3 and 4.
class PeerArena {
 public:
  // Takes `fd` and maps it. FailedPrecondition naming what is wrong when the seals or the size
  // (num_blocks * layout.BlockStride()) are not as invariant 3 demands.
  static StatusOr<std::unique_ptr<PeerArena>> Map(UniqueFd fd, const KvLayout& layout,
                                                  uint32_t num_blocks);
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;
  PeerArena& operator=(const PeerArena&) = delete;

  // Whether the peer has such a block and has taken memory for it; no other may be read. Any index.
  // The one thread that copies from here. A block beyond those seen so far costs a system call.
  bool HasMemory(BlockIndex block);
  // [SliceBytes]; HasMemory(block) and layer < num_layers are the caller's to check.
  const std::byte* Slice(BlockIndex block, uint32_t layer) const {
    return base_ + size_t{block.value()} * layout_.BlockStride() +
           size_t{layer} * layout_.SliceBytes();
  }
  // Told by the one thread that copies from here. Pages that were read count as this process's
  // memory too: when 128 MiB of different blocks were read the mapping is emptied. A peer reuses
  // its last freed blocks first, so the page faults of a first read are rare.
  void NoteRead(BlockIndex block);

 private:
  PeerArena(UniqueFd fd, const KvLayout& layout, uint32_t num_blocks)
      : fd_(std::move(fd)), layout_(layout), num_blocks_(num_blocks), read_(num_blocks) {}

  const UniqueFd fd_;
  const KvLayout layout_;
  const uint32_t num_blocks_;
  const std::byte* base_ = nullptr;
  uint64_t seen_bytes_ = 0;  // that the peer had taken memory for when it was last looked at
  std::vector<bool> read_;   // [num_blocks] since the mapping was last emptied
  uint64_t read_bytes_ = 0;  // of these blocks
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_KV_ARENA_H_
