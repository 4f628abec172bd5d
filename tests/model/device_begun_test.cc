// Steps that are begun before the one before has ended: the tokens and KV of steps that follow one
// another.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/model/on_device.h"
#include "tests/test_seed.h"

namespace baton::model {

using kernels::RowSampling;
using kv::KvDtype;
using kv::KvDtypeName;

namespace {

struct Case {
  const char* name;
  KvDtype kv_dtype = KvDtype::kBf16;
  bool is_recorded = false;
  uint32_t num_ranks = 1;
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}_{}_ranks{}", info.param.name, KvDtypeName(info.param.kv_dtype),
                     info.param.is_recorded ? "recorded" : "launched", info.param.num_ranks);
}

class BegunStepTest : public ::testing::TestWithParam<Case> {
 protected:
  static OnDevice Load() {
    return OnDevice(Tiny(GetParam().name), 16, 32, GetParam().kv_dtype, GetParam().num_ranks);
  }
};

// How row i of step n is chosen: some by their logits alone, some at random.
std::vector<RowSampling> SamplingOf(uint32_t num_rows, uint32_t step) {
  std::vector<RowSampling> out(num_rows);
  for (uint32_t i = 0; i < num_rows; ++i) {
    out[i] = {.seed = 7 + i,
              .temperature = i % 2 == 0 ? 0.0f : 1.2f,
              .output_index = step,
              .on_device = 1};
  }
  return out;
}

constexpr uint32_t kSteps = 9;
constexpr uint32_t kSequences = 5;

// The sequences that have a row in step `step` >= 1. Some end on the way, so rows are fed by rows
// of other places.
std::vector<uint32_t> RowsOf(uint32_t step) {
  if (step >= 7) return {3};
  if (step >= 4) return {0, 2, 3};
  return {0, 1, 2, 3, 4};
}

uint32_t PromptOf(uint32_t sequence) { return 13 + sequence; }

// Where the token of each row comes from.
std::vector<TokenId> FedTokensOf(uint32_t step) {
  const std::vector<uint32_t> before = RowsOf(step - 1);
  std::vector<TokenId> out;
  for (const uint32_t s : RowsOf(step)) {
    const auto place = std::find(before.begin(), before.end(), s) - before.begin();
    out.push_back(FedToken(static_cast<uint32_t>(place)));
  }
  return out;
}

// Chunks of one row each, with these tokens.
std::vector<Chunk> ChunksOf(uint32_t step, std::span<const TokenId> tokens) {
  std::vector<Chunk> out;
  for (const uint32_t s : RowsOf(step)) {
    out.push_back({s, PromptOf(s) + step - 1, tokens.subspan(out.size(), 1)});
  }
  return out;
}

// The first tokens of all sequences, whose prompts are computed one after another.
std::vector<TokenId> ComputePrompts(OnDevice& on, std::span<const TokenId> text) {
  std::vector<TokenId> out;
  for (uint32_t s = 0; s < kSequences; ++s) {
    const auto got = on.fixture.Choose({{s, 0, text.subspan(s, PromptOf(s))}}, SamplingOf(1, 0));
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok()) break;
    out.push_back(got->tokens[0]);
  }
  return out;
}

// [step - 1] the tokens of each step, one after another.
std::vector<std::vector<TokenId>> ComputeSteps(OnDevice& on, const std::vector<TokenId>& first) {
  std::vector<TokenId> last = first;  // of each sequence
  std::vector<std::vector<TokenId>> out;
  for (uint32_t step = 1; step <= kSteps; ++step) {
    const std::vector<uint32_t> rows = RowsOf(step);
    std::vector<TokenId> ids;
    for (const uint32_t s : rows) ids.push_back(last[s]);
    const auto got = on.fixture.Choose(ChunksOf(step, ids), SamplingOf(rows.size(), step));
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok()) break;
    for (size_t i = 0; i < rows.size(); ++i) last[rows[i]] = got->tokens[i];
    out.push_back(got->tokens);
  }
  return out;
}

