// The short convolution: what it stores, what it computes from it, and that neither depends on how
// a sequence is cut.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/kv_piece.h"
#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::ThreadPool;
using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;

namespace {

constexpr uint32_t kNumBlocks = 40;
constexpr uint32_t kFirstSlice = 1;  // of a convolution between two layers of attention
constexpr std::byte kStale{0xA5};

struct Shape {
  uint32_t channels;
  uint32_t num_taps;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t block_size;
  KvDtype dtype;
};

// Slices that are filled, and that are not; fewer channels than lanes, primes, whole lanes.
const Shape kShapes[] = {
    {1, 2, 1, 8, 16, KvDtype::kBf16},     {15, 3, 1, 8, 16, KvDtype::kF32},
    {40, 3, 1, 8, 16, KvDtype::kBf16},    {64, 5, 2, 16, 2, KvDtype::kBf16},
    {97, 16, 1, 24, 6, KvDtype::kF32},    {640, 4, 5, 64, 64, KvDtype::kBf16},
    {1009, 3, 2, 128, 16, KvDtype::kF32}, {2048, 3, 8, 64, 16, KvDtype::kBf16},
};

// Rows of b|c|x, taps and an arena of stale bytes.
struct Case {
  explicit Case(const Shape& shape)
      : shape(shape),
        random(shape.channels),
        taps(random.Activations(size_t{shape.num_taps} * shape.channels)) {
    layout.dtype = shape.dtype;
    layout.encoding = shape.dtype == KvDtype::kBf16 ? KvEncoding::kPaired : KvEncoding::kPlain;
    layout.num_kv_heads = shape.kv_heads;
    layout.head_dim = shape.head_dim;
    layout.block_size = shape.block_size;
    width = 2 * shape.kv_heads * shape.head_dim;
    num_slices = (shape.channels + width - 1) / width;
    width *= num_slices;
    layout.num_layers = kFirstSlice + num_slices + 1;
    for (uint32_t i = 0; i < kNumBlocks; ++i) blocks.push_back((i * 31 + 5) % kNumBlocks);
    max_tokens = std::min(80u, kNumBlocks * shape.block_size);
    bcx = random.Activations(size_t{max_tokens} * 3 * shape.channels);
  }

  struct Result {
    std::vector<std::byte> arena;
    std::vector<float> out;
  };
  Result Stale() const {
    return {std::vector<std::byte>(layout.BlockStride() * kNumBlocks, kStale),
            std::vector<float>(size_t{max_tokens} * shape.channels + 1, kPoison)};
  }
  ShortConvArgs Args(std::span<const AttentionSpan> spans, Result* result) const {
    return {.kv = {result->arena.data(), &layout, kNumBlocks},
            .first_slice = kFirstSlice,
            .num_slices = num_slices,
            .spans = spans,
            .bcx = bcx.data(),
            .channels = shape.channels,
            .taps = taps.data(),
            .num_taps = shape.num_taps,
            .out = result->out.data()};
  }
  void Run(const Ops& ops, ThreadPool& pool, std::span<const AttentionSpan> spans,
           Result* result) const {
    const ShortConvArgs args = Args(spans, result);
    ops.conv_append(pool, args);
    ops.short_conv(pool, args);
  }
  AttentionSpan Span(uint32_t first_row, uint32_t num_rows, uint32_t first_pos) const {
    return {{blocks}, first_row, num_rows, first_pos};
  }
  float Stored(const Result& result, uint32_t position, uint32_t i) const {
    const std::byte* rows = result.arena.data() +
                            blocks[position / shape.block_size] * layout.BlockStride() +
                            kFirstSlice * layout.SliceBytes();
    return LoadKv(shape.dtype, rows, size_t{position % shape.block_size} * width + i);
  }

