// The sampler: its order of operations, its exactness across cuts and instruction sets, its
// statistics.
#include "src/model/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/math.h"
#include "kernels/sampling.h"
#include "src/base/xxh3.h"
#include "src/model/sampler_loops.h"
#include "src/wire/sampling_params.h"
#include "tests/model/memory_meter.h"
#include "tests/test_seed.h"

namespace baton::model {

using namespace kernels;  // NOLINT(google-build-using-namespace)
using wire::kMinTemperature;
using wire::SamplingParams;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(std::mt19937_64& random, size_t size, float spread = 3.0f) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> out(size);
  for (float& l : out) l = normal(random);
  return out;
}

// One sampling call with everything at hand.
struct Call {
  SamplingParams params;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;
  std::vector<float> logits;
  uint32_t choice = 0;
  std::vector<TokenId> eog;
  std::vector<uint32_t> mask;

  absl::StatusOr<SampledToken> Run() const {
    Sampler sampler(static_cast<uint32_t>(logits.size()), eog);
    SamplerState state(params, prompt, static_cast<uint32_t>(output.size()));
    for (TokenId token : output) state.Append(token);
    SampledToken out;
    const absl::Status status = sampler.Sample(
        {.params = &params, .state = &state, .choice = choice, .logits = logits, .mask = mask},
        out);
    if (!status.ok()) return status;
    return out;
  }
};

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestIdOfATie) {
  EXPECT_EQ((Call{.params = Greedy(), .logits = {1, 3, 2}}.Run()->token), 1);
  EXPECT_EQ((Call{.params = Greedy(), .logits = {1, 3, 3, 3}}.Run()->token), 1);
  EXPECT_EQ((Call{.params = Greedy(), .logits = {kNan, -1, kNan}}.Run()->token), 1);
  std::vector<float> logits(1000, -2.0f);
  logits[777] = -1.0f;
  EXPECT_EQ((Call{.params = Greedy(), .logits = logits}.Run()->token), 777);
}

TEST(SamplerTest, RefusesLogitsThatLeaveNoToken) {
  for (const float bad : {kNan, kMinusInfinity, -kMinusInfinity}) {
    for (const float temperature : {0.0f, 1.0f}) {
      Call call{.logits = std::vector<float>(40, bad)};
      call.params.temperature = temperature;
      EXPECT_EQ(call.Run().status().code(), absl::StatusCode::kDataLoss);
    }
  }
  Call masked{.params = Greedy(), .logits = {1}, .eog = {0}};
  masked.params.min_tokens = 1;
  EXPECT_EQ(masked.Run().status().code(), absl::StatusCode::kDataLoss);
}

TEST(SamplerTest, APenaltyNearZeroChoosesWhatWasSeen) {
  for (const float penalty : {std::numeric_limits<float>::denorm_min(), 1e-38f, 1e-20f, 1e-3f}) {
    for (const float temperature : {0.0f, kMinTemperature, 1.0f, 2.0f}) {
      Call call{.params = {}, .prompt = {1}, .output = {2}, .logits = {9.0f, 5.0f, -1.0f, 30.0f}};
      call.params.temperature = temperature;
      call.params.repetition_penalty = penalty;
      const auto chosen = call.Run();
      ASSERT_TRUE(chosen.ok()) << chosen.status();
      EXPECT_EQ(chosen->token, 1) << penalty << " " << temperature;
    }
  }
}