TEST_P(BegunStepTest, ChoosesWhatStepsOneAfterAnotherChoose) {
  OnDevice plain = Load();
  OnDevice begun = Load();
  ASSERT_TRUE(begun.fixture.status().ok()) << begun.fixture.status();
  ASSERT_TRUE(begun.fixture.model().overlaps_steps());
  if (GetParam().is_recorded) {
    ASSERT_TRUE(begun.fixture.model().Prepare(begun.fixture.view()).ok());
  }
  const std::vector<TokenId> text = RandomTokens(40, TestSeed());
  const std::vector<TokenId> first = ComputePrompts(plain, text);
  ASSERT_EQ(ComputePrompts(begun, text), first);
  const std::vector<std::vector<TokenId>> expected = ComputeSteps(plain, first);
  ASSERT_EQ(expected.size(), kSteps);
  for (uint32_t step = 1; step <= kSteps + 1; ++step) {
    if (step <= kSteps) {
      const std::vector<TokenId> ids = step == 1 ? first : FedTokensOf(step);
      const absl::Status status =
          begun.fixture.Begin(ChunksOf(step, ids), SamplingOf(ids.size(), step));
      ASSERT_TRUE(status.ok()) << status;
    }
    if (step == 1) continue;
    const auto got = begun.fixture.End(expected[step - 2].size());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, expected[step - 2]) << "step " << step - 1;
  }
  const uint32_t num_rows = PromptOf(3) + kSteps;
  EXPECT_EQ(begun.fixture.KvBytes(3, num_rows), plain.fixture.KvBytes(3, num_rows));
}

INSTANTIATE_TEST_SUITE_P(Shapes, BegunStepTest,
                         ::testing::Values(Case{"head64_llama"},
                                           Case{"head64_llama", KvDtype::kBf16, true},
                                           Case{"head64_llama", KvDtype::kFp8, true},
                                           Case{"head64_gemma3", KvDtype::kBf16, true},
                                           Case{"head64_qwen3moe", KvDtype::kBf16, true},
                                           Case{"head64_lfm2", KvDtype::kBf16, true},
                                           Case{"head64_qwen35", KvDtype::kBf16, true},
                                           Case{"ranks8_llama", KvDtype::kBf16, true, 2}),
                         NameOf);

TEST(DeviceModelBegunTest, WhatIsNoSuchStepIsRefusedAndNothingIsBegun) {
  OnDevice on(Tiny("head64_llama"));
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> tokens = RandomTokens(2, 1);
  const std::span<const TokenId> all(tokens);
  const std::vector<TokenId> fed = {FedToken(0), FedToken(1)};
  const auto refused = [&](const std::vector<Chunk>& chunks,
                           const std::vector<RowSampling>& sampling) {
    return absl::IsInvalidArgument(on.fixture.Begin(chunks, sampling));
  };
  EXPECT_TRUE(refused({{0, 0, all}}, SamplingOf(1, 0))) << "two rows of one sequence";
  EXPECT_TRUE(refused({{0, 0, all.first(1)}}, {RowSampling{}})) << "the host chooses";
  EXPECT_TRUE(refused({{0, 0, {fed.data(), 1}}}, SamplingOf(1, 0))) << "no step is before it";
  EXPECT_FALSE(on.fixture.End(1).ok()) << "nothing was begun";
  ASSERT_TRUE(on.fixture.Begin({{0, 0, all.first(1)}}, SamplingOf(1, 0)).ok());
  EXPECT_TRUE(refused({{0, 1, {&fed[1], 1}}}, SamplingOf(1, 1))) << "the step before has one row";
  EXPECT_TRUE(absl::IsInvalidArgument(on.fixture.End(2).status())) << "and it gives one token";
  EXPECT_TRUE(on.fixture.Begin({{0, 1, {fed.data(), 1}}}, SamplingOf(1, 1)).ok());
  EXPECT_TRUE(on.fixture.End(1).ok());
  EXPECT_TRUE(on.fixture.End(1).ok());
  EXPECT_TRUE(on.fixture.Run({{0, 2, all.first(1)}}).ok());
}

}  // namespace
}  // namespace baton::model