  Shape shape;
  Random random;
  KvLayout layout;
  uint32_t width = 0;  // elements of a stored row
  uint32_t num_slices = 0;
  uint32_t max_tokens = 0;
  std::vector<float> taps;
  std::vector<float> bcx;
  std::vector<uint32_t> blocks;
};

class ShortConvTest : public ::testing::TestWithParam<Body> {
 protected:
  const Ops& ops() const { return *GetParam().ops; }
  ThreadPool one_{1};
  ThreadPool three_{3};
};

// The row of token t: its stored inputs, and its sum within the rounding of that sum.
void ExpectRow(const Case& c, const Case::Result& result, uint32_t t) {
  const Shape& shape = c.shape;
  const float* b = c.bcx.data() + size_t{t} * 3 * shape.channels;
  for (uint32_t i = 0; i < shape.channels; ++i) {
    const float product = b[i] * b[2 * shape.channels + i];
    const float stored =
        shape.dtype == KvDtype::kF32 ? product : FloatFromBf16(Bf16FromFloat(product));
    ASSERT_EQ(c.Stored(result, t, i), stored) << t << " " << i;
    double sum = 0;
    double magnitude = 0;
    for (uint32_t back = 0; back < shape.num_taps && back <= t; ++back) {
      const uint32_t tap = shape.num_taps - 1 - back;
      const double term =
          double{c.taps[size_t{tap} * shape.channels + i]} * c.Stored(result, t - back, i);
      sum += term;
      magnitude += std::fabs(term);
    }
    const double gate = b[shape.channels + i];
    // A term passes a product and at most num_taps sums, then the gate.
    const double bound = (shape.num_taps + 2) * 0x1p-24 * magnitude * std::fabs(gate) + 1e-37;
    ASSERT_NEAR(result.out[size_t{t} * shape.channels + i], gate * sum, bound) << t << " " << i;
  }
  for (uint32_t i = shape.channels; i < c.width; ++i) ASSERT_EQ(c.Stored(result, t, i), 0.0f);
}

TEST_P(ShortConvTest, StoresRoundedProductsAndAddsThemByTheDefinition) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.channels);
    const Case c(shape);
    Case::Result result = c.Stale();
    const AttentionSpan whole[] = {c.Span(0, c.max_tokens, 0)};
    c.Run(ops(), three_, whole, &result);
    EXPECT_EQ(result.out.back(), kPoison);
    for (uint32_t t = 0; t < c.max_tokens; ++t) ExpectRow(c, result, t);
  }
}

TEST_P(ShortConvTest, AgreesWithTheReferenceOnEveryByte) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.channels);
    const Case c(shape);
    Case::Result expected = c.Stale();
    Case::Result actual = c.Stale();
    const uint32_t end = c.max_tokens - 1;
    const AttentionSpan spans[] = {c.Span(0, end / 2, 0), c.Span(end / 2, end - end / 2, end / 2)};
    c.Run(ReferenceOps(), one_, spans, &expected);
    c.Run(ops(), three_, spans, &actual);
    EXPECT_EQ(actual.arena, expected.arena);
    const size_t count = size_t{end} * shape.channels;
    ExpectAgree(GetParam(), std::span(actual.out).first(count),
                std::span(expected.out).first(count), shape.num_taps * 0x1p-23, 1000.0);
  }
}

TEST_P(ShortConvTest, OneRowAtATimeGivesTheSameBytesAsOneChunk) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.channels);
    const Case c(shape);
    Case::Result whole = c.Stale();
    const AttentionSpan all[] = {c.Span(0, c.max_tokens, 0)};
    c.Run(ops(), three_, all, &whole);
    for (const uint32_t chunk : {1u, 2u, 7u, 16u}) {
      Case::Result cut = c.Stale();
      for (uint32_t row = 0; row < c.max_tokens; row += chunk) {
        const AttentionSpan part[] = {c.Span(row, std::min(chunk, c.max_tokens - row), row)};
        c.Run(ops(), one_, part, &cut);
      }
      EXPECT_EQ(cut.arena, whole.arena) << "chunks of " << chunk;
      EXPECT_EQ(CountDifferent(std::span(cut.out).first(cut.out.size() - 1),
                               std::span(whole.out).first(whole.out.size() - 1)),
                0u);
    }
  }
}