TEST(SamplerTest, PenaltiesActOnWhatWasSeen) {
  Call call{
      .params = Greedy(), .prompt = {0}, .output = {1, 1, 2}, .logits = {4.0f, 5.0f, -1.0f, 2.4f}};
  EXPECT_EQ(call.Run()->token, 1);
  call.params.repetition_penalty = 2.0f;  // 2, 2.5, -2, 2.4
  EXPECT_EQ(call.Run()->token, 1);
  call.params.repetition_penalty = 2.2f;  // 1.82, 2.27, -2.2, 2.4
  EXPECT_EQ(call.Run()->token, 3);
  call.params = Greedy();
  call.params.frequency_penalty = 0.6f;  // 4, 3.8 (twice output), -1.6, 2.4
  EXPECT_EQ(call.Run()->token, 0);
  call.params = Greedy();
  call.params.presence_penalty = 1.1f;  // 4 (prompt only), 3.9, -2.1, 2.4
  EXPECT_EQ(call.Run()->token, 0);
  call.params.logit_bias = {{3, 1.7f}};  // 4.1 after the penalties
  EXPECT_EQ(call.Run()->token, 3);
}

TEST(SamplerTest, MinTokensMasksTheEndEvenAgainstBias) {
  Call call{.params = Greedy(), .logits = {9, 8, 1}, .eog = {0}};
  call.params.stop_token_ids = {1};
  EXPECT_EQ(call.Run()->token, 0);
  call.params.min_tokens = 2;
  call.params.logit_bias = {{0, 100.0f}};
  EXPECT_EQ(call.Run()->token, 2);
  call.output = {2, 2};  // index 2: the minimum is reached
  EXPECT_EQ(call.Run()->token, 0);
}

TEST(SamplerTest, AMaskLeavesItsTokensWhateverTheirLogits) {
  Call call{.params = Greedy(), .logits = std::vector<float>(70, 5.0f)};
  call.mask = {0, 1u << 9, 0};  // token 41
  call.logits[41] = -50.0f;
  call.params.logit_bias = {{3, 100.0f}};
  EXPECT_EQ(call.Run()->token, 41);
  call.params.temperature = 1.0f;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    call.params.seed = seed;
    EXPECT_EQ(call.Run()->token, 41);
  }
  call.params.top_k = 5;
  call.params.top_p = 0.5f;
  EXPECT_EQ(call.Run()->token, 41);
  call.mask = {0, 1u << 9};  // tokens past its end are not allowed
  EXPECT_EQ(call.Run()->token, 41);
  call.mask = {0, 0, 0};
  EXPECT_FALSE(call.Run().ok());
  call.mask = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
  call.params = Greedy();
  EXPECT_EQ(call.Run()->token, 0);
}

TEST(SamplerTest, TheBestTokenOfAnyMaskIsTheBestOfItsBits) {
  TestRandom random(TestSeed());
  std::mt19937_64 logits(random.Next());
  for (int round = 0; round < 300; ++round) {
    Call call{.params = Greedy(), .logits = RandomLogits(logits, random.Between(1, 200))};
    // Words of nothing, of everything, and mixed ones; some beyond the last token or missing.
    call.mask.resize(random.Between(1, 8));
    for (uint32_t& word : call.mask) {
      const uint32_t kind = random.Below(3);
      word = kind == 0 ? 0 : kind == 1 ? UINT32_MAX : static_cast<uint32_t>(random.Next());
    }
    int best = -1;
    for (size_t id = 0; id < call.logits.size(); ++id) {
      const bool is_open = id / 32 < call.mask.size() && (call.mask[id / 32] >> (id % 32) & 1) != 0;
      if (!is_open) continue;
      if (best < 0 || call.logits[id] > call.logits[static_cast<size_t>(best)]) {
        best = static_cast<int>(id);
      }
    }
    const absl::StatusOr<SampledToken> sampled = call.Run();
    ASSERT_EQ(sampled.ok(), best >= 0) << round;
    if (best < 0) continue;
    ASSERT_EQ(sampled->token, best) << round;
  }
}

TEST(SamplerTest, LogprobsOfAMaskedTokenAreTheModelsOwn) {
  Call call{.params = Greedy(), .logits = {3, 2, 1}, .mask = {1u << 2}};
  call.params.logprobs = true;
  call.params.top_logprobs = 1;
  const SampledToken masked = *call.Run();
  EXPECT_EQ(masked.token, 2);
  EXPECT_EQ(masked.top[0].token, 0) << "the best without the mask";
  EXPECT_LT(masked.logprob, masked.top[0].logprob);
}

