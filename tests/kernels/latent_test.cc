// Latent rows: what latent_append stores and turns, what attention makes of them, and that neither
// depends on how a sequence is cut.
#include <algorithm>
#include <cmath>
#include <cstring>
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

constexpr uint32_t kNumBlocks = 61;  // prime to the steps below
constexpr uint32_t kLayer = 1;       // of three
constexpr float kScale = 0.125f;

struct Shape {
  uint32_t num_heads;
  uint32_t latent_dim;
  uint32_t rope_dims;
  uint32_t q_head_dim;
  uint32_t block_size;
  KvDtype dtype;
};

// Latents that fill no vector, one and many; more queries than an item has; DeepSeek-V2-Lite's.
const Shape kShapes[] = {{4, 40, 8, 24, 16, KvDtype::kBf16},
                         {1, 8, 2, 3, 64, KvDtype::kF32},
                         {3, 30, 2, 10, 32, KvDtype::kBf16},
                         {70, 32, 16, 32, 16, KvDtype::kF32},
                         {16, 512, 64, 192, 16, KvDtype::kBf16}};

// Rows of one sequence and an arena in which every element that no token owns is NaN.
struct Case {
  Case(const Shape& shape, uint32_t length) : shape(shape), length(length), random(length) {
    layout.dtype = shape.dtype;
    layout.encoding = KvEncoding::kLatent;
    layout.num_layers = 3;
    layout.num_kv_heads = 1;
    layout.head_dim = shape.latent_dim + shape.rope_dims;
    layout.block_size = shape.block_size;
    for (uint32_t i = 0; i < kNumBlocks; ++i) blocks.push_back((i * 31 + 5) % kNumBlocks);
    arena = AlignedBuffer::Allocate(layout.BlockStride() * kNumBlocks).value();
    std::memset(arena.data(), 0xFF, arena.size());
    latents = random.Activations(size_t{length} * layout.head_dim);
    q = random.Activations(size_t{length} * shape.num_heads * shape.q_head_dim);
    absorbed = random.Activations(size_t{length} * q_size(), 0.5f);
    for (uint32_t i = 0; i < length * shape.rope_dims / 2; ++i) {
      const double angle = 0.37 * i;
      cos_sin.push_back(static_cast<float>(std::cos(angle)));
      cos_sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }

  uint32_t q_size() const { return shape.num_heads * layout.head_dim; }
  uint32_t out_size() const { return shape.num_heads * shape.latent_dim; }
  KvView view() const { return {const_cast<std::byte*>(arena.data()), &layout, kNumBlocks}; }
  AttentionSpan Span(uint32_t first_row, uint32_t num_rows, uint32_t first_pos) const {
    return {{blocks}, first_row, num_rows, first_pos};
  }

  // Rows [first, first + count) at their own positions.
  void Append(const Ops& ops, ThreadPool& pool, uint32_t first, uint32_t count) {
    const AttentionSpan spans[] = {Span(0, count, first)};
    ops.latent_append(pool, {.kv = view(),
                             .layer = kLayer,
                             .spans = spans,
                             .latents = latents.data() + size_t{first} * layout.head_dim,
                             .q = q.data() + size_t{first} * shape.num_heads * shape.q_head_dim,
                             .q_head_dim = shape.q_head_dim,
                             .num_heads = shape.num_heads,
                             .rope_dims = shape.rope_dims,
                             .cos_sin = cos_sin.data(),
                             .absorbed = absorbed.data() + size_t{first} * q_size()});
  }
  void Attend(const Ops& ops, ThreadPool& pool, uint32_t first, uint32_t count, float* out) {
    AlignedBuffer scratch =
        AlignedBuffer::Allocate(
            ops.attention_scratch_bytes(pool.num_threads(), shape.num_heads, 1, layout.head_dim) +
            64)
            .value();
    std::memset(scratch.data(), 0xFF, scratch.size());
    const AttentionSpan spans[] = {Span(0, count, first)};
    ops.attention(pool, {.kv = view(),
                         .layer = kLayer,
                         .spans = spans,
                         .q = absorbed.data() + size_t{first} * q_size(),
                         .q_stride = q_size(),
                         .num_heads = shape.num_heads,
                         .scale = kScale,
                         .window = 0,
                         .out = out,
                         .scratch = {scratch.data(), scratch.size()},
                         .value_dim = shape.latent_dim});
  }
  // Appends and attends in chunks of `size`.
  std::vector<float> Run(const Ops& ops, ThreadPool& pool, uint32_t size) {
    std::vector<float> out(size_t{length} * out_size(), kPoison);
    for (uint32_t first = 0; first < length; first += size) {
      const uint32_t count = std::min(size, length - first);
      Append(ops, pool, first, count);
      Attend(ops, pool, first, count, out.data() + size_t{first} * out_size());
    }
    return out;
  }
  float Stored(uint32_t position, uint32_t i) const {
    const std::byte* piece = view().Piece(blocks[position / shape.block_size], kLayer, 0, 0);
    return LoadKv(shape.dtype, piece, size_t{position % shape.block_size} * layout.head_dim + i);
  }
  // Element i of the part that turns of a row at `position`.
  double Turned(const float* part, uint32_t position, uint32_t i) const {
    const float* pair = part + i / 2 * 2;
    const float* at = cos_sin.data() + size_t{position} * shape.rope_dims + i / 2 * 2;
    return i % 2 == 0 ? double{pair[0]} * at[0] - double{pair[1]} * at[1]
                      : double{pair[1]} * at[0] + double{pair[0]} * at[1];
  }

  Shape shape;
  uint32_t length;
  Random random;
  KvLayout layout;
  std::vector<uint32_t> blocks;
  AlignedBuffer arena;
  std::vector<float> latents;   // [length, head_dim]
  std::vector<float> q;         // [length, heads, q_head_dim]
  std::vector<float> absorbed;  // [length, heads, head_dim]
  std::vector<float> cos_sin;   // [length, rope_dims / 2, 2]
};

class LatentTest : public ::testing::TestWithParam<Body> {
 protected:
  const Ops& ops() const { return *GetParam().ops; }
  ThreadPool one_{1};
  ThreadPool three_{3};
};

// The stored row of token t: the latent rounded, the key turned.
void ExpectStored(const Case& c, uint32_t t) {
  const Shape& shape = c.shape;
  const bool is_f32 = shape.dtype == KvDtype::kF32;
  const float* latent = c.latents.data() + size_t{t} * c.layout.head_dim;
  for (uint32_t i = 0; i < shape.latent_dim; ++i) {
    const float wanted = is_f32 ? latent[i] : FloatFromBf16(Bf16FromFloat(latent[i]));
    ASSERT_EQ(c.Stored(t, i), wanted) << t << " " << i;
  }
  const float* key = latent + shape.latent_dim;
  for (uint32_t i = 0; i < shape.rope_dims; ++i) {
    const double size = std::fabs(key[i / 2 * 2]) + std::fabs(key[i / 2 * 2 + 1]);
    ASSERT_NEAR(c.Stored(t, shape.latent_dim + i), c.Turned(key, t, i),
                (is_f32 ? 0x1p-22 : 0x1p-8) * size);
  }
}

// The queries of token t: their last elements turned, the others as they were.
void ExpectTurned(const Case& c, std::span<const float> before, uint32_t t) {
  const Shape& shape = c.shape;
  for (uint32_t head = 0; head < shape.num_heads; ++head) {
    const size_t query = size_t{t} * shape.num_heads + head;
    const float* part = c.q.data() + (query + 1) * shape.q_head_dim - shape.rope_dims;
    const size_t at = query * c.layout.head_dim;
    for (uint32_t i = 0; i < shape.latent_dim; ++i) ASSERT_EQ(c.absorbed[at + i], before[at + i]);
    for (uint32_t i = 0; i < shape.rope_dims; ++i) {
      const double size = std::fabs(part[i / 2 * 2]) + std::fabs(part[i / 2 * 2 + 1]);
      ASSERT_NEAR(c.absorbed[at + shape.latent_dim + i], c.Turned(part, t, i), 0x1p-22 * size);
    }
  }
}

TEST_P(LatentTest, StoresLatentsAndTurnsKeysAndQueries) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.latent_dim);
    Case c(shape, 37);
    const std::vector<float> before = c.absorbed;
    c.Append(ops(), three_, 0, 37);
    for (uint32_t t = 0; t < 37; ++t) {
      ExpectStored(c, t);
      ExpectTurned(c, before, t);
    }
    // The rest of the last block is zero; other layers are as they were.
    for (uint32_t i = 37 * c.layout.head_dim; i % (shape.block_size * c.layout.head_dim) != 0;
         ++i) {
      ASSERT_EQ(c.Stored(i / c.layout.head_dim, i % c.layout.head_dim), 0.0f);
    }
    const std::byte* block = c.view().Piece(c.blocks[0], 0, 0, 0);
    const size_t slice = c.layout.SliceBytes();
    for (size_t i = 0; i < slice; ++i) {
      ASSERT_EQ(block[i], std::byte{0xFF});
      ASSERT_EQ(block[2 * slice + i], std::byte{0xFF});
    }
  }
}

