// How tokens are guessed, how many, and when that pays.
#include "src/engine/speculator.h"

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/engine/live_request.h"
#include "tests/test_seed.h"

namespace baton::engine {

using scheduler::kMaxProposals;
using scheduler::Sequence;
using scheduler::SequenceSpec;

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

TEST(NgramIndexTest, ItTellsHowManyTokensAgree) {
  std::vector<TokenId> out;
  EXPECT_EQ(NgramIndex(64).Guess(std::vector<TokenId>{1, 2, 3, 4}, 4, &out), 0u);
  EXPECT_EQ(NgramIndex(64).Guess(std::vector<TokenId>{1, 2, 3, 9, 2, 3}, 4, &out), 2u);
  EXPECT_EQ(NgramIndex(64).Guess(std::vector<TokenId>{1, 2, 3, 9, 1, 2, 3}, 4, &out), 3u);
  const std::vector<TokenId> same(60, 5);
  EXPECT_EQ(NgramIndex(64).Guess(same, 4, &out), NgramIndex::kMaxMatch);
}

TEST(GuessOddsTest, GuessesCountThatNoStepVerified) {
  GuessOdds worker;
  // The text goes on with its guess ten times, and then never again.
  ChoiceGuesses guesses(400, worker);
  std::vector<TokenId> text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2};
  for (TokenId next = 3; next <= 12; ++next) {
    guesses.Follow(text, &worker);
    ASSERT_EQ(guesses.tokens().front(), next);
    text.push_back(next);
  }
  guesses.Follow(text, &worker);
  EXPECT_GT(guesses.odds().Of(2), GuessOdds::kFirst);
  EXPECT_GT(guesses.odds().Of(8), 0.75);
  EXPECT_GE(guesses.odds().NumLikely(10, kMaxProposals), 2u);
  for (TokenId other = 100; other < 150; ++other) {
    text.insert(text.end(), {1, 2, other});
    guesses.Follow(text, &worker);
    text.insert(text.end(), {1, 2});
    guesses.Follow(text, &worker);
  }
  EXPECT_LT(guesses.odds().Of(2), 0.05);
  EXPECT_EQ(guesses.odds().NumLikely(2, kMaxProposals), 0u);
  EXPECT_LT(worker.Of(2), 0.5);
  EXPECT_LT(ChoiceGuesses(400, worker).odds().Of(2), 0.5) << "the next choice begins so";
}

TEST(GuessOddsTest, AGuessCountsOnlyAfterRightOnes) {
  GuessOdds odds;
  for (int i = 0; i < 200; ++i) odds.Note(4, true, GuessOdds::kOfChoice);
  for (int i = 0; i < 200; ++i) odds.Note(8, false, GuessOdds::kOfChoice);
  const GuessOdds::Gains gains = odds.GainsOf(3);
  EXPECT_NEAR(gains[0], GuessOdds::kFirst, 1e-6);
  EXPECT_NEAR(gains[4], 5 * GuessOdds::kFirst, 1e-3) << "4 to 7 agree";
  EXPECT_NEAR(gains[15], gains[4], 1e-3) << "8 and more";
}

TEST(RowGainTest, NothingIsTriedBeforeAnythingIsKnown) {
  RowGain gain;
  const std::vector<double> sure = {1};
  const std::vector<double> likely = {0.5};
  EXPECT_EQ(gain.Choose(1, 1, sure), 0u);
  gain.Measure(1, 0, 0, 1000);
  EXPECT_EQ(gain.Choose(1, 1, likely), 0u) << "the balance does not pay for a step yet";
  for (uint32_t i = 0; i < 400; ++i) gain.Measure(1, 0, 0, 1000);
  EXPECT_EQ(gain.Choose(1, 1, likely), 1u);
  gain.Measure(1, 1, 0, 1800);
  EXPECT_EQ(gain.Choose(1, 1, likely), 0u) << "half a token for 0.8 steps";
}

