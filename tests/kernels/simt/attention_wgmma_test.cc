// AttentionPrefill by wgmma on the runner: the bits that mma.sync gives, for every shape, order and
// landing.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/wgmma_check.h"
#include "kernels/simt/run_options.h"
#include "kernels/simt/simt_device.h"
#include "tests/kernels/simt/attention_batch.h"
#include "tests/kernels/simt/mutation.h"

namespace baton::kernels::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;

// The first difference between both instructions' outputs, or "".
std::string Check(AttentionCase c) {
  const absl::StatusOr<std::vector<Bf16>> expected = AttentionBatch(c).Run();
  if (!expected.ok()) return std::string(expected.status().message());
  c.by_wgmma = true;
  const uint64_t before = simt::TotalRunStats().num_wgmma;
  const absl::StatusOr<std::vector<Bf16>> got = AttentionBatch(c).Run();
  if (!got.ok()) return std::string(got.status().message());
  if (simt::TotalRunStats().num_wgmma == before) return "no wgmma";
  return FirstDifference(*got, *expected);
}

class AttentionWgmma : public TestOfElement {};

TEST_P(AttentionWgmma, UglyShapesHaveTheBitsOfMma) {
  ScopedRunOptions quick(Quick());
  uint32_t turn = 0;
  for (const uint32_t length : {69u, 127u, 128u, 129u, 256u, 257u, 513u}) {
    for (const uint32_t window : {0u, 1u, 100u}) {
      for (const uint32_t dim : {64u, 128u, 256u}) {
        constexpr uint32_t kHeads[] = {2, 1, 3, 16, 5};
        constexpr uint32_t kBlockSizes[] = {16, 32, 64};
        const uint32_t heads = kHeads[turn % 5];
        const uint32_t count = 64 / heads + 5;  // two items
        // Each length, window and dim meets each block size.
        const AttentionCase c = {.head_dim = dim,
                                 .num_heads = heads,
                                 .block_size = kBlockSizes[(turn + turn / 3 + turn / 9) % 3],
                                 .window = window,
                                 .chunks = {{1, length - count, count}, {0, 7, 2}},
                                 .poison_rows = 1};
        ++turn;
        EXPECT_EQ(Check(Of(c)), "")
            << length << " heads " << heads << " window " << window << " dim " << dim;
      }
    }
  }
}

TEST_P(AttentionWgmma, HugeLogitsHaveTheBitsOfMma) {
  for (const float scale : {0.0f, 1e-20f, 300.0f, 1e20f}) {
    EXPECT_EQ(Check(Of({.num_heads = 3, .q_scale = scale, .chunks = {{0, 250, 25}}})), "") << scale;
  }
}

TEST_P(AttentionWgmma, NanQueriesGiveNan) {
  AttentionBatch batch(Of({.num_heads = 2,
                           .q_scale = std::bit_cast<float>(0x7FC00000u),
                           .chunks = {{0, 270, 40}},
                           .by_wgmma = true}));
  const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
  ASSERT_TRUE(out.ok()) << out.status();
  for (const Bf16 value : *out) ASSERT_TRUE(std::isnan(FloatFromBf16(value.bits)));
}

