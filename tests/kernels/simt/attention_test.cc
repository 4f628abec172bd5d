// Attention on the runner, with K and V in bf16 and in fp8. For ugly shapes it is within the
// tolerance of plain softmax in double. A row has the same bits however its prompt was cut and
// whatever shares its batch. That holds in every block size, plan and order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/attention_tile.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/attention_batch.h"
#include "tests/kernels/simt/mutation.h"

namespace baton::kernels::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using testing::HasSubstr;

constexpr double kAttention = 3e-3;  // relative, in the Euclidean norm, against double
constexpr uint16_t kPoison = 0xFFFF;

// The first difference from what the kernels promise, or ""; the worst relative error of a case.
std::string Check(const AttentionCase& c, double* worst = nullptr) {
  AttentionBatch batch(c);
  const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
  if (!out.ok()) return std::string(out.status().message());
  const std::vector<double> exact = batch.Reference();
  const size_t num_written = out->size() - size_t{c.poison_rows} * c.num_heads * c.head_dim;
  std::vector<float> got(exact.size());
  for (size_t i = 0; i < out->size(); ++i) {
    if (i >= num_written && (*out)[i].bits != kPoison) return fmt::format("wrote element {}", i);
    got[i] = i < num_written ? FloatFromBf16((*out)[i].bits) : 0.0f;
  }
  const double error = RelativeError(got.data(), exact);
  if (worst != nullptr) *worst = std::max(*worst, error);
  return error < kAttention ? "" : fmt::format("relative error {:.3g}", error);
}

std::vector<uint16_t> Bits(const std::vector<Bf16>& values) {
  std::vector<uint16_t> bits;
  bits.reserve(values.size());
  for (const Bf16 value : values) bits.push_back(value.bits);
  return bits;
}

// The bits of one row of a case; empty, and a failure, when it does not run.
std::vector<uint16_t> RowBits(const AttentionCase& c, uint32_t row) {
  AttentionBatch batch(c);
  const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
  EXPECT_TRUE(out.ok()) << out.status();
  return out.ok() ? Bits(batch.Row(*out, row)) : std::vector<uint16_t>{};
}

TEST(Attention, Exp2StaysWithinItsBound) {
  double worst = 0;
  for (uint32_t bits = std::bit_cast<uint32_t>(-1e-9f); bits < std::bit_cast<uint32_t>(-126.0f);
       bits += 1009) {
    const auto x = std::bit_cast<float>(bits);
    const double exact = ExpInDouble(x * 0.693147180559945309417);
    worst = std::max(worst, std::fabs(Exp2(x) / exact - 1));
  }
  std::printf("worst relative error of Exp2 %.3g\n", worst);
  EXPECT_LT(worst, 1.5e-7);
  EXPECT_EQ(Exp2(0.0f), 1.0f);
  EXPECT_EQ(Exp2(-0.0f), 1.0f);
  EXPECT_EQ(Exp2(-126.0f), 0x1p-126f);
  EXPECT_EQ(Exp2(std::nextafter(-126.0f, -200.0f)), 0.0f);
  EXPECT_EQ(Exp2(kNothing), 0.0f);
  EXPECT_TRUE(std::isnan(Exp2(std::bit_cast<float>(0x7FC00000u))));
  EXPECT_TRUE(std::isnan(Exp2(std::bit_cast<float>(0xFFC00000u))));
}

// Heads of each shape: query heads, kv heads.
struct Heads {
  uint32_t num_heads;
  uint32_t num_kv_heads;
};

constexpr uint32_t kLengths[] = {1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 513, 1025};
constexpr Heads kHeads[] = {{2, 2}, {3, 1}, {8, 2}, {8, 1}, {16, 1}};
constexpr uint32_t kWindows[] = {0, 1, 100};
constexpr uint32_t kDims[] = {64, 128, 256};
constexpr uint32_t kBlockSizes[] = {16, 32, 64};

// K and V in bf16, and in fp8: the same rules, over the values that are stored.
class AttentionOf : public TestOfElement {};