TEST(SamplerTest, MinTokensYieldsToAMaskThatLeavesTheEndAlone) {
  Call call{.params = Greedy(), .logits = {1, 2, 3}, .eog = {0}};
  call.params.min_tokens = 5;
  call.mask = {1u << 0};
  EXPECT_EQ(call.Run()->token, 0);
  call.mask = {1u << 0 | 1u << 1};
  EXPECT_EQ(call.Run()->token, 1) << "something else can follow";
}

// Steps 7 to 10 by the book: sort everything, then cut.
TokenId NaivePick(const Call& call) {
  struct Entry {
    float l;
    TokenId token;
  };
  std::vector<Entry> entries;
  float largest = kMinusInfinity;
  for (size_t i = 0; i < call.logits.size(); ++i) {
    const float l = call.logits[i] / call.params.temperature;
    if (!(l > kMinusInfinity)) continue;
    entries.push_back({l, static_cast<TokenId>(i)});
    largest = std::max(largest, l);
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.l > b.l; });
  if (call.params.top_k > 0 && call.params.top_k < entries.size()) {
    entries.resize(call.params.top_k);
  }
  if (call.params.top_p < 1.0f) {
    // In whole units of 2^-40, whose sums are exact in fp64 here.
    const auto units = [&](const Entry& e) {
      return std::floor(std::ldexp(Exp(e.l - largest), 40));
    };
    double total = 0;
    for (const Entry& entry : entries) total += units(entry);
    double sum = 0;
    size_t keep = 0;
    while (keep < entries.size() && (keep == 0 || sum < total * double{call.params.top_p})) {
      sum += units(entries[keep++]);
    }
    entries.resize(keep);
  }
  std::erase_if(entries,
                [&](const Entry& entry) { return Exp(entry.l - largest) < call.params.min_p; });
  const GumbelKey key = {PhiloxKeyFromSeed(call.params.seed),
                         static_cast<uint32_t>(call.output.size()), call.choice};
  Entry best = {kMinusInfinity, -1};
  for (const Entry& entry : entries) {
    const float score = entry.l + GumbelAt(key, static_cast<uint32_t>(entry.token));
    if (score > best.l || (score == best.l && entry.token < best.token))
      best = {score, entry.token};
  }
  return best.token;
}

TEST(SamplerTest, AgreesWithTheNaiveSampler) {
  std::mt19937_64 random(TestSeed());
  const auto pick = [&](std::initializer_list<float> values) {
    return *(values.begin() + random() % values.size());
  };
  for (int i = 0; i < 3000; ++i) {
    Call call;
    call.logits = RandomLogits(random, 1 + random() % 700, pick({0.1f, 3.0f, 30.0f}));
    if (random() % 4 == 0) {  // ties
      for (float& l : call.logits) l = std::round(l);
    }
    if (random() % 4 == 0) call.logits[random() % call.logits.size()] = kMinusInfinity;
    call.params.temperature = pick({0.01f, 0.7f, 1.0f, 2.0f});
    call.params.top_k = static_cast<uint32_t>(pick({0, 0, 1, 2, 40, 1000}));
    call.params.top_p = pick({1.0f, 1.0f, 0.0f, 0.3f, 0.95f, 0.999f});
    call.params.min_p = pick({0.0f, 0.0f, 0.05f, 0.5f, 1.0f});
    call.params.seed = random();
    call.choice = static_cast<uint32_t>(random() % 3);
    call.output.resize(random() % 5);
    const auto got = call.Run();
    if (*std::max_element(call.logits.begin(), call.logits.end()) == kMinusInfinity) continue;
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(got->token, NaivePick(call))
        << "case " << i << " of " << call.logits.size() << " logits, T " << call.params.temperature
        << " top_k " << call.params.top_k << " top_p " << call.params.top_p << " min_p "
        << call.params.min_p;
  }
}

