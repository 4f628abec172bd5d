#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/kv_piece.h"
#include "src/device/aligned_buffer.h"
#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::AlignedBuffer;
using device::ThreadPool;
using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;
using kv::KvView;

namespace {

// The sizes and the formats of a model's attention and of its KV arena.
struct Dims {
  uint32_t num_heads = 9;
  uint32_t num_kv_heads = 3;
  uint32_t head_dim = 64;
  uint32_t block_size = 16;
  KvDtype dtype = KvDtype::kBf16;
  KvEncoding encoding = KvEncoding::kPaired;
  uint32_t window = 0;
  bool sinks = false;
};

std::string Describe(const Dims& d) {
  return "heads " + std::to_string(d.num_heads) + "/" + std::to_string(d.num_kv_heads) + " dim " +
         std::to_string(d.head_dim) + " block " + std::to_string(d.block_size) + " dtype " +
         std::to_string(static_cast<int>(d.dtype)) + " encoding " +
         std::to_string(static_cast<int>(d.encoding)) + " window " + std::to_string(d.window) +
         (d.sinks ? " sinks" : "");
}

// One sequence of `length` tokens whose K and V are stored in blocks scattered over an arena; every
// element that no token owns is NaN.
class Sequence {
 public:
  Sequence(const Dims& dims, uint32_t length, uint64_t salt) : dims(dims), length(length) {
    layout.dtype = dims.dtype;
    layout.encoding = dims.encoding;
    layout.num_layers = 2;
    layout.num_kv_heads = dims.num_kv_heads;
    layout.head_dim = dims.head_dim;
    layout.block_size = dims.block_size;
    Random random(salt);
    const uint32_t num_blocks = layout.BlocksFor(length);
    for (uint32_t i = 0; i < num_blocks; ++i) blocks.push_back((i * 7 + 3) % (num_blocks + 9));
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    for (uint32_t i = 0; blocks.size() < num_blocks; ++i) {
      if (std::find(blocks.begin(), blocks.end(), i) == blocks.end()) blocks.push_back(i);
    }
    for (size_t i = blocks.size(); i > 1; --i) {
      std::swap(blocks[i - 1], blocks[random.Below(static_cast<uint32_t>(i))]);
    }
    const size_t arena_bytes = layout.BlockStride() * (num_blocks + 9);
    arena = AlignedBuffer::Allocate(arena_bytes).value();
    // NaN in bf16 and f32; in q8 the scale is.
    std::fill_n(reinterpret_cast<uint8_t*>(arena.data()), arena_bytes, 0xFF);
    for (uint32_t t = 0; t < length; ++t) {
      for (uint32_t h = 0; h < dims.num_kv_heads; ++h) {
        PutRow(0, t, h, random.Activations(dims.head_dim));
        PutRow(1, t, h, random.Activations(dims.head_dim));
      }
    }
    q = random.Activations(size_t{length} * q_stride());
    // From hardly any weight to nearly all of it.
    for (uint32_t h = 0; h < dims.num_heads; ++h) sinks.push_back(5.0f * (h % 7) - 15.0f);
  }

  uint32_t q_stride() const { return dims.num_heads * dims.head_dim + 8; }
  uint32_t out_row() const { return dims.num_heads * dims.head_dim; }
  KvView view() { return {arena.data(), &layout, static_cast<uint32_t>(blocks.size() + 9)}; }

  // Attention of the rows of `chunks` (lengths that sum to length), chunk by chunk from the last to
  // the first, on `pool`.
  std::vector<float> Run(const Ops& ops, ThreadPool& pool, const std::vector<uint32_t>& chunks) {
    std::vector<float> out(size_t{length} * out_row(), kPoison);
    uint32_t end = length;
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
      const AttentionSpan span = {{blocks}, 0, *chunk, end - *chunk};
      RunSpans(ops, pool, {&span, 1}, q.data() + size_t{end - *chunk} * q_stride(),
               out.data() + size_t{end - *chunk} * out_row());
      end -= *chunk;
    }
    EXPECT_EQ(end, 0u);
    return out;
  }