// 1..8 rows take 1 ms, 9 take 2 ms.
TEST(RowGainTest, RowsFillATileAndDoNotBeginTheNext) {
  RowGain gain;
  for (uint32_t i = 0; i < 10; ++i) {
    gain.Measure(6, 0, 0, 1000);
    gain.Measure(8, 0, 0, 1000);
    gain.Measure(9, 0, 0, 2000);
    gain.Measure(22, 0, 0, 2500);
  }
  std::vector<double> gains;
  for (uint32_t i = 0; i < kMaxProposals; ++i) gains.push_back(0.3 * (i + 1));
  EXPECT_EQ(gain.Choose(6, 6, gains), 2u);
  EXPECT_EQ(gain.Choose(8, 8, gains), 0u);
  // Sure guesses pay for the next tile, whole.
  for (uint32_t i = 0; i < kMaxProposals; ++i) gains[i] = i + 1;
  EXPECT_EQ(gain.Choose(6, 6, gains), kMaxProposals);
}

TEST(RowGainTest, AFirstStepThatIsHeldUpIsNoLossOfGuesses) {
  RowGain gain;
  for (uint32_t i = 0; i < 500; ++i) gain.Measure(4, 0, 0, 1000);
  gain.Measure(4, 1, 1, 1'000'000);
  EXPECT_GT(gain.balance_us(), 0);
}

TEST(RowGainTest, OldTimesAreForgotten) {
  RowGain gain;
  for (uint32_t i = 0; i < 8; ++i) gain.Measure(5, 0, 0, 9000);
  for (uint32_t i = 0; i + 1 < RowGain::kKeptSteps; ++i) gain.Measure(4, 0, 0, 1000);
  EXPECT_EQ(gain.StepUs(5), 9000);
  EXPECT_EQ(gain.StepUs(3), 0) << "below all known";
  gain.Measure(4, 0, 0, 1000);
  EXPECT_EQ(gain.StepUs(5), 0);
  EXPECT_EQ(gain.StepUs(4), 1000);
  gain.Measure(6, 0, 0, 2000);
  EXPECT_EQ(gain.StepUs(5), 1500) << "on the line between";
  for (uint32_t i = 0; i + 1 < RowGain::kKeptSteps / 8; ++i) gain.Measure(4, 0, 0, 1000);
  EXPECT_EQ(gain.StepUs(6), 2000);
  gain.Measure(4, 0, 0, 1000);
  EXPECT_EQ(gain.StepUs(6), 0) << "one step tells little";
}

TEST(RowGainTest, FewerRowsNeverTakeLonger) {
  RowGain gain;
  gain.Measure(3, 0, 0, 1000);
  gain.Measure(5, 0, 0, 9000);  // held up
  gain.Measure(8, 0, 0, 2000);
  EXPECT_EQ(gain.StepUs(3), 1000);
  EXPECT_EQ(gain.StepUs(5), 2000);
  EXPECT_EQ(gain.StepUs(8), 2000);
}

// A machine whose decode steps take `fixed_us`, `row_us` for each row and `tile_us` for each four.
struct Machine {
  double fixed_us = 2'000;
  double row_us = 300;
  double tile_us = 0;

  double StepUs(uint32_t num_rows) const {
    return fixed_us + row_us * num_rows + tile_us * ((num_rows + 3) / 4);
  }
};

// Texts of 200 tokens: random tokens of `num_kinds`, or a sentence again and again with one token
// of 50 changed.
struct Texts {
  uint32_t num_kinds = 0;  // 0 = copies

  std::vector<TokenId> Next(TestRandom* random) const {
    std::vector<TokenId> text;
    for (uint32_t i = 0; i < 200; ++i) {
      const bool is_copy = num_kinds == 0 && i >= 40 && !random->OneIn(50);
      const uint32_t kinds = num_kinds == 0 ? 30'000 : num_kinds;
      text.push_back(is_copy ? text[i - 40] : static_cast<TokenId>(random->Below(kinds)));
    }
    return text;
  }
};

