// How tokens are guessed, how many, and when that pays.
#include "src/engine/speculator.h"

#include <algorithm>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::engine {

using scheduler::kMaxProposals;

namespace {

// Reads the file comment of NgramIndex literally.
std::vector<TokenId> SlowGuess(const std::vector<TokenId>& text, uint32_t max_tokens) {
  const size_t size = text.size();
  size_t best = 0;
  uint32_t best_match = 0;
  uint32_t visited = 0;
  for (size_t end = size; end-- > 2 && visited < NgramIndex::kMaxVisited;) {
    uint32_t match = 0;
    while (match < NgramIndex::kMaxMatch && match < end &&
           text[end - 1 - match] == text[size - 1 - match])
      ++match;
    if (match < 2) continue;
    ++visited;
    if (match <= best_match) continue;
    best = end;
    best_match = match;
  }
  if (best_match == 0) return {};
  std::vector<TokenId> whole = text;
  for (uint32_t i = 0; i < max_tokens; ++i) whole.push_back(whole[best + i]);
  return {whole.begin() + static_cast<std::ptrdiff_t>(size), whole.end()};
}

std::vector<TokenId> Guess(NgramIndex* index, const std::vector<TokenId>& text,
                           uint32_t max_tokens) {
  std::vector<TokenId> out;
  index->Guess(text, max_tokens, &out);
  return out;
}

TEST(NgramIndexTest, GuessesAreThoseOfASearchThroughTheWholeText) {
  for (const uint64_t seed : TestSeeds(60)) {
    SCOPED_TRACE(seed);
    TestRandom random(seed);
    // Few tokens: many places, and more than kMaxVisited of them.
    const uint32_t num_kinds = random.Between(1, 12);
    NgramIndex index(400);
    std::vector<TokenId> text;
    while (text.size() < 300) {
      if (text.size() > 20 && random.OneIn(4)) {  // repeats a part of itself
        const uint32_t from = random.Below(static_cast<uint32_t>(text.size()) - 10);
        for (uint32_t i = 0; i < 10; ++i) text.push_back(text[from + i]);
      } else {
        text.push_back(static_cast<TokenId>(random.Below(num_kinds)));
      }
      if (random.OneIn(3)) continue;  // several tokens of one step
      const uint32_t max_tokens = random.Between(1, kMaxProposals);
      ASSERT_EQ(Guess(&index, text, max_tokens), SlowGuess(text, max_tokens))
          << text.size() << " tokens";
    }
  }
}

// A prompt comes whole, an answer token by token: what is left out of the one would be forgotten
// of the other.
TEST(NgramIndexTest, GuessesDoNotDependOnHowManyTokensCameAtOnce) {
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(seed);
    TestRandom random(seed);
    const uint32_t window = random.Between(4, 40);
    const uint32_t num_kinds = random.Between(1, 6);
    NgramIndex by_one(window);
    NgramIndex by_many(window);
    std::vector<TokenId> text;
    while (text.size() < 400) {
      const uint32_t num_more = random.OneIn(3) ? random.Between(1, 200) : random.Between(1, 4);
      std::vector<TokenId> guess;
      for (uint32_t i = 0; i < num_more; ++i) {
        text.push_back(static_cast<TokenId>(random.Below(num_kinds)));
        guess = Guess(&by_one, text, kMaxProposals);
      }
      ASSERT_EQ(Guess(&by_many, text, kMaxProposals), guess) << text.size() << " tokens";
    }
  }
}

TEST(NgramIndexTest, TheLongestMatchWinsThenTheLatest) {
  NgramIndex index(64);
  //                    |1 2 3 -> 7        |9 2 3 -> 8       |5 2 3 -> 6  |1 2 3
  const std::vector<TokenId> text = {1, 2, 3, 7, 9, 2, 3, 8, 5, 2, 3, 6, 1, 2, 3};
  EXPECT_EQ(Guess(&index, text, 2), (std::vector<TokenId>{7, 9}));
  NgramIndex other(64);
  const std::vector<TokenId> equal = {9, 2, 3, 8, 5, 2, 3, 6, 1, 2, 3};
  EXPECT_EQ(Guess(&other, equal, 1), (std::vector<TokenId>{6}));
}

TEST(NgramIndexTest, ATextThatRepeatsItsLastTokensGoesOnSo) {
  NgramIndex index(64);
  EXPECT_EQ(Guess(&index, {4, 7, 7, 7}, 5), (std::vector<TokenId>{7, 7, 7, 7, 7}));
  NgramIndex period(64);
  EXPECT_EQ(Guess(&period, {1, 2, 3, 1, 2, 3}, 5), (std::vector<TokenId>{1, 2, 3, 1, 2}));
}

TEST(NgramIndexTest, ShortTextsHaveNoGuess) {
  for (const std::vector<TokenId>& text :
       {std::vector<TokenId>{}, {1}, {1, 1}, {1, 2, 3}, {1, 2, 1}}) {
    NgramIndex index(4);
    EXPECT_TRUE(Guess(&index, text, 4).empty());
  }
}

