// Models with short convolutions on an accelerator, here the runner: their inputs lie in the
// blocks, so blocks alone are what a sequence goes on from, whoever computed them and in which
// steps.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/device_shape.h"
#include "tests/model/on_device.h"
#include "tests/model/told_slices.h"
#include "tests/test_seed.h"

namespace baton::model {

using kv::KvDtype;
using kv::KvLayout;

namespace {

using ::testing::HasSubstr;

class DeviceConvTest : public ::testing::TestWithParam<const char*> {};

// The other device resumes from there too.
TEST_P(DeviceConvTest, BlocksAloneAreWhatASequenceGoesOnFrom) {
  ExpectToGoOnFromBlocksAlone([] { return OnDevice(Tiny(GetParam()), 16); });
}

TEST_P(DeviceConvTest, EachSliceIsAnnouncedOnceWhenItIsFinal) {
  OnDevice on(Tiny(GetParam()), 16);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  EXPECT_EQ(on.fixture.model().layout().num_layers, on.fixture.model().config().num_slices());
  ToldSlices slices(on.fixture, 20);
  ASSERT_TRUE(on.fixture.Run({{0, 0, RandomTokens(20, 3)}}, false, &slices).ok());
  slices.ExpectAllFinal();
}

// A NaN in one sequence's state is that sequence's alone.
TEST_P(DeviceConvTest, AStateThatIsNoNumberHarmsNobodyElse) {
  const std::vector<TokenId> tokens = RandomTokens(40, TestSeed());
  const std::span<const TokenId> all(tokens);
  OnDevice on(Tiny(GetParam()), 16);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  for (const uint32_t sequence : {0u, 1u}) {
    ASSERT_TRUE(on.fixture.Run({{sequence, 0, all.first(20)}}).ok());
  }
  const auto expected = on.fixture.Run({{1, 20, all.subspan(20, 5)}});
  ASSERT_TRUE(expected.ok()) << expected.status();
  const KvLayout& layout = on.fixture.model().layout();
  std::byte* const block =
      on.fixture.view().base + on.fixture.Blocks(0, 20)[1] * layout.BlockStride();
  std::memset(block, 0xFF, layout.BlockBytes());  // each bf16 a NaN
  const auto both = on.fixture.Run({{0, 20, all.subspan(20, 1)}, {1, 20, all.subspan(20, 5)}});
  ASSERT_TRUE(both.ok()) << both.status();
  const size_t vocab = on.fixture.vocab();
  EXPECT_TRUE(std::isnan((*both)[0]));
  EXPECT_TRUE(std::equal(expected->begin(), expected->end(),
                         both->begin() + static_cast<std::ptrdiff_t>(vocab)));
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceConvTest,
                         ::testing::Values("head64_lfm2", "head64_lfm2_q4_0", "head64_lfm2moe"),
                         [](const auto& info) { return std::string(info.param); });

// Long steps unpack the matrices of convolutions too.
TEST(DeviceConvWeightsTest, PackedAndInBf16TheyGiveTheSameBits) {
  ExpectEqualPackedAndInBf16("head64_lfm2_q4_0");
}

TEST(DeviceConvLoadTest, WhatADeviceDoesNotServeIsNamed) {
  const auto refusal = [](const std::string& name, KvDtype dtype, uint32_t num_ranks) {
    OnDevice on(Tiny(name), 64, 96, dtype, num_ranks);
    EXPECT_EQ(on.fixture.status().code(), absl::StatusCode::kUnimplemented);
    return std::string(on.fixture.status().message());
  };
  EXPECT_THAT(refusal("head64_lfm2", KvDtype::kFp8, 1),
              HasSubstr("--kv-dtype fp8: architecture lfm2 keeps more than K and V of one shape"));
  EXPECT_THAT(refusal("head64_lfm2", KvDtype::kBf16, 2),
              HasSubstr("--tensor-parallel 2: architecture lfm2: its convolutions are not divided "
                        "among 2 ranks"));
  EXPECT_THAT(refusal("lfm2", KvDtype::kBf16, 1), HasSubstr("head size 8"));
}

TEST(DeviceConvLoadTest, ARuleOfExpertsThatNoKernelHasIsNamed) {
  const auto file = GgufFile::Open(Tiny("head64_lfm2moe"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(CheckDeviceShape(*config, "simt").ok());
  ModelConfig softmax = *config;
  softmax.expert_rule.score = ExpertScore::kSoftmax;
  ModelConfig grouped = *config;
  grouped.expert_rule.num_groups = 2;
  for (const ModelConfig& other : {softmax, grouped}) {
    EXPECT_THAT(
        std::string(CheckDeviceShape(other, "simt").message()),
        HasSubstr("architecture lfm2moe: device simt has no kernel for its choice of experts"));
  }
  ModelConfig dense = *config;
  dense.dense_ffn_size = 100;
  EXPECT_THAT(std::string(CheckDeviceShape(dense, "simt").message()), HasSubstr("ffn size 100"));
}

}  // namespace
}  // namespace baton::model