  void RunSpans(const Ops& ops, ThreadPool& pool, std::span<const AttentionSpan> spans,
                const float* rows, float* out) {
    AlignedBuffer scratch =
        AlignedBuffer::Allocate(ops.attention_scratch_bytes(pool.num_threads(), dims.num_heads,
                                                            dims.num_kv_heads, dims.head_dim))
            .value();
    std::fill_n(reinterpret_cast<uint8_t*>(scratch.data()), scratch.size(), 0xFF);
    ops.attention(pool, {.kv = view(),
                         .layer = 1,
                         .spans = spans,
                         .q = rows,
                         .q_stride = q_stride(),
                         .num_heads = dims.num_heads,
                         .scale = 0.125f,
                         .window = dims.window,
                         .out = out,
                         .scratch = {scratch.data(), scratch.size()},
                         .sinks = dims.sinks ? sinks.data() : nullptr});
  }

  // Stores K (which = 0) or V (which = 1) of a token and head.
  void PutRow(uint32_t which, uint32_t t, uint32_t h, const std::vector<float>& row) {
    StoreKvRow(layout, which, view().Piece(blocks[t / layout.block_size], 1, which, h),
               t % layout.block_size, row.data());
  }

  // K (which = 0) or V (which = 1) of a token and head, as stored; in q8 turned back.
  std::vector<double> Row(uint32_t which, uint32_t t, uint32_t h) {
    std::vector<double> row(dims.head_dim);
    for (uint32_t d = 0; d < dims.head_dim; ++d) row[d] = Get(which, t, h, d);
    if (dims.dtype != KvDtype::kQ8) return row;
    for (uint32_t apart = 1; apart < Q8TurnWidth(dims.head_dim); apart *= 2) {
      for (uint32_t d = 0; d < dims.head_dim; ++d) {
        if ((d & apart) != 0) continue;
        const double first = row[d];
        row[d] += row[d + apart];
        row[d + apart] = first - row[d + apart];
      }
    }
    return row;
  }

  Dims dims;
  uint32_t length;
  KvLayout layout;
  std::vector<uint32_t> blocks;
  AlignedBuffer arena;
  std::vector<float> q;
  std::vector<float> sinks;  // [num_heads]

 private:
  double Get(uint32_t which, uint32_t t, uint32_t h, uint32_t d) {
    const uint32_t token = t % layout.block_size;
    const size_t index = which == 0 ? KIndex(layout, token, d) : VIndex(layout, token, d);
    const std::byte* piece = view().Piece(blocks[t / layout.block_size], 1, which, h);
    return LoadKv(layout.dtype, piece, index) * KvScale(layout, piece, token, d);
  }
};

std::vector<uint32_t> Chunks(uint32_t length, uint32_t chunk) {
  std::vector<uint32_t> out;
  for (uint32_t done = 0; done < length; done += out.back()) {
    out.push_back(std::min(chunk, length - done));
  }
  return out;
}

// Attention of one row and head in double, on the K and V as stored.
struct ExactRow {
  std::vector<double> out;        // [head_dim]
  std::vector<double> largest_v;  // the largest |v| that the row sees, by dim
};

ExactRow Exact(Sequence& s, uint32_t t, uint32_t head) {
  const uint32_t dim = s.dims.head_dim;
  const uint32_t kv_head = head / (s.dims.num_heads / s.dims.num_kv_heads);
  const uint32_t first = s.dims.window != 0 && t >= s.dims.window ? t - s.dims.window + 1 : 0;
  const float* q = s.q.data() + size_t{t} * s.q_stride() + head * dim;
  std::vector<double> weights(t + 1 - first);
  for (uint32_t i = 0; i < weights.size(); ++i) {
    const std::vector<double> k = s.Row(0, first + i, kv_head);
    for (uint32_t d = 0; d < dim; ++d) weights[i] += q[d] * 0.125 * k[d];
  }
  double max = *std::max_element(weights.begin(), weights.end());
  if (s.dims.sinks) max = std::max<double>(max, s.sinks[head]);
  double denominator = s.dims.sinks ? std::exp(s.sinks[head] - max) : 0.0;
  for (double& weight : weights) denominator += weight = std::exp(weight - max);
  ExactRow exact = {std::vector<double>(dim), std::vector<double>(dim)};
  for (uint32_t i = 0; i < weights.size(); ++i) {
    const std::vector<double> v = s.Row(1, first + i, kv_head);
    for (uint32_t d = 0; d < dim; ++d) {
      exact.out[d] += weights[i] / denominator * v[d];
      exact.largest_v[d] = std::fmax(exact.largest_v[d], std::fabs(v[d]));
    }
  }
  return exact;
}

