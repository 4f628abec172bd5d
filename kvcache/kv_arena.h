// KvArena: the one allocation that holds all KV blocks of a worker, and PeerArena: another worker's
// arena on the same host, mapped read-only.
//
// The arena is a sealed memory file (memfd), cut into equal blocks: block b starts at
// b * layout.BlockStride(). Only the owner's mapping can write: the seals FUTURE_WRITE, SHRINK,
// GROW and SEAL are set right after it is made, so the descriptor can be given away.
//
// Invariants
//  1. Every page has its memory before Create returns: memory use does not grow afterwards and no
//     access can fail for want of memory. The page table is filled by the first access to each page
//     (about 0.3 us), which is not worth a third of a second a GiB at every start.
//  2. The descriptor's seals and size never change. A PeerArena maps only a file with these seals
//     and size whose pages all exist. So no act of the peer can make a read here fail (no SIGBUS)
//     or cost memory.
//  3. The bytes of a PeerArena may change at any time: whoever copies from it verifies the copy.
//
// Create and Map: one thread each. The accessors are constant and for any thread; who may touch
// which block is decided by BlockPool, not here. Owner: the worker; it outlives engine and
// transport.
#ifndef BATON_KVCACHE_KV_ARENA_H_
#define BATON_KVCACHE_KV_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kvcache/kv_layout.h"
#include "kvcache/kv_memory.h"
#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton::kv {

// How an arena is made.
struct KvArenaOptions {
  // Bytes that must stay available to the rest of the process and host beside the arena.
  uint64_t reserve_bytes = uint64_t{256} << 20;
  // Told every 64 MiB while pages get their memory (about 0.3 s a GiB); false stops and Create
  // returns Cancelled. Empty = never stop.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress;
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
  KvArena(const KvLayout& layout, uint32_t num_blocks) : layout_(layout), num_blocks_(num_blocks) {}
  Status Map();
  Status Allocate(const KvArenaOptions& options);

  const KvLayout layout_;
  const uint32_t num_blocks_;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
};

// A peer's blocks, read-only; see invariants 2 and 3.
class PeerArena {
 public:
  // Takes `fd` and maps it. FailedPrecondition naming what is wrong when the seals, the size
  // (num_blocks * layout.BlockStride()) or the allocated bytes are not as invariant 2 demands.
  static StatusOr<std::unique_ptr<PeerArena>> Map(UniqueFd fd, const KvLayout& layout,
                                                  uint32_t num_blocks);
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;
  PeerArena& operator=(const PeerArena&) = delete;

  uint32_t num_blocks() const { return num_blocks_; }
  // [SliceBytes]; block < num_blocks() and layer < num_layers are the caller's to check.
  const std::byte* Slice(BlockIndex block, uint32_t layer) const {
    return base_ + size_t{block.value()} * layout_.BlockStride() +
           size_t{layer} * layout_.SliceBytes();
  }
  // Told by the one thread that copies from here. Pages that were read count as this process's
  // memory too: when 128 MiB of different blocks were read the mapping is emptied. A peer reuses
  // its last freed blocks first, so the page faults of a first read are rare.
  void NoteRead(BlockIndex block);

 private:
  PeerArena(const KvLayout& layout, uint32_t num_blocks)
      : layout_(layout), num_blocks_(num_blocks), read_(num_blocks) {}

  const KvLayout layout_;
  const uint32_t num_blocks_;
  const std::byte* base_ = nullptr;
  std::vector<bool> read_;   // [num_blocks] since the mapping was last emptied
  uint64_t read_bytes_ = 0;  // of these blocks
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_KV_ARENA_H_
