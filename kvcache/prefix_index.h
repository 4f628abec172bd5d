// PrefixIndex: which full blocks of one arena hold the KV of which prefix, so that a prompt that
// begins like an earlier one is not computed again. Owned by the engine thread with its BlockPool;
// pure. Memory is taken at construction; Acquire and Insert allocate nothing.
//
// A prefix is named by the link of its last block in a HashChain, which is keyed by cluster secret
// and tenant: two tenants share nothing. A link is a hash, so a hit also compares the block's token
// ids; its parents were compared before it, from the root on.
//
// BlockPool asks for blocks when no free one is left. Only a block that nobody holds is given up.
// Blocks through which a longer cached prefix goes are given up last, the deepest first: a sequence
// may hold its last blocks and not its first ones (BlockTable::ReleaseFront), and what is left of
// its prefix must begin at the root. Among the others the least value is given up first:
//
//   value = inflation + cost        set when the block enters and at every hit (GreedyDual)
//   cost  = 1 + ordinal / 128       computing a block deep in a prompt costs more attention
//   inflation                       the largest value given up so far: old values fade against it
//
// Among equal values the block that was used longest ago is given up first. With equal costs this
// is least recently used.
//
// Where each sequence has a fixed state (KvLayout::state_blocks) a prompt can go on from a prefix
// only if the state after that prefix is here too. A checkpoint keeps that state in `state_blocks`
// blocks of its own. It belongs to the last block of its prefix, as a child does: it is given up
// before that block, and at the latest with it. Its blocks are given up together. The value of each
// is
//
//   cost = the costs of all blocks of the prefix / blocks of the checkpoint
//
// and all checkpoints together, with those that are being made, have at most
// StateLimits::max_blocks blocks. One more takes the place of the one of least value.
//
// Invariants
//  1. Every block in the index is kept by the pool (KeepCached), and the other way round.
//  2. A block in the index is full and its KV is never written again.
//  3. Equal links name equal tokens from the root on, or the entry is no hit.
//  4. A checkpoint has all its blocks, and the last block of its prefix is in the index.
//  5. The block before each block of the index is in the index, but before ordinal 0. A block that
//     leaves takes all that goes on from it along: no lookup would find that.
//  6. No block that nobody holds goes on from one that is given up: it was given up before.
#ifndef BATON_KVCACHE_PREFIX_INDEX_H_
#define BATON_KVCACHE_PREFIX_INDEX_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "kvcache/block_pool.h"
#include "kvcache/hash_chain.h"
#include "kvcache/prefix_listener.h"
#include "src/base/ids.h"
#include "src/base/status.h"

namespace baton::kv {

// A prompt to look up: its tokens, and the links of its full blocks.
struct PrefixQuery {
  std::span<const ChainLink> links;
  std::span<const TokenId> tokens;
};

// A full block whose KV is computed.
struct PrefixEntry {
  ChainLink link;
  ChainLink parent;                 // of the block before it; not read for ordinal 0
  uint32_t ordinal = 0;             // of the block in its prompt
  std::span<const TokenId> tokens;  // of the block, [block_size]
  BlockHandle block;
};

// Counters since the start, of blocks with KV but where it says checkpoints.
struct PrefixStats {
  uint64_t queried_tokens = 0;
  uint64_t hit_tokens = 0;
  uint64_t num_acquired = 0;  // blocks that prompts took
  uint64_t num_moved = 0;     // from a block that nobody held to an equal one
  uint64_t num_inserted = 0;
  uint64_t num_evicted = 0;
  uint64_t checkpoints_kept = 0;
  uint64_t checkpoints_dropped = 0;
  uint64_t checkpoints_skipped = 0;  // AllocateState found no room for them

  // Rises where a prompt may need fewer idle blocks than before, beside those that are inserted.
  uint64_t num_changes() const { return num_acquired + num_moved + checkpoints_kept; }
};

// The fixed states of sequences, and the blocks that checkpoints of them may have.
struct StateLimits {
  uint32_t state_blocks = 0;  // of each sequence; 0 = there are no states
  uint32_t max_blocks = 0;    // of all checkpoints; fewer than state_blocks: none is kept
};

// See the file comment.
class PrefixIndex final : public CacheKeeper {
 public:
  // `pool` outlives the index and has no other keeper; so does `listener`, which hears of every
  // change and may be null.
  PrefixIndex(BlockPool* pool, uint32_t block_size, PrefixListener* listener = nullptr,
              const StateLimits& states = {});
  ~PrefixIndex() override;
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Blocks at the front of the prompt that are here, `max_blocks` at most. Changes nothing.
  uint32_t Match(const PrefixQuery& query, uint32_t max_blocks) const;
  // The most blocks after which a sequence can go on: those of Match or, where sequences have a
  // state, the longest part of them that ends at a checkpoint. Changes nothing.
  uint32_t MatchWhole(const PrefixQuery& query, uint32_t max_blocks) const;
  // Blocks that nobody holds: of the prompt's blocks [first, end), which are here, and of the state
  // after them. Changes nothing.
  uint32_t CountIdle(const PrefixQuery& query, uint32_t first, uint32_t end) const;
  // Appends the handles of the blocks that Match counts to `out`, each with one request reference
  // for `owner` in `phase` (BlockPool::AcquireCached). Returns the number of blocks.
  uint32_t Acquire(const PrefixQuery& query, uint32_t max_blocks, BlockState phase,
                   const RequestUid& owner, std::vector<BlockHandle>* out);
  // Counts a query of a prompt that was admitted: tokens whose KV it needs, and those of them whose
  // KV is here and is neither computed nor received.
  void CountQuery(uint32_t num_tokens, uint32_t num_hit_tokens);
  // Keeps a block that its caller holds. Where the prefix is here in a block that nobody holds, the
  // caller's takes its place, and what goes on from it stays. False when another holds that block,
  // the caller's is kept under another name, or the block before it is not here.
  bool Insert(const PrefixEntry& entry);
  // Whether a block is kept under this link.
  bool Contains(const ChainLink& link) const { return by_link_.contains(link); }
  // Takes the caller's block out of the index, and all that goes on from it. Nothing when the block
  // is not in it, or the handle names no block (generation 0).
  void Drop(BlockHandle block);