// |actual - exact| per element relative to the largest |v| that the row sees.
double WorstRelativeError(Sequence& s, std::span<const float> actual) {
  double worst = 0;
  for (uint32_t i = 0; i < s.length * s.dims.num_heads; ++i) {
    const uint32_t t = i / s.dims.num_heads;
    const uint32_t head = i % s.dims.num_heads;
    const ExactRow exact = Exact(s, t, head);
    const float* y = actual.data() + size_t{t} * s.out_row() + head * s.dims.head_dim;
    for (uint32_t d = 0; d < s.dims.head_dim; ++d) {
      const double error = std::fabs(y[d] - exact.out[d]) / exact.largest_v[d];
      if (!(error <= worst)) worst = error;  // also when error is NaN
    }
  }
  return worst;
}

class AttentionTest : public ::testing::TestWithParam<Body> {
 protected:
  const Ops& ops() const { return *GetParam().ops; }
  ThreadPool one_{1};
};

const Dims kDims[] = {
    {},
    {.num_heads = 4, .num_kv_heads = 4, .head_dim = 80},
    {.num_heads = 8, .num_kv_heads = 1, .head_dim = 96, .block_size = 64},
    {.num_heads = 10, .num_kv_heads = 2, .head_dim = 128, .block_size = 32},
    {.num_heads = 4, .num_kv_heads = 1, .head_dim = 256, .window = 70},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 2},
    {.num_heads = 6, .num_kv_heads = 2, .head_dim = 34, .block_size = 6},
    {.dtype = KvDtype::kF32},
    {.num_heads = 7, .num_kv_heads = 7, .head_dim = 18, .dtype = KvDtype::kF32, .window = 5},
    {.encoding = KvEncoding::kPlain, .window = 130},
    {.num_heads = 70, .num_kv_heads = 1, .head_dim = 16, .window = 1},
    {.num_heads = 16, .num_kv_heads = 2, .window = 128, .sinks = true},
    {.num_heads = 7, .num_kv_heads = 7, .head_dim = 18, .dtype = KvDtype::kF32, .sinks = true},
    {.dtype = KvDtype::kQ8, .encoding = KvEncoding::kLanes},
    {.num_heads = 4,
     .num_kv_heads = 1,
     .head_dim = 256,
     .dtype = KvDtype::kQ8,
     .encoding = KvEncoding::kLanes,
     .window = 70},
    {.num_heads = 10,
     .num_kv_heads = 2,
     .head_dim = 80,
     .block_size = 64,
     .dtype = KvDtype::kQ8,
     .encoding = KvEncoding::kLanes,
     .sinks = true},
    {.num_heads = 6,
     .num_kv_heads = 2,
     .head_dim = 34,
     .block_size = 6,
     .dtype = KvDtype::kQ8,
     .encoding = KvEncoding::kLanes,
     .window = 130},
    {.num_heads = 70,
     .num_kv_heads = 1,
     .head_dim = 16,
     .dtype = KvDtype::kQ8,
     .encoding = KvEncoding::kLanes},
    {.num_heads = 1,
     .num_kv_heads = 1,
     .head_dim = 2,
     .dtype = KvDtype::kQ8,
     .encoding = KvEncoding::kLanes,
     .window = 1},
    {.num_heads = 8, .num_kv_heads = 1, .head_dim = 512},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 512, .dtype = KvDtype::kF32, .window = 70},
};

TEST_P(AttentionTest, AgreesWithTheReferenceForEveryShape) {
  for (const Dims& dims : kDims) {
    for (uint32_t length : {1u, 63u, 129u, 300u}) {
      SCOPED_TRACE(Describe(dims) + " length " + std::to_string(length));
      Sequence s(dims, length, length);
      const std::vector<float> expected = s.Run(ReferenceOps(), one_, {length});
      const std::vector<float> actual = s.Run(ops(), one_, {length});
      if (GetParam().fused) {
        ASSERT_EQ(CountDifferent(actual, expected), 0u);
      }
      for (size_t i = 0; i < actual.size(); ++i) ASSERT_FALSE(std::isnan(actual[i])) << i;
    }
  }
}

TEST_P(AttentionTest, IsWithinTheStatedBoundOfExactArithmetic) {
  for (const Dims& dims :
       {kDims[0], kDims[4], kDims[7], kDims[11], kDims[12], kDims[13], kDims[16]}) {
    Sequence s(dims, 270, 4);
    // kernels/ARITHMETIC.md: a score of size |s| is off by (dim / 2 + 2) u |s|_1, which e turns
    // into a relative error of a weight; |s|_1 stays below 250 on this data.
    const double bound = 0x1p-24 * ((dims.head_dim / 2.0 + 2) * 250 + 300);
    EXPECT_LT(WorstRelativeError(s, s.Run(ops(), one_, {270})), bound) << Describe(dims);
  }
}

