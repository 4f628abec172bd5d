// The kernel that chooses tokens, against the processor's sampler on the same logits: the same
// token in every order.
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "src/model/sampler.h"
#include "src/wire/sampling_params.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/test_seed.h"

namespace baton::kernels::cuda {

using namespace model;  // NOLINT(google-build-using-namespace)
using wire::kMinTemperature;
using wire::SamplingParams;

namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::FromDevice;
using simt_test::OnDevice;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The inputs of one row.
struct RowCase {
  SamplingParams params;
  std::vector<float> logits;
  uint32_t choice = 0;
  uint32_t output_index = 0;
};

// The state of a choice that has had so many tokens.
SamplerState StateOf(const RowCase& row) {
  SamplerState state(row.params, {}, row.output_index);
  for (uint32_t i = 0; i < row.output_index; ++i) state.Append(0);
  return state;
}

uint32_t TokenOfSampler(const RowCase& row) {
  Sampler sampler(static_cast<uint32_t>(row.logits.size()), {});
  const SamplerState state = StateOf(row);
  SampledToken out;
  const absl::Status status = sampler.Sample(
      {.params = &row.params, .state = &state, .choice = row.choice, .logits = row.logits}, out);
  return status.ok() ? static_cast<uint32_t>(out.token) : kNoToken;
}

// The first row, all of one vocabulary, whose token is another than the sampler's, or "".
std::string CheckRows(const std::vector<RowCase>& cases) {
  const size_t vocab = cases[0].logits.size();
  std::vector<float> logits;
  std::vector<RowSampling> rows;
  for (const RowCase& row : cases) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    const SamplerState state = StateOf(row);
    rows.push_back(RowSamplingOf({.params = &row.params, .state = &state, .choice = row.choice}));
  }
  SimBuffer logits_buffer = OnDevice(logits, "logits");
  SimBuffer row_buffer = OnDevice(rows, "rows");
  SimBuffer token_buffer(rows.size() * sizeof(uint32_t), "tokens");
  const absl::Status status =
      runner::Kernels().sample({.logits = logits_buffer.as<float>(),
                                .rows = row_buffer.as<RowSampling>(),
                                .tokens = token_buffer.as<uint32_t>(),
                                .num_rows = static_cast<uint32_t>(rows.size()),
                                .vocab_size = static_cast<uint32_t>(vocab)},
                               nullptr);
  if (!status.ok()) return std::string(status.message());
  const std::vector<uint32_t> tokens = FromDevice<uint32_t>(token_buffer);
  for (size_t i = 0; i < cases.size(); ++i) {
    const uint32_t expected = rows[i].on_device != 0 ? TokenOfSampler(cases[i]) : kNoToken;
    if (tokens[i] == expected) continue;
    const SamplingParams& p = cases[i].params;
    return fmt::format("row {} of {} logits, temperature {}, top_k {}, top_p {}, min_p {}: {}, {}",
                       i, vocab, p.temperature, p.top_k, p.top_p, p.min_p, tokens[i], expected);
  }
  return "";
}

// Logits of few values, so that there are ties, or of many.
std::vector<float> Logits(TestRandom& random, uint32_t vocab, float spread) {
  const uint32_t num_values = random.OneIn(2) ? 5 : 1u << 20;
  std::vector<float> out(vocab);
  for (float& l : out) {
    const auto at = static_cast<float>(random.Below(num_values));
    l = spread * (2.0f * at / static_cast<float>(num_values) - 1.0f);
    if (random.OneIn(50)) l = random.OneIn(2) ? -kInfinity : kNan;
    if (random.OneIn(50)) l = -0.0f;
  }
  return out;
}

template <typename T, size_t kSize>
T Pick(TestRandom& random, const T (&values)[kSize]) {
  return values[random.Below(kSize)];
}

