// K and V in q8: the rows by their definition in double, and the bytes that every body stores.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/kv_piece.h"
#include "src/device/aligned_buffer.h"
#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::AlignedBuffer;
using device::ThreadPool;
using kv::kQ8SegmentDims;
using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;
using kv::KvView;

namespace {

KvLayout Q8(uint32_t kv_heads, uint32_t head_dim, uint32_t block_size) {
  KvLayout layout;
  layout.dtype = KvDtype::kQ8;
  layout.encoding = KvEncoding::kLanes;
  layout.num_layers = 1;
  layout.num_kv_heads = kv_heads;
  layout.head_dim = head_dim;
  layout.block_size = block_size;
  return layout;
}

// H times the row, in double, by the definition of Sylvester's matrices.
std::vector<double> TimesH(const std::vector<float>& row) {
  const uint32_t width = Q8TurnWidth(static_cast<uint32_t>(row.size()));
  std::vector<double> out(row.size());
  for (uint32_t i = 0; i < row.size(); ++i) {
    for (uint32_t j = 0; j < width; ++j) {
      const bool is_negative = std::popcount(i % width & j) % 2 == 1;
      out[i] += (is_negative ? -1.0 : 1.0) * row[i / width * width + j];
    }
  }
  return out;
}

// A row as it lies in a piece.
struct StoredRow {
  std::vector<int> codes;
  std::vector<float> scales;  // [segments]
};

StoredRow ReadRow(const KvLayout& layout, uint32_t which, const std::byte* piece, uint32_t token) {
  StoredRow row;
  for (uint32_t d = 0; d < layout.head_dim; ++d) {
    const size_t at = which == 0 ? KIndex(layout, token, d) : VIndex(layout, token, d);
    row.codes.push_back(static_cast<int8_t>(piece[at]));
  }
  for (uint32_t segment = 0; segment < layout.num_scales(); ++segment) {
    row.scales.push_back(KvScale(layout, piece, token, segment * kQ8SegmentDims));
  }
  return row;
}

StoredRow Quantized(const std::vector<float>& values) {
  const KvLayout layout = Q8(1, static_cast<uint32_t>(values.size()), 2);
  std::vector<std::byte> piece(layout.PieceBytes(), std::byte{0x5A});
  StoreKvRow(layout, 0, piece.data(), 1, values.data());
  return ReadRow(layout, 0, piece.data(), 1);
}

// The stored form of a row whose turned elements are `turned`.
StoredRow QuantizedTurned(const std::vector<float>& turned) {
  std::vector<float> values;
  for (const double x : TimesH(turned)) {
    values.push_back(static_cast<float>(x));
    EXPECT_EQ(double{values.back()}, x) << "exact, so that turning it gives `turned`";
  }
  return Quantized(values);
}

TEST(KvQ8Test, TheTurnIsTheHadamardMatrixOfTheLargestPowerOfTwoUpTo32InARow) {
  EXPECT_EQ(Q8TurnWidth(2), 2u);
  EXPECT_EQ(Q8TurnWidth(34), 2u);
  EXPECT_EQ(Q8TurnWidth(80), 16u);
  EXPECT_EQ(Q8TurnWidth(96), 32u);
  EXPECT_EQ(Q8TurnWidth(64), 32u);
  EXPECT_EQ(Q8TurnWidth(256), 32u);
  Random random(2);
  for (uint32_t dim = 2; dim <= 256; dim += 2) {
    const std::vector<float> row = random.Activations(dim);
    std::vector<float> turned = row;
    TurnQ8(turned.data(), dim);
    const std::vector<double> wanted = TimesH(row);
    double sum = 0;
    for (const float x : row) sum += std::fabs(x);
    for (uint32_t d = 0; d < dim; ++d) ASSERT_NEAR(turned[d], wanted[d], 8 * 0x1p-24 * sum);
    TurnQ8(turned.data(), dim);  // its own inverse
    const uint32_t width = Q8TurnWidth(dim);
    for (uint32_t d = 0; d < dim; ++d) {
      ASSERT_NEAR(turned[d], double(width) * row[d], 16 * 0x1p-24 * width * sum);
    }
  }
}

// Without the turn the step would be 100 / 127, and without segments that of all elements.
TEST(KvQ8Test, AnElementLargerThanTheOthersCostsThemLittle) {
  std::vector<float> values(256, 0.5f);
  values[77] = 100.0f;
  const StoredRow row = Quantized(values);
  ASSERT_EQ(row.scales.size(), 8u);
  const float norm = std::sqrt(32.0f);  // a turned and shrunk segment is 1 / norm as long
  EXPECT_LT(norm * row.scales[2], 0.25f * 100 / 127);
  for (const uint32_t other : {0u, 1u, 3u, 7u}) EXPECT_LE(norm * row.scales[other], 3.0f / 127);
}

TEST(KvQ8Test, ARowIsWithinHalfAStepOfItsElements) {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const float size = std::exp2(static_cast<float>(random.Below(160)) - 80.0f);
    const std::vector<float> values = random.Activations(2 * (1 + random.Below(64)), size);
    const StoredRow row = Quantized(values);
    std::vector<double> turned = TimesH(values);
    for (double& x : turned) x /= Q8TurnWidth(static_cast<uint32_t>(values.size()));
    for (size_t begin = 0; begin < values.size(); begin += kQ8SegmentDims) {
      const size_t end = std::min(begin + kQ8SegmentDims, values.size());
      const float scale = row.scales[begin / kQ8SegmentDims];
      double absmax = 0;
      for (size_t d = begin; d < end; ++d) absmax = std::max(absmax, std::fabs(turned[d]));
      if (absmax < 0x1p-99) continue;
      ASSERT_NEAR(scale, absmax / 127, (0x1p-8 + 0x1p-18) * absmax / 127);
      for (size_t d = begin; d < end; ++d) {
        ASSERT_LE(std::abs(row.codes[d]), 127);
        const float element = static_cast<float>(row.codes[d]) * scale;
        ASSERT_EQ(double{element}, double{scale} * row.codes[d]) << "exact in fp32";
        // Each element is a sum of up to 32, rounded five times.
        ASSERT_LE(std::fabs(double{element} - turned[d]), 0.5 * (1 + 0x1p-10) * scale);
      }
    }
  }
}

