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
  int32_t traits = 0;
};

SpecialTokens Build(const std::vector<Special>& specials) {
  SpecialTokens tokens;
  for (size_t i = 0; i < specials.size(); ++i) {
    const Status added = tokens.Add(specials[i].text, static_cast<TokenId>(i),
                                    specials[i].user_defined, specials[i].traits);
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
    std::vector<bool> is_user;  // [byte of unbroken]
    for (size_t part = 1 + random.Below(5); part > 0; --part) {
      const std::string raw = random.Join(alphabet, 4);
      const bool user = random.Below(2) == 0;
      const std::string text = user ? tokens.BreakLookAlikes(raw, "\uFDD0") : raw;
      joined += text;
      unbroken += raw;
      is_user.insert(is_user.end(), raw.size(), user);
    }
    for (const Special& special : specials) {
      if (special.user_defined) continue;
      num_would_have += unbroken.find(special.text) != std::string::npos ? 1 : 0;
    }
    std::vector<size_t> guards;
    ASSERT_EQ(TakeOut(joined, "\uFDD0", &guards), unbroken);
    std::optional<SpecialMatch> match;
    for (size_t done = 0; (match = tokens.FindNext(unbroken, done, SpecialScope::kAll, guards));) {
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
    std::vector<size_t> guards;
    const std::string text = TakeOut(broken + "é" + broken + "<|a|>" + broken, guard, &guards);
    SpecialCuts cuts(tokens, text, SpecialScope::kAll, guards);
    ASSERT_TRUE(cuts.Next()) << user;
    EXPECT_EQ(cuts.piece(), user);
    EXPECT_EQ(cuts.id(), 1) << user;
    ASSERT_TRUE(cuts.Next()) << user;
    EXPECT_EQ(cuts.piece(), user);
    EXPECT_EQ(cuts.id(), 0) << user;
    EXPECT_FALSE(cuts.Next()) << user;
    EXPECT_EQ(cuts.piece(), user);
  }
}

// The pieces and ids of a text, as "piece|0|piece": the crate tokenizers gives the same splits.
std::string Cut(const SpecialTokens& tokens, const std::string& text) {
  std::string out;
  SpecialCuts cuts(tokens, text, SpecialScope::kAll);
  for (bool found = true; found;) {
    found = cuts.Next();
    out += cuts.piece();
    if (found) out += "|" + std::to_string(cuts.id()) + "|";
  }
  return out;
}

TEST(SpecialTokensTest, TokensTakeTheBlanksBesideThem) {
  const SpecialTokens tokens = Build({{"<l>", false, kTakesBlanksBefore},
                                      {"<r>", false, kTakesBlanksAfter},
                                      {"<b>", true, kTakesBlanksBefore | kTakesBlanksAfter},
                                      {"\t", true},
                                      {"\n", true, kTakesBlanksAfter}});
  EXPECT_EQ(Cut(tokens, "a  <l>  b"), "a|0|  b");
  EXPECT_EQ(Cut(tokens, "a  <r>  b"), "a  |1|b");
  EXPECT_EQ(Cut(tokens, "a \u00a0\u3000<b>\u2028\v b"), "a|2|b");
  EXPECT_EQ(Cut(tokens, " <b> "), "|2|");
  EXPECT_EQ(Cut(tokens, "\u2581<b>\u2581\u200b"), "\u2581|2|\u2581\u200b") << "no white space";
  EXPECT_EQ(Cut(tokens, "<r>  <l>"), "|1||0|");
  // A token of blanks is found in the blanks that another took. The text goes on after it.
  EXPECT_EQ(Cut(tokens, "<r> \t  x"), "|1||3|  x");
  EXPECT_EQ(Cut(tokens, "<r> \n  x"), "|1||4|x");
  EXPECT_EQ(Cut(tokens, "<r> \n \t x"), "|1||4||3| x");
  EXPECT_EQ(Cut(Build({{"\n", true, kTakesBlanksBefore | kTakesBlanksAfter}}), "a \n\n\n b\n"),
            "a|0|b|0|");
}

TEST(SpecialTokensTest, WholeWordsHaveNoLetterBesideThem) {
  const SpecialTokens tokens = Build({{"cat", true, kIsWholeWord}, {"at", true}});
  EXPECT_EQ(Cut(tokens, "cat"), "|0|");
  EXPECT_EQ(Cut(tokens, "a cat."), "a |0|.");
  for (const std::string word : {"cats", "cat_", "cat7", "cat\u0301", "cat\u4e2d"}) {
    EXPECT_EQ(Cut(tokens, word + " at"), word + " |1|");
  }
  EXPECT_EQ(Cut(tokens, "xcat"), "xcat") << "one that is refused hides those in it";
  EXPECT_EQ(Cut(tokens, "\u00e9cat"), "\u00e9cat");
}

// Each token of blanks takes those after it, too: looking for their end each time would take hours.
TEST(SpecialTokensTest, LongRunsOfBlanksAreWalkedOnce) {
  const SpecialTokens tokens =
      Build({{"\t", true}, {"\n", true, kTakesBlanksAfter}, {"\v", true, kTakesBlanksBefore}});
  std::string text;
  for (size_t i = 0; i < (size_t{1} << 20); ++i) text += "\t\n \v";
  SpecialCuts cuts(tokens, text, SpecialScope::kUserDefined);
  size_t num_found = 0;
  while (cuts.Next()) ++num_found;
  EXPECT_EQ(num_found, size_t{2} << 20);
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
