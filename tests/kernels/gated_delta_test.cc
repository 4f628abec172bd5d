// The gated delta net and Mamba-2: what they compute, where their states lie, and that neither
// depends on how a sequence is cut.
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/delta_gates.h"
#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::ThreadPool;
using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;

namespace {

constexpr uint32_t kNumTokens = 40;
constexpr uint32_t kSlice = 1;   // of three
constexpr size_t kOffset = 192;  // of the state in that slice: of another layer's state
constexpr float kEps = 1e-6f;
constexpr std::byte kStale{0xA5};

// One head of k for one, two and three of v; tiles of one to four vectors and more than one tile;
// slices of a vector and slices that hold several rows.
const DeltaShape kShapes[] = {
    {1, 1, 16, 16, 2},
    {2, 4, 16, 32, 4},
    {1, 3, 32, 48, 3},
    {2, 2, 128, 128, 4},
    {1, 2, 48, 80, 16},
    // Mamba-2: one group for two heads, two groups of two and of three, as many groups as heads.
    {1, 2, 16, 16, 2, DeltaRule::kAdd},
    {2, 4, 32, 80, 4, DeltaRule::kAdd},
    {2, 6, 128, 48, 4, DeltaRule::kAdd},
    {3, 3, 48, 64, 5, DeltaRule::kAdd},
};

KvLayout LayoutOf(const DeltaShape& shape, uint32_t block_size) {
  KvLayout layout;
  layout.dtype = KvDtype::kBf16;
  layout.encoding = KvEncoding::kPaired;
  layout.num_layers = 3;
  layout.num_kv_heads = 1;
  layout.head_dim = 16;
  layout.block_size = block_size;
  const size_t bytes = kOffset + shape.state_bytes();
  layout.state_blocks =
      static_cast<uint32_t>((bytes + layout.SliceBytes() - 1) / layout.SliceBytes());
  return layout;
}

// Inputs and weights of one shape, for two sequences of kNumTokens.
struct Case {
  bool is_mamba() const { return shape.rule == DeltaRule::kAdd; }

  Case(const DeltaShape& shape, uint32_t block_size)
      : shape(shape), layout(LayoutOf(shape, block_size)), random(shape.v_dim) {
    const auto uniform = [this](size_t count, float low, float high) {
      std::vector<float> out(count);
      for (float& x : out) {
        x = low + (high - low) * static_cast<float>(random.Below(1u << 20)) / (1u << 20);
      }
      return out;
    };
    input = uniform(size_t{2} * kNumTokens * shape.input_size(), -2.0f, 2.0f);
    taps = uniform(size_t{shape.num_taps} * shape.num_channels(), -1.0f, 1.0f);
    rates = uniform(shape.num_v_heads, -2.0f, -0.01f);
    dt_bias = uniform(shape.num_v_heads, -2.0f, 1.0f);
    norm = uniform(is_mamba() ? shape.value_size() : shape.v_dim, 0.5f, 1.5f);
    if (is_mamba()) {
      conv_bias = uniform(shape.num_channels(), -0.5f, 0.5f);
      skips = uniform(shape.num_v_heads, -1.0f, 2.0f);
    }
    num_blocks = 2 * layout.state_blocks + 3;
    for (uint32_t i = 0; i < 2 * layout.state_blocks; ++i) {
      states[i % 2].push_back(num_blocks - 1 - i);
    }
  }

  struct Result {
    std::vector<std::byte> arena;
    std::vector<float> input;
    std::vector<float> out;
  };
  // Stale bytes, but for the zeros of states that begin.
  Result Begin() const {
    Result result{std::vector<std::byte>(layout.BlockStride() * num_blocks, kStale), input,
                  std::vector<float>(size_t{2} * kNumTokens * shape.value_size() + 1, kPoison)};
    for (uint32_t s = 0; s < 2; ++s) {
      for (size_t i = 0; i < shape.state_bytes(); ++i) *At(result, s, i) = std::byte{0};
    }
    return result;
  }
  std::byte* At(Result& result, uint32_t sequence, size_t i) const {
    const size_t at = kOffset + i;
    const uint32_t block = states[sequence][at / layout.SliceBytes()];
    return result.arena.data() + block * layout.BlockStride() + kSlice * layout.SliceBytes() +
           at % layout.SliceBytes();
  }
  AttentionSpan Span(uint32_t sequence, uint32_t first_row, uint32_t num_rows,
                     uint32_t first_pos) const {
    return {{{}, states[sequence]}, first_row, num_rows, first_pos};
  }
  void Run(const Ops& ops, ThreadPool& pool, std::span<const AttentionSpan> spans, Result* result,
           size_t first_row = 0) const {
    ops.gated_delta(pool, {.kv = {result->arena.data(), &layout, num_blocks},
                           .slice = kSlice,
                           .offset = kOffset,
                           .spans = spans,
                           .shape = shape,
                           .input = result->input.data() + first_row * shape.input_size(),
                           .taps = taps.data(),
                           .rates = rates.data(),
                           .dt_bias = dt_bias.data(),
                           .norm = norm.data(),
                           .eps = kEps,
                           .out = result->out.data() + first_row * shape.value_size(),
                           .conv_bias = is_mamba() ? conv_bias.data() : nullptr,
                           .skips = is_mamba() ? skips.data() : nullptr});
  }
  // Both sequences whole, in one call.
  Result Whole(const Ops& ops, ThreadPool& pool) const {
    Result result = Begin();
    const AttentionSpan spans[] = {Span(0, 0, kNumTokens, 0), Span(1, kNumTokens, kNumTokens, 0)};
    Run(ops, pool, spans, &result);
    return result;
  }

