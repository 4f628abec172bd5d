// BlockPool: the owner and the number of holders of each block of one arena. Owned by the engine
// thread; pure (no clock, lock or device). It takes its memory at construction, and none later.
//
// A block has one phase (set by its owner along a checked table) and two counts: request references
// (sequences and reservations) and transfer references (a transport may touch its bytes). Its
// label, which metrics count and show, follows from both:
//
//   both counts 0               -> free, or cached when the prefix cache keeps it
//   only transfer references    -> draining     (released, but bytes may still move)
//   otherwise                   -> the phase    (computing, bound, exported, reserved, receiving)
//
// A block that both a request and a transport hold shows its phase, not draining. Requests in
// different phases may share a cached block. The block keeps the phase of the request that took it
// first until another request sets a phase, so its label is that of one of its holders.
//
// Invariants
//  1. Conservation: the labels sum to the number of blocks; checked at every change.
//  2. A block is allocated only when both counts are 0; its generation rises at that moment and is
//     never 0 afterwards. A handle of an older generation is refused by every call.
//  3. Allocate gives all blocks asked for or none.
//  4. A block becomes free or cached in the call that drops its last reference. A cached block
//     becomes free when Allocate needs it, and its keeper is told before it is used again.
//  5. Blocks may get their memory after the pool is made (ReadyBlocks). Allocate gives blocks with
//     memory only. The other blocks count as free, or as quarantined once it cannot come.
#ifndef BATON_KVCACHE_BLOCK_POOL_H_
#define BATON_KVCACHE_BLOCK_POOL_H_

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/eviction_queue.h"
#include "kvcache/ready_blocks.h"
#include "src/base/ids.h"
#include "src/base/status.h"

namespace baton::kv {

// A block as of one allocation; stale once the block is allocated again.
struct BlockHandle {
  BlockIndex index;
  uint32_t generation = 0;  // 0 = no block

  friend constexpr auto operator<=>(const BlockHandle&, const BlockHandle&) = default;
};

// Phases and labels of a block; names are those of the metric baton_kv_blocks{state}.
enum class BlockState : uint8_t {
  kFree = 0,         // held by nobody
  kCached = 1,       // held by the prefix cache alone
  kComputing = 2,    // allocated to a prompt that is being computed, sealed layers included
  kBound = 3,        // owned by sequences that decode
  kExported = 4,     // granted to a decode worker, leased
  kReserved = 5,     // reserved for a hand-off whose grant is out
  kReceiving = 6,    // being filled, or filled and verified but not bound
  kDraining = 7,     // released, while a transport may still touch it
  kQuarantined = 8,  // never used: the system had no memory left for it
};
inline constexpr size_t kNumBlockStates = 9;

// "free", "cached", ... as in interface and metrics.
std::string_view BlockStateName(BlockState state);
// True when a block that is in use may go from phase `from` to phase `to` by SetState.
bool IsAllowedTransition(BlockState from, BlockState to);

// How many blocks carry each label.
struct BlockCounts {
  std::array<uint32_t, kNumBlockStates> by_state = {};
  uint32_t total = 0;

  uint32_t of(BlockState state) const { return by_state[static_cast<size_t>(state)]; }
  // Held by no request and no transfer; some may still wait for their memory.
  uint32_t num_unheld() const { return of(BlockState::kFree) + of(BlockState::kCached); }
  friend bool operator==(const BlockCounts&, const BlockCounts&) = default;
};

// One row of /debug/blocks.
struct BlockInfo {
  BlockHandle handle;
  BlockState state = BlockState::kFree;
  uint32_t request_refs = 0;
  uint32_t transfer_refs = 0;
  bool kept = false;  // the prefix cache keeps it: other requests than the owner may hold it
  RequestUid owner;   // of the last allocation
};

// The cache that keeps blocks beyond their requests. The pool tells it when it takes a block back.
class CacheKeeper {
 public:
  virtual ~CacheKeeper() = default;
  // The pool is about to use the cached `block`, whose key is `key`, for something else. The call
  // may set keys of other blocks and stop keeping them, nothing else.
  virtual void OnEvicted(BlockHandle block, const EvictionKey& key) = 0;
};

// The ledger of one arena's blocks; see the file comment. A call with a stale or foreign handle is
// a broken invariant of the caller and stops the process with both generations printed.
class BlockPool {
 public:
  // 1 <= num_blocks <= 2^31. All blocks are free.
  BlockPool(uint32_t num_blocks, const ReadyBlocks& ready);
  // All blocks have memory.
  explicit BlockPool(uint32_t num_blocks) : BlockPool(num_blocks, {num_blocks, num_blocks}) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Appends `num_blocks` handles to `out`, each with one request reference, in `phase`
  // (kComputing, kReserved or kBound). False, and nothing changed, when fewer are available.
  // O(num_blocks), times log of the pool for evicted blocks. The block freed last is used first, so
  // that few pages are warm. Cached blocks are taken when no free one is left.
  bool Allocate(uint32_t num_blocks, BlockState phase, const RequestUid& owner,
                std::vector<BlockHandle>* out);

