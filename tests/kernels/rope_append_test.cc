#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/kv_piece.h"
#include "kernels/rope_table.h"
#include "src/device/aligned_buffer.h"
#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::ThreadPool;
using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;
using kv::KvView;

namespace {

constexpr uint32_t kMaxPosition = 400;
constexpr uint32_t kNumBlocks = 80;

// An arena, rows of q|k|v and a table, for one layout.
struct Case {
  Case(KvLayout l, uint32_t num_heads, uint32_t rows, bool interleaved)
      : layout(l),
        num_heads(num_heads),
        interleaved(interleaved),
        stride((num_heads + 2 * layout.num_kv_heads) * layout.head_dim + 3),
        random(layout.head_dim),
        qkv(random.Activations(size_t{rows} * stride)),
        table(size_t{kMaxPosition} * layout.head_dim) {
    layout.num_layers = 3;
    EXPECT_TRUE(BuildRopeTable({kMaxPosition, layout.head_dim, 10000.0}, table).ok());
    for (uint32_t i = 0; i < kNumBlocks; ++i) blocks.push_back((i * 31 + 5) % kNumBlocks);
  }

  // Runs rope_append of the spans on a fresh arena (all bytes 0xA5) and returns the arena and
  // q|k|v.
  struct Result {
    std::vector<std::byte> arena;
    std::vector<float> qkv;
  };
  Result Run(const Ops& ops, ThreadPool& pool, const std::vector<AttentionSpan>& spans) {
    Result result = {std::vector<std::byte>(layout.BlockStride() * kNumBlocks, std::byte{0xA5}),
                     qkv};
    Append(ops, pool, spans, &result);
    return result;
  }
  void Append(const Ops& ops, ThreadPool& pool, const std::vector<AttentionSpan>& spans,
              Result* result) {
    const KvView view = {result->arena.data(), &layout, kNumBlocks};
    float* rows = result->qkv.data();
    ops.rope_append(pool, {.kv = view,
                           .layer = 1,
                           .spans = spans,
                           .q = rows,
                           .k = rows + num_heads * layout.head_dim,
                           .v = rows + (num_heads + layout.num_kv_heads) * layout.head_dim,
                           .qkv_stride = stride,
                           .num_heads = num_heads,
                           .cos_sin = table.empty() ? nullptr : table.data(),
                           .interleaved = interleaved});
  }
  AttentionSpan Span(uint32_t first_row, uint32_t num_rows, uint32_t first_pos) {
    return {{blocks}, first_row, num_rows, first_pos};
  }

