#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::ThreadPool;

namespace {

constexpr double kUnit = 0x1p-24;  // half an ulp of fp32, relative

// A weight matrix, activations and what they were made of.
struct Case {
  // `least_k` is rounded up to whole blocks of the type.
  Case(WeightType type, uint32_t n, uint32_t least_k, uint32_t m, uint64_t salt = 1)
      : type(type),
        n(n),
        k(WholeBlocks(type, least_k)),
        m(m),
        pool(1),
        random(salt),
        x(random.Activations(size_t{m} * k)),
        raw(RandomRaw(&random, type, n, k)),
        weights(PackedMatrix::Pack(type, raw, n, k, pool).value()),
        a16(m, weights.uses_a16() ? k : 0) {
    if (weights.uses_a16()) ReferenceOps().quantize_a16(pool, x.data(), m, a16.view());
  }

  MatMulArgs Args(float* out, uint32_t out_stride) {
    return {.weights = &weights,
            .a16 = a16.view(),
            .x = x.data(),
            .m = m,
            .out = out,
            .out_stride = out_stride,
            .epilogue = Epilogue::kStore};
  }
  // The rows [first, first + count) only.
  MatMulArgs Rows(uint32_t first, uint32_t count, float* out) {
    MatMulArgs args = Args(out, n);
    const size_t block = size_t{first} * (k / 32);
    args.m = count;
    args.x = x.data() + size_t{first} * k;
    if (weights.uses_a16()) {
      args.a16 = {a16.q.data() + size_t{first} * k,
                  a16.scale.data() + block,
                  a16.sum.data() + block,
                  a16.half_sum.data() + 2 * block,
                  a16.half_total.data() + 2 * block,
                  k};
    }
    return args;
  }
  std::vector<float> Run(const Ops& ops, ThreadPool& threads) {
    std::vector<float> out(size_t{m} * n, kPoison);
    ops.matmul(threads, Args(out.data(), n));
    return out;
  }
  std::vector<float> Reference() { return Run(ReferenceOps(), pool); }