// A Speculator with streams that go on as their texts say; each text after its prompt of 40 tokens.
class Streams {
 public:
  Streams(SpeculateMode mode, uint32_t num, uint64_t seed)
      : random_(seed), speculator_(mode, &requests_), streams_(num) {}

  // Runs `num_steps` steps; returns the tokens a second, in parts of those without guesses.
  double Run(const Machine& machine, const Texts& texts, uint32_t num_steps) {
    const auto num_streams = static_cast<uint32_t>(streams_.size());
    for (Stream& stream : streams_) Begin(texts, &stream);
    double us = 0;
    uint64_t num_tokens = 0;
    for (uint32_t step = 0; step < num_steps; ++step) {
      scheduler::BatchPlan plan;
      std::vector<size_t> begins;
      speculator_.BeginStep(num_streams, /*has_prompts=*/false);
      for (const Stream& stream : streams_) {
        begins.push_back(plan.proposals.size());
        speculator_.Propose(*stream.sequence, kMaxProposals, &plan.proposals);
      }
      begins.push_back(plan.proposals.size());
      plan.shape.decode_rows = num_streams + static_cast<uint32_t>(plan.proposals.size());
      num_proposed_ += plan.proposals.size();
      std::vector<scheduler::ItemResult> results;
      for (uint32_t i = 0; i < num_streams; ++i) {
        const std::span<const TokenId> guesses =
            std::span(plan.proposals).subspan(begins[i], begins[i + 1] - begins[i]);
        results.push_back({.num_accepted = GoOn(guesses, texts, &streams_[i])});
        num_tokens += 1 + results.back().num_accepted;
      }
      // One of 100 is held up.
      const double noise = random_.OneIn(100) ? 2 : 0.9 + 0.2 * random_.Below(1000) / 1000;
      const double took_us = machine.StepUs(plan.shape.decode_rows) * noise;
      speculator_.EndStep(plan, results, static_cast<int64_t>(took_us));
      us += took_us;
    }
    const double plain_us = machine.StepUs(num_streams) * (0.99 + 0.01 * 2) / num_streams;
    return static_cast<double>(num_tokens) * plain_us / us;
  }

  uint64_t num_proposed() const { return num_proposed_; }

 private:
  static constexpr uint32_t kPromptTokens = 40;

  struct Stream {
    std::vector<TokenId> text;
    std::unique_ptr<Sequence> sequence;
    LiveRequest* request = nullptr;
  };

  void Begin(const Texts& texts, Stream* stream) {
    if (stream->request != nullptr) {
      requests_.EraseSequence(stream->sequence->id());
      requests_.Erase(stream->request);
    }
    stream->text = texts.Next(&random_);
    const auto max_tokens = static_cast<uint32_t>(stream->text.size());
    SequenceSpec spec;
    spec.id = SequenceId(++num_texts_);
    spec.tokens.assign(stream->text.begin(), stream->text.begin() + kPromptTokens);
    spec.num_prompt_tokens = kPromptTokens;
    spec.limits = {.max_tokens = max_tokens, .max_context = 4 * max_tokens};
    stream->sequence = std::make_unique<Sequence>(spec, 16);
    RequestSpec request;
    request.key = {{num_texts_, num_texts_}, 1};
    request.tokens = spec.tokens;
    request.num_prompt_tokens = kPromptTokens;
    request.sampling.max_tokens = max_tokens;
    stream->request = requests_.Add(std::make_unique<LiveRequest>(std::move(request), 0));
    requests_.AddSequence(spec.id, {.request = stream->request, .choice = 0, .is_prompt = false});
  }

  // The number of right guesses; the stream has one token more than those.
  uint32_t GoOn(std::span<const TokenId> guesses, const Texts& texts, Stream* stream) {
    std::vector<TokenId>& tokens = stream->sequence->spec.tokens;
    uint32_t num_right = 0;
    while (num_right < guesses.size() && tokens.size() + 1 < stream->text.size() &&
           guesses[num_right] == stream->text[tokens.size()]) {
      tokens.push_back(guesses[num_right++]);
    }
    tokens.push_back(stream->text[tokens.size()]);
    if (tokens.size() == stream->text.size()) Begin(texts, stream);
    return num_right;
  }