// The prefix ends far below the largest logit, where most tokens are: on both sides of the depth to
// which weights are sorted into bins at once, and among equals.
TEST(SamplerTest, TopPMayEndDeepBelowTheLargest) {
  std::mt19937_64 random(TestSeed());
  std::uniform_real_distribution<float> noise(-0.2f, 0.2f);
  for (const float depth : {3.0f, 11.9f, 12.1f, 13.0f}) {
    for (const float spread : {0.0f, 1.0f}) {
      Call call;
      call.logits.assign(100'000, -depth);
      for (float& l : call.logits) l += spread * noise(random);
      call.logits[3210] = 0;
      call.params.temperature = 1.0f;
      const double deep = 99'999 * std::exp(-double{depth});
      // Half of what lies deep belongs to the prefix.
      call.params.top_p = static_cast<float>((1 + deep / 2) / (1 + deep));
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        call.params.seed = seed;
        const auto got = call.Run();
        ASSERT_TRUE(got.ok()) << got.status();
        ASSERT_EQ(got->token, NaivePick(call)) << depth << " " << spread << " seed " << seed;
      }
    }
  }
}

// Chi-square of `counts` against `probabilities`; degrees of freedom = classes - 1.
double ChiSquare(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  int total = 0;
  for (int count : counts) total += count;
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (probabilities[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " must never be chosen";
      continue;
    }
    const double expected = probabilities[i] * total;
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

// How often each token is chosen over `num_draws` output positions of one choice.
std::vector<int> Histogram(const SamplingParams& params, const std::vector<float>& logits,
                           uint32_t num_draws) {
  Sampler sampler(static_cast<uint32_t>(logits.size()), {});
  SamplerState state(params, {}, num_draws);
  std::vector<int> counts(logits.size());
  SampledToken out;
  for (uint32_t i = 0; i < num_draws; ++i) {
    EXPECT_TRUE(sampler.Sample({.params = &params, .state = &state, .logits = logits}, out).ok());
    ++counts[static_cast<size_t>(out.token)];
    state.Append(out.token);
  }
  return counts;
}

TEST(SamplerTest, FrequenciesFollowTheDistribution) {
  // Fixed seeds: the bound is the 99.99 % quantile for 5 (then 2) degrees of freedom.
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -3.0f, 0.5f, 1.9f};
  SamplingParams params;
  params.seed = 11;
  params.temperature = 0.8f;
  std::vector<double> probabilities;
  double total = 0;
  for (float l : logits) total += std::exp(double{l} / 0.8);
  for (float l : logits) probabilities.push_back(std::exp(double{l} / 0.8) / total);
  EXPECT_LT(ChiSquare(Histogram(params, logits, 60000), probabilities), 25.7);

  params.top_k = 3;  // tokens 2, 5, 1
  total = probabilities[1] + probabilities[2] + probabilities[5];
  for (size_t i : {0u, 3u, 4u}) probabilities[i] = 0;
  for (double& p : probabilities) p /= total;
  EXPECT_LT(ChiSquare(Histogram(params, logits, 60000), probabilities), 18.4);
}

TEST(SamplerTest, SeedChoiceAndIndexAllMatter) {
  std::mt19937_64 random(5);
  const std::vector<float> logits = RandomLogits(random, 500, 0.5f);
  std::set<TokenId> tokens;
  for (uint64_t seed : {1ull, 2ull, 1ull << 32}) {
    for (uint32_t choice = 0; choice < 3; ++choice) {
      for (size_t index = 0; index < 3; ++index) {
        Call call{.output = std::vector<TokenId>(index), .logits = logits, .choice = choice};
        call.params.seed = seed;
        tokens.insert(call.Run()->token);
      }
    }
  }
  EXPECT_GT(tokens.size(), 20u);  // 27 draws, nearly flat over 500 tokens
}

TEST(SamplerTest, GumbelIsExactToSinglePrecision) {
  std::mt19937_64 random(TestSeed());
  double worst = 0;
  const auto check = [&](uint32_t word) {
    const double u = (double{static_cast<double>(word)} + 0.5) * std::exp2(-32.0);
    const double expected = -std::log(-std::log1p(-u));
    if (word > 0xFFFFFF00u) return;  // 1 - u below the precision of fp32: tested below
    worst = std::max(worst, std::fabs(GumbelFromWord(word) - expected));
  };
  for (int i = 0; i < 200000; ++i) {
    check(static_cast<uint32_t>(random()));
    check(static_cast<uint32_t>(random()) >> (random() % 32));
  }
  EXPECT_LT(worst, 0.04);  // at 1 - u = 2^-24; such draws never win
  EXPECT_NEAR(GumbelFromWord(0), 22.87, 0.01);
  EXPECT_NEAR(GumbelFromWord(0xFFFFFFFFu), -2.81, 0.01);
  worst = 0;
  for (int i = 0; i < 200000; ++i) check(static_cast<uint32_t>(random()) >> 1);  // the winning half
  EXPECT_LT(worst, 4e-6);
}

TEST(SamplerTest, GumbelBoundHolds) {
  std::mt19937_64 random(TestSeed());
  const auto check = [](uint32_t word) {
    ASSERT_GE(GumbelBound(word), GumbelFromWord(word)) << word;
  };
  for (uint32_t bit = 0; bit < 32; ++bit) {
    for (uint32_t i = 0; i < 600; ++i) check((1u << bit) - 300 + i);  // around each power of two
  }
  for (int i = 0; i < 200000; ++i) check(static_cast<uint32_t>(random()) >> (random() % 32));
}

TEST(SamplerTest, BestGumbelIsTheBestOfAll) {
  std::mt19937_64 random(TestSeed());
  for (size_t size : {1u, 16u, 63u, 64u, 65u, 1000u, 49152u}) {
    for (uint32_t round = 0; round < 20; ++round) {
      std::vector<float> logits = RandomLogits(random, size, round % 2 == 0 ? 0.0f : 6.0f);
      if (round > 10) logits[random() % size] = kMinusInfinity;
      const GumbelKey key = {PhiloxKeyFromSeed(random()), round, round % 3};
      int32_t best = -1;
      float best_score = kMinusInfinity;
      for (uint32_t i = 0; i < size; ++i) {
        const float score = logits[i] + GumbelAt(key, i);
        if (score > best_score) {
          best_score = score;
          best = static_cast<int32_t>(i);
        }
      }
      ASSERT_EQ(BestSamplerLoops().best_gumbel(logits, key), best) << size;
    }
  }
}

// SumExp as sampler_loops.h promises it.
double SumExpByItsContract(std::span<const float> logits, float largest) {
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += 512) {
    std::array<float, 16> lanes = {};
    for (size_t i = 0; i < 512; ++i) {
      const float l = begin + i < logits.size() ? logits[begin + i] : kMinusInfinity;
      const float e = Exp(l - largest);
      lanes[i % 16] += std::isnan(e) ? 0.0f : e;
    }
    double sum = 0;
    for (const float lane : lanes) sum += double{lane};
    total += sum;
  }
  return total;
}