// A text of several windows finds what stood in it within half a window.
TEST(NgramIndexTest, ALongTextIsSearchedInItsLastPart) {
  constexpr uint32_t kWindow = 64;
  NgramIndex index(kWindow);
  std::vector<TokenId> text;
  for (TokenId i = 0; i < 1000; ++i) {
    text.push_back(i);
    EXPECT_TRUE(Guess(&index, text, 4).empty());
    if (i < 40) continue;
    std::vector<TokenId> again = text;
    NgramIndex fresh(2000);
    again.push_back(i - 30);
    again.push_back(i - 29);
    EXPECT_EQ(Guess(&fresh, again, 2), (std::vector<TokenId>{i - 28, i - 27}));
  }
  text.push_back(1000 - 30);
  text.push_back(1000 - 29);
  EXPECT_EQ(Guess(&index, text, 2), (std::vector<TokenId>{1000 - 28, 1000 - 27}));
  text.push_back(10);
  text.push_back(11);
  EXPECT_TRUE(Guess(&index, text, 2).empty()) << "forgotten";
  EXPECT_LE(NgramIndex::BytesFor(kWindow), size_t{20} * kWindow);
  EXPECT_LE(NgramIndex::BytesFor(1u << 20), size_t{20} * NgramIndex::kMaxWindow);
}

TEST(GuessLengthTest, DoublesWhenAllWereRightAndHalvesWhenNot) {
  GuessLength length;
  EXPECT_EQ(length.Next(), 4u);
  length.Note(4, 4);
  EXPECT_EQ(length.Next(), 8u);
  length.Note(8, 8);
  length.Note(16, 16);
  EXPECT_EQ(length.Next(), kMaxProposals);
  length.Note(16, 3);
  EXPECT_EQ(length.Next(), 8u);
  length.Note(8, 6);
  EXPECT_EQ(length.Next(), 6u) << "as many as were right";
  length.Note(2, 2);
  EXPECT_EQ(length.Next(), 6u) << "the text offered no more";
}

TEST(GuessLengthTest, LossesInARowPauseLongerAndLonger) {
  GuessLength length;
  length.Note(4, 0);
  EXPECT_EQ(length.Next(), 2u);
  length.Note(2, 0);
  EXPECT_EQ(length.Next(), 1u);
  uint32_t expected = GuessLength::kFirstPause;
  for (uint32_t i = 0; i < 20; ++i) {
    length.Note(1, 0);
    for (uint32_t step = 0; step < expected; ++step) ASSERT_EQ(length.Next(), 0u);
    ASSERT_EQ(length.Next(), 1u);
    expected = std::min(2 * expected, GuessLength::kMaxPause);
  }
  EXPECT_LT(length.acceptance(), 0.1f);
  length.Note(1, 1);
  EXPECT_EQ(length.Next(), 2u);
}

// A machine whose steps take 10 ms and `row_us` for each row beyond the first.
double RateOf(double row_us, double acceptance, uint64_t seed, bool speculates) {
  TestRandom random(seed);
  RowGain gain;
  double time_us = 0;
  double tokens = 0;
  uint32_t num_declined = 0;
  for (uint32_t step = 0; step < 6'000; ++step) {
    uint32_t guesses = 0;
    for (uint32_t num = 4; speculates && num > 0 && guesses == 0; num /= 2) {
      const bool may_try = gain.StepUs(1 + num) == 0 || (num_declined >= 64 && num == 1);
      if (gain.Pays(1, num, 1, acceptance, may_try)) guesses = num;
    }
    num_declined = guesses == 0 ? num_declined + 1 : 0;
    uint32_t right = 0;
    while (right < guesses && random.Below(1000) < acceptance * 1000) ++right;
    const double noise = 0.9 + 0.2 * random.Below(1000) / 1000;
    const double took_us = (10'000 + row_us * guesses) * noise;
    gain.Measure(1, guesses, right, static_cast<int64_t>(took_us));
    time_us += took_us;
    tokens += 1 + right;
  }
  return tokens / time_us;
}

TEST(RowGainTest, GuessesWinWhereRowsAreCheapAndCostNoMoreThanOnePercentWhereNot) {
  for (const uint64_t seed : TestSeeds(5)) {
    SCOPED_TRACE(seed);
    const auto gain = [&](double row_us, double acceptance) {
      return RateOf(row_us, acceptance, seed, true) / RateOf(row_us, acceptance, seed, false);
    };
    EXPECT_GT(gain(500, 0.8), 2.0);
    EXPECT_GT(gain(2'000, 0.9), 1.5);
    for (const double row_us : {500.0, 2'000.0, 5'000.0, 10'000.0}) {
      for (const double acceptance : {0.0, 0.02, 0.1, 0.3}) {
        EXPECT_GT(gain(row_us, acceptance), 0.99) << row_us << " us, " << acceptance;
      }
    }
  }
}

TEST(RowGainTest, NothingIsTriedBeforeAnythingIsKnown) {
  RowGain gain;
  EXPECT_FALSE(gain.Pays(1, 1, 1, 1.0, true));
  gain.Measure(1, 0, 0, 1000);
  EXPECT_FALSE(gain.Pays(1, 1, 1, 1.0, true)) << "the balance does not pay for a step yet";
  for (uint32_t i = 0; i < 300; ++i) gain.Measure(1, 0, 0, 1000);
  EXPECT_TRUE(gain.Pays(1, 1, 1, 1.0, true));
  EXPECT_FALSE(gain.Pays(1, 1, 1, 1.0, false)) << "its time is not known";
  gain.Measure(1, 1, 0, 2000);
  EXPECT_FALSE(gain.Pays(1, 1, 1, 0.5, false));
}

}  // namespace
}  // namespace baton::engine