  TestRandom random_;
  LiveRequests requests_;
  Speculator speculator_;
  std::vector<Stream> streams_;
  uint64_t num_texts_ = 0;
  uint64_t num_proposed_ = 0;
};

constexpr Machine kMachines[] = {
    {.fixed_us = 4'000, .row_us = 20},                     // bound by weights: rows are cheap
    {.fixed_us = 2'000, .row_us = 350},                    // two cores and a small model
    {.fixed_us = 2'000, .row_us = 100, .tile_us = 1'000},  // rows of a tile are cheap
    {.fixed_us = 0, .row_us = 1'000},                      // a row costs a row
};

TEST(SpeculatorTest, AutoCostsTextsThatDoNotRepeatThemselvesNothing) {
  for (const uint64_t seed : TestSeeds(2)) {
    for (const Machine& machine : kMachines) {
      for (const uint32_t num_streams : {1u, 4u, 16u}) {
        for (const uint32_t num_kinds : {4u, 12u, 1'000u}) {
          Streams streams(SpeculateMode::kAuto, num_streams, seed);
          EXPECT_GT(streams.Run(machine, {.num_kinds = num_kinds}, 4'000), 0.99)
              << machine.row_us << " us a row, " << num_streams << " streams, " << num_kinds
              << " kinds, seed " << seed;
        }
      }
    }
  }
}

// Copies are what the worker knows, and what they have won is not there to be lost: a stream of 160
// tokens pays for its first guesses alone.
TEST(SpeculatorTest, AutoCostsTextsAfterCopiesTheirFirstGuesses) {
  for (const uint64_t seed : TestSeeds(2)) {
    for (const Machine& machine : kMachines) {
      for (const uint32_t num_streams : {1u, 4u}) {
        Streams streams(SpeculateMode::kAuto, num_streams, seed);
        double sum = 0;
        for (uint32_t i = 0; i < 10; ++i) {
          streams.Run(machine, Texts(), 300);
          sum += streams.Run(machine, {.num_kinds = 12}, 160);
        }
        EXPECT_GT(sum / 10, 0.975)
            << machine.row_us << " us a row, " << num_streams << " streams, seed " << seed;
      }
    }
  }
}

TEST(SpeculatorTest, AutoWinsOnCopiesWhereRowsAreCheaperThanSteps) {
  for (const uint64_t seed : TestSeeds(2)) {
    EXPECT_GT(Streams(SpeculateMode::kAuto, 1, seed).Run(kMachines[0], Texts(), 1'500), 4);
    EXPECT_GT(Streams(SpeculateMode::kAuto, 1, seed).Run(kMachines[1], Texts(), 1'500), 2);
    EXPECT_GT(Streams(SpeculateMode::kAuto, 4, seed).Run(kMachines[1], Texts(), 1'500), 1.4);
    EXPECT_GT(Streams(SpeculateMode::kAuto, 4, seed).Run(kMachines[2], Texts(), 1'500), 1.4);
    EXPECT_GT(Streams(SpeculateMode::kAuto, 4, seed).Run(kMachines[3], Texts(), 1'500), 0.98);
  }
}

TEST(SpeculatorTest, NgramVerifiesWhatIsLikelyAlone) {
  for (const uint64_t seed : TestSeeds(2)) {
    Streams plain(SpeculateMode::kNgram, 4, seed);
    plain.Run(kMachines[1], {.num_kinds = 12}, 2'000);
    EXPECT_GT(plain.num_proposed(), 0u) << "before anything is known";
    EXPECT_LT(plain.num_proposed(), 4 * 2'000 / 100u);
    Streams copies(SpeculateMode::kNgram, 4, seed);
    EXPECT_GT(copies.Run(kMachines[1], Texts(), 2'000), 1.5);
  }
}

}  // namespace
}  // namespace baton::engine