void ExpectTheSameBits(const SamplerLoops& loops) {
  const SamplerLoops& portable = PortableSamplerLoops();
  std::mt19937_64 random(TestSeed());
  for (size_t size : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 130u, 511u, 512u, 513u, 4099u, 49152u}) {
    std::vector<float> logits = RandomLogits(random, size, 8.0f);
    logits[random() % size] = kNan;
    logits[random() % size] = kMinusInfinity;
    float largest = kMinusInfinity;
    for (const float l : logits) largest = l > largest ? l : largest;
    ASSERT_EQ(loops.largest(logits), largest);
    if (largest == kMinusInfinity) continue;
    ASSERT_EQ(loops.first_equal(logits, largest), portable.first_equal(logits, largest));
    ASSERT_EQ(loops.first_equal(logits, 1e9f), size);
    ASSERT_EQ(loops.sum_exp(logits, largest), SumExpByItsContract(logits, largest)) << size;
    for (const float value : {largest, logits[size / 2], 0.0f, kMinusInfinity, kNan}) {
      const auto num_above = static_cast<uint32_t>(
          std::count_if(logits.begin(), logits.end(), [value](float l) { return l > value; }));
      ASSERT_EQ(loops.num_above(logits, value), num_above) << value;
    }
    std::vector<float> a(size);
    std::vector<float> b(size);
    portable.divide(logits, 0.7f, a.data());
    loops.divide(logits, 0.7f, b.data());
    ASSERT_EQ(std::memcmp(a.data(), b.data(), size * sizeof(float)), 0);
    std::vector<float> weights(size);
    portable.weights(a, portable.largest(a), weights.data());
    loops.weights(a, portable.largest(a), b.data());
    ASSERT_EQ(std::memcmp(weights.data(), b.data(), size * sizeof(float)), 0);
    for (uint32_t index = 0; index < 20; ++index) {
      const GumbelKey key = {PhiloxKeyFromSeed(random()), index, index % 3};
      ASSERT_EQ(loops.best_gumbel(a, key), portable.best_gumbel(a, key));
    }
  }
}