TEST_P(AttentionOf, DecodeFollowsTheReference) {
  ScopedRunOptions quick(Quick());
  double worst = 0;
  uint32_t turn = 0;
  for (const uint32_t length : kLengths) {
    for (const Heads& heads : kHeads) {
      for (const uint32_t window : kWindows) {
        // Each length meets every pair of a window, a dim and a block size.
        AttentionCase c = {.head_dim = kDims[turn / 3 % 3],
                           .num_heads = heads.num_heads,
                           .num_kv_heads = heads.num_kv_heads,
                           .block_size = kBlockSizes[(turn + turn / 3 + turn / 15) % 3],
                           .window = window,
                           .chunks = {{0, length - 1, 1}, {1, length / 2, 1}},
                           .splits_an_item = turn % 4,
                           .poison_rows = 2};
        ++turn;
        EXPECT_EQ(Check(Of(c), &worst), "") << length << " heads " << heads.num_heads << " window "
                                            << window << " dim " << c.head_dim;
      }
    }
  }
  std::printf("worst relative error of decode %.2g, the limit is %.2g\n", worst, kAttention);
}

TEST_P(AttentionOf, PrefillFollowsTheReference) {
  ScopedRunOptions quick(Quick());
  double worst = 0;
  uint32_t turn = 0;
  for (const uint32_t length : kLengths) {
    for (const uint32_t window : kWindows) {
      for (const uint32_t dim : kDims) {
        const Heads& heads = kHeads[turn % 5];
        const uint32_t group = heads.num_heads / heads.num_kv_heads;
        const uint32_t count = std::min(length, 64 / group + 5);  // two items where it is that long
        // Each length, window and dim meets each block size.
        AttentionCase c = {.head_dim = dim,
                           .num_heads = heads.num_heads,
                           .num_kv_heads = heads.num_kv_heads,
                           .block_size = kBlockSizes[(turn + turn / 3 + turn / 9) % 3],
                           .window = window,
                           .chunks = {{1, length - count, count}, {0, 7, 1}},
                           .poison_rows = 1};
        ++turn;
        EXPECT_EQ(Check(Of(c), &worst), "")
            << length << " heads " << heads.num_heads << " window " << window << " dim " << dim;
      }
    }
  }
  std::printf("worst relative error of prefill %.2g, the limit is %.2g\n", worst, kAttention);
}

TEST_P(AttentionOf, HugeLogitsFollowTheReference) {
  ScopedRunOptions quick(Quick());
  for (const float scale : {0.0f, 1e-20f, 300.0f, 1e20f}) {
    for (const Chunk& chunk : {Chunk{0, 300, 1}, Chunk{0, 250, 25}}) {
      EXPECT_EQ(Check(Of({.num_heads = 3, .q_scale = scale, .chunks = {chunk}})), "") << scale;
    }
  }
}

TEST_P(AttentionOf, ARowsBitsDoNotDependOnHowItIsComputed) {
  for (const uint32_t window : {0u, 100u}) {
    const AttentionCase alone =
        Of({.num_heads = 4, .num_kv_heads = 2, .window = window, .chunks = {{1, 299, 1}}});
    const std::vector<uint16_t> bits = RowBits(alone, 0);
    AttentionCase c = alone;
    for (const uint32_t block_size : {32u, 64u}) {
      c.block_size = block_size;
      EXPECT_EQ(RowBits(c, 0), bits) << "blocks of " << block_size;
    }
    c = alone;
    for (const uint32_t splits : {1u, 2u}) {
      c.splits_an_item = splits;
      c.num_ctas = 1 + 4 * splits;
      EXPECT_EQ(RowBits(c, 0), bits) << "items of " << splits << " splits";
    }
    c = alone;
    c.chunks = {{0, 40, 1}, {1, 299, 1}, {2, 600, 2}};
    c.poison_rows = 3;
    EXPECT_EQ(RowBits(c, 1), bits) << "in a batch";
    for (const uint32_t count : {2u, 33u, 50u, 300u}) {
      c.chunks = {{0, 3, 1}, {1, 300 - count, count}};
      EXPECT_EQ(RowBits(c, count), bits) << "last of a chunk of " << count;
    }
    c.chunks = {{1, 280, 40}};
    EXPECT_EQ(RowBits(c, 19), bits) << "in the middle of a chunk";
  }
}

TEST_P(AttentionOf, HasTheBitsOfItsRules) {
  const AttentionCase cases[] = {
      {.head_dim = 128, .num_heads = 3, .chunks = {{0, 597, 1}, {1, 19, 2}}},
      {.num_heads = 2, .window = 100, .chunks = {{0, 250, 40}}},
      {.head_dim = 256,
       .num_heads = 2,
       .num_kv_heads = 2,
       .q_scale = 30.0f,
       .chunks = {{0, 260, 1}}}};
  for (const AttentionCase& c : cases) {
    AttentionBatch batch(Of(c));
    const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(Bits(*out), Bits(batch.ReferenceBits())) << "head_dim " << c.head_dim;
  }
}

