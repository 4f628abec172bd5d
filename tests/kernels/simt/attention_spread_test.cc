// AttentionDecode by a cta for each split on the runner: the bits that a warp for each split gives,
// for every shape, order and landing.
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/attention_batch.h"
#include "tests/kernels/simt/mutation.h"

namespace baton::kernels::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;

// The first difference between both kernels' outputs, poison of rows that are no chunk's included,
// or "".
std::string Check(AttentionCase c) {
  const absl::StatusOr<std::vector<Bf16>> expected = AttentionBatch(c).Run();
  if (!expected.ok()) return std::string(expected.status().message());
  c.is_spread = true;
  const absl::StatusOr<std::vector<Bf16>> got = AttentionBatch(c).Run();
  if (!got.ok()) return std::string(got.status().message());
  return FirstDifference(*got, *expected);
}

class AttentionSpread : public TestOfElement {};

constexpr uint32_t kDims[] = {64, 128, 256};
constexpr uint32_t kBlockSizes[] = {16, 32, 64};

TEST_P(AttentionSpread, UglyShapesHaveTheBitsOfAWarpASplit) {
  ScopedRunOptions quick(Quick());
  uint32_t turn = 0;
  for (const uint32_t length :
       {1u, 15u, 16u, 17u, 63u, 64u, 65u, 255u, 256u, 257u, 513u, 1023u, 1024u, 1025u}) {
    for (const uint32_t group : {1u, 3u, 4u, 8u, 16u}) {
      for (const uint32_t window : {0u, 1u, 100u}) {
        // Each length meets every pair of a window, a dim and a block size. Cut, whole, as planned.
        const AttentionCase c = {.head_dim = kDims[turn / 3 % 3],
                                 .num_heads = 2 * group,
                                 .num_kv_heads = 2,
                                 .block_size = kBlockSizes[(turn + turn / 3 + turn / 15) % 3],
                                 .window = window,
                                 .chunks = {{0, length - 1, 1}, {1, length / 2, 2}},
                                 .num_ctas = 1 + turn % 5,
                                 .splits_an_item = turn % 4,
                                 .is_whole = turn % 8 == 0,
                                 .poison_rows = 2};
        ++turn;
        EXPECT_EQ(Check(Of(c)), "")
            << length << " group " << group << " window " << window << " dim " << c.head_dim;
      }
    }
  }
}

TEST_P(AttentionSpread, HugeLogitsHaveTheBitsOfAWarpASplit) {
  for (const float scale : {0.0f, 1e-20f, 300.0f, 1e20f}) {
    EXPECT_EQ(Check(Of({.num_heads = 3,
                        .q_scale = scale,
                        .chunks = {{0, 300, 1}, {1, 250, 5}},
                        .splits_an_item = 1})),
              "")
        << scale;
  }
}

TEST_P(AttentionSpread, HasTheBitsOfItsRules) {
  for (const uint32_t dim : kDims) {
    AttentionBatch batch(Of({.head_dim = dim,
                             .num_heads = 4,
                             .num_kv_heads = 2,
                             .chunks = {{0, 597, 1}, {1, 19, 2}},
                             .splits_an_item = 1,
                             .is_spread = true}));
    const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
    ASSERT_TRUE(out.ok()) << out.status();
    const std::vector<Bf16> expected = batch.ReferenceBits();
    EXPECT_TRUE(SameBits(out->data(), expected.data(), out->size() * sizeof(Bf16))) << dim;
  }
}

TEST_P(AttentionSpread, ARowHasTheBitsOfItsPrompt) {
  for (const uint32_t dim : kDims) {
    AttentionCase c = Of({.head_dim = dim, .num_heads = 8, .chunks = {{0, 255, 9}}});
    AttentionBatch prompt(c);
    const absl::StatusOr<std::vector<Bf16>> whole = prompt.Run();
    ASSERT_TRUE(whole.ok()) << whole.status();
    c.is_spread = true;
    c.splits_an_item = 1;
    for (const uint32_t row : {0u, 1u, 8u}) {
      c.chunks = {{0, 255 + row, 1}};
      AttentionBatch decode(c);
      const absl::StatusOr<std::vector<Bf16>> one = decode.Run();
      ASSERT_TRUE(one.ok()) << one.status();
      EXPECT_TRUE(SameBits(one->data(), prompt.Row(*whole, row).data(), 2 * one->size()))
          << dim << " row " << row;
    }
  }
}