TEST_P(LatentTest, AgreesWithTheReference) {
  for (const Shape& shape : kShapes) {
    for (const uint32_t length : {1u, 65u, 300u}) {
      if (length * shape.num_heads * shape.latent_dim > 60000 && length > 65) continue;  // slow
      SCOPED_TRACE(shape.latent_dim);
      Case expected(shape, length);
      Case actual(shape, length);
      const std::vector<float> wanted = expected.Run(ReferenceOps(), one_, length);
      const std::vector<float> got = actual.Run(ops(), three_, length);
      if (GetParam().fused) {
        const size_t size = actual.arena.size();
        ASSERT_EQ(std::memcmp(actual.arena.data(), expected.arena.data(), size), 0);
        ASSERT_EQ(CountDifferent(got, wanted), 0u);
      }
      // Sums in another order: each is a weighted mean of latents of about 1.
      const float bound = shape.dtype == KvDtype::kF32 ? 2e-5f : 2e-2f;
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], bound) << i;
    }
  }
}

// The weights of the keys that a query sees, in double.
std::vector<double> WeightsOf(const Case& c, uint32_t t, uint32_t head) {
  const float* q = c.absorbed.data() + size_t{t} * c.q_size() + head * c.layout.head_dim;
  std::vector<double> weights(t + 1);
  for (uint32_t key = 0; key <= t; ++key) {
    for (uint32_t i = 0; i < c.layout.head_dim; ++i) {
      weights[key] += double{q[i]} * kScale * c.Stored(key, i);
    }
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  for (double& weight : weights) weight /= total;
  return weights;
}

// out [latent_dim] is the weighted sum of latents.
void ExpectSum(const Case& c, std::span<const double> weights, const float* out) {
  for (uint32_t i = 0; i < c.shape.latent_dim; ++i) {
    double sum = 0;
    double size = 0;
    for (uint32_t key = 0; key < weights.size(); ++key) {
      sum += weights[key] * c.Stored(key, i);
      size = std::max(size, std::fabs(double{c.Stored(key, i)}));
    }
    ASSERT_NEAR(out[i], sum, 1e-3 * size) << i;
  }
}

TEST_P(LatentTest, IsTheSumOfLatentsByTheDefinition) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.latent_dim);
    Case c(shape, 90);
    const std::vector<float> out = c.Run(ops(), one_, 90);
    for (uint32_t t = 0; t < 90; t += 7) {
      for (uint32_t head = 0; head < c.shape.num_heads; ++head) {
        SCOPED_TRACE(testing::Message() << t << " " << head);
        ExpectSum(c, WeightsOf(c, t, head),
                  out.data() + size_t{t} * c.out_size() + head * c.shape.latent_dim);
      }
    }
  }
}

TEST_P(LatentTest, ChunksAndThreadsChangeNoBit) {
  for (const Shape& shape : {kShapes[0], kShapes[2], kShapes[3]}) {
    const uint32_t length = 290;
    Case whole(shape, length);
    const std::vector<float> wanted = whole.Run(ops(), one_, length);
    for (const uint32_t size : {1u, 3u, 16u, 33u, 64u, 97u, 257u}) {
      Case cut(shape, length);
      ASSERT_EQ(CountDifferent(cut.Run(ops(), size % 2 == 0 ? one_ : three_, size), wanted), 0u)
          << size;
      ASSERT_EQ(std::memcmp(cut.arena.data(), whole.arena.data(), cut.arena.size()), 0) << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, LatentTest, ::testing::ValuesIn(Bodies()), BodyName);

}  // namespace
}  // namespace baton::kernels
