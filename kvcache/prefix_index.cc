#include "kvcache/prefix_index.h"

#include <algorithm>

#include "src/base/check.h"

namespace baton::kv {
namespace {

// Blocks after which the attention of a token costs about as much as all its matrices.
constexpr double kDepthOfEqualCost = 128;

double CostOf(uint32_t ordinal) { return 1 + ordinal / kDepthOfEqualCost; }

}  // namespace

PrefixIndex::PrefixIndex(BlockPool* pool, uint32_t block_size, PrefixListener* listener)
    : pool_(pool),
      listener_(listener),
      block_size_(block_size),
      nodes_(pool->num_blocks()),
      tokens_(size_t{pool->num_blocks()} * block_size) {
  by_link_.reserve(pool->num_blocks());
  pool_->SetCacheKeeper(this);
}

PrefixIndex::~PrefixIndex() { pool_->SetCacheKeeper(nullptr); }

std::optional<uint32_t> PrefixIndex::Find(const PrefixQuery& query, uint32_t ordinal) const {
  const auto found = by_link_.find(query.links[ordinal]);
  if (found == by_link_.end() || nodes_[found->second].ordinal != ordinal) return std::nullopt;
  const std::span<const TokenId> own = TokensOf(found->second);
  const auto wanted = query.tokens.subspan(size_t{ordinal} * block_size_, block_size_);
  if (!std::equal(own.begin(), own.end(), wanted.begin())) return std::nullopt;
  return found->second;
}

uint32_t PrefixIndex::NumToFind(const PrefixQuery& query, uint32_t max_blocks) const {
  return static_cast<uint32_t>(std::min<size_t>(
      {query.links.size(), query.tokens.size() / block_size_, size_t{max_blocks}}));
}

uint32_t PrefixIndex::Match(const PrefixQuery& query, uint32_t max_blocks) const {
  const uint32_t limit = NumToFind(query, max_blocks);
  uint32_t num_blocks = 0;
  while (num_blocks < limit && Find(query, num_blocks)) ++num_blocks;
  return num_blocks;
}

uint32_t PrefixIndex::Acquire(const PrefixQuery& query, uint32_t max_blocks, BlockState phase,
                              const RequestUid& owner, std::vector<BlockHandle>* out) {
  const uint32_t limit = NumToFind(query, max_blocks);
  uint32_t num_blocks = 0;
  for (; num_blocks < limit; ++num_blocks) {
    const std::optional<uint32_t> block = Find(query, num_blocks);
    if (!block) break;
    const BlockHandle handle{BlockIndex(*block), nodes_[*block].generation};
    pool_->AcquireCached(handle, phase, owner);
    SetKey(*block, inflation_ + CostOf(num_blocks), ++clock_);
    out->push_back(handle);
  }
  return num_blocks;
}

void PrefixIndex::CountQuery(uint32_t num_tokens, uint32_t num_hit_tokens) {
  stats_.queried_tokens += num_tokens;
  stats_.hit_tokens += num_hit_tokens;
}

bool PrefixIndex::Insert(const PrefixEntry& entry) {
  BATON_CHECK(entry.tokens.size() == block_size_, "{} tokens for a block of {}",
              entry.tokens.size(), block_size_);
  const uint32_t block = entry.block.index.value();
  Node& node = nodes_[block];
  if (node.generation == entry.block.generation || by_link_.contains(entry.link)) return false;
  BATON_CHECK(node.generation == 0, "block {} of generation {} is in the index as {}", block,
              entry.block.generation, node.generation);
  node = {.link = entry.link, .generation = entry.block.generation, .ordinal = entry.ordinal};
  std::copy(entry.tokens.begin(), entry.tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(size_t{block} * block_size_));
  by_link_.emplace(entry.link, block);
  if (listener_ != nullptr) listener_->OnPrefixChange({entry.link, true, entry.ordinal});
  pool_->KeepCached(entry.block,
                    {.value = inflation_ + CostOf(entry.ordinal), .last_use = ++clock_});
  ++stats_.num_inserted;
  if (entry.ordinal == 0) return true;
  const auto parent = by_link_.find(entry.parent);
  if (parent == by_link_.end()) return true;
  node.parent = {BlockIndex(parent->second), nodes_[parent->second].generation};
  CountChild(node.parent, 1);
  return true;
}

void PrefixIndex::SetKey(uint32_t block, double value, uint64_t last_use) {
  const Node& node = nodes_[block];
  pool_->SetEvictionKey({BlockIndex(block), node.generation},
                        {node.num_children > 0, value, last_use});
}

void PrefixIndex::CountChild(BlockHandle parent, int change) {
  const uint32_t block = parent.index.value();
  Node& node = nodes_[block];
  if (parent.generation == 0 || node.generation != parent.generation) return;
  node.num_children += static_cast<uint32_t>(change);
  const EvictionKey key = pool_->EvictionKeyOf(parent);
  if (key.has_children != (node.num_children > 0)) SetKey(block, key.value, key.last_use);
}

void PrefixIndex::Forget(uint32_t block) {
  Node& node = nodes_[block];
  by_link_.erase(node.link);
  if (listener_ != nullptr) listener_->OnPrefixChange({node.link, false, node.ordinal});
  const BlockHandle parent = node.parent;
  node = {};
  CountChild(parent, -1);
}

void PrefixIndex::OnEvicted(BlockHandle block, const EvictionKey& key) {
  const uint32_t index = block.index.value();
  BATON_CHECK(nodes_[index].generation == block.generation,
              "block {} of generation {} was evicted, the index has {}", index, block.generation,
              nodes_[index].generation);
  inflation_ = std::max(inflation_, key.value);
  ++stats_.num_evicted;
  Forget(index);
}

Status PrefixIndex::Audit() const {
  size_t num_nodes = 0;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.generation == 0) continue;
    ++num_nodes;
    const BlockHandle handle{BlockIndex(i), node.generation};
    if (!pool_->IsCurrent(handle)) return Internal("block {} is indexed and not in use", i);
    const auto found = by_link_.find(node.link);
    if (found == by_link_.end() || found->second != i) {
      return Internal("block {} is not found under its link", i);
    }
    if (pool_->EvictionKeyOf(handle).has_children != (node.num_children > 0)) {
      return Internal("block {} has {} children and another key", i, node.num_children);
    }
  }
  if (num_nodes != by_link_.size()) {
    return Internal("{} blocks are indexed under {} links", num_nodes, by_link_.size());
  }
  return OkStatus();
}

}  // namespace baton::kv