TEST_P(AttentionOf, LongContextsHaveTheSameBitsHoweverTheirSplitsAreCut) {
  AttentionCase c =
      Of({.num_heads = 2, .block_size = 64, .chunks = {{0, 1299, 1}}, .is_whole = true});
  const std::vector<uint16_t> bits = RowBits(c, 0);  // six splits in two rounds of one item
  EXPECT_EQ(Check(c), "");
  c.is_whole = false;
  EXPECT_EQ(RowBits(c, 0), bits) << "as planned: four splits and two";
  c.splits_an_item = 5;
  EXPECT_EQ(RowBits(c, 0), bits) << "two rounds of the first item";
  c.splits_an_item = 0;
  c.chunks = {{0, 1260, 40}};
  EXPECT_EQ(RowBits(c, 39), bits) << "prefill";
}

TEST_P(AttentionOf, LargerHeadsHaveTheSameBitsInBothKernels) {
  for (const uint32_t dim : {128u, 256u}) {
    const AttentionCase one = Of({.head_dim = dim, .num_heads = 16, .chunks = {{0, 259, 1}}});
    AttentionCase chunk = one;
    chunk.block_size = 64;
    chunk.chunks = {{0, 255, 6}};
    EXPECT_EQ(RowBits(chunk, 4), RowBits(one, 0)) << dim;
  }
}