TEST(KvQ8Test, HalvesRoundToTheEvenCode) {
  // The largest is 127, so the scale is 1.
  const StoredRow row = QuantizedTurned({127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -126.5f, 0.25f});
  EXPECT_EQ(row.scales[0], 1.0f);
  EXPECT_EQ(row.codes, (std::vector<int>{127, 0, 2, 2, 0, -2, -126, 0}));
}

TEST(KvQ8Test, TheLargestCodeIs127WhereTheScaleWasRoundedDown) {
  // absmax / 127 = 1 + 2^-8 is halfway between two bf16, and rounds to the even one, 1.
  const StoredRow row = QuantizedTurned({127.0f * (1 + 0x1p-8f), -127.0f * (1 + 0x1p-8f)});
  EXPECT_EQ(row.scales[0], 1.0f);
  EXPECT_EQ(row.codes, (std::vector<int>{127, -127}));
}

TEST(KvQ8Test, RowsOfZerosOfTinyAndOfHugeElements) {
  for (const float tiny : {0.0f, -0.0f, 0x1p-149f, 0x1.fffffep-101f}) {
    const StoredRow row = Quantized({tiny, -tiny});
    EXPECT_EQ(row.scales[0], 0.0f) << tiny;
    EXPECT_EQ(row.codes, (std::vector<int>{0, 0})) << tiny;
  }
  const StoredRow small = QuantizedTurned({0x1p-100f, 0.0f});
  EXPECT_GT(small.scales[0], 0.0f);
  EXPECT_EQ(small.codes, (std::vector<int>{127, 0}));
  const float largest = std::numeric_limits<float>::max();
  const StoredRow huge = Quantized({largest, -largest});
  EXPECT_TRUE(std::isfinite(huge.scales[0]));
  EXPECT_EQ(huge.codes, (std::vector<int>{0, 127}));
}

