// SharedBlocks: how many KV blocks the full prompt blocks of one worker's live requests take, those
// that several requests share counted once. Pure; owned by the router's thread. Costs a hash
// operation a block.
//
// A block is shared by a request that found it in the worker's prefix cache while another live
// request held it. Requests that came together, before the first had computed it, have a copy each.
//
// Invariants
//  1. For each link, 1 <= copies <= holders.
//  2. The results of Add and Remove add up to the sum of all copies.
#ifndef BATON_ROUTER_SHARED_BLOCKS_H_
#define BATON_ROUTER_SHARED_BLOCKS_H_

#include <cstdint>
#include <span>

#include "absl/container/flat_hash_map.h"

#include "kvcache/hash_chain.h"

namespace baton::router {

// See the file comment.
class SharedBlocks {
 public:
  // How many of the first `num_hits` links are in use: a request that finds them takes no block for
  // them.
  uint32_t NumShared(std::span<const kv::ChainLink> links, uint32_t num_hits) const;
  // A request with these full blocks came, the first `num_hits` of them found in the cache. The
  // number of blocks that it takes.
  uint32_t Add(std::span<const kv::ChainLink> links, uint32_t num_hits);
  // It left. The number of blocks that nobody needs any more.
  uint32_t Remove(std::span<const kv::ChainLink> links);

  bool empty() const { return uses_.empty(); }

 private:
  // Requests that use one block, and how many blocks it is.
  struct Use {
    uint32_t num_holders = 0;
    uint32_t num_copies = 0;
  };

  absl::flat_hash_map<kv::ChainLink, Use> uses_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SHARED_BLOCKS_H_
