// HashChain: a keyed chain of hashes over the token ids of a prompt, one link a block. The prefill
// worker sends its chain with the seal, and the decode worker compares it with its own. A mix-up of
// requests, a lost token or another tenant's prompt shows as the first unequal link. Pure; one
// thread at a time.
//
//   link[i] = XXH3-128(seed; salt, link[i-1], number of tokens in the block, their ids)
//
// The key (seed and salt) is derived from the cluster secret and the tenant. So equal prompts of
// two tenants have unrelated chains. XXH3 is no cryptographic MAC: the chain detects mistakes, and
// the data connection authenticates peers.
//
// Invariants
//  1. The links depend only on the key, the block size and the tokens, not on how the tokens were
//     cut into Append calls.
//  2. A part-full last block has its own link, which contains its length; it never equals the link
//     of the block once full.
#ifndef BATON_KVCACHE_HASH_CHAIN_H_
#define BATON_KVCACHE_HASH_CHAIN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/base/xxh3.h"

namespace baton::kv {

// One block's place in the chain.
using ChainLink = Hash128;

// The key that makes a chain private to a cluster and a tenant.
struct ChainKey {
  uint64_t seed = 0;
  Hash128 salt;

  friend bool operator==(const ChainKey&, const ChainKey&) = default;
};

// The tenant of all requests, as long as there are no API keys.
inline constexpr std::string_view kDefaultTenant = "default";

// Any lengths, "" included; unequal pairs give unrelated keys.
ChainKey DeriveChainKey(std::string_view cluster_secret, std::string_view tenant);

// Tells whether two processes have equal keys without sending them; never 0. No secret is guessed
// from it faster than from the links themselves.
uint64_t ChainKeyCheck(const ChainKey& key);

// Builds the links of one prompt; see the file comment.
class HashChain {
 public:
  // block_size >= 1 tokens.
  HashChain(const ChainKey& key, uint32_t block_size);

  // Room for a prompt of this many tokens, so that Append does not allocate.
  void Reserve(uint32_t num_tokens);
  void Append(std::span<const TokenId> tokens);

  // Links of the full blocks so far.
  std::span<const ChainLink> full_links() const { return links_; }
  // All links, with that of a part-full last block.
  std::vector<ChainLink> Links() const;
  uint32_t num_tokens() const { return num_tokens_; }

 private:
  ChainLink LinkOf(std::span<const TokenId> block) const;

  ChainKey key_;
  uint32_t block_size_;
  uint32_t num_tokens_ = 0;
  std::vector<ChainLink> links_;  // of full blocks
  std::vector<TokenId> open_;     // tokens of the part-full block, < block_size
  mutable std::vector<uint8_t> scratch_;
};

// Links of a whole prompt in one call.
std::vector<ChainLink> ChainLinks(const ChainKey& key, uint32_t block_size,
                                  std::span<const TokenId> tokens);

// The first block at which two chains differ (a missing link differs), nothing when equal.
std::optional<uint32_t> FirstChainMismatch(std::span<const ChainLink> a,
                                           std::span<const ChainLink> b);

// Wire form: 16 bytes a link (hi then lo, little endian). Parse refuses other lengths.
std::string ChainToBytes(std::span<const ChainLink> links);
StatusOr<std::vector<ChainLink>> ChainFromBytes(std::string_view bytes);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_HASH_CHAIN_H_