  // Whether the state after the prompt's first `num_blocks` (>= 1) blocks is here.
  bool HasState(const PrefixQuery& query, uint32_t num_blocks) const;
  // Appends the blocks of that state, which is here, as Acquire does.
  void AcquireState(const PrefixQuery& query, uint32_t num_blocks, BlockState phase,
                    const RequestUid& owner, std::vector<BlockHandle>* out);
  // Takes that state out of the index. Its blocks stay with their other holders.
  void ForgetState(const PrefixQuery& query, uint32_t num_blocks);
  // Appends blocks for one more checkpoint, in the phase computing. `num_pending` others have their
  // blocks and are not inserted yet: they count as if they were here. False, and nothing appended,
  // when the limits or the pool leave none; that is counted.
  bool AllocateState(const RequestUid& owner, size_t num_pending, std::vector<BlockHandle>* out);
  // Keeps the state after the prompt's first `num_blocks` blocks, in `blocks` [state_blocks], which
  // the caller holds. False: the KV of those blocks is not here, or the state is here already.
  bool InsertState(const PrefixQuery& query, uint32_t num_blocks,
                   std::span<const BlockHandle> blocks);
  // Blocks of all checkpoints.
  uint32_t num_checkpoint_blocks() const { return num_checkpoints_ * states_.state_blocks; }

  void OnEvicted(BlockHandle block, const EvictionKey& key) override;

  const PrefixStats& stats() const { return stats_; }
  // Compares the index with the pool; the first difference as Internal. O(blocks); for tests.
  Status Audit() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // The entry of one block of the arena; `generation` 0 = not in the index.
  struct Node {
    ChainLink link;
    uint32_t generation = 0;
    uint32_t ordinal = 0;
    uint32_t parent = kNone;        // block before it
    uint32_t first_child = kNone;   // of those after it, in a list
    uint32_t next_sibling = kNone;  // in its parent's list
    uint32_t prev_sibling = kNone;
    uint32_t checkpoint = kNone;

    // EvictionKey::rank: what goes on from the block is worth nothing without it.
    uint32_t rank() const {
      return first_child == kNone && checkpoint == kNone ? 0 : UINT32_MAX - ordinal;
    }
  };

  std::span<const TokenId> TokensOf(uint32_t block) const {
    return {tokens_.data() + size_t{block} * block_size_, block_size_};
  }
  // How many blocks of the prompt there are to look for.
  uint32_t NumToFind(const PrefixQuery& query, uint32_t max_blocks) const;
  // The block that holds the prompt's `ordinal`, nothing = not here.
  std::optional<uint32_t> Find(const PrefixQuery& query, uint32_t ordinal) const;
  BlockHandle HandleOf(uint32_t block) const {
    return {BlockIndex(block), nodes_[block].generation};
  }
  // Insert, where the prefix is in block `from`.
  bool TakePlace(uint32_t from, const PrefixEntry& entry);
  void SetKey(uint32_t block, double value, uint64_t last_use);
  // Takes out the block and all that goes on from it, which the pool then keeps no more. The
  // caller settles that of the block itself. Returns how many blocks of KV left.
  uint32_t Forget(uint32_t block);
  // Takes out a block without children. The key of its parent is not set.
  void ForgetLeaf(uint32_t block);
  void AddChild(uint32_t parent, uint32_t block);
  void RemoveChild(uint32_t parent, uint32_t block);
  // The key of an indexed block follows what goes on from it.
  void UpdateKey(uint32_t block);
  std::span<BlockHandle> BlocksOf(uint32_t checkpoint) {
    return std::span(state_handles_)
        .subspan(size_t{checkpoint} * states_.state_blocks, states_.state_blocks);
  }
  // Sets what all its blocks are worth.
  void SetStateKey(uint32_t checkpoint);
  // Lets go of a checkpoint. `evicted` is the block of it that the pool has taken already.
  void DropCheckpoint(uint32_t checkpoint, BlockHandle evicted = {});
  // Tells the listener of the state after an indexed block.
  void TellState(uint32_t block, bool added);
  Status AuditParent(uint32_t block) const;
  Status AuditCheckpoints() const;
  // Drops checkpoints of least value until the limits have room for one more beside the pending
  // ones. False: there is never room.
  bool MakeRoomForState(size_t num_pending);

  BlockPool* const pool_;
  PrefixListener* const listener_;
  const uint32_t block_size_;
  std::vector<Node> nodes_;      // [block]
  std::vector<TokenId> tokens_;  // [block][block_size]
  const StateLimits states_;
  std::vector<uint32_t> checkpoint_nodes_;  // [checkpoint]: block of its prefix, or kNone
  std::vector<BlockHandle> state_handles_;  // [checkpoint][state_blocks]
  std::vector<uint32_t> checkpoint_of_;     // [block], kNone; empty without states
  uint32_t num_checkpoints_ = 0;
  absl::flat_hash_map<ChainLink, uint32_t> by_link_;
  double inflation_ = 0;
  uint64_t clock_ = 0;  // uses so far
  PrefixStats stats_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_PREFIX_INDEX_H_