TEST(SamplerTest, AllInstructionSetsGiveTheSameBits) {
  ExpectTheSameBits(PortableSamplerLoops());
  for (const SamplerLoops* loops : {Avx2SamplerLoops(), Avx512SamplerLoops()}) {
    if (loops != nullptr) {
      ExpectTheSameBits(*loops);
    } else {
      std::printf("an instruction set is not tested: this processor does not have it\n");
    }
  }
}

// Two builds whose samplers differ may not continue each other's streams: the pinned value may
// change only together with the name.
TEST(SamplerTest, TheRulesOfThisNameGiveTheseTokens) {
  EXPECT_EQ(kSamplingRules, "gumbel64.3");
  std::vector<uint32_t> bits;
  const auto run = [&](SamplingParams params, uint64_t seed) {
    params.seed = seed;
    params.logprobs = true;
    params.top_logprobs = 2;
    Call call{.params = params, .prompt = {3, 7}, .output = {7, 11, 7}, .logits = {}};
    const PhiloxKey key = {static_cast<uint32_t>(seed), 5};
    for (uint32_t i = 0; i < 500; ++i) {  // integers scaled by powers of two: the same everywhere
      const uint32_t word = Philox4x32({i, 0, 0, 0}, key)[0];
      call.logits.push_back(static_cast<float>(static_cast<int32_t>(word >> 16)) * 0x1p-12f);
    }
    const absl::StatusOr<SampledToken> sampled = call.Run();
    ASSERT_TRUE(sampled.ok()) << sampled.status();
    bits.push_back(static_cast<uint32_t>(sampled->token));
    bits.push_back(std::bit_cast<uint32_t>(sampled->logprob));
  };
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SamplingParams params;
    params.temperature = 1.0f;
    run(params, seed);
    params.top_k = 20;
    run(params, seed);
    params.top_p = 0.7f;
    run(params, seed);
    params.top_k = 0;
    run(params, seed);
    params.min_p = 0.1f;
    run(params, seed);
    params.repetition_penalty = 1.3f;
    params.presence_penalty = 0.5f;
    params.frequency_penalty = 0.25f;
    params.temperature = 0.6f;
    run(params, seed);
    params.temperature = 0;
    run(params, seed);
  }
  EXPECT_EQ(Xxh3Hash64(bits.data(), bits.size() * sizeof(uint32_t)), 6088918255978535751u);
}

