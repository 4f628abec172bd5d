#include "src/loadgen/arrivals.h"

#include <cmath>
#include <numeric>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/loadgen/lengths.h"
#include "tests/test_seed.h"

namespace baton::loadgen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Mean and standard deviation.
struct Moments {
  double mean = 0;
  double deviation = 0;
};

Moments MomentsOf(const std::vector<double>& values) {
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, std::sqrt(squares / n)};
}

std::vector<double> GapsS(const std::vector<int64_t>& starts) {
  std::vector<double> gaps;
  for (size_t i = 1; i < starts.size(); ++i) {
    gaps.push_back(static_cast<double>(starts[i] - starts[i - 1]) / 1e6);
  }
  return gaps;
}

TEST(ArrivalsTest, AFixedRateIsEvenToTheMicrosecond) {
  RandomDraws draws(1);
  const auto starts = ArrivalTimes(*ParseArrivals("fixed", "8", "1"), {.max_count = 4}, draws);
  ASSERT_TRUE(starts.ok());
  EXPECT_THAT(*starts, ElementsAre(125000, 250000, 375000, 500000));
}

TEST(ArrivalsTest, AStartThatNeverComesIsLateAndNotEarly) {
  RandomDraws draws(1);
  const auto starts = ArrivalTimes(*ParseArrivals("fixed", "1e-300", "1"), {.max_count = 2}, draws);
  ASSERT_TRUE(starts.ok());
  EXPECT_THAT(*starts, ElementsAre(1'000'000'000'000'000'000, 1'000'000'000'000'000'000));
}

TEST(ArrivalsTest, GapsHaveTheMeanAndTheSpreadOfTheirLaw) {
  // 40,000 gaps: the mean is within 3 % with more than five standard errors of room for the
  // burstiest law (coefficient of variation 2: 1 % each).
  struct Law {
    const char* kind;
    const char* burstiness;
    double variation;
  };
  for (const uint64_t seed : TestSeeds(3)) {
    for (const Law& law : {Law{"poisson", "1", 1.0}, {"gamma", "0.25", 2.0}, {"gamma", "4", 0.5}}) {
      SCOPED_TRACE(testing::Message() << law.kind << " " << law.burstiness << " seed " << seed);
      RandomDraws draws(seed);
      const auto starts =
          ArrivalTimes(*ParseArrivals(law.kind, "20", law.burstiness), {.max_count = 40001}, draws);
      const Moments gaps = MomentsOf(GapsS(*starts));
      EXPECT_NEAR(gaps.mean, 0.05, 0.05 * 0.06);
      EXPECT_NEAR(gaps.deviation / gaps.mean, law.variation, 0.1 * law.variation);
    }
  }
}

TEST(ArrivalsTest, ARampHasTheCountsOfItsRate) {
  // 100/s to 300/s over 100 s: 20,000 starts; the first half has the integral 7,500 of them.
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(seed);
    RandomDraws draws(seed);
    const auto starts =
        ArrivalTimes(*ParseArrivals("ramp", "100:300", "1"), {.duration_us = 100'000'000}, draws);
    ASSERT_TRUE(starts.ok());
    EXPECT_NEAR(static_cast<double>(starts->size()), 20000.0, 6 * std::sqrt(20000.0));
    const auto half =
        std::count_if(starts->begin(), starts->end(), [](int64_t t) { return t < 50'000'000; });
    EXPECT_NEAR(static_cast<double>(half), 7500.0, 6 * std::sqrt(7500.0));
    EXPECT_TRUE(std::is_sorted(starts->begin(), starts->end()));
    EXPECT_LT(starts->back(), 100'000'000);
  }
}

TEST(ArrivalsTest, AFallingRampToAlmostNothingEnds) {
  RandomDraws draws(5);
  const auto starts =
      ArrivalTimes(*ParseArrivals("ramp", "50:0.001", "1"), {.duration_us = 10'000'000}, draws);
  ASSERT_TRUE(starts.ok());
  EXPECT_NEAR(static_cast<double>(starts->size()), 250.0, 100.0);
}

TEST(ArrivalsTest, TheSameSeedIsTheSameLoad) {
  RandomDraws a(9), b(9), c(10);
  const ArrivalSpec spec = *ParseArrivals("poisson", "3", "1");
  const auto first = ArrivalTimes(spec, {.max_count = 50}, a);
  EXPECT_EQ(*first, *ArrivalTimes(spec, {.max_count = 50}, b));
  EXPECT_NE(*first, *ArrivalTimes(spec, {.max_count = 50}, c));
}

TEST(ArrivalsTest, WrongSpecsNameTheFlagAndTheValue) {
  EXPECT_THAT(std::string(ParseArrivals("burst", "1", "1").status().message()),
              HasSubstr("--arrivals: 'burst'"));
  EXPECT_THAT(std::string(ParseArrivals("poisson", "-3", "1").status().message()),
              HasSubstr("--rate: '-3'"));
  EXPECT_THAT(std::string(ParseArrivals("ramp", "3", "1").status().message()),
              HasSubstr("FIRST:LAST"));
  EXPECT_THAT(std::string(ParseArrivals("poisson", "1:3", "1").status().message()),
              HasSubstr("--arrivals ramp"));
  EXPECT_THAT(std::string(ParseArrivals("gamma", "3", "0").status().message()),
              HasSubstr("--burstiness: '0'"));
  RandomDraws draws(1);
  EXPECT_FALSE(ArrivalTimes(ArrivalSpec{}, {}, draws).ok());
}

TEST(LengthsTest, EachLawStaysInItsRangeAndHasItsMiddle) {
  for (const uint64_t seed : TestSeeds(2)) {
    SCOPED_TRACE(seed);
    RandomDraws draws(seed);
    const LengthSpec fixed = *ParseLength("--output", "128");
    const LengthSpec uniform = *ParseLength("--output", "uniform:10:20");
    const LengthSpec skewed = *ParseLength("--output", "lognormal:100:0.8:900");
    std::vector<uint32_t> drawn;
    std::vector<int> seen(21);
    for (int i = 0; i < 20000; ++i) {
      ASSERT_EQ(fixed.Draw(draws), 128u);
      const uint32_t u = uniform.Draw(draws);
      ASSERT_TRUE(u >= 10 && u <= 20) << u;
      ++seen[u];
      drawn.push_back(skewed.Draw(draws));
      ASSERT_TRUE(drawn.back() >= 1 && drawn.back() <= 900) << drawn.back();
    }
    for (int u = 10; u <= 20; ++u) EXPECT_NEAR(seen[static_cast<size_t>(u)], 20000 / 11, 300) << u;
    std::sort(drawn.begin(), drawn.end());
    EXPECT_NEAR(drawn[10000], 100.0, 5.0);
  }
}

TEST(LengthsTest, WrongLengthsNameTheFlagAndTheValue) {
  for (const char* text : {"", "0", "-1", "12x", "uniform:5", "uniform:9:3", "lognormal:10:9",
                           "lognormal:10:0.5:0", "normal:1:2"}) {
    const auto spec = ParseLength("--input", text);
    EXPECT_FALSE(spec.ok()) << text;
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr("--input '")) << text;
  }
}

}  // namespace
}  // namespace baton::loadgen