// The next token of many sequences, each in a block of its own, between two chunks.
TEST_P(ShortConvTest, ADecodeBatchIsSharedOutAndGivesTheBytesOfOneThread) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.channels);
    const Case c(shape);
    std::vector<AttentionSpan> spans;
    for (uint32_t i = 0; i < kNumBlocks; ++i) {
      const bool is_chunk = i == 3 || i + 1 == kNumBlocks;
      const uint32_t num_rows = is_chunk ? shape.block_size : 1;
      const uint32_t row = spans.empty() ? 0 : spans.back().first_row + spans.back().num_rows;
      if (row + num_rows > c.max_tokens) break;
      const uint32_t pos = is_chunk ? 0 : i % shape.block_size;
      spans.push_back({{std::span(c.blocks).subspan(i, 1)}, row, num_rows, pos});
    }
    ASSERT_GT(spans.size(), 15u);
    Case::Result expected = c.Stale();
    Case::Result actual = c.Stale();
    c.Run(ops(), one_, spans, &expected);
    c.Run(ops(), three_, spans, &actual);
    EXPECT_EQ(actual.arena, expected.arena);
    EXPECT_EQ(CountDifferent(std::span(actual.out).first(actual.out.size() - 1),
                             std::span(expected.out).first(expected.out.size() - 1)),
              0u);
    Case::Result reference = c.Stale();
    c.Run(ReferenceOps(), one_, spans, &reference);
    EXPECT_EQ(actual.arena, reference.arena);
  }
}

TEST_P(ShortConvTest, RowsThatAreLeftOutChangeNoOther) {
  const Case c(kShapes[2]);
  Case::Result whole = c.Stale();
  const AttentionSpan all[] = {c.Span(0, c.max_tokens, 0)};
  c.Run(ops(), three_, all, &whole);
  // The last layer computes wanted rows alone: each span is one of them.
  Case::Result some = whole;
  std::fill(some.out.begin(), some.out.end(), kPoison);
  const AttentionSpan kept[] = {c.Span(1, 1, 1), c.Span(33, 2, 33)};
  ops().short_conv(three_, c.Args(kept, &some));
  for (uint32_t t = 0; t < c.max_tokens; ++t) {
    const bool is_kept = t == 1 || t == 33 || t == 34;
    for (uint32_t i = 0; i < c.shape.channels; ++i) {
      const size_t at = size_t{t} * c.shape.channels + i;
      ASSERT_EQ(some.out[at], is_kept ? whole.out[at] : kPoison);
    }
  }
}

TEST_P(ShortConvTest, WritesItsSlicesOnlyAndZeroesTheRestOfABlockItBegan) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.channels);
    const Case c(shape);
    Case::Result result = c.Stale();
    // The block of token 4 was begun by someone else.
    const uint32_t first = 5;
    const uint32_t end = c.max_tokens - 3;
    const AttentionSpan part[] = {c.Span(first, end - first, first)};
    ops().conv_append(one_, c.Args(part, &result));
    const size_t row_bytes = c.width * c.layout.ElementBytes();
    const uint32_t last_block = (end - 1) / shape.block_size;
    for (uint32_t t = 0; t < kNumBlocks * shape.block_size; ++t) {
      const std::byte* block =
          result.arena.data() + c.blocks[t / shape.block_size] * c.layout.BlockStride();
      const std::byte* row =
          block + kFirstSlice * c.layout.SliceBytes() + t % shape.block_size * row_bytes;
      const bool is_written = t >= first && t < end;
      const bool is_rest = t >= end && t / shape.block_size == last_block;
      const auto is = [&](std::byte value) {
        return std::all_of(row, row + row_bytes, [&](std::byte b) { return b == value; });
      };
      if (is_rest) {
        ASSERT_TRUE(is(std::byte{0})) << t;
      } else {
        ASSERT_EQ(is(kStale), !is_written) << t;
      }
      const std::byte* after = block + (kFirstSlice + c.num_slices) * c.layout.SliceBytes();
      ASSERT_EQ(block[0], kStale);
      ASSERT_EQ(block[c.layout.SliceBytes() - 1], kStale);
      ASSERT_EQ(after[0], kStale);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, ShortConvTest, ::testing::ValuesIn(Bodies()), BodyName);

}  // namespace
}  // namespace baton::kernels
