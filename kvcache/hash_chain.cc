#include "kvcache/hash_chain.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/check.h"

namespace baton::kv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "links are hashed and sent little endian");

constexpr size_t kLinkBytes = 16;

uint8_t* Put(uint8_t* to, const void* from, size_t size) {
  std::memcpy(to, from, size);
  return to + size;
}

}  // namespace

ChainKey DeriveChainKey(std::string_view cluster_secret, std::string_view tenant) {
  // The length in front keeps ("ab", "c") and ("a", "bc") apart.
  std::string text = fmt::format("baton chain key v1 {} ", cluster_secret.size());
  text.append(cluster_secret);
  text.append(tenant);
  const Hash128 salt = Xxh3Hash128(text);
  return {Xxh3Hash64(text, salt.lo), salt};
}

uint64_t ChainKeyCheck(const ChainKey& key) {
  std::string text = "baton chain key check v1";
  text.append(reinterpret_cast<const char*>(&key.salt.hi), sizeof(key.salt.hi));
  text.append(reinterpret_cast<const char*>(&key.salt.lo), sizeof(key.salt.lo));
  return std::max<uint64_t>(Xxh3Hash64(text, key.seed), 1);
}

HashChain::HashChain(const ChainKey& key, uint32_t block_size)
    : key_(key), block_size_(block_size) {
  BATON_CHECK(block_size >= 1, "a block of no tokens");
  open_.reserve(block_size);
  scratch_.resize(2 * kLinkBytes + sizeof(uint32_t) + block_size * sizeof(TokenId));
}

void HashChain::Reserve(uint32_t num_tokens) { links_.reserve(num_tokens / block_size_ + 1); }

void HashChain::Append(std::span<const TokenId> tokens) {
  num_tokens_ += static_cast<uint32_t>(tokens.size());
  while (!tokens.empty()) {
    const size_t take = std::min<size_t>(tokens.size(), block_size_ - open_.size());
    open_.insert(open_.end(), tokens.begin(), tokens.begin() + take);
    tokens = tokens.subspan(take);
    if (open_.size() < block_size_) return;
    links_.push_back(LinkOf(open_));
    open_.clear();
  }
}

ChainLink HashChain::LinkOf(std::span<const TokenId> block) const {
  const ChainLink previous = links_.empty() ? ChainLink{} : links_.back();
  const uint32_t count = static_cast<uint32_t>(block.size());
  uint8_t* end = scratch_.data();
  end = Put(end, &key_.salt.hi, 8);
  end = Put(end, &key_.salt.lo, 8);
  end = Put(end, &previous.hi, 8);
  end = Put(end, &previous.lo, 8);
  end = Put(end, &count, sizeof(count));
  end = Put(end, block.data(), block.size_bytes());
  return Xxh3Hash128(scratch_.data(), static_cast<size_t>(end - scratch_.data()), key_.seed);
}

std::vector<ChainLink> HashChain::Links() const {
  std::vector<ChainLink> links = links_;
  if (!open_.empty()) links.push_back(LinkOf(open_));
  return links;
}

std::vector<ChainLink> ChainLinks(const ChainKey& key, uint32_t block_size,
                                  std::span<const TokenId> tokens) {
  HashChain chain(key, block_size);
  chain.Append(tokens);
  return chain.Links();
}

std::optional<uint32_t> FirstChainMismatch(std::span<const ChainLink> a,
                                           std::span<const ChainLink> b) {
  const size_t common = std::min(a.size(), b.size());
  for (size_t i = 0; i < common; ++i) {
    if (a[i] != b[i]) return static_cast<uint32_t>(i);
  }
  if (a.size() == b.size()) return std::nullopt;
  return static_cast<uint32_t>(common);
}

std::string ChainToBytes(std::span<const ChainLink> links) {
  std::string bytes(links.size() * kLinkBytes, '\0');
  for (size_t i = 0; i < links.size(); ++i) {
    std::memcpy(bytes.data() + i * kLinkBytes, &links[i].hi, 8);
    std::memcpy(bytes.data() + i * kLinkBytes + 8, &links[i].lo, 8);
  }
  return bytes;
}

StatusOr<std::vector<ChainLink>> ChainFromBytes(std::string_view bytes) {
  if (bytes.size() % kLinkBytes != 0) {
    return InvalidArgument("a hash chain of {} bytes: {} bytes a link", bytes.size(), kLinkBytes);
  }
  std::vector<ChainLink> links(bytes.size() / kLinkBytes);
  for (size_t i = 0; i < links.size(); ++i) {
    std::memcpy(&links[i].hi, bytes.data() + i * kLinkBytes, 8);
    std::memcpy(&links[i].lo, bytes.data() + i * kLinkBytes + 8, 8);
  }
  return links;
}

}  // namespace baton::kv