// The number of loads and stores in a case's launches.
uint64_t AccessesOf(const AttentionCase& c) {
  const uint64_t before = simt::TotalRunStats().num_accesses;
  EXPECT_TRUE(AttentionBatch(c).Run().ok());
  return simt::TotalRunStats().num_accesses - before;
}

// Where there is room for it; else the kernel that there is room for.
TEST_P(AttentionSpread, IsTakenWhereItFits) {
  const char* const of_element = GetParam() == KvElement::kFp8 ? "Fp8" : "";
  for (const uint32_t dim : kDims) {
    uint32_t needed = 0;
    for (uint32_t i = 0; i < runner::Kernels().num_infos; ++i) {
      const KernelInfo& info = *runner::Kernels().infos[i];
      const bool is_it = info.name == fmt::format("AttentionSpread{}{}Kernel", dim, of_element);
      if (is_it) needed = info.shared_bytes;
    }
    ASSERT_GT(needed, 0u);
    for (const uint32_t limit : {simt::kLeastSharedBytes, simt::kAmpereSharedBytes, 227u * 1024}) {
      RunOptions options = Quick();
      options.max_shared_bytes = limit;
      ScopedRunOptions scope(options);
      AttentionCase c = Of({.head_dim = dim, .num_heads = 2, .chunks = {{0, 70, 1}}});
      const uint64_t of_decode = AccessesOf(c);
      c.is_spread = true;
      EXPECT_EQ(AccessesOf(c) != of_decode, needed <= limit) << dim << " of " << limit;
      EXPECT_EQ(runner::Kernels().has_spread(dim, GetParam()), needed <= limit) << dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionSpread, testing::Values(KvElement::kBf16, KvElement::kFp8));

// Small shapes that between them take every path: no item, several items of a cta, several splits
// of one, parts that meet, windows, two warps that have no dims and four that do.
std::vector<AttentionCase> SmallCases(KvElement element) {
  std::vector<AttentionCase> cases = {
      {.chunks = {}},
      {.num_heads = 9, .window = 100, .chunks = {{0, 100, 1}, {1, 241, 4}}, .num_ctas = 1},
      {.num_heads = 3, .chunks = {{0, 258, 1}}, .splits_an_item = 1, .poison_rows = 1},
      {.head_dim = 128,
       .num_heads = 2,
       .num_kv_heads = 2,
       .block_size = 32,
       .chunks = {{0, 256, 2}},
       .num_ctas = 1,
       .is_whole = true}};
  for (AttentionCase& c : cases) c.element = element;
  return cases;
}

class AttentionSpreadInEveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(AttentionSpreadInEveryOrder, SmallShapesHaveTheBitsOfAWarpASplit) {
  for (const KvElement element : {KvElement::kBf16, KvElement::kFp8}) {
    for (const AttentionCase& c : SmallCases(element)) EXPECT_EQ(Check(c), "");
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionSpreadInEveryOrder, testing::ValuesIn(AllOrders(2)));

TEST_P(AttentionSpread, MutantsAreNoticed) {
  std::vector<AttentionCase> cases = SmallCases(GetParam());
  std::vector<std::vector<Bf16>> expected;
  {
    ScopedRunOptions scope(Quick());
    for (AttentionCase& c : cases) {
      expected.push_back(*AttentionBatch(c).Run());
      c.is_spread = true;
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
  simt_test::ExpectAllNoticed(suite, 20);
}

}  // namespace
}  // namespace baton::kernels::cuda