TEST(SamplerTest, LogprobsAreThoseOfTheRawLogits) {
  std::mt19937_64 random(TestSeed());
  Call call{.logits = RandomLogits(random, 3000, 4.0f)};
  call.params.logprobs = true;
  call.params.top_logprobs = 20;
  call.params.temperature = 0.2f;
  call.params.logit_bias = {{7, 100.0f}};  // chooses 7, whatever the model thinks of it
  const auto got = call.Run();
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->token, 7);
  double total = 0;
  for (float l : call.logits) total += std::exp(double{l});
  EXPECT_NEAR(got->logprob, call.logits[7] - std::log(total), 1e-5);
  ASSERT_EQ(got->num_top, 20u);
  std::vector<float> sorted = call.logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(got->top[i].logprob, sorted[i] - std::log(total), 1e-5);
    EXPECT_EQ(call.logits[static_cast<size_t>(got->top[i].token)], sorted[i]);
  }
}

TEST(SamplerTest, TopLogprobsBreakTiesByLowestIdAndFitSmallVocabularies) {
  Call call{.params = Greedy(), .logits = {1, 2, 2, 1}};
  call.params.logprobs = true;
  call.params.top_logprobs = 3;
  const auto got = call.Run();
  ASSERT_TRUE(got.ok()) << got.status();
  std::vector<TokenId> ids;
  for (const TokenLogprob& entry : got->top_logprobs()) ids.push_back(entry.token);
  EXPECT_THAT(ids, ::testing::ElementsAre(1, 2, 0));
  call.params.top_logprobs = 20;
  EXPECT_EQ(call.Run()->num_top, 4u);
  call.logits = {0.0f, kMinusInfinity};
  call.params.logit_bias = {{0, -100.0f}};
  EXPECT_EQ(call.Run()->logprob, 0.0f);
}

// A toy model: the logits are a hash of the whole history.
std::vector<float> ToyLogits(const std::vector<TokenId>& history) {
  std::mt19937_64 random(Xxh3Hash64(history.data(), history.size() * sizeof(TokenId)));
  return RandomLogits(random, 300, 2.0f);
}

// Continues `output` up to `length` tokens from a state rebuilt from `output`; records what was
// sampled.
void Continue(const Call& base, size_t length, std::vector<TokenId>& output,
              std::vector<float>& logprobs) {
  Sampler sampler(300, base.eog);
  SamplerState state(base.params, base.prompt, static_cast<uint32_t>(length));
  for (TokenId token : output) state.Append(token);
  SampledToken sampled;
  while (output.size() < length) {
    std::vector<TokenId> history = base.prompt;
    history.insert(history.end(), output.begin(), output.end());
    const std::vector<float> logits = ToyLogits(history);
    ASSERT_TRUE(
        sampler
            .Sample(
                {.params = &base.params, .state = &state, .choice = base.choice, .logits = logits},
                sampled)
            .ok());
    state.Append(sampled.token);
    output.push_back(sampled.token);
    logprobs.push_back(sampled.logprob);
  }
}

TEST(SamplerTest, TheLogprobOfAGivenTokenHasTheBitsOfASampledOne) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 50; ++i) {
    Call call{.params = Greedy(), .logits = RandomLogits(random, 997)};
    call.params.logprobs = true;
    call.params.top_logprobs = 5;
    const SampledToken sampled = *call.Run();
    SampledToken given;
    given.token = sampled.token;
    EXPECT_EQ(Sampler::LogprobOf(call.logits, 5, given), 1u) << "it is the likeliest";
    EXPECT_EQ(given.logprob, sampled.logprob);
    EXPECT_EQ(given.num_top, 5u);
    EXPECT_TRUE(std::ranges::equal(given.top_logprobs(), sampled.top_logprobs()));
    EXPECT_EQ(given.top[0].logprob, given.logprob);
    given.token = sampled.top[4].token;
    EXPECT_EQ(Sampler::LogprobOf(call.logits, 0, given), 5u);
    EXPECT_EQ(given.logprob, sampled.top[4].logprob);
    EXPECT_EQ(given.num_top, 0u);
  }
}