TEST_P(AttentionOf, NanQueriesGiveNan) {
  ScopedRunOptions quick(Quick());
  for (const uint32_t count : {1u, 40u}) {
    AttentionBatch batch(Of({.num_heads = 2,
                             .q_scale = std::bit_cast<float>(0x7FC00000u),
                             .chunks = {{0, 270, count}}}));
    const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
    ASSERT_TRUE(out.ok()) << out.status();
    for (const Bf16 value : *out) {
      ASSERT_TRUE(std::isnan(FloatFromBf16(value.bits)) && value.bits != kPoison);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionOf, testing::Values(KvElement::kBf16, KvElement::kFp8));

class AttentionInEveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

// A few small shapes that between them take every path.
std::vector<AttentionCase> SmallCases(KvElement element) {
  std::vector<AttentionCase> cases = {
      {.chunks = {}},
      // Two tiles in an item or split: the last unit lies where the next copies go.
      {.num_heads = 9, .window = 100, .chunks = {{0, 100, 1}, {1, 241, 16}}, .num_ctas = 1},
      {.num_heads = 3, .chunks = {{0, 258, 1}}, .splits_an_item = 1, .poison_rows = 1},
      {.num_heads = 2,
       .num_kv_heads = 2,
       .block_size = 32,
       .chunks = {{0, 256, 2}},
       .num_ctas = 1}};
  for (AttentionCase& c : cases) c.element = element;
  return cases;
}

TEST_P(AttentionInEveryOrder, SmallShapesHaveTheSameBits) {
  static std::map<std::pair<KvElement, size_t>, std::vector<uint16_t>> first;
  for (const KvElement element : {KvElement::kBf16, KvElement::kFp8}) {
    const std::vector<AttentionCase> cases = SmallCases(element);
    for (size_t i = 0; i < cases.size(); ++i) {
      AttentionBatch batch(cases[i]);
      const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
      ASSERT_TRUE(out.ok()) << out.status();
      const auto [found, is_new] = first.emplace(std::pair(element, i), Bits(*out));
      EXPECT_EQ(Bits(*out), found->second) << i;
      if (is_new) {
        EXPECT_EQ(Check(cases[i]), "") << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionInEveryOrder, testing::ValuesIn(AllOrders(2)));

TEST(Attention, RefusesShapesByName) {
  const auto message = [](const AttentionParams& params) {
    return std::string(runner::Kernels().attention_decode(params, nullptr).message()) + " " +
           std::string(runner::Kernels().attention_prefill(params, nullptr).message());
  };
  const KvBlocks kv = {nullptr, 4096, 1, 64, 16};
  EXPECT_THAT(message({.kv = kv, .num_heads = 17, .num_ctas = 1}), HasSubstr("17 heads on 1"));
  EXPECT_THAT(message({.kv = kv, .num_heads = 1, .num_ctas = 0}),
              HasSubstr("AttentionPrefill: a grid of 0 ctas"));
}

TEST_P(AttentionOf, MutantsAreNoticed) {
  const std::vector<AttentionCase> cases = SmallCases(GetParam());
  const simt_test::Suite suite = [&cases] {
    RunOptions options = simt::CurrentRunOptions();
    options.tensor_math = simt::TensorMath::kFloat;
    ScopedRunOptions scope(options);
    for (const AttentionCase& c : cases) {
      if (!Check(c).empty()) return false;
    }
    return true;
  };
  std::vector<simt_test::Equivalent> equivalents;
  if (GetParam() == KvElement::kFp8) {
    equivalents = {{"simt::sync_block();  // between items", simt::Mutation::kDropSyncBlock,
                    "q and the slots were read before the last unit's barrier, and its bf16 lies "
                    "in the buffer that an item fills behind its first barrier"}};
  }
  simt_test::ExpectAllNoticed(suite, 30, equivalents);
}

// In fp8 the output moves by what the rounding of K and V moves it. With equal weights that is less
// than the 2^-4 that an element of V may move (relative, in the Euclidean norm); the weights move
// with the scores, here of a spread of 1.4, by as much again.
TEST(AttentionFp8, StaysNearTheValuesBeforeTheyWereRounded) {
  ScopedRunOptions quick(Quick());
  for (const float q_scale : {0.0f, 1.0f}) {
    double worst = 0;
    for (const uint32_t dim : kDims) {
      for (const Chunk& chunk : {Chunk{0, 300, 1}, Chunk{0, 40, 30}, Chunk{0, 700, 9}}) {
        AttentionCase c = {.head_dim = dim, .num_heads = 3, .q_scale = q_scale, .chunks = {chunk}};
        AttentionBatch exact(c);
        c.element = KvElement::kFp8;
        const absl::StatusOr<std::vector<Bf16>> out = AttentionBatch(c).Run();
        ASSERT_TRUE(out.ok()) << out.status();
        std::vector<float> got;
        for (const Bf16 value : *out) got.push_back(FloatFromBf16(value.bits));
        worst = std::max(worst, RelativeError(got.data(), exact.Reference()));
      }
    }
    const double limit = q_scale == 0.0f ? 1.0 / 16 : 1.0 / 8;
    std::printf("worst relative error of fp8 %.3g, the limit is %.3g\n", worst, limit);
    EXPECT_LT(worst, limit);
  }
}

// Rows of a NaN, of an infinity, beyond the range and below it, each in one sequence of three.
TEST(AttentionFp8, ANanStaysInItsSequenceAndHugeRowsAreCut) {
  const std::vector<Chunk> chunks = {{0, 20, 1}, {1, 20, 1}, {2, 17, 4}};
  AttentionCase c = {.num_heads = 2, .chunks = chunks, .element = KvElement::kFp8};
  AttentionBatch plain(c);
  const absl::StatusOr<std::vector<Bf16>> before = plain.Run();
  ASSERT_TRUE(before.ok()) << before.status();
  for (const float value : {std::bit_cast<float>(0x7FC00000u), HUGE_VALF, 1e30f, 1e-30f}) {
    AttentionBatch batch(c);
    std::vector<Bf16> row = RandomBf16(c.head_dim, 5);
    row[3].bits = Bf16FromFloat(value);
    batch.StoreValue({1, 7}, row);
    const absl::StatusOr<std::vector<Bf16>> out = batch.Run();
    ASSERT_TRUE(out.ok()) << out.status();
    for (const uint32_t other : {0u, 2u, 3u, 4u, 5u}) {
      EXPECT_EQ(Bits(batch.Row(*out, other)), Bits(plain.Row(*before, other))) << value;
    }
    const bool is_nan = !(std::fabs(value) < HUGE_VALF);
    for (const Bf16 got : batch.Row(*out, 1)) {
      const float x = FloatFromBf16(got.bits);
      EXPECT_TRUE(is_nan ? std::isnan(x) : std::fabs(x) <= 57344.0f) << value << " gives " << x;
    }
    if (!is_nan) {
      EXPECT_EQ(Bits(*out), Bits(batch.ReferenceBits())) << value;
    }
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