TEST_P(AttentionTest, ChunkingOfThePromptChangesNoBit) {
  const Dims cases[] = {{},
                        {.window = 100},
                        {.sinks = true},
                        {.window = 128, .sinks = true},
                        {.dtype = KvDtype::kQ8, .encoding = KvEncoding::kLanes},
                        {.dtype = KvDtype::kQ8, .encoding = KvEncoding::kLanes, .window = 100}};
  for (Dims dims : cases) {
    dims.num_heads = 6;
    dims.num_kv_heads = 2;
    const uint32_t length = 600;
    Sequence s(dims, length, 11);
    const std::vector<float> whole = s.Run(ops(), one_, {length});
    std::vector<uint32_t> sizes = {1, 2, 3, 5, 7, 13, 16, 31, 32, 61, 64, 97, 256, 512};
    for (uint32_t size : sizes) {
      ASSERT_EQ(CountDifferent(s.Run(ops(), one_, Chunks(length, size)), whole), 0u)
          << "chunks of " << size << " " << Describe(dims);
    }
  }
}

TEST_P(AttentionTest, EveryChunkSizeUpTo97GivesTheSameBits) {
  Dims dims;
  dims.num_heads = 3;
  dims.num_kv_heads = 1;
  dims.head_dim = 32;
  Sequence s(dims, 290, 12);
  const std::vector<float> whole = s.Run(ops(), one_, {290});
  for (uint32_t size = 1; size <= 97; ++size) {
    ASSERT_EQ(CountDifferent(s.Run(ops(), one_, Chunks(290, size)), whole), 0u) << size;
  }
}

TEST_P(AttentionTest, TheThreadCountChangesNoBitInPrefillAndDecode) {
  for (const Dims& dims : {kDims[0], kDims[9], kDims[2], kDims[13], kDims[16]}) {
    Sequence s(dims, 700, 13);
    const std::vector<float> expected = s.Run(ops(), one_, {700});
    for (uint32_t threads : {2u, 3u, 5u}) {
      ThreadPool pool(threads);
      ASSERT_EQ(CountDifferent(s.Run(ops(), pool, {700}), expected), 0u) << threads;
      ASSERT_EQ(CountDifferent(s.Run(ops(), pool, Chunks(700, 331)), expected), 0u) << threads;
      // The last row alone is a decode step: its splits run apart.
      std::vector<float> last(s.out_row(), kPoison);
      const AttentionSpan span = {{s.blocks}, 0, 1, 699};
      s.RunSpans(ops(), pool, {&span, 1}, s.q.data() + size_t{699} * s.q_stride(), last.data());
      ASSERT_EQ(CountDifferent(last, std::span(expected).last(s.out_row())), 0u) << threads;
    }
  }
}

TEST_P(AttentionTest, LongContextsTakeSeveralWavesAndStillAgree) {
  // 64 partial results a thread: 2 threads, 7 items, so 18 splits a wave; 5,000 keys are 20 splits.
  Dims dims;
  dims.num_heads = dims.num_kv_heads = 7;
  dims.head_dim = 16;
  for (const bool sinks : {false, true}) {
    dims.sinks = sinks;
    Sequence s(dims, 5000, 14);
    const AttentionSpan span = {{s.blocks}, 0, 1, 4999};
    ThreadPool two(2);
    std::vector<float> apart(s.out_row(), kPoison);
    std::vector<float> together(s.out_row(), kPoison);
    s.RunSpans(ops(), two, {&span, 1}, s.q.data(), apart.data());
    s.RunSpans(ops(), one_, {&span, 1}, s.q.data(), together.data());
    EXPECT_EQ(CountDifferent(apart, together), 0u) << Describe(dims);
  }
}

TEST_P(AttentionTest, ASinkThatNoKeyReachesChangesNoBit) {
  Dims dims = {.num_heads = 4, .num_kv_heads = 2, .window = 70};
  Sequence s(dims, 300, 18);
  const std::vector<float> without = s.Run(ops(), one_, {300});
  s.dims.sinks = true;
  s.sinks.assign(4, -1e30f);
  EXPECT_EQ(CountDifferent(s.Run(ops(), one_, {300}), without), 0u);
}