RowCase RandomRow(TestRandom& random, uint32_t vocab) {
  RowCase row;
  row.params.temperature = Pick(random, {0.0f, 0.3f, 1.0f, 1.0f, 5.0f});
  row.params.top_k = Pick(random, {0u, 0u, 1u, 2u, 40u, 100000u});
  row.params.top_p = Pick(random, {1.0f, 1.0f, 0.0f, 0.3f, 0.95f, 0.9999f});
  row.params.min_p = Pick(random, {0.0f, 0.0f, 0.05f, 0.5f, 1.0f});
  row.params.seed = random.Next();
  row.choice = random.Below(3);
  row.output_index = random.Below(5);
  row.logits = Logits(random, vocab, Pick(random, {0.0f, 3.0f, 20.0f, 60.0f}));
  return row;
}

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, ChoosesAsTheSamplerDoes) {
  for (const uint64_t seed : TestSeeds(1)) {
    TestRandom random(seed);
    for (const uint32_t vocab : {1u, 65u, 513u}) {
      std::vector<RowCase> rows;
      for (int i = 0; i < 4; ++i) rows.push_back(RandomRow(random, vocab));
      EXPECT_EQ(CheckRows(rows), "") << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(2)));

// Every order is looked at above; here the values are, which no race can change.
TEST(Sample, ManyRowsAndLargeVocabularies) {
  ScopedRunOptions options({.detect_races = false});
  for (const uint64_t seed : TestSeeds(1)) {
    TestRandom random(seed);
    for (const uint32_t vocab : {1u, 2u, 31u, 255u, 512u, 1777u, 49152u}) {
      std::vector<RowCase> rows;
      for (int i = 0; i < 20; ++i) rows.push_back(RandomRow(random, vocab));
      EXPECT_EQ(CheckRows(rows), "") << "seed " << seed;
    }
  }
}

TEST(Sample, WhatLeavesNoTokenAndWhatIsNotChosenHere) {
  RowCase greedy;
  greedy.params.temperature = 0;
  greedy.logits = {1, 7, 7, kNan};
  std::vector<RowCase> rows(5, greedy);
  rows[1].logits = {kNan, -kInfinity, kNan, kNan};
  rows[2].logits = {1, kInfinity, 2, 3};
  rows[3].params.logprobs = true;
  rows[4].params.temperature = 1;
  rows[4].logits = rows[1].logits;
  EXPECT_EQ(CheckRows(rows), "");
}

// A logit far beyond what a model gives, divided by the smallest temperature, is infinite.
TEST(Sample, OverflowOfTheTemperature) {
  std::vector<RowCase> rows(3);
  for (RowCase& row : rows) {
    row.logits = {3e38f, 3e38f, 1e38f, -3e38f};
    row.params.temperature = kMinTemperature;
  }
  rows[1].params.top_p = 0.5f;
  rows[2].params.min_p = 0.5f;
  EXPECT_EQ(CheckRows(rows), "");
}

TEST(Sample, UnitsOfDistanceAreThoseOfTheWeight) {
  const uint32_t end = std::bit_cast<uint32_t>(kDeepest);
  for (const float largest : {0.0f, 17.25f}) {
    for (uint32_t bits = 0; bits <= end; bits += bits < 1024 ? 1 : 499) {
      const float l = largest - std::bit_cast<float>(bits);
      const float distance = largest - l;
      if (distance > kDeepest) continue;
      ASSERT_EQ(UnitsOfDistance(distance), UnitsOfWeight(RelativeWeight(l, largest)))
          << largest << " " << distance;
    }
  }
  EXPECT_EQ(UnitsOfDistance(0), uint64_t{1} << 40);
  EXPECT_EQ(UnitsOfWeight(Exp(-kDeepest)), 0u);
}

// Filters that cut at all depths, for each of these rows of logits.
std::vector<RowCase> Cuts(TestRandom& random, const std::vector<float>& logits,
                          float temperature = 1.0f) {
  const auto vocab = static_cast<uint32_t>(logits.size());
  std::vector<RowCase> rows;
  const auto add = [&](uint32_t top_k, float top_p) {
    RowCase row;
    row.logits = logits;
    row.params.temperature = temperature;
    row.params.top_k = top_k;
    row.params.top_p = top_p;
    row.params.seed = random.Next();
    rows.push_back(row);
  };
  for (const float top_p : {0.0f, 0.05f, 0.95f, 0.99999994f}) add(0, top_p);
  for (const uint32_t top_k : {1u, vocab / 3 + 1}) {
    add(top_k, 1.0f);
    add(top_k, 0.5f);
  }
  add(vocab - 1, 1.0f);
  add(vocab + 1, 0.5f);
  return rows;
}

std::vector<float> RandomLogits(TestRandom& random, uint32_t vocab, float low, float high) {
  std::vector<float> logits(vocab);
  for (float& l : logits) {
    l = low + (high - low) * static_cast<float>(random.Below(1u << 24)) * 0x1p-24f;
  }
  return logits;
}

// Bins of distance that hold more tokens than the list takes: equal ones, which ids alone tell
// apart, and different ones beside others that are far away.
TEST(Sample, MoreTokensInABinThanTheListTakes) {
  ScopedRunOptions options({.detect_races = false});
  for (const uint64_t seed : TestSeeds(1)) {
    TestRandom random(seed);
    const uint32_t vocab = 9000 + random.Below(4);
    EXPECT_EQ(CheckRows(Cuts(random, std::vector<float>(vocab, -2.5f))), "") << "seed " << seed;
    std::vector<float> logits = RandomLogits(random, vocab, 3.0f, 3.001f);
    logits[random.Below(vocab)] = 9.0f;
    logits[random.Below(vocab)] = -30.0f;
    EXPECT_EQ(CheckRows(Cuts(random, logits)), "") << "seed " << seed;
    // Around zero the orders of neighbours are far apart; few values, many ties.
    for (float& l : logits) l = l < 4.0f && l > 0.0f ? (l - 3.0005f) * 0x1p-30f : l;
    EXPECT_EQ(CheckRows(Cuts(random, logits)), "") << "seed " << seed;
    for (float& l : logits) l = static_cast<float>(random.Below(3)) * 1e-3f;
    EXPECT_EQ(CheckRows(Cuts(random, logits)), "") << "seed " << seed;
  }
}

// Only the division makes some of them equal, and then the lower id comes first.
TEST(Sample, TiesThatTheTemperatureMakes) {
  ScopedRunOptions options({.detect_races = false});
  for (const uint64_t seed : TestSeeds(1)) {
    TestRandom random(seed);
    for (const float temperature : {0.7f, 3.0f, 5.0f}) {
      std::vector<float> logits(64);
      for (size_t i = 0; i < logits.size(); ++i) {
        logits[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(12.0f) + random.Below(5));
      }
      std::vector<RowCase> rows = Cuts(random, logits, temperature);
      EXPECT_EQ(CheckRows(rows), "") << "seed " << seed;
    }
  }
}

TEST(Sample, AnyTemperatureAndAnyMagnitude) {
  ScopedRunOptions options({.detect_races = false});
  for (const uint64_t seed : TestSeeds(1)) {
    TestRandom random(seed);
    for (const float temperature : {kMinTemperature, 0.01f, 0.3f, 1.7f, 100.0f, 1e9f, 1e30f}) {
      const float size = Pick(random, {8.0f, 1e-30f, 1e-42f, 1e25f});
      std::vector<float> logits = RandomLogits(random, 257, -size, size);
      EXPECT_EQ(CheckRows(Cuts(random, logits, temperature)), "")
          << "seed " << seed << " size " << size;
      logits = RandomLogits(random, 5000, -90.0f, 0.0f);
      logits[random.Below(5000)] = 40.0f;
      EXPECT_EQ(CheckRows(Cuts(random, logits, temperature)), "") << "seed " << seed;
    }
  }
}

TEST(Sample, VocabulariesAroundWhatAThreadLoads) {
  ScopedRunOptions options({.detect_races = false});
  for (const uint64_t seed : TestSeeds(1)) {
    TestRandom random(seed);
    for (const uint32_t vocab : {1u, 2u, 3u, 4u, 5u, 4095u, 4096u, 4097u, 16388u}) {
      EXPECT_EQ(CheckRows(Cuts(random, RandomLogits(random, vocab, -8.0f, 8.0f))), "")
          << "seed " << seed << " vocabulary " << vocab;
    }
  }
}

TEST(Sample, RefusesAnEmptyVocabulary) {
  EXPECT_THAT(runner::Kernels().sample({.num_rows = 1, .vocab_size = 0}, nullptr).message(),
              HasSubstr("an empty vocabulary"));
  EXPECT_TRUE(runner::Kernels().sample({.num_rows = 0, .vocab_size = 8}, nullptr).ok());
}

TEST(Sample, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    TestRandom random(7);
    RowCase row;
    for (uint32_t i = 0; i < 300; ++i) {
      row.logits.push_back(static_cast<float>(random.Below(1000)) / 250.0f);
    }
    std::vector<RowCase> rows(4, row);
    rows[1].params.top_k = 20;
    rows[1].params.top_p = 0.3f;
    rows[2].params.top_p = 0.2f;
    rows[2].logits.assign(300, 1.0f);  // ties are cut by their ids
    rows[3].params.temperature = 0;
    for (RowCase& each : rows) each.params.seed = random.Next();
    if (!CheckRows(rows).empty()) return false;
    // No vectors; a list that is narrowed more than once; a list that is too short.
    for (RowCase& each : rows) each.logits.resize(299);
    rows[0].params.top_k = 100;
    for (uint32_t i = 0; i < 299; ++i) {
      rows[0].logits[i] = static_cast<float>(random.Below(1000)) * 2e-5f;
    }
    rows[0].logits[0] = 10.0f;
    rows[0].logits[1] = -18.0f;
    if (!CheckRows({rows[0], rows[1]}).empty()) return false;
    rows[2].logits.assign(6000, 1.0f);
    return CheckRows({rows[2]}).empty();
  };
  simt_test::ExpectAllNoticed(suite, 20);
}

}  // namespace
}  // namespace baton::kernels::cuda