  WeightType type;
  uint32_t n, k, m;
  ThreadPool pool;
  Random random;
  std::vector<float> x;
  std::vector<std::byte> raw;
  PackedMatrix weights;
  A16Buffer a16;
};

struct Shape {
  uint32_t n, k, m;
};

// Ugly ones: fewer columns than a panel, a column more than panels, primes, stretches of k that do
// not divide, odd numbers of panels in several stretches, and rows around every tile size.
constexpr Shape kShapes[] = {
    {1, 32, 1},   {15, 32, 2},   {16, 64, 3},   {17, 96, 4},   {31, 576, 5},  {48, 1536, 6},
    {33, 160, 7}, {16, 1568, 8}, {37, 64, 11},  {16, 32, 12},  {19, 288, 13}, {64, 32, 97},
    {5, 800, 23}, {32, 64, 192}, {17, 64, 193}, {16, 96, 400}, {33, 416, 41}, {49, 800, 29},
};

class MatMulTest : public ::testing::TestWithParam<Body> {
 protected:
  const Ops& ops() const { return *GetParam().ops; }
};

// Roundings that a term of one output passes: the count per block of kernels/ARITHMETIC.md, or one
// per element.
double Steps(const Case& c) {
  if (!c.weights.uses_a16()) return c.k;
  // Two additions a block, or four; the portable body rounds one product more.
  return (c.type == WeightType::kQ2_K ? 5.0 : 3.0) * c.k / 32 + 2;
}

// The size of what is added up for element i: product and min may each be larger than their sum.
double TermSize(const Case& c, uint32_t n, uint32_t i) {
  const RawTerms terms = RawElementTerms(c.type, c.raw, c.k, n, i);
  return std::fabs(terms.product) + std::fabs(terms.min);
}

// Largest |x| of the 32-block of each element.
double AbsMax(const Case& c, uint32_t row, uint32_t i) {
  double absmax = 0;
  for (uint32_t j = i / 32 * 32; j < std::min(c.k, i / 32 * 32 + 32); ++j) {
    absmax = std::fmax(absmax, std::fabs(c.x[size_t{row} * c.k + j]));
  }
  return absmax;
}

// Two ways of rounding the same terms differ by at most twice the bound of each.
void ExpectWithinRounding(const Case& c, std::span<const float> actual,
                          std::span<const float> expected) {
  const uint32_t blocks = c.k / 32;
  std::vector<double> absmax(size_t{c.m} * blocks);
  for (size_t i = 0; i < absmax.size(); ++i) {
    absmax[i] = AbsMax(c, static_cast<uint32_t>(i / blocks), i % blocks * 32);
  }
  std::vector<double> sizes(size_t{c.n} * blocks);  // of the terms of a block
  for (size_t i = 0; i < size_t{c.n} * c.k; ++i) {
    sizes[i / 32] += TermSize(c, static_cast<uint32_t>(i / c.k), i % c.k);
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    double terms = 1e-30;
    for (uint32_t b = 0; b < blocks; ++b) {
      terms += absmax[i / c.n * blocks + b] * sizes[i % c.n * blocks + b];
    }
    ASSERT_LE(std::fabs(double{actual[i]} - expected[i]), 4 * Steps(c) * kUnit * terms) << i;
  }
}

TEST_P(MatMulTest, AgreesWithTheReferenceBitForBitOrWithinItsBound) {
  for (const WeightType type : WeightTypes()) {
    for (const Shape& shape : kShapes) {
      Case c(type, shape.n, shape.k, shape.m);
      ThreadPool pool(2);
      const std::vector<float> expected = c.Reference();
      const std::vector<float> actual = c.Run(ops(), pool);
      SCOPED_TRACE(std::string(c.weights.traits().name) + " n " + std::to_string(c.n) + " k " +
                   std::to_string(c.k) + " m " + std::to_string(c.m));
      if (GetParam().fused) {
        EXPECT_EQ(CountDifferent(actual, expected), 0u);
      } else {
        ExpectWithinRounding(c, actual, expected);
      }
    }
  }
}

// One output in exact arithmetic on the original activations, and the bound on the error of
// kernels/ARITHMETIC.md.
struct ExactOutput {
  double value = 0;
  double bound = 0;
};

ExactOutput Exact(const Case& c, uint32_t row, uint32_t n) {
  ExactOutput exact;
  const float* x = c.x.data() + size_t{row} * c.k;
  for (uint32_t i = 0; i < c.k; ++i) {
    const double w = RawElement(c.type, c.raw, c.k, n, i);
    exact.value += w * x[i];
    if (c.weights.uses_a16()) {
      const double absmax = AbsMax(c, row, i);
      exact.bound += std::fabs(w) * absmax * (1 + 0x1p-6) / 65534;
      exact.bound += 2 * Steps(c) * kUnit * TermSize(c, n, i) * absmax;
    } else {
      exact.bound += std::fabs(w * x[i]) * Steps(c) * kUnit * 2;
    }
  }
  return exact;
}

TEST_P(MatMulTest, IsWithinTheStatedBoundOfExactArithmetic) {
  for (const WeightType type : WeightTypes()) {
    Case c(type, 33, 576, 5, 77);
    ThreadPool pool(1);
    const std::vector<float> actual = c.Run(ops(), pool);
    double worst = 0;
    for (uint32_t i = 0; i < actual.size(); ++i) {
      const ExactOutput exact = Exact(c, i / c.n, i % c.n);
      const double error = std::fabs(actual[i] - exact.value);
      ASSERT_LE(error, exact.bound);
      worst = std::fmax(worst, error / exact.bound);
    }
    EXPECT_GT(worst, 1e-5) << "a bound that is never approached tests nothing";
  }
}

TEST_P(MatMulTest, ARowsBitsDoNotDependOnTheOtherRows) {
  for (const WeightType type : WeightTypes()) {
    Case c(type, 35, 320, 29, 5);
    ThreadPool pool(1);
    const std::vector<float> whole = c.Run(ops(), pool);
    for (uint32_t chunk = 1; chunk <= c.m; ++chunk) {
      std::vector<float> cut(whole.size(), kPoison);
      for (uint32_t first = 0; first < c.m; first += chunk) {
        ops().matmul(pool,
                     c.Rows(first, std::min(chunk, c.m - first), cut.data() + size_t{first} * c.n));
      }
      ASSERT_EQ(CountDifferent(cut, whole), 0u) << "chunks of " << chunk;
    }
  }
}

TEST_P(MatMulTest, TheThreadCountChangesNoBit) {
  for (const WeightType type : WeightTypes()) {
    for (uint32_t m : {1u, 3u, 250u}) {
      Case c(type, 131, 96, m, 6);
      ThreadPool one(1);
      const std::vector<float> expected = c.Run(ops(), one);
      for (uint32_t threads : {2u, 3u, 5u}) {
        ThreadPool pool(threads);
        ASSERT_EQ(CountDifferent(c.Run(ops(), pool), expected), 0u) << threads << " threads";
      }
    }
  }
}

TEST_P(MatMulTest, AddsToTheOutputWhenAskedAndLeavesOtherColumnsAlone) {
  for (const WeightType type : WeightTypes()) {
    // 83 columns are whole tiles and one that is cut; 800 elements are several stretches.
    for (const Shape& shape : {Shape{21, 64, 1}, Shape{21, 64, 2}, Shape{21, 64, 9},
                               Shape{83, 64, 9}, Shape{83, 800, 29}}) {
      Case c(type, shape.n, shape.k, shape.m, 7);
      const uint32_t m = shape.m;
      ThreadPool pool(2);
      const std::vector<float> y = c.Run(ops(), pool);
      const uint32_t stride = c.n + 5;
      const std::vector<float> before = c.random.Activations(size_t{m} * stride);
      std::vector<float> stored = before;
      std::vector<float> added = before;
      MatMulArgs args = c.Args(stored.data(), stride);
      ops().matmul(pool, args);
      args.out = added.data();
      args.epilogue = Epilogue::kAdd;
      ops().matmul(pool, args);
      for (size_t i = 0; i < before.size(); ++i) {
        const uint32_t column = i % stride;
        const float expected = column < c.n ? y[i / stride * c.n + column] : before[i];
        ASSERT_EQ(stored[i], expected) << i;
        ASSERT_EQ(added[i], column < c.n ? before[i] + expected : before[i]) << i;
      }
    }
  }
}

TEST_P(MatMulTest, ZeroRowsWriteNothing) {
  Case c(WeightType::kQ4_1, 16, 32, 1);
  float out = kPoison;
  MatMulArgs args = c.Args(&out, 16);
  args.m = 0;
  ops().matmul(c.pool, args);
  EXPECT_EQ(out, kPoison);
}

// Gives a raw block scale 1 and, where it has one, min (or dmin) 1.
void PutOnes(WeightType type, std::byte* block) {
  const uint16_t half_one = 0x3C00;
  if (type == WeightType::kMxfp4) {
    block[0] = std::byte{127};
    return;
  }
  std::memcpy(block + ScaleAt(type), &half_one, 2);
  if (TraitsOf(type).has_min()) std::memcpy(block + ScaleAt(type) + 2, &half_one, 2);
}

TEST_P(MatMulTest, ExtremeDigitsStayExact) {
  // All activations at +-32767 and all digits (and factors) at their extremes: the largest possible
  // sums.
  for (const WeightType type : WeightTypes()) {
    if (!TraitsOf(type).quantized()) continue;
    for (int digit : {0x00, 0xFF, 0x80, 0x7F}) {
      Case c(type, 16, 64, 7, 8);
      for (std::byte& b : c.raw) b = static_cast<std::byte>(digit);
      for (size_t at = 0; at < c.raw.size(); at += TraitsOf(type).block_bytes) {
        PutOnes(type, c.raw.data() + at);
      }
      c.weights = PackedMatrix::Pack(type, c.raw, c.n, c.k, c.pool).value();
      for (size_t i = 0; i < c.x.size(); ++i) c.x[i] = i / c.k % 2 == 0 ? 32767.0f : -32767.0f;
      ReferenceOps().quantize_a16(c.pool, c.x.data(), c.m, c.a16.view());
      double exact = 0;
      double terms = 0;
      for (uint32_t i = 0; i < c.k; ++i) {
        exact += RawElement(type, c.raw, c.k, 0, i) * 32767.0;
        terms += TermSize(c, 0, i) * 32767.0;
      }
      for (const float y : c.Run(ops(), c.pool)) {
        ASSERT_NEAR(std::fabs(y), std::fabs(exact), terms * Steps(c) * kUnit + 1e-3)
            << TraitsOf(type).name << " " << digit;
      }
    }
  }
}

TEST_P(MatMulTest, ANanInOneRowStaysInThatRow) {
  for (const WeightType type : WeightTypes()) {
    for (uint32_t m : {2u, 9u}) {
      Case c(type, 16, 64, m, 9);
      c.x[5] = NAN;
      if (c.weights.uses_a16()) ops().quantize_a16(c.pool, c.x.data(), m, c.a16.view());
      const std::vector<float> out = c.Run(ops(), c.pool);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i < c.n) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, MatMulTest, ::testing::ValuesIn(Bodies()), BodyName);

}  // namespace
}  // namespace baton::kernels