TEST_P(AttentionTest, ASinkAboveEveryKeyTakesTheWholeWeight) {
  Sequence s({.sinks = true}, 70, 19);
  s.sinks.assign(9, 1e4f);
  for (const float y : s.Run(ops(), one_, {70})) ASSERT_EQ(y, 0.0f);
}

TEST_P(AttentionTest, ABatchOfSpansGivesEachRowItsOwnBits) {
  for (uint32_t threads : {1u, 3u}) {
    ThreadPool pool(threads);
    Sequence s({}, 333, 15);
    const std::vector<float> expected = s.Run(ops(), one_, {333});
    // Decode rows, a chunk in the middle and a first chunk, in one call, in mixed order of rows.
    const AttentionSpan spans[] = {{{s.blocks}, 3, 1, 332},
                                   {{s.blocks}, 4, 40, 100},
                                   {{s.blocks}, 0, 3, 0},
                                   {{s.blocks}, 44, 1, 17}};
    std::vector<float> rows(size_t{45} * s.q_stride());
    std::vector<float> wanted(size_t{45} * s.out_row());
    for (const AttentionSpan& span : spans) {
      std::copy_n(s.q.begin() + size_t{span.first_pos} * s.q_stride(), span.num_rows * s.q_stride(),
                  rows.begin() + size_t{span.first_row} * s.q_stride());
      std::copy_n(expected.begin() + size_t{span.first_pos} * s.out_row(),
                  span.num_rows * s.out_row(),
                  wanted.begin() + size_t{span.first_row} * s.out_row());
    }
    std::vector<float> out(wanted.size(), kPoison);
    s.RunSpans(ops(), pool, spans, rows.data(), out.data());
    EXPECT_EQ(CountDifferent(out, wanted), 0u) << threads;
  }
}

TEST_P(AttentionTest, HugeLogitsAndEqualKeysGiveFiniteRows) {
  Sequence s({}, 130, 16);
  for (float& x : s.q) x *= 1e4f;
  for (const float y : s.Run(ops(), one_, {130})) ASSERT_TRUE(std::isfinite(y));
}

TEST_P(AttentionTest, ANanKeyReachesExactlyTheRowsThatSeeIt) {
  Sequence s({.window = 50}, 140, 17);
  const uint32_t bad = 70;
  StoreKv(s.layout.dtype, s.view().Piece(s.blocks[bad / 16], 1, 0, 0),
          KIndex(s.layout, bad % 16, 3), NAN);
  const std::vector<float> out = s.Run(ops(), one_, {140});
  for (uint32_t t = 0; t < 140; ++t) {
    const bool sees = t >= bad && t < bad + 50;
    EXPECT_EQ(std::isnan(out[size_t{t} * s.out_row()]), sees) << t;
  }
}

TEST_P(AttentionTest, ANanRowOfQ8ReachesExactlyTheRowsThatSeeIt) {
  for (const uint32_t which : {0u, 1u}) {
    Sequence s({.dtype = KvDtype::kQ8, .encoding = KvEncoding::kLanes, .window = 50}, 140, 20);
    const uint32_t bad = 70;
    std::vector<float> row(s.dims.head_dim, 1.0f);
    row[3] = which == 0 ? NAN : INFINITY;
    s.PutRow(which, bad, 0, row);
    const std::vector<float> out = s.Run(ops(), one_, {140});
    for (uint32_t t = 0; t < 140; ++t) {
      const bool sees = t >= bad && t < bad + 50;
      EXPECT_EQ(std::isnan(out[size_t{t} * s.out_row()]), sees) << t;
    }
  }
}

// A row of zeros is one key like another.
TEST_P(AttentionTest, RowsOfZerosInQ8GiveTheMeanOfTheValues) {
  Sequence s(
      {.num_heads = 1, .num_kv_heads = 1, .dtype = KvDtype::kQ8, .encoding = KvEncoding::kLanes},
      40, 21);
  for (uint32_t t = 0; t < 40; ++t) {
    s.PutRow(0, t, 0, std::vector<float>(s.dims.head_dim, 0.0f));
    s.PutRow(1, t, 0, std::vector<float>(s.dims.head_dim, t == 7 ? 0.0f : 127.0f));
  }
  const std::vector<float> out = s.Run(ops(), one_, {40});
  EXPECT_EQ(out[0], 127.0f);
  EXPECT_NEAR(out[size_t{39} * s.out_row()], 127.0 * 39 / 40, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Bodies, AttentionTest, ::testing::ValuesIn(Bodies()), BodyName);

}  // namespace
}  // namespace baton::kernels