  DeltaShape shape;
  KvLayout layout;
  Random random;
  uint32_t num_blocks = 0;
  std::vector<float> input, taps, rates, dt_bias, norm, conv_bias, skips;
  std::vector<uint32_t> states[2];
};

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The convolution of one element of a row of the first sequence, in double.
double Convolved(const Case& c, uint32_t t, size_t i) {
  const DeltaShape& s = c.shape;
  double sum = c.is_mamba() ? c.conv_bias[i] : 0.0f;
  for (uint32_t back = 0; back < s.num_taps && back <= t; ++back) {
    const float input = c.input[size_t{t - back} * s.input_size() + i];
    sum += double{c.taps[size_t{s.num_taps - 1 - back} * s.num_channels() + i]} * input;
  }
  return sum * Sigmoid(sum);
}

// One column of a matrix moves on; what q reads of it then.
double Move(const DeltaShape& s, const double* q, double v, std::pair<double, double> beta_decay,
            double* column) {
  const double* k = q + s.key_size();
  double known = 0;
  double read = 0;
  for (uint32_t i = 0; i < s.k_dim; ++i) {
    known += beta_decay.second * column[size_t{i} * s.v_dim] * k[i];
  }
  for (uint32_t i = 0; i < s.k_dim; ++i) {
    double& element = column[size_t{i} * s.v_dim];
    element = element * beta_decay.second + k[i] * (v - known) * beta_decay.first;
    read += element * q[i];
  }
  return read;
}

// The first sequence at one of its tokens, in double.
struct Exact {
  const Case& c;
  std::vector<double> state, mixed, out;
};

// Appends a head's output of row t.
void AppendHead(uint32_t t, uint32_t h, Exact* exact) {
  auto& [c, state, mixed, out] = *exact;
  const DeltaShape& s = c.shape;
  const float* z = c.input.data() + size_t{t} * s.input_size() + s.num_channels();
  const float* logits = z + s.value_size();
  const double decay =
      std::exp(c.rates[h] * std::log1p(std::exp(double{logits[s.num_v_heads + h]} + c.dt_bias[h])));
  const double* q = mixed.data() + size_t{h % s.num_k_heads} * s.k_dim;
  std::vector<double> read;
  double squares = 0;
  for (uint32_t j = 0; j < s.v_dim; ++j) {
    const size_t at = size_t{h} * s.v_dim + j;
    read.push_back(Move(s, q, mixed[2 * s.key_size() + at], {Sigmoid(logits[h]), decay},
                        state.data() + size_t{h} * s.k_dim * s.v_dim + j));
    squares += read.back() * read.back();
  }
  for (uint32_t j = 0; j < s.v_dim; ++j) {
    const double gate = z[size_t{h} * s.v_dim + j];
    out.push_back(read[j] / std::sqrt(squares / s.v_dim + kEps) * c.norm[j] * gate * Sigmoid(gate));
  }
}

// Appends the outputs of row t of Mamba-2, by Dao and Gu's definition: h = e^(dt A) h + dt B x,
// y = C h + D x; then the gate, and the norm of each group.
void AppendMambaRow(uint32_t t, Exact* exact) {
  auto& [c, state, mixed, out] = *exact;
  const DeltaShape& s = c.shape;
  const float* z = c.input.data() + size_t{t} * s.input_size() + s.num_channels();
  const float* dt = z + s.value_size();
  std::vector<double> gated;
  for (uint32_t h = 0; h < s.num_v_heads; ++h) {
    const double step = std::log1p(std::exp(double{dt[h]} + c.dt_bias[h]));
    const uint32_t group = h / (s.num_v_heads / s.num_k_heads);
    const double* read_by = mixed.data() + size_t{group} * s.k_dim;  // C; B follows all of them
    for (uint32_t j = 0; j < s.v_dim; ++j) {
      const double x = mixed[2 * s.key_size() + size_t{h} * s.v_dim + j];
      double y = c.skips[h] * x;
      for (uint32_t n = 0; n < s.k_dim; ++n) {
        double& element = state[(size_t{h} * s.k_dim + n) * s.v_dim + j];
        element = std::exp(step * c.rates[h]) * element + step * read_by[s.key_size() + n] * x;
        y += read_by[n] * element;
      }
      const double gate = z[size_t{h} * s.v_dim + j];
      gated.push_back(y * gate * Sigmoid(gate));
    }
  }
  const size_t group_size = gated.size() / s.num_k_heads;
  for (size_t i = 0; i < gated.size(); ++i) {
    double squares = 0;
    const size_t first = i / group_size * group_size;
    for (size_t j = first; j < first + group_size; ++j) squares += gated[j] * gated[j];
    out.push_back(gated[i] / std::sqrt(squares / static_cast<double>(group_size) + kEps) *
                  c.norm[i]);
  }
}

// The output of the first sequence by its definition, in double.
std::vector<double> ByDefinition(const Case& c) {
  const DeltaShape& s = c.shape;
  Exact exact{c,
              std::vector<double>(s.matrix_bytes() / sizeof(float)),
              std::vector<double>(s.num_channels()),
              {}};
  std::vector<double>& mixed = exact.mixed;
  for (uint32_t t = 0; t < kNumTokens; ++t) {
    for (size_t i = 0; i < mixed.size(); ++i) mixed[i] = Convolved(c, t, i);
    if (c.is_mamba()) {
      AppendMambaRow(t, &exact);
      continue;
    }
    for (uint32_t h = 0; h < 2 * s.num_k_heads; ++h) {
      const std::span<double> head = std::span(mixed).subspan(size_t{h} * s.k_dim, s.k_dim);
      double squares = 1e-6;
      for (const double x : head) squares += x * x;
      const double length = std::sqrt(squares) * (h < s.num_k_heads ? std::sqrt(s.k_dim) : 1.0);
      for (double& x : head) x /= length;
    }
    for (uint32_t h = 0; h < s.num_v_heads; ++h) AppendHead(t, h, &exact);
  }
  return exact.out;
}

class GatedDeltaTest : public ::testing::TestWithParam<Body> {
 protected:
  const Ops& ops() const { return *GetParam().ops; }
  ThreadPool one_{1};
  ThreadPool three_{3};
};

TEST_P(GatedDeltaTest, ComputesItsDefinition) {
  for (const DeltaShape& shape : kShapes) {
    SCOPED_TRACE(shape.v_dim);
    const Case c(shape, 16);
    const Case::Result result = c.Whole(ops(), three_);
    EXPECT_EQ(result.out.back(), kPoison);
    const std::vector<double> expected = ByDefinition(c);
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::fabs(result.out[i] - expected[i]));
    }
    EXPECT_LT(worst, 1e-4) << "of outputs of about 1";
  }
}

