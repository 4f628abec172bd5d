#include "kvcache/hash_chain.h"

#include <numeric>
#include <set>
#include <vector>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::kv {
namespace {

const ChainKey kKey = DeriveChainKey("secret", "default");

std::vector<TokenId> Tokens(uint32_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

TEST(HashChainTest, LinksDoNotDependOnHowTokensWereCut) {
  const std::vector<TokenId> tokens = Tokens(103);
  const std::vector<ChainLink> whole = ChainLinks(kKey, 16, tokens);
  ASSERT_EQ(whole.size(), 7u);
  TestRandom random(7);
  for (int round = 0; round < 50; ++round) {
    HashChain chain(kKey, 16);
    chain.Reserve(103);
    for (size_t at = 0; at < tokens.size();) {
      const size_t take = std::min<size_t>(random.Below(40), tokens.size() - at);
      chain.Append(std::span(tokens).subspan(at, take));
      at += take;
      ASSERT_EQ(chain.full_links().size(), at / 16);
    }
    EXPECT_EQ(chain.Links(), whole);
    EXPECT_EQ(chain.num_tokens(), 103u);
  }
}

TEST(HashChainTest, AnyChangedTokenChangesItsLinkAndAllLaterOnes) {
  const std::vector<ChainLink> links = ChainLinks(kKey, 8, Tokens(40));
  for (uint32_t at = 0; at < 40; ++at) {
    std::vector<TokenId> tokens = Tokens(40);
    ++tokens[at];
    const std::vector<ChainLink> changed = ChainLinks(kKey, 8, tokens);
    EXPECT_EQ(FirstChainMismatch(links, changed), at / 8);
    for (uint32_t block = at / 8; block < 5; ++block) EXPECT_NE(links[block], changed[block]);
  }
}

TEST(HashChainTest, APartFullBlockHasItsOwnLinkWithItsLength) {
  std::set<ChainLink> seen;
  for (uint32_t count = 1; count <= 16; ++count) {
    const std::vector<ChainLink> links = ChainLinks(kKey, 16, Tokens(count));
    ASSERT_EQ(links.size(), 1u);
    seen.insert(links[0]);
  }
  EXPECT_EQ(seen.size(), 16u);
  // Padding with a real token 0 is another prompt.
  const std::vector<TokenId> one = {5};
  const std::vector<TokenId> padded = {5, 0};
  EXPECT_NE(ChainLinks(kKey, 16, one), ChainLinks(kKey, 16, padded));
  EXPECT_TRUE(ChainLinks(kKey, 16, {}).empty());
}

TEST(HashChainTest, SecretTenantAndTheirBoundaryAllMatter) {
  std::set<ChainLink> seen;
  const std::pair<const char*, const char*> keys[] = {
      {"", "default"}, {"secret", "default"}, {"secret", "other"}, {"secretd", "efault"},
      {"", ""},        {"default", ""},
  };
  for (const auto& [secret, tenant] : keys) {
    seen.insert(ChainLinks(DeriveChainKey(secret, tenant), 16, Tokens(16)).at(0));
  }
  EXPECT_EQ(seen.size(), std::size(keys));
  EXPECT_EQ(DeriveChainKey("a", "b"), DeriveChainKey("a", "b"));
}

TEST(HashChainTest, MismatchNamesTheFirstBlockAndTheShorterChain) {
  const std::vector<ChainLink> a = ChainLinks(kKey, 4, Tokens(12));
  const std::vector<ChainLink> b = ChainLinks(kKey, 4, Tokens(8));
  EXPECT_EQ(FirstChainMismatch(a, a), std::nullopt);
  EXPECT_EQ(FirstChainMismatch(a, b), 2u);
  EXPECT_EQ(FirstChainMismatch(b, a), 2u);
  EXPECT_EQ(FirstChainMismatch({}, a), 0u);
  EXPECT_EQ(FirstChainMismatch({}, {}), std::nullopt);
}

TEST(HashChainTest, WireFormRoundTripsAndRefusesOtherLengths) {
  const std::vector<ChainLink> links = ChainLinks(kKey, 4, Tokens(10));
  const std::string bytes = ChainToBytes(links);
  EXPECT_EQ(bytes.size(), 48u);
  const auto parsed = ChainFromBytes(bytes);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, links);
  EXPECT_TRUE(ChainFromBytes("")->empty());
  for (const size_t size : {1, 15, 17, 47}) {
    EXPECT_EQ(ChainFromBytes(std::string(size, 'x')).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::kv