  KvLayout layout;
  uint32_t num_heads;
  bool interleaved;
  uint32_t stride;
  Random random;
  std::vector<float> qkv;
  std::vector<float> table;
  std::vector<uint32_t> blocks;
};

KvLayout Layout(uint32_t kv_heads, uint32_t head_dim, uint32_t block_size, KvDtype dtype,
                KvEncoding encoding) {
  KvLayout layout;
  layout.num_kv_heads = kv_heads;
  layout.head_dim = head_dim;
  layout.block_size = block_size;
  layout.dtype = dtype;
  layout.encoding = encoding;
  return layout;
}

const KvLayout kLayouts[] = {
    Layout(3, 64, 16, KvDtype::kBf16, KvEncoding::kPaired),
    Layout(1, 80, 6, KvDtype::kBf16, KvEncoding::kPaired),
    Layout(2, 18, 16, KvDtype::kF32, KvEncoding::kPaired),
    Layout(2, 18, 16, KvDtype::kBf16, KvEncoding::kPaired),
    Layout(2, 2, 64, KvDtype::kBf16, KvEncoding::kPlain),
    Layout(1, 256, 32, KvDtype::kF32, KvEncoding::kPlain),
    Layout(2, 512, 16, KvDtype::kBf16, KvEncoding::kPaired),
    Layout(3, 64, 16, KvDtype::kQ8, KvEncoding::kLanes),
    Layout(2, 18, 6, KvDtype::kQ8, KvEncoding::kLanes),
    Layout(1, 256, 32, KvDtype::kQ8, KvEncoding::kLanes),
};

// The bytes of a token's K that say whether it was written: of q8 its scale, else an element.
struct Mark {
  size_t offset;
  size_t num_bytes;
};
Mark MarkOf(const KvLayout& layout, uint32_t token) {
  if (layout.dtype == KvDtype::kQ8) return {Q8ScaleOffset(layout, token, 0), sizeof(uint16_t)};
  return {KIndex(layout, token, 1) * layout.ElementBytes(), layout.ElementBytes()};
}

class RopeAppendTest : public ::testing::TestWithParam<Body> {
 protected:
  const Ops& ops() const { return *GetParam().ops; }
  ThreadPool one_{1};
  ThreadPool three_{3};
};

TEST_P(RopeAppendTest, AgreesWithTheReference) {
  for (const KvLayout& layout : kLayouts) {
    for (bool interleaved : {false, true}) {
      SCOPED_TRACE("dim " + std::to_string(layout.head_dim) + (interleaved ? " interleaved" : ""));
      Case c(layout, 4, 120, interleaved);
      const std::vector<AttentionSpan> spans = {c.Span(0, 100, 5), c.Span(100, 1, 333),
                                                c.Span(101, 19, 200)};
      const Case::Result expected = c.Run(ReferenceOps(), one_, spans);
      const Case::Result actual = c.Run(ops(), three_, spans);
      if (GetParam().fused) {
        EXPECT_EQ(CountDifferent(actual.qkv, expected.qkv), 0u);
        EXPECT_EQ(actual.arena, expected.arena);
        continue;
      }
      for (size_t i = 0; i < actual.qkv.size(); ++i) {
        ASSERT_NEAR(actual.qkv[i], expected.qkv[i], 4e-5) << i;  // |x| < 110, two roundings apart
      }
    }
  }
}

// Values halfway between two bf16, subnormal, beyond the largest bf16, infinite, and NaN.
TEST_P(RopeAppendTest, UglyValuesAreStoredAsTheReferenceStoresThem) {
  Case c(kLayouts[0], 1, 8, true);
  c.table.clear();
  const uint32_t kUgly[] = {0x3F808000, 0x3F818000, 0x3F808001, 0x00000001, 0x00008000,
                            0x807FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,
                            0x7F800001, 0xFFC12345, 0x7FFFFFFF, 0x80000000};
  for (size_t i = 0; i < c.qkv.size(); ++i) {
    if (i % 3 != 0) std::memcpy(&c.qkv[i], &kUgly[i % std::size(kUgly)], sizeof(float));
  }
  const std::vector<AttentionSpan> spans = {c.Span(0, 8, 13)};
  EXPECT_EQ(c.Run(ops(), one_, spans).arena, c.Run(ReferenceOps(), one_, spans).arena);
}

// A layer that reads K and V of another one has a layout without KV heads.
TEST_P(RopeAppendTest, WithoutKvHeadsOnlyQTurns) {
  Case c(kLayouts[0], 4, 40, false);
  const std::vector<AttentionSpan> spans = {c.Span(0, 21, 5), c.Span(21, 19, 200)};
  const Case::Result expected = c.Run(ops(), one_, spans);
  c.layout.num_kv_heads = 0;
  Case::Result result = {std::vector<std::byte>(expected.arena.size(), std::byte{0xA5}), c.qkv};
  c.Append(ops(), three_, spans, &result);
  EXPECT_EQ(CountDifferent(result.qkv, expected.qkv), 0u);
  EXPECT_EQ(result.arena, std::vector<std::byte>(expected.arena.size(), std::byte{0xA5}));
}

TEST_P(RopeAppendTest, WithoutATableNothingTurns) {
  for (const KvLayout& layout : kLayouts) {
    for (bool interleaved : {false, true}) {
      SCOPED_TRACE("dim " + std::to_string(layout.head_dim) + (interleaved ? " interleaved" : ""));
      Case c(layout, 4, 40, interleaved);
      const std::vector<AttentionSpan> spans = {c.Span(0, 21, 5), c.Span(21, 19, 200)};
      for (size_t i = 0; i < c.table.size(); ++i) c.table[i] = i % 2 == 0 ? 1.0f : 0.0f;
      const Case::Result expected = c.Run(ops(), one_, spans);
      c.table.clear();
      for (const Ops* body : {&ops(), &ReferenceOps()}) {
        const Case::Result result = c.Run(*body, three_, spans);
        EXPECT_EQ(CountDifferent(result.qkv, c.qkv), 0u);
        EXPECT_EQ(result.arena, expected.arena);
      }
    }
  }
}

TEST_P(RopeAppendTest, RotatesByTheDefinitionAndStoresRoundedKeysAndValues) {
  for (bool interleaved : {false, true}) {
    Case c(kLayouts[0], 2, 40, interleaved);
    const Case::Result result = c.Run(ops(), one_, {c.Span(0, 40, 50)});
    std::vector<std::byte> arena = result.arena;
    const KvView view = {arena.data(), &c.layout, kNumBlocks};
    const uint32_t dim = c.layout.head_dim;
    for (uint32_t r = 0; r < 40; ++r) {
      const uint32_t position = 50 + r;
      for (uint32_t head = 0; head < 2 + c.layout.num_kv_heads; ++head) {
        for (uint32_t i = 0; i < dim / 2; ++i) {
          const float* x = c.qkv.data() + size_t{r} * c.stride + head * dim;
          const uint32_t a = interleaved ? 2 * i : i;
          const uint32_t b = interleaved ? 2 * i + 1 : i + dim / 2;
          const double angle = position * std::pow(10000.0, -2.0 * i / dim);
          const double y[2] = {x[a] * std::cos(angle) - x[b] * std::sin(angle),
                               x[b] * std::cos(angle) + x[a] * std::sin(angle)};
          const double bound = 4 * 0x1p-24 * (std::fabs(x[a]) + std::fabs(x[b]));
          for (int which = 0; which < 2; ++which) {
            const uint32_t d = which == 0 ? a : b;
            if (head < 2) {
              ASSERT_NEAR(result.qkv[size_t{r} * c.stride + head * dim + d], y[which], bound);
              continue;
            }
            const std::byte* k = view.Piece(c.blocks[position / 16], 1, 0, head - 2);
            const float stored = LoadKv(c.layout.dtype, k, KIndex(c.layout, position % 16, d));
            ASSERT_NEAR(stored, y[which], bound + 0x1p-8 * std::fabs(y[which]));
            const std::byte* v = view.Piece(c.blocks[position / 16], 1, 1, head - 2);
            const float value = LoadKv(c.layout.dtype, v, VIndex(c.layout, position % 16, d));
            const float raw =
                c.qkv[size_t{r} * c.stride + (head + c.layout.num_kv_heads) * dim + d];
            ASSERT_EQ(value, FloatFromBf16(Bf16FromFloat(raw)));
          }
        }
      }
    }
  }
}

TEST_P(RopeAppendTest, OneRowAtATimeGivesTheSameBytesAsOneChunk) {
  for (const KvLayout& layout : kLayouts) {
    Case c(layout, 2, 75, true);
    const Case::Result whole = c.Run(ops(), three_, {c.Span(0, 75, 0)});
    for (uint32_t chunk : {1u, 7u, 16u}) {
      Case::Result cut = {std::vector<std::byte>(whole.arena.size(), std::byte{0xA5}), c.qkv};
      for (uint32_t row = 0; row < 75; row += chunk) {
        c.Append(ops(), one_, {c.Span(row, std::min(chunk, 75 - row), row)}, &cut);
      }
      EXPECT_EQ(cut.arena, whole.arena) << "chunks of " << chunk;
      EXPECT_EQ(CountDifferent(cut.qkv, whole.qkv), 0u);
    }
  }
}

TEST_P(RopeAppendTest, WritesOnlyItsTokensAndZeroesTheRestOfItsLastBlock) {
  for (const KvLayout& layout : kLayouts) {
    Case c(layout, 2, 100, false);
    // Rows 10 .. 109 of the sequence: the block of token 9 was begun by someone else.
    const uint32_t first = 10;
    const uint32_t end = first + 100;
    Case::Result result = c.Run(ops(), one_, {c.Span(0, 100, first)});
    const KvView view = {result.arena.data(), &c.layout, kNumBlocks};
    const auto all_are = [](const std::byte* bytes, size_t count, std::byte wanted) {
      return std::all_of(bytes, bytes + count, [&](std::byte b) { return b == wanted; });
    };
    for (uint32_t token = 0; token < kNumBlocks * c.layout.block_size; ++token) {
      const uint32_t block = c.blocks[token / c.layout.block_size];
      const std::byte* k = view.Piece(block, 1, 0, 0);
      const Mark mark = MarkOf(c.layout, token % c.layout.block_size);
      const size_t at = mark.offset;
      const bool untouched = all_are(k + at, mark.num_bytes, std::byte{0xA5});
      const size_t element = KIndex(c.layout, token % c.layout.block_size, 1);
      const bool zeroed = all_are(k + at, mark.num_bytes, std::byte{0}) &&
                          LoadKv(c.layout.dtype, k, element) == 0.0f;
      const bool last_block = token / c.layout.block_size == end / c.layout.block_size;
      if (token >= end && last_block) {
        EXPECT_TRUE(zeroed) << token;
      } else {
        EXPECT_EQ(untouched, token < first || token >= end) << token;
      }
      // Other layers are never touched.
      EXPECT_EQ(view.Piece(block, 0, 0, 0)[at], std::byte{0xA5});
      EXPECT_EQ(view.Piece(block, 2, 1, 0)[at], std::byte{0xA5});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, RopeAppendTest, ::testing::ValuesIn(Bodies()), BodyName);

}  // namespace
}  // namespace baton::kernels