TEST_P(GatedDeltaTest, AgreesWithTheReferenceOnEveryByte) {
  for (const DeltaShape& shape : kShapes) {
    SCOPED_TRACE(shape.v_dim);
    const Case c(shape, 16);
    const Case::Result expected = c.Whole(ReferenceOps(), one_);
    const Case::Result actual = c.Whole(ops(), three_);
    const size_t count = actual.out.size() - 1;
    ExpectAgree(GetParam(), std::span(actual.out).first(count),
                std::span(expected.out).first(count), 1e-4, 1.0);
    if (GetParam().fused) {
      EXPECT_EQ(actual.arena, expected.arena);
    }
  }
}

TEST_P(GatedDeltaTest, NoCutChangesAByte) {
  for (const DeltaShape& shape : kShapes) {
    for (const uint32_t block_size : {2u, 16u, 64u}) {  // from slices of 128 bytes on
      SCOPED_TRACE(shape.v_dim);
      const Case c(shape, block_size);
      const Case::Result whole = c.Whole(ops(), three_);
      for (const uint32_t chunk : {1u, 2u, 7u, 16u}) {
        Case::Result cut = c.Begin();
        for (uint32_t row = 0; row < kNumTokens; row += chunk) {
          const uint32_t rows = std::min(chunk, kNumTokens - row);
          const AttentionSpan first[] = {c.Span(0, 0, rows, row)};
          c.Run(ops(), one_, first, &cut, row);
          const AttentionSpan second[] = {c.Span(1, 0, rows, row)};
          c.Run(ops(), three_, second, &cut, kNumTokens + row);
        }
        EXPECT_EQ(cut.arena, whole.arena) << "chunks of " << chunk;
        EXPECT_EQ(CountDifferent(std::span(cut.out).first(cut.out.size() - 1),
                                 std::span(whole.out).first(whole.out.size() - 1)),
                  0u);
      }
    }
  }
}

