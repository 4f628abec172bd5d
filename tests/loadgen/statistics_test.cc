#include "src/loadgen/statistics.h"

#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/loadgen/comparison.h"
#include "src/loadgen/rate_search.h"
#include "src/loadgen/slo.h"
#include "tests/test_seed.h"

namespace baton::loadgen {
namespace {

using testing::HasSubstr;

TEST(StatisticsTest, QuantilesAreNearestRank) {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1.0);
  EXPECT_EQ(Quantile(values, 0.50), 50.0);
  EXPECT_EQ(Quantile(values, 0.90), 90.0);
  EXPECT_EQ(Quantile(values, 0.99), 99.0);
  EXPECT_EQ(Quantile(values, 0.991), 100.0);
  EXPECT_EQ(Quantile(values, 0.0), 1.0);
  EXPECT_EQ(Quantile(values, 1.0), 100.0);
  EXPECT_EQ(Quantile(std::vector<double>{7.0}, 0.99), 7.0);
  EXPECT_TRUE(std::isnan(Quantile({}, 0.5)));
}

TEST(StatisticsTest, ASummaryCountsAndTrustsItsP99FromAThousand) {
  const Summary few = Summarize({3.0, 1.0, 2.0});
  EXPECT_EQ(few.count, 3u);
  EXPECT_EQ(few.mean, 2.0);
  EXPECT_EQ(few.p50, 2.0);
  EXPECT_EQ(few.max, 3.0);
  EXPECT_FALSE(few.p99_holds());
  EXPECT_TRUE(Summarize(std::vector<double>(1000, 1.0)).p99_holds());
  EXPECT_TRUE(std::isnan(Summarize({}).mean));
}

TEST(ReservoirTest, KeepsAFairSampleAndTheLargest) {
  Reservoir few(1000);
  for (int i = 0; i < 500; ++i) few.Add(i);
  EXPECT_EQ(Summarize(few.Take()).mean, 249.5);
  Reservoir many(1000);
  many.Add(2e6);
  for (int i = 0; i < 200'000; ++i) many.Add(i);
  const Summary kept = Summarize(many.Take());
  EXPECT_EQ(kept.count, 1000u);
  EXPECT_EQ(kept.max, 2e6);
  EXPECT_NEAR(kept.p50, 100'000, 15'000);  // five standard errors
  EXPECT_NEAR(kept.p90, 180'000, 10'000);
}

// Rounds of one server that answers `num_ok` of ten requests in `ttft_us`.
std::vector<RunReport> RoundsOf(uint64_t num_ok, double ttft_us) {
  RunReport report;
  report.attempted = 10;
  report.by_outcome[static_cast<size_t>(RequestOutcome::kOk)] = num_ok;
  report.by_outcome[static_cast<size_t>(RequestOutcome::kHttpError)] = 10 - num_ok;
  if (num_ok < 10) report.first_error = "HTTP 429";
  report.ttft = Summarize({ttft_us, ttft_us});
  return std::vector<RunReport>(4, report);
}

TEST(ComparisonTest, WhoRefusesRequestsDoesNotWin) {
  const auto fair = Compare(RoundsOf(10, 2e5), RoundsOf(10, 1e5), {});
  ASSERT_TRUE(fair.ok()) << fair.status();
  EXPECT_THAT(fair->void_reasons, testing::IsEmpty());
  const auto unfair = Compare(RoundsOf(10, 2e5), RoundsOf(4, 1e5), {});
  ASSERT_TRUE(unfair.ok()) << unfair.status();
  EXPECT_THAT(unfair->void_reasons,
              testing::ElementsAre("24 of 40 requests failed at B: HTTP 429"));
}

TEST(SloTest, SeveralTokensInOnePieceMeetNoLimitOfGaps) {
  RequestRecord record;
  record.outcome = RequestOutcome::kOk;
  record.token_us = {10'000};
  record.end_us = 10'000;
  for (const char* limit : {"itl=1s", "tpot=1s", "second_token=1s"}) {
    record.facts.completion_tokens = 20;
    EXPECT_FALSE(MeetsSlo(*ParseSlo(limit), record)) << limit;
    record.facts.completion_tokens = 1;
    EXPECT_TRUE(MeetsSlo(*ParseSlo(limit), record)) << limit;
  }
  record.facts.completion_tokens = 20;
  EXPECT_TRUE(MeetsSlo(*ParseSlo("ttft=1s,e2e=1s"), record));
}

TEST(PairedRatioTest, AConstantRatioIsKnownExactly) {
  const std::vector<double> a = {1, 2, 3, 4, 5, 6};
  std::vector<double> b;
  for (const double v : a) b.push_back(1.25 * v);
  const RatioInterval interval = *PairedRatio(a, b, {});
  EXPECT_NEAR(interval.ratio, 1.25, 1e-12);
  EXPECT_NEAR(interval.high, 1.25, 1e-9);
  EXPECT_NEAR(interval.low, 1.25, 1e-9);
  EXPECT_EQ(Judge(interval, 0.01), RatioVerdict::kHigher);
}

TEST(PairedRatioTest, WhatHasNoRatioIsRefused) {
  EXPECT_FALSE(PairedRatio(std::vector<double>{1, 1, 1}, std::vector<double>{1, 1, 1}, {}).ok());
  EXPECT_FALSE(PairedRatio(std::vector<double>(5, 1), std::vector<double>(4, 1), {}).ok());
  std::vector<double> bad(5, 1.0);
  bad[3] = 0.0;
  EXPECT_THAT(std::string(PairedRatio(std::vector<double>(5, 1), bad, {}).status().message()),
              HasSubstr("round 3"));
  bad[3] = NAN;
  EXPECT_FALSE(PairedRatio(bad, std::vector<double>(5, 1), {}).ok());
}

// Rounds of a noisy machine: 2 % noise, a drift shared by the pair, and one round in twenty five
// times slower.
std::vector<double> NoisyRounds(RandomDraws& draws, size_t pairs, double factor) {
  std::vector<double> rounds;
  for (size_t i = 0; i < pairs; ++i) {
    const double drift = 1.0 + 0.02 * static_cast<double>(i);
    const double spike = draws.Below(40) == 0 ? 5.0 : 1.0;
    rounds.push_back(factor * drift * spike * std::exp(0.02 / std::sqrt(2.0) * draws.Normal()));
  }
  return rounds;
}

TEST(PairedRatioTest, NoiseIsNoDifferenceAndFivePercentIsOne) {
  // 100 comparisons each. The chance of a false alarm is at most 1 % each by the interval: eight or
  // more of 100 have a probability below 1e-5. Five per cent is 1.5 to 2.5 times the half width.
  for (const uint64_t seed : TestSeeds(2)) {
    RandomDraws draws(seed);
    int alarms = 0, found = 0;
    for (int i = 0; i < 100; ++i) {
      const BootstrapSpec spec = {.confidence = 0.99, .resamples = 500, .seed = draws.NextU64()};
      const auto a = NoisyRounds(draws, 16, 1.0);
      alarms += Judge(*PairedRatio(a, NoisyRounds(draws, 16, 1.0), spec), 0.01) !=
                RatioVerdict::kNoDifference;
      found +=
          Judge(*PairedRatio(a, NoisyRounds(draws, 16, 1.05), spec), 0.01) == RatioVerdict::kHigher;
    }
    std::printf("seed %llu: %d false alarms, %d of 100 found\n",
                static_cast<unsigned long long>(seed), alarms, found);
    EXPECT_LT(alarms, 8) << "seed " << seed;
    EXPECT_GT(found, 75) << "seed " << seed;
  }
}

TEST(JudgeTest, BothTheIntervalAndTheSizeMustSpeak) {
  EXPECT_EQ(Judge({8, 1.05, 0.99, 1.10}, 0.01), RatioVerdict::kNoDifference);
  EXPECT_EQ(Judge({8, 1.005, 1.003, 1.007}, 0.01), RatioVerdict::kNoDifference);
  EXPECT_EQ(Judge({8, 1.05, 1.02, 1.08}, 0.01), RatioVerdict::kHigher);
  EXPECT_EQ(Judge({8, 0.95, 0.92, 0.98}, 0.01), RatioVerdict::kLower);
}

TEST(RateSearchTest, FindsTheEdgeWithinTheResolution) {
  for (const double edge : {0.6, 1.0, 3.7, 42.0, 999.0}) {
    const auto result = FindMaxRate({.lowest = 0.5, .highest = 1000},
                                    [edge](double rate, uint32_t) { return rate <= edge; });
    ASSERT_TRUE(result.ok());
    ASSERT_TRUE(result->best.has_value()) << edge;
    EXPECT_LE(*result->best, edge);
    EXPECT_GE(*result->best * 1.0501, edge);
    EXPECT_LE(result->trials.size(), 20u);
    EXPECT_FALSE(result->at_highest);
  }
}

TEST(RateSearchTest, UnreachableAndUnboundedAreAnswers) {
  const auto none = FindMaxRate({}, [](double, uint32_t) { return false; });
  EXPECT_FALSE(none->best.has_value());
  EXPECT_EQ(none->trials.size(), 1u);
  const auto all = FindMaxRate({.lowest = 1, .highest = 10}, [](double, uint32_t) { return true; });
  EXPECT_EQ(all->best, 10.0);
  EXPECT_TRUE(all->at_highest);
}

TEST(RateSearchTest, ALuckyPassIsNotTheAnswer) {
  // Above 4 only the first trial of a rate passes.
  std::vector<double> seen;
  const auto result = FindMaxRate({.lowest = 1, .highest = 64}, [&seen](double rate, uint32_t) {
    const bool first = std::find(seen.begin(), seen.end(), rate) == seen.end();
    seen.push_back(rate);
    return rate <= 4.0 || (first && rate < 6.0);
  });
  ASSERT_TRUE(result->best.has_value());
  EXPECT_LE(*result->best, 4.0);
}

TEST(RateSearchTest, AnErrorEndsIt) {
  const auto result = FindMaxRate(
      {}, [](double, uint32_t) -> StatusOr<bool> { return Unavailable("the server is gone"); });
  EXPECT_EQ(result.status().message(), "the server is gone");
}

RequestRecord Answered(std::vector<int64_t> token_us) {
  RequestRecord record;
  record.outcome = RequestOutcome::kOk;
  record.intended_us = 1000;
  record.sent_us = 1500;
  record.end_us = token_us.back() + 10;
  record.token_us = std::move(token_us);
  return record;
}

TEST(WordsTest, MeanWhatTheMeasuringPageSays) {
  RequestRecord record = Answered({101'000, 111'000, 141'000});
  EXPECT_EQ(TtftUs(record), 100'000);
  EXPECT_EQ(TtftSentUs(record), 99'500);
  EXPECT_EQ(TtftServerUs(record), std::nullopt);
  EXPECT_EQ(SecondTokenUs(record), 110'000);
  EXPECT_EQ(TpotUs(record), 20'000);
  EXPECT_EQ(ItlUs(record), (std::vector<double>{10'000, 30'000}));
  EXPECT_EQ(E2eUs(record), 140'010);
  // The server sent two tokens in one piece: the average counts tokens.
  record.facts.completion_tokens = 5;
  EXPECT_EQ(TpotUs(record), 10'000);
  record.facts.stages = StageTimes{.queue_ms = 2, .prefill_ms = 80};
  EXPECT_EQ(TtftServerUs(record), 82'000);
}

TEST(SloTest, ARequestMeetsEveryLimitOrNone) {
  const Slo slo = *ParseSlo("ttft=100ms,itl=30ms,goodput=95%");
  EXPECT_EQ(slo.goodput, 0.95);
  EXPECT_EQ(ToString(slo), "ttft <= 100.0 ms, itl <= 30.00 ms, goodput >= 95 %");
  EXPECT_TRUE(MeetsSlo(slo, Answered({101'000, 111'000, 141'000})));
  EXPECT_FALSE(MeetsSlo(slo, Answered({101'001, 111'000, 141'000})));
  EXPECT_FALSE(MeetsSlo(slo, Answered({101'000, 111'000, 141'001})));
  EXPECT_TRUE(MeetsSlo(slo, Answered({101'000})));
  RequestRecord failed = Answered({101'000});
  failed.outcome = RequestOutcome::kBrokeOff;
  EXPECT_FALSE(MeetsSlo(slo, failed));
  RequestRecord wrong = Answered({101'000});
  wrong.golden_wrong = true;
  EXPECT_FALSE(MeetsSlo(slo, wrong));
}

TEST(SloTest, OneSlowGapInAHundredIsAllowed) {
  std::vector<int64_t> tokens = {2000};
  for (int i = 0; i < 100; ++i) tokens.push_back(tokens.back() + (i == 50 ? 90'000 : 1'000));
  EXPECT_TRUE(MeetsSlo(*ParseSlo("itl=30ms"), Answered(tokens)));
  EXPECT_FALSE(MeetsSlo(*ParseSlo("itl=30ms"), Answered({tokens.begin() + 5, tokens.end()})));
}

TEST(SloTest, WrongObjectivesAreNamed) {
  EXPECT_THAT(std::string(ParseSlo("ttf=4ms").status().message()), HasSubstr("did you mean ttft"));
  EXPECT_THAT(std::string(ParseSlo("ttft=4").status().message()), HasSubstr("'4' is not a time"));
  EXPECT_THAT(std::string(ParseSlo("ttft=4ms,goodput=101%").status().message()),
              HasSubstr("'101%' is not a share"));
  EXPECT_THAT(std::string(ParseSlo("goodput=99%").status().message()), HasSubstr("limits no time"));
}

}  // namespace
}  // namespace baton::loadgen