TEST(SamplerTest, OneTopTokenIsTheFirstOfSeveral) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 50; ++i) {
    std::vector<float> logits = RandomLogits(random, 997);
    logits[random() % logits.size()] = kNan;
    logits[random() % logits.size()] = 100.0f;
    logits[random() % logits.size()] = 100.0f;
    SampledToken one;
    SampledToken two;
    ASSERT_EQ(Sampler::LogprobOf(logits, 1, one), Sampler::LogprobOf(logits, 2, two));
    ASSERT_EQ(one.num_top, 1u);
    ASSERT_EQ(two.num_top, 2u);
    EXPECT_EQ(one.top[0], two.top[0]);
  }
  SampledToken none;
  (void)Sampler::LogprobOf(std::vector<float>(20, kMinusInfinity), 1, none);
  EXPECT_EQ(none.num_top, 0u);
}

TEST(SamplerTest, EveryCutContinuesWithTheSameTokensAndLogprobs) {
  constexpr size_t kLength = 24;
  const std::vector<std::function<void(SamplingParams&)>> variants = {
      [](SamplingParams& p) { p.temperature = 0; },
      [](SamplingParams& p) { p.seed = 77; },
      [](SamplingParams& p) { p.top_k = 20, p.top_p = 0.9f, p.min_p = 0.02f, p.seed = 3; },
      [](SamplingParams& p) { p.temperature = 0, p.repetition_penalty = 1.3f; },
      [](SamplingParams& p) { p.presence_penalty = 1, p.frequency_penalty = 0.5f, p.seed = 9; },
      [](SamplingParams& p) {
        p.min_tokens = 12, p.logit_bias = {{5, 3.0f}}, p.seed = 4;
      },
  };
  for (size_t v = 0; v < variants.size(); ++v) {
    for (uint32_t choice = 0; choice < 2; ++choice) {
      Call base{.prompt = {1, 2, 3, 3}, .choice = choice, .eog = {0, 5}};
      base.params.logprobs = true;
      variants[v](base.params);
      std::vector<TokenId> whole;
      std::vector<float> whole_logprobs;
      Continue(base, kLength, whole, whole_logprobs);
      for (size_t cut = 0; cut <= kLength; ++cut) {
        std::vector<TokenId> output(whole.begin(), whole.begin() + cut);
        std::vector<float> logprobs(whole_logprobs.begin(), whole_logprobs.begin() + cut);
        Continue(base, kLength, output, logprobs);
        ASSERT_EQ(output, whole) << "variant " << v << " choice " << choice << " cut " << cut;
        ASSERT_EQ(logprobs, whole_logprobs);
      }
    }
  }
}

TEST(SamplerTest, SampleAndAppendAllocateNothing) {
  std::mt19937_64 random(1);
  const std::vector<float> logits = RandomLogits(random, 49152);
  const std::vector<TokenId> eog = {2};
  std::vector<SamplingParams> all(5);
  all[0].temperature = 0;
  all[1].top_p = 0.95f;
  all[2].top_k = 50;
  all[3].min_p = 0.1f;
  for (SamplingParams& params : all) {
    params.repetition_penalty = 1.1f;
    params.logprobs = true;
    params.top_logprobs = 20;
    params.min_tokens = 1;
    Sampler sampler(49152, eog);
    SamplerState state(params, eog, 40);
    SampledToken out;
    const MemoryMeter meter;
    for (int i = 0; i < 40; ++i) {
      ASSERT_TRUE(sampler.Sample({.params = &params, .state = &state, .logits = logits}, out).ok());
      state.Append(out.token);
    }
    EXPECT_EQ(meter.NumAllocations(), 0u);
  }
}

}  // namespace
}  // namespace baton::model
