// PrefixIndex: maps prefixes to the full blocks of one arena that hold their KV. So a prompt that
// begins like an earlier one is not computed again. Owned by the engine thread with its BlockPool;
// pure. Memory is taken at construction; Acquire and Insert allocate nothing.
//
// A prefix is named by the link of its last block in a HashChain, which is keyed by cluster secret
// and tenant: two tenants share nothing. A link is a hash, so a hit also compares the block's token
// ids; its parents were compared before it, from the root on.
//
// BlockPool evicts blocks when no free one is left, and only blocks that nobody holds. Blocks
// inside of a longer cached prefix are evicted last, the deepest first: a sequence may hold its
// last blocks and not its first ones (BlockTable::ReleaseFront), and the rest of its prefix must
// begin at the root. Of the other blocks, the one with the least value is evicted first:
//
//   value = inflation + cost        set when the block enters and at every hit (GreedyDual)
//   cost  = 1 + ordinal / 128       computing a block deep in a prompt costs more attention
//   inflation                       the largest value evicted so far: old values fade against it
//
// Among blocks with equal values, the one used longest ago is evicted first. With equal costs it is
// the order of least recent use.
//
// Where each sequence has a fixed state (KvLayout::state_blocks) a prompt can go on from a prefix
// only if the state after that prefix is here too. A checkpoint keeps that state in `state_blocks`
// blocks of its own. Like a child, it belongs to the last block of its prefix, and is evicted
// before that block or with it. Its blocks are evicted together. The value of each block has
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
//  5. The block before each block of the index is in the index, except before ordinal 0. When a
//     block leaves, all blocks after it leave too: no lookup would find them.
//  6. When a block is evicted, each block after it is still held: the others were evicted
//     before.
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

// Counters since the start. They count blocks with KV, except the ones of checkpoints.
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

  // Rises when a prompt may need fewer idle blocks than before, other than by an insert.
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

  // Counts the blocks at the prompt's front that are here, `max_blocks` at most. Changes nothing.
  uint32_t Match(const PrefixQuery& query, uint32_t max_blocks) const;
  // The most blocks after which a sequence can go on: those of Match or, where sequences have a
  // state, the longest part of them that ends at a checkpoint. Changes nothing.
  uint32_t MatchWhole(const PrefixQuery& query, uint32_t max_blocks) const;
  // Counts blocks that nobody holds among the prompt's blocks [first, end), which are here, and
  // among the blocks of the state after them. Changes nothing.
  uint32_t CountIdle(const PrefixQuery& query, uint32_t first, uint32_t end) const;
  // Appends the handles of the blocks that Match counts to `out`, each with one request reference
  // for `owner` in `phase` (BlockPool::AcquireCached). Returns the number of blocks.
  uint32_t Acquire(const PrefixQuery& query, uint32_t max_blocks, BlockState phase,
                   const RequestUid& owner, std::vector<BlockHandle>* out);
  // Counts the query of an admitted prompt: the tokens whose KV it needs, and the tokens whose KV
  // was here, so that it is neither computed nor received.
  void CountQuery(uint32_t num_tokens, uint32_t num_hit_tokens);
  // Keeps a block that the caller holds. Where a block that nobody holds has this prefix already,
  // the caller's block takes its place, and the blocks after it stay. False when a request holds
  // that other block, the caller's block has another link, or the block before it is not here.
  bool Insert(const PrefixEntry& entry);
  // Whether a block is kept under this link.
  bool Contains(const ChainLink& link) const { return by_link_.contains(link); }
  // Takes the caller's block, and all blocks after it, out of the index. No-op when the block is
  // not in the index, or the handle names no block (generation 0).
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

    // EvictionKey::rank: blocks after this one are worth nothing without it.
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
  // Takes out the block and all blocks after it. The pool stops keeping the later blocks; the
  // caller does that for the block itself. Returns how many blocks of KV left.
  uint32_t Forget(uint32_t block);
  // Takes out a block without children. The key of its parent is not set.
  void ForgetLeaf(uint32_t block);
  void AddChild(uint32_t parent, uint32_t block);
  void RemoveChild(uint32_t parent, uint32_t block);
  // Sets the key of an indexed block, which depends on the blocks after it.
  void UpdateKey(uint32_t block);
  std::span<BlockHandle> BlocksOf(uint32_t checkpoint) {
    return std::span(state_handles_)
        .subspan(size_t{checkpoint} * states_.state_blocks, states_.state_blocks);
  }
  // Sets the keys of all blocks of a checkpoint.
  void SetStateKey(uint32_t checkpoint);
  // Drops a checkpoint. `evicted`: the block of it that the pool has taken already.
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