// Tiles that all pairs see, whose scores are up to several hundred below the largest.
TEST_P(AttentionWgmma, DistantScoresHaveTheBitsOfMma) {
  for (const float scale : {10.0f, 30.0f, 100.0f}) {
    EXPECT_EQ(Check(Of({.num_heads = 3, .q_scale = scale, .chunks = {{0, 600, 25}}})), "") << scale;
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionWgmma, testing::Values(KvElement::kBf16, KvElement::kFp8));

// Small shapes that between them take every path: two tiles in an item, two splits, several items
// of one cta.
std::vector<AttentionCase> SmallCases(KvElement element) {
  std::vector<AttentionCase> cases = {
      {.num_heads = 9, .window = 100, .chunks = {{1, 241, 16}}, .num_ctas = 1},
      {.head_dim = 128,
       .num_heads = 8,
       .num_kv_heads = 2,
       .block_size = 32,
       .chunks = {{0, 240, 20}},
       .num_ctas = 1}};
  for (AttentionCase& c : cases) c.element = element;
  return cases;
}

class AttentionWgmmaInEveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(AttentionWgmmaInEveryOrder, SmallShapesHaveTheBitsOfMma) {
  for (const KvElement element : {KvElement::kBf16, KvElement::kFp8}) {
    for (const AttentionCase& c : SmallCases(element)) EXPECT_EQ(Check(c), "");
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionWgmmaInEveryOrder, testing::ValuesIn(AllOrders(2)));

// The runner's kernels, but wgmma is missing, is refused, or gets one output wrong.
struct Tampering {
  bool has_wgmma = true;
  bool is_wrong = true;
  absl::Status refusal;
};
Tampering tampering;
KernelTable Tampered() {
  KernelTable table = runner::Kernels();
  table.has_wgmma = [] { return tampering.has_wgmma; };
  table.attention_prefill = [](const AttentionParams& params, void* stream) -> absl::Status {
    if (params.by_wgmma && !tampering.refusal.ok()) return tampering.refusal;
    absl::Status status = runner::Kernels().attention_prefill(params, stream);
    if (params.by_wgmma && tampering.is_wrong) params.out[7].bits ^= 1;
    return status;
  };
  return table;
}

TEST(CheckWgmmaAttention, IsTrueOnlyWhenAllBitsAgree) {
  simt::SimtDevice device{RunOptions{}};
  device.MakeCurrent();
  const KernelTable table = Tampered();
  for (const KvElement element : {KvElement::kBf16, KvElement::kFp8}) {
    for (const uint32_t dim : {64u, 128u, 256u}) {
      EXPECT_TRUE(CheckWgmmaAttention(runner::Kernels(), device, dim, element).value()) << dim;
    }
    EXPECT_FALSE(CheckWgmmaAttention(table, device, 64, element).value());
  }
  const auto check = [&] { return CheckWgmmaAttention(table, device, 64, KvElement::kBf16); };
  tampering.is_wrong = false;
  EXPECT_TRUE(check().value());
  tampering.refusal = absl::FailedPreconditionError("the device has no wgmma");
  EXPECT_FALSE(check().value());
  tampering.refusal = absl::InternalError("the device is gone");
  EXPECT_EQ(check().status(), tampering.refusal);
  tampering.has_wgmma = false;
  EXPECT_FALSE(check().value());
}

TEST_P(AttentionWgmma, MutantsAreNoticed) {
  std::vector<AttentionCase> cases = SmallCases(GetParam());
  std::vector<std::vector<Bf16>> expected;
  RunOptions options = simt::CurrentRunOptions();
  options.tensor_math = simt::TensorMath::kFloat;
  {
    ScopedRunOptions scope(options);
    for (AttentionCase& c : cases) {
      expected.push_back(*AttentionBatch(c).Run());
      c.by_wgmma = true;
    }
  }
  const simt_test::Suite suite = [&] {
    RunOptions mutated = simt::CurrentRunOptions();
    mutated.tensor_math = simt::TensorMath::kFloat;
    ScopedRunOptions scope(mutated);
    for (size_t i = 0; i < cases.size(); ++i) {
      const absl::StatusOr<std::vector<Bf16>> out = AttentionBatch(cases[i]).Run();
      if (!out.ok() || !SameBits(out->data(), expected[i].data(), 2 * out->size())) return false;
    }
    return true;
  };
  // On a GPU a warp's wait says nothing of what the other warps still read.
  std::vector<simt_test::Equivalent> equivalents = {
      {"simt::sync_block();  // between items", simt::Mutation::kDropSyncBlock,
       "all reads of q and the slots are wgmma's, which the runner's warpgroup makes as one"}};
  if (GetParam() == KvElement::kBf16) {
    const char* const both = "both wait for all groups, and nothing stands between them";
    equivalents.insert(
        equivalents.end(),
        {{"simt::wgmma_fence();  // sums were multiplied", simt::Mutation::kDropFence,
          "the runner asks for one since the last wait, and that of the next tile's scores is; on "
          "a GPU sums are written between them"},
         {"simt::wgmma_finish(split.sums, weights);", simt::Mutation::kWaitForFewer, both},
         {"simt::wgmma_finish(next);  // done with the sums", simt::Mutation::kWaitForFewer,
          both}});
  }
  simt_test::ExpectAllNoticed(suite, 28, equivalents);
}

}  // namespace
}  // namespace baton::kernels::cuda