  // Says how many blocks have memory now; ready_blocks.h says how the value may change.
  // O(blocks that will never have memory).
  void SetReady(const ReadyBlocks& ready);

  // Adds a holder.
  void AddRequestRef(BlockHandle handle);
  void AddTransferRef(BlockHandle handle);
  // Removes a holder. The block may become draining or free; a free block's handle is stale from
  // the block's next allocation on.
  void DropRequestRef(BlockHandle handle);
  void DropTransferRef(BlockHandle handle);

  // The prefix cache keeps a block that is in use and not kept yet. The block stays cached after
  // its last reference is dropped, until the pool evicts it.
  void KeepCached(BlockHandle handle, const EvictionKey& key);
  // The prefix cache stops keeping a block: it is free now, or once its last holder drops it.
  void StopKeeping(BlockHandle handle);
  // Sets the value of a kept block.
  void SetEvictionKey(BlockHandle handle, const EvictionKey& key);
  const EvictionKey& EvictionKeyOf(BlockHandle handle) const;
  // Adds a holder to a kept block. An only holder makes the block `owner`'s, in `phase`.
  void AcquireCached(BlockHandle handle, BlockState phase, const RequestUid& owner);
  // Sets the one keeper that hears of evictions. It outlives the pool or is set back to null.
  void SetCacheKeeper(CacheKeeper* keeper) { keeper_ = keeper; }

  // Changes the phase along IsAllowedTransition; the same phase again is allowed.
  void SetState(BlockHandle handle, BlockState to);

  // True when the handle's generation is the block's and the block is in use. The only call that
  // takes handles from a peer: any index is allowed.
  bool IsCurrent(BlockHandle handle) const;
  // The label of a block.
  BlockState StateOf(BlockHandle handle) const;
  BlockInfo Info(BlockIndex index) const;

  uint32_t num_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t num_free() const { return counts_.of(BlockState::kFree); }
  // Free blocks that have memory.
  uint32_t num_ready_free() const { return num_free() - (ready_.limit - ready_.num_ready); }
  // Number of blocks that Allocate can give: cached ones, and free ones with memory.
  uint32_t num_available() const { return num_ready_free() + counts_.of(BlockState::kCached); }
  // Number of blocks that have memory or will.
  uint32_t num_usable() const { return ready_.limit; }
  const ReadyBlocks& ready() const { return ready_; }
  const BlockCounts& Counts() const { return counts_; }

  // Calls visit(const BlockInfo&) for every block in index order. O(num_blocks).
  template <typename Visitor>
  void ForEachBlock(Visitor&& visit) const {
    for (uint32_t i = 0; i < num_blocks(); ++i) visit(Info(BlockIndex(i)));
  }

  // Recounts everything from the blocks themselves (labels, free list, references); the first
  // difference as Internal. O(num_blocks); for tests and debug builds.
  Status Audit() const;

 private:
  // One block's entry in the ledger.
  struct Block {
    uint32_t generation = 0;
    uint32_t request_refs = 0;
    uint32_t transfer_refs = 0;
    BlockState phase = BlockState::kFree;
    bool kept = false;  // by the prefix cache
    RequestUid owner;
  };

  static BlockState Label(const Block& block);
  // True while a request, a transfer or the cache holds the block.
  static bool IsHeld(const Block& block);
  Block& Use(BlockHandle handle);
  const Block& Use(BlockHandle handle) const;
  // Moves one block between the counters after a change and frees it when nobody holds it.
  void Settle(BlockHandle handle, BlockState before);
  // Frees the cached block that is worth least.
  void EvictOne();
  void CheckConservation() const;

  std::vector<Block> blocks_;
  // Stack of free indices; capacity = num_blocks. At its bottom, the highest index first, are the
  // blocks without memory: none of them was ever allocated.
  std::vector<uint32_t> free_;
  EvictionQueue cached_;  // blocks labelled cached
  CacheKeeper* keeper_ = nullptr;
  BlockCounts counts_;
  ReadyBlocks ready_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_BLOCK_POOL_H_
