#include "kvcache/block_table.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace baton::kv {

BlockTable::BlockTable(BlockTable&& other) noexcept
    : handles_(std::move(other.handles_)),
      indices_(std::move(other.indices_)),
      num_released_(std::exchange(other.num_released_, 0)) {
  other.handles_.clear();
  other.indices_.clear();
}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  BATON_CHECK(empty(), "a table of {} blocks would be lost", size());
  handles_ = std::exchange(other.handles_, {});
  indices_ = std::exchange(other.indices_, {});
  num_released_ = std::exchange(other.num_released_, 0);
  return *this;
}

BlockTable::~BlockTable() { BATON_CHECK(empty(), "a table of {} blocks was dropped", size()); }

void BlockTable::Reserve(uint32_t num_blocks) {
  handles_.reserve(num_blocks);
  indices_.reserve(num_blocks);
}

void BlockTable::Append(BlockHandle handle) {
  handles_.push_back(handle);
  indices_.push_back(handle.index.value());
}

bool BlockTable::Grow(BlockPool* pool, uint32_t num_blocks, BlockState phase,
                      const RequestUid& owner) {
  const size_t before = handles_.size();
  if (!pool->Allocate(num_blocks, phase, owner, &handles_)) return false;
  for (size_t i = before; i < handles_.size(); ++i) indices_.push_back(handles_[i].index.value());
  return true;
}

void BlockTable::ShareFrom(const BlockTable& parent, uint32_t num_blocks, BlockPool* pool) {
  BATON_CHECK(num_blocks <= parent.size() && parent.num_released_ == 0,
              "{} blocks of a table of {} that released {}", num_blocks, parent.size(),
              parent.num_released_);
  for (uint32_t i = 0; i < num_blocks; ++i) {
    pool->AddRequestRef(parent.handles_[i]);
    Append(parent.handles_[i]);
  }
}

void BlockTable::SetState(BlockPool* pool, BlockState phase) const {
  for (size_t i = num_released_; i < handles_.size(); ++i) pool->SetState(handles_[i], phase);
}

void BlockTable::ReleaseFront(BlockPool* pool, uint32_t num_blocks) {
  if (num_blocks <= num_released_) return;
  BATON_CHECK(num_blocks < size(), "{} blocks of a table of {} leave none", num_blocks, size());
  for (uint32_t i = num_blocks; i-- > num_released_;) pool->DropRequestRef(handles_[i]);
  num_released_ = num_blocks;
  std::fill_n(indices_.begin(), num_blocks, indices_[num_blocks]);
}

void BlockTable::PrependReleased(uint32_t num_blocks) {
  BATON_CHECK(!empty() && num_released_ == 0, "{} places before {} blocks, {} of them released",
              num_blocks, size(), num_released_);
  const uint32_t first = indices_.front();
  handles_.insert(handles_.begin(), num_blocks, BlockHandle());
  indices_.insert(indices_.begin(), num_blocks, first);
  num_released_ = num_blocks;
}

void BlockTable::Release(BlockPool* pool) {
  // Last block first: the stack of free blocks then hands the first one out next.
  for (size_t i = handles_.size(); i-- > num_released_;) pool->DropRequestRef(handles_[i]);
  handles_.clear();
  indices_.clear();
  num_released_ = 0;
}

std::vector<BlockHandle> BlockTable::Take() {
  handles_.erase(handles_.begin(), handles_.begin() + std::exchange(num_released_, 0));
  indices_.clear();
  return std::exchange(handles_, {});
}

void DivideAmongChoices(const PromptBlocks& prompt, std::span<BlockTable* const> tables,
                        BlockPool* pool, std::vector<BlockCopy>* copies) {
  const auto [data, spare, last_block_tokens] = prompt;
  BATON_CHECK(!data.empty(), "a prompt without blocks for {} choices", tables.size());
  BATON_CHECK(spare.size() >= tables.size(), "{} spare blocks for {} choices", spare.size(),
              tables.size());
  for (const BlockHandle& handle : data) pool->SetState(handle, BlockState::kBound);
  for (const BlockHandle& handle : spare) pool->SetState(handle, BlockState::kBound);
  if (tables.empty()) {  // every choice ended with its first token
    for (const BlockHandle& handle : data) pool->DropRequestRef(handle);
    for (const BlockHandle& handle : spare) pool->DropRequestRef(handle);
    return;
  }

  //   data:      [ full ... full | part ]        last_block_tokens > 0
  //   choice 0:    own ...  own    own
  //   choice i:        shared     spare (copy of part)
  //
  //   data:      [ full ... full ]               last_block_tokens == 0
  //   choice i:       shared       spare (empty, for the next token)
  const uint32_t num_full = static_cast<uint32_t>(data.size()) - (last_block_tokens > 0 ? 1 : 0);
  size_t next_spare = 0;
  for (const BlockHandle& handle : data) tables[0]->Append(handle);
  if (last_block_tokens == 0) tables[0]->Append(spare[next_spare++]);
  for (BlockTable* table : tables.subspan(1)) {
    table->ShareFrom(*tables[0], num_full, pool);
    const BlockHandle own = spare[next_spare++];
    table->Append(own);
    if (last_block_tokens == 0) continue;
    copies->push_back({data.back().index.value(), own.index.value(), last_block_tokens});
  }
  for (; next_spare < spare.size(); ++next_spare) pool->DropRequestRef(spare[next_spare]);
}

void DivideState(const PromptState& prompt, std::span<BlockTable* const> tables, BlockPool* pool,
                 std::vector<BlockCopy>* copies) {
  const auto& [data, spare, block_tokens] = prompt;
  const size_t num_copies = tables.empty() ? 0 : tables.size() - 1;
  BATON_CHECK(spare.size() >= num_copies * data.size(), "{} spare blocks for {} copies of {}",
              spare.size(), num_copies, data.size());
  for (const BlockHandle& handle : data) pool->SetState(handle, BlockState::kBound);
  for (const BlockHandle& handle : spare) pool->SetState(handle, BlockState::kBound);
  for (const BlockHandle& handle : data) {
    if (tables.empty()) {
      pool->DropRequestRef(handle);
    } else {
      tables[0]->Append(handle);
    }
  }
  size_t next_spare = 0;
  for (size_t i = 1; i < tables.size(); ++i) {
    for (const BlockHandle& handle : data) {
      const BlockHandle own = spare[next_spare++];
      tables[i]->Append(own);
      copies->push_back({handle.index.value(), own.index.value(), block_tokens});
    }
  }
  for (; next_spare < spare.size(); ++next_spare) pool->DropRequestRef(spare[next_spare]);
}

}  // namespace baton::kv
