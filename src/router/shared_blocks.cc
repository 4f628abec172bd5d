#include "src/router/shared_blocks.h"

#include <algorithm>

#include "src/base/check.h"

namespace baton::router {

using kv::ChainLink;

uint32_t SharedBlocks::NumShared(std::span<const ChainLink> links, uint32_t num_hits) const {
  const size_t limit = std::min<size_t>(links.size(), num_hits);
  uint32_t num_shared = 0;
  for (size_t i = 0; i < limit; ++i) num_shared += uses_.contains(links[i]) ? 1 : 0;
  return num_shared;
}

uint32_t SharedBlocks::Add(std::span<const ChainLink> links, uint32_t num_hits) {
  uint32_t num_taken = 0;
  for (size_t i = 0; i < links.size(); ++i) {
    Use& use = uses_[links[i]];
    const bool is_shared = i < num_hits && use.num_holders > 0;
    ++use.num_holders;
    if (is_shared) continue;
    ++use.num_copies;
    ++num_taken;
  }
  return num_taken;
}

uint32_t SharedBlocks::Remove(std::span<const ChainLink> links) {
  uint32_t num_given = 0;
  for (const ChainLink& link : links) {
    const auto it = uses_.find(link);
    BATON_CHECK(it != uses_.end(), "a request left that never came");
    Use& use = it->second;
    --use.num_holders;
    if (use.num_copies > use.num_holders) {
      --use.num_copies;
      ++num_given;
    }
    if (use.num_holders == 0) uses_.erase(it);
  }
  return num_given;
}

}  // namespace baton::router
