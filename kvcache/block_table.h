// BlockTable: the append-only list of blocks that hold one sequence's KV, in token order: token t
// lives in block t / block_size. Owned by the engine thread with its sequence.
//
// Invariants
//  1. The table owns exactly one request reference of each block in it, but for the first
//     num_released() ones, of which it owns none.
//  2. Blocks are only appended, until Release or Take empties the table.
//  3. indices()[i] is the arena index of handles()[i] at all times (kernels read the former). For a
//     released block it is that of the first block after them, so no entry names another's block.
//  4. No allocation after Reserve while the table stays within what was reserved.
#ifndef BATON_KVCACHE_BLOCK_TABLE_H_
#define BATON_KVCACHE_BLOCK_TABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/block_pool.h"

namespace baton::kv {

// The engine copies the KV of the first `num_tokens` tokens of block `from` into `to` (whole-block
// copy is fine) before the next step runs.
struct BlockCopy {
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t num_tokens = 0;

  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// See the file comment.
class BlockTable {
 public:
  BlockTable() = default;
  // Movable only: a copy would own references that nobody counted.
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  // A table is empty when it dies (Release it first).
  ~BlockTable();

  // Room for this many blocks in all.
  void Reserve(uint32_t num_blocks);

  // Takes over one request reference that the caller holds.
  void Append(BlockHandle handle);
  // Allocates and appends; false, and nothing changed, when the pool has fewer free.
  bool Grow(BlockPool* pool, uint32_t num_blocks, BlockState phase, const RequestUid& owner);
  // Appends blocks [0, num_blocks) of `parent`, which has released none, with one more request
  // reference each.
  void ShareFrom(const BlockTable& parent, uint32_t num_blocks, BlockPool* pool);

  // SetState(phase) on every block that the table owns a reference of.
  void SetState(BlockPool* pool, BlockState phase) const;
  // Drops the references of the first `num_blocks` < size() blocks, as far as the table has them.
  // Positions stay: size() counts these blocks too, and their handles may become stale.
  void ReleaseFront(BlockPool* pool, uint32_t num_blocks);
  // Puts places of blocks that were never here before those of the table, which has some and has
  // released none.
  void PrependReleased(uint32_t num_blocks);
  // Drops the table's references and empties it.
  void Release(BlockPool* pool);
  // Moves the references to the caller, those of released blocks excepted, and empties the table.
  std::vector<BlockHandle> Take();

  uint32_t size() const { return static_cast<uint32_t>(handles_.size()); }
  bool empty() const { return handles_.empty(); }
  uint32_t num_released() const { return num_released_; }
  std::span<const BlockHandle> handles() const { return handles_; }
  // As KvBlockList wants them.
  std::span<const uint32_t> indices() const { return indices_; }

 private:
  std::vector<BlockHandle> handles_;
  std::vector<uint32_t> indices_;
  uint32_t num_released_ = 0;
};

// The blocks of a computed prompt, one request reference of each held by whoever fills this in.
struct PromptBlocks {
  std::span<const BlockHandle> data;   // of the prompt's KV
  std::span<const BlockHandle> spare;  // at least one for each choice that goes on
  uint32_t last_block_tokens = 0;      // in the last data block; 0 = it is full
};

// Divides one computed prompt among the choices that go on; takes over all references. The first
// table takes the data blocks; the others share the full ones and get a spare for the part-full one
// (appended to `copies`). When the last block is full, each gets a spare to grow into. Unused
// spares are released. Every block is bound afterwards. `tables` are empty before; none at all
// releases everything.
void DivideAmongChoices(const PromptBlocks& prompt, std::span<BlockTable* const> tables,
                        BlockPool* pool, std::vector<BlockCopy>* copies);

// The fixed state of a computed prompt (KvLayout::state_blocks), one request reference of each
// block held by whoever fills this in.
struct PromptState {
  std::span<const BlockHandle> data;
  std::span<const BlockHandle> spare;  // as many for each choice after the first that goes on
  uint32_t block_tokens = 0;           // of a whole block
};

// Divides the state of one computed prompt among the choices that go on, since each of them writes
// its own; takes over all references. The first table takes the data blocks, each other one a copy
// of them (appended to `copies`) in spare blocks. Unused spares are released. Every block is bound
// afterwards. `tables` are empty before; none at all releases everything.
void DivideState(const PromptState& prompt, std::span<BlockTable* const> tables, BlockPool* pool,
                 std::vector<BlockCopy>* copies);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_BLOCK_TABLE_H_
