#include "src/text/detokenizer.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/text/utf8.h"
#include "tests/text/test_spec.h"

namespace baton::text {
namespace {

std::string Stream(const std::vector<TokenId>& ids, bool skip_special) {
  Detokenizer detokenizer(&DemoTokenizer(), skip_special);
  std::string text;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.Push(id);
    EXPECT_EQ(ValidUtf8Prefix(piece), piece.size()) << "half a character from token " << id;
    text += piece;
  }
  return text + detokenizer.Flush();
}

TEST(DetokenizerTest, CharactersOfSeveralTokensComeWhole) {
  const std::string text = "😀 中 é";
  const std::vector<TokenId> ids = DemoTokenizer().Encode(text).value();
  Detokenizer detokenizer(&DemoTokenizer(), true);
  size_t num_held = 0;
  std::string joined;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.Push(id);
    num_held += piece.empty() ? 1 : 0;
    joined += piece;
  }
  EXPECT_GT(num_held, 0u) << "the text must have a character of several tokens";
  EXPECT_EQ(joined, text);
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(DetokenizerTest, AnUnfinishedCharacterIsReplacedAtTheEnd) {
  const std::vector<TokenId> ids = DemoTokenizer().Encode("x😀").value();
  const std::vector<TokenId> cut(ids.begin(), ids.end() - 1);
  EXPECT_EQ(Stream(cut, true), "x\uFFFD");
}

TEST(DetokenizerTest, RandomTokensGiveTheWholeDecode) {
  RandomText random(TestSeed());
  for (int round = 0; round < 2000; ++round) {
    std::vector<TokenId> ids;
    for (size_t n = random.Below(40); n > 0; --n) {
      // Half of them single bytes, which often leave characters unfinished.
      ids.push_back(
          static_cast<TokenId>(random.Below(2) == 0 ? random.Below(300) : random.Below(49152)));
    }
    for (const bool skip_special : {false, true}) {
      EXPECT_EQ(Stream(ids, skip_special), DemoTokenizer().Decode(ids, skip_special).value());
    }
  }
}

TEST(DetokenizerTest, SpecialsShowOnlyWhenAsked) {
  const std::vector<TokenId> ids =
      DemoTokenizer().Encode("a<|im_end|>b", {.parse_special = true}).value();
  EXPECT_EQ(Stream(ids, true), "ab");
  EXPECT_EQ(Stream(ids, false), "a<|im_end|>b");
}

TEST(DetokenizerTest, IdsOutsideTheVocabularyGiveNothing) {
  Detokenizer detokenizer(&DemoTokenizer(), false);
  EXPECT_EQ(detokenizer.Push(-1), "");
  EXPECT_EQ(detokenizer.Push(1 << 30), "");
  EXPECT_EQ(detokenizer.Flush(), "");
}

}  // namespace
}  // namespace baton::text
