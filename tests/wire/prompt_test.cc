// A prompt is a list of tokens that its copies share.
#include "src/wire/prompt.h"

#include <span>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::wire {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(PromptTest, CopiesShareTheTokens) {
  std::vector<TokenId> tokens = {7, 8, 9};
  const TokenId* const place = tokens.data();
  const Prompt prompt(std::move(tokens));
  EXPECT_EQ(prompt.data(), place) << "the list was copied into the prompt";
  const Prompt copy = prompt;
  EXPECT_EQ(copy.data(), place) << "a copy of a prompt has tokens of its own";
  EXPECT_THAT(copy, ElementsAre(7, 8, 9));
  EXPECT_EQ(copy[2], 9);
  const std::span<const TokenId> span = copy;
  EXPECT_EQ(span.data(), place);
  EXPECT_EQ(span.size(), 3u);
}

TEST(PromptTest, IsEqualByItsTokens) {
  const Prompt prompt = std::vector<TokenId>{1, 2};
  EXPECT_EQ(prompt, Prompt(std::vector<TokenId>{1, 2}));
  EXPECT_EQ(prompt, (std::vector<TokenId>{1, 2}));
  EXPECT_NE(prompt, Prompt(std::vector<TokenId>{1}));
  EXPECT_NE(prompt, Prompt(std::vector<TokenId>{1, 3}));
  EXPECT_NE(prompt, Prompt());
}

TEST(PromptTest, WithoutTokensItIsEmpty) {
  const Prompt prompt;
  EXPECT_TRUE(prompt.empty());
  EXPECT_THAT(prompt, IsEmpty());
  EXPECT_EQ(prompt, Prompt(std::vector<TokenId>{}));
  const std::span<const TokenId> span = prompt;
  EXPECT_TRUE(span.empty());
}

}  // namespace
}  // namespace baton::wire