TEST_P(GatedDeltaTest, WritesItsStateAlone) {
  for (const DeltaShape& shape : kShapes) {
    SCOPED_TRACE(shape.v_dim);
    const Case c(shape, 16);
    Case::Result result = c.Whole(ops(), three_);
    for (uint32_t s = 0; s < 2; ++s) {
      for (size_t i = 0; i < shape.state_bytes(); ++i) *c.At(result, s, i) = kStale;
    }
    EXPECT_TRUE(std::all_of(result.arena.begin(), result.arena.end(),
                            [](std::byte b) { return b == kStale; }));
  }
}

TEST_P(GatedDeltaTest, ASequenceWithoutNumbersSpoilsNoOther) {
  const Case c(kShapes[1], 16);
  const Case::Result whole = c.Whole(ops(), three_);
  Case::Result spoilt = c.Begin();
  // An element of v: the state keeps it.
  spoilt.input[c.shape.num_channels() - 1] = std::nanf("");
  const AttentionSpan spans[] = {c.Span(0, 0, kNumTokens, 0), c.Span(1, kNumTokens, kNumTokens, 0)};
  c.Run(ops(), three_, spans, &spoilt);
  const size_t second = size_t{kNumTokens} * c.shape.value_size();
  EXPECT_TRUE(std::isnan(spoilt.out[second - 1]));
  EXPECT_EQ(CountDifferent(std::span(spoilt.out).subspan(second, second),
                           std::span(whole.out).subspan(second, second)),
            0u);
}

TEST_P(GatedDeltaTest, MambaWithoutBiasAndSkipsIsThatWithZeros) {
  Case c(kShapes[6], 16);
  ASSERT_TRUE(c.is_mamba());
  std::fill(c.conv_bias.begin(), c.conv_bias.end(), 0.0f);
  std::fill(c.skips.begin(), c.skips.end(), 0.0f);
  const Case::Result zeros = c.Whole(ops(), three_);
  Case::Result none = c.Begin();
  const AttentionSpan spans[] = {c.Span(0, 0, kNumTokens, 0), c.Span(1, kNumTokens, kNumTokens, 0)};
  ops().gated_delta(three_, {.kv = {none.arena.data(), &c.layout, c.num_blocks},
                             .slice = kSlice,
                             .offset = kOffset,
                             .spans = spans,
                             .shape = c.shape,
                             .input = none.input.data(),
                             .taps = c.taps.data(),
                             .rates = c.rates.data(),
                             .dt_bias = c.dt_bias.data(),
                             .norm = c.norm.data(),
                             .eps = kEps,
                             .out = none.out.data()});
  EXPECT_EQ(none.out, zeros.out);
  EXPECT_EQ(none.arena, zeros.arena);
}

TEST_P(GatedDeltaTest, AGateOfZeroHalves) {
  std::vector<float> gate(3 * 40, 0.0f), x(3 * 33);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  ops().sigmoid_mul(three_, {gate.data(), 40, 3, 33, x.data()});
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], static_cast<float>(i) / 2);
}

INSTANTIATE_TEST_SUITE_P(Bodies, GatedDeltaTest, ::testing::ValuesIn(Bodies()), BodyName);

TEST(DeltaGatesTest, AreWithinAFewUnitsOfTheirDefinition) {
  for (const float logit : {-60.0f, -20.0f, -8.0f, -1.0f, 0.0f, 0.5f, 3.0f, 19.9f, 20.1f, 80.0f}) {
    for (const float rate : {-16.0f, -1.0f, -0.01f}) {
      const float bias = 0.25f;
      float beta = logit;
      float decay = logit;
      DeltaGates(&rate, &bias, 1, &beta, &decay);
      const double softplus = std::log1p(std::exp(double{logit} + bias));
      EXPECT_NEAR(beta, Sigmoid(logit), 4e-7 * Sigmoid(logit) + 1e-38) << logit;
      const double wanted = std::exp(rate * softplus);
      const double bound = (4e-7 + 4e-7 * std::fabs(rate * softplus)) * wanted + 1e-38;
      EXPECT_NEAR(decay, wanted, bound) << logit << " " << rate;
      float step = logit;
      float kept = -1.0f;
      StepGates(&rate, &bias, 1, &step, &kept);
      EXPECT_NEAR(step, softplus, 8e-7 * softplus + 1e-38) << logit;
      EXPECT_EQ(kept, decay) << logit << " " << rate;
    }
  }
}

}  // namespace
}  // namespace baton::kernels