TEST(KvQ8Test, ANanOrAnInfinityMakesTheWholeRowNan) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    const StoredRow row = Quantized({1.0f, bad, 2.0f, 3.0f});
    EXPECT_TRUE(std::isnan(row.scales[0]));
    EXPECT_EQ(row.codes, (std::vector<int>{0, 0, 0, 0}));
  }
}

class KvQ8BodyTest : public ::testing::TestWithParam<Body> {};

// A rotation by 0 keeps finite keys as they are, so that all bodies store the same bytes: the
// portable one, which rotates with other bits, too.
TEST_P(KvQ8BodyTest, EveryBodyStoresTheBytesOfTheSlowForm) {
  ThreadPool pool(2);
  for (const uint32_t dim : {2u, 16u, 34u, 64u, 100u, 256u}) {
    for (const uint32_t block_size : {6u, 16u, 64u}) {
      constexpr uint32_t kRows = 50;
      const KvLayout layout = Q8(2, dim, block_size);
      Random random(dim + block_size);
      const uint32_t stride = 3 * 2 * dim;
      std::vector<float> qkv;
      for (uint32_t r = 0; r < kRows; ++r) {
        const float size = std::exp2(static_cast<float>(random.Below(250)) - 140.0f);
        const std::vector<float> row = random.Activations(stride, size);
        qkv.insert(qkv.end(), row.begin(), row.end());
      }
      // Values take what keys cannot, whose pairs would make it NaN.
      qkv[size_t{3} * stride + 4 * dim + 1] = NAN;
      qkv[size_t{4} * stride + 4 * dim] = -INFINITY;
      const std::vector<float> before = qkv;
      std::vector<float> table(size_t{kRows} * dim);
      for (size_t i = 0; i < table.size(); i += 2) table[i] = 1.0f;
      std::vector<uint32_t> blocks(layout.BlocksFor(kRows));
      for (uint32_t i = 0; i < blocks.size(); ++i) {
        blocks[i] = static_cast<uint32_t>(blocks.size()) - 1 - i;
      }
      AlignedBuffer arena = AlignedBuffer::Allocate(layout.BlockStride() * blocks.size()).value();
      std::fill_n(reinterpret_cast<uint8_t*>(arena.data()), arena.size(), 0xA5);
      const KvView view = {arena.data(), &layout, static_cast<uint32_t>(blocks.size())};
      const AttentionSpan span = {{blocks}, 0, kRows, 0};
      GetParam().ops->rope_append(pool, {.kv = view,
                                         .layer = 0,
                                         .spans = {&span, 1},
                                         .q = qkv.data(),
                                         .k = qkv.data() + 2 * dim,
                                         .v = qkv.data() + 4 * dim,
                                         .qkv_stride = stride,
                                         .num_heads = 2,
                                         .cos_sin = table.data(),
                                         .interleaved = dim % 4 == 0});
      std::vector<std::byte> slow(layout.PieceBytes());
      for (uint32_t i = 0; i < kRows * 4; ++i) {
        const uint32_t r = i / 4;
        const uint32_t which = i / 2 % 2;
        const uint32_t head = i % 2;
        const uint32_t token = r % block_size;
        const float* row = before.data() + size_t{r} * stride + (2 + 2 * which + head) * dim;
        StoreKvRow(layout, which, slow.data(), token, row);
        const std::byte* piece = view.Piece(blocks[r / block_size], 0, which, head);
        const StoredRow wanted = ReadRow(layout, which, slow.data(), token);
        const StoredRow got = ReadRow(layout, which, piece, token);
        ASSERT_EQ(got.codes, wanted.codes) << "dim " << dim << " row " << r << " which " << which;
        for (size_t i_scale = 0; i_scale < wanted.scales.size(); ++i_scale) {
          ASSERT_EQ(std::bit_cast<uint32_t>(got.scales[i_scale]),
                    std::bit_cast<uint32_t>(wanted.scales[i_scale]));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, KvQ8BodyTest, ::testing::ValuesIn(Bodies()), BodyName);

}  // namespace
}  // namespace baton::kernels
