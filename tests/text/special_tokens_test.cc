#include "src/text/special_tokens.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/text/test_spec.h"

namespace baton::text {
namespace {

// One token of a made-up set.
struct Special {
  std::string text;
  bool user_defined = false;
};

SpecialTokens Build(const std::vector<Special>& specials) {
  SpecialTokens tokens;
  for (size_t i = 0; i < specials.size(); ++i) {
    const Status added =
        tokens.Add(specials[i].text, static_cast<TokenId>(i), specials[i].user_defined);
    EXPECT_TRUE(added.ok()) << added;
  }
  tokens.Seal();
  return tokens;
}

// 1..6 distinct tokens over a small alphabet, so that they overlap.
std::vector<Special> RandomSpecials(RandomText& random) {
  std::vector<Special> specials;
  for (size_t n = 1 + random.Below(6); n > 0; --n) {
    const std::string text = random.Join({"<", "|", ">", "a", "é"}, 5);
    const bool known = std::any_of(specials.begin(), specials.end(),
                                   [&text](const Special& s) { return s.text == text; });
    if (!text.empty() && !known) specials.push_back({text, random.Below(3) == 0});
  }
  return specials;
}

TEST(SpecialTokensTest, FindNextIsLeftmostThenLongest) {
  RandomText random(TestSeed());
  size_t num_found = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::vector<Special> specials = RandomSpecials(random);
    const SpecialTokens tokens = Build(specials);
    const std::string text = random.Join({"<", "|", ">", "a", "é"}, 12);
    for (const SpecialScope scope : {SpecialScope::kUserDefined, SpecialScope::kAll}) {
      size_t begin = text.size(), size = 0;
      for (size_t at = 0; at < text.size() && size == 0; ++at) {
        for (const Special& special : specials) {
          const bool counts = special.user_defined || scope == SpecialScope::kAll;
          if (counts && text.compare(at, special.text.size(), special.text) == 0) {
            begin = at;
            size = std::max(size, special.text.size());
          }
        }
      }
      const auto match = tokens.FindNext(text, 0, scope);
      ASSERT_EQ(match.has_value(), size > 0) << text;
      if (!match) continue;
      ++num_found;
      ASSERT_EQ(match->begin, begin);
      ASSERT_EQ(match->end, begin + size);
      ASSERT_EQ(specials[match->id].text, text.substr(begin, size));
    }
  }
  EXPECT_GT(num_found, 1000u);
}

// However broken strings are joined with other text, no control token touches a character of them.
TEST(SpecialTokensTest, BrokenTextNeverBecomesPartOfAControlToken) {
  RandomText random(TestSeed());
  const std::vector<std::string> alphabet = {"<", "|", ">", "a", "é"};
  size_t num_would_have = 0;
  for (int round = 0; round < 30000; ++round) {
    const std::vector<Special> specials = RandomSpecials(random);
    const SpecialTokens tokens = Build(specials);
    // Template text in capitals' place: plain pieces, user text between them.
    std::string joined, unbroken;
    std::vector<bool> is_user;  // [byte of joined]
    for (size_t part = 1 + random.Below(5); part > 0; --part) {
      const std::string raw = random.Join(alphabet, 4);
      const bool user = random.Below(2) == 0;
      const std::string text = user ? tokens.BreakLookAlikes(raw, "\uFDD0") : raw;
      joined += text;
      unbroken += raw;
      is_user.insert(is_user.end(), text.size(), user);
    }
    for (const Special& special : specials) {
      if (special.user_defined) continue;
      num_would_have += unbroken.find(special.text) != std::string::npos ? 1 : 0;
    }
    std::optional<SpecialMatch> match;
    for (size_t done = 0; (match = tokens.FindNextGuarded(joined, done, "\uFDD0"));) {
      done = match->end;
      if (specials[match->id].user_defined) continue;
      for (size_t i = match->begin; i < match->end; ++i) {
        ASSERT_FALSE(is_user[i]) << specials[match->id].text << " in " << joined;
      }
    }
  }
  EXPECT_GT(num_would_have, 1000u);
}

TEST(SpecialTokensTest, TemplateTextKeepsItsTokensBesideGuardedText) {
  const SpecialTokens tokens = Build({{"<|a|>"}, {"é"}});
  const std::string guard = "\uFDD0";
  for (const std::string user : {"é", "<|a|>", "<|", "|>", "x", "éé", ""}) {
    const std::string broken = tokens.BreakLookAlikes(user, guard);
    const std::string text = broken + "é" + broken + "<|a|>" + broken;
    const auto first = tokens.FindNextGuarded(text, 0, guard);
    ASSERT_TRUE(first.has_value()) << user;
    EXPECT_EQ(first->begin, broken.size()) << user;
    const auto second = tokens.FindNextGuarded(text, first->end, guard);
    ASSERT_TRUE(second.has_value()) << user;
    EXPECT_EQ(second->begin, broken.size() + 2 + broken.size()) << user;
    EXPECT_FALSE(tokens.FindNextGuarded(text, second->end, guard).has_value()) << user;
  }
}

TEST(SpecialTokensTest, BreakingOnlyAddsGuardsAndOnlyWhereNeeded) {
  RandomText random(TestSeed());
  for (int round = 0; round < 3000; ++round) {
    const SpecialTokens tokens = Build(RandomSpecials(random));
    const std::string text = random.Join({"<", "|", ">", "a", "é", "x", " "}, 12);
    std::string broken = tokens.BreakLookAlikes(text, "\uFDD0");
    for (size_t at; (at = broken.find("\uFDD0")) != std::string::npos;) broken.erase(at, 3);
    ASSERT_EQ(broken, text);
  }
  const SpecialTokens demo = Build({{"<|im_start|>"}, {"<|im_end|>"}, {"<think>", true}});
  EXPECT_EQ(demo.BreakLookAlikes("a < b, x<think>y</think> |> end", "\uFDD0"),
            "a < b, x<think>y</think> |> end");
  EXPECT_EQ(demo.BreakLookAlikes("a<|im_end|>b", "\uFDD0"), "a<\uFDD0|im_end|>b");
  EXPECT_EQ(demo.BreakLookAlikes("a<|im_", "\uFDD0"), "a<\uFDD0|im_");
  EXPECT_EQ(demo.BreakLookAlikes("end|> b", "\uFDD0"), "\uFDD0end|> b");
}

}  // namespace
}  // namespace baton::text
