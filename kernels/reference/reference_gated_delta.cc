// The scalar form of nets with a fixed state, row by row: the gated delta net, and Mamba-2.
#include <cmath>
#include <cstring>

#include "kernels/delta_gates.h"
#include "kernels/reference/reference_math.h"

namespace baton::kernels {

using device::ThreadPool;

namespace {

constexpr float kL2Epsilon = 1e-6f;

float Silu(float x) { return x / (1.0f + ReferenceExp(-x)); }

// The state of one sequence as an array of floats.
struct State {
  const GatedDeltaArgs& args;
  const AttentionSpan& span;

  std::byte* At(size_t index) const {
    const size_t at = args.offset + index * sizeof(float);
    const size_t slice_bytes = args.kv.layout->SliceBytes();
    const uint32_t block = span.kv.state[at / slice_bytes];
    return args.kv.Piece(block, args.slice, 0, 0) + at % slice_bytes;
  }
  float Get(size_t index) const {
    float value = 0;
    std::memcpy(&value, At(index), sizeof value);
    return value;
  }
  void Set(size_t index, float value) const { std::memcpy(At(index), &value, sizeof value); }
};

// silu of the convolution of a row's channels, in place, and the tail with the row's inputs.
void Convolve(const State& state, float* x) {
  const DeltaShape& shape = state.args.shape;
  const size_t channels = shape.num_channels();
  const size_t tail = shape.matrix_bytes() / sizeof(float);
  for (size_t c = 0; c < channels; ++c) {
    float sum = state.args.conv_bias == nullptr ? 0.0f : state.args.conv_bias[c];
    const float own = x[c];
    for (uint32_t j = 0; j < shape.num_taps; ++j) {
      const bool is_own = j + 1 == shape.num_taps;
      const float input = is_own ? own : state.Get(tail + j * channels + c);
      sum = std::fma(state.args.taps[j * channels + c], input, sum);
      if (j > 0) state.Set(tail + (j - 1) * channels + c, input);
    }
    x[c] = Silu(sum);
  }
}

void NormalizeHead(float* x, uint32_t dim, float factor) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < dim; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  const float scale = factor / std::sqrt(ReferenceSumTree(lanes) + kL2Epsilon);
  for (uint32_t i = 0; i < dim; ++i) x[i] *= scale;
}

// One token as a head sees it.
struct Token {
  const float* q;
  const float* k;
  float beta;
  float decay;
  float skip;
};

// One column of a head's matrix, which begins at element `first`; returns its part of the output.
float StepColumn(const State& state, const Token& token, float v, size_t first) {
  const DeltaShape& shape = state.args.shape;
  const auto& [q, k, beta, decay, skip] = token;
  float wanted = v;
  if (shape.rule == DeltaRule::kCorrect) {
    float read = 0.0f;
    for (uint32_t i = 0; i < shape.k_dim; ++i) {
      read = std::fma(state.Get(first + size_t{i} * shape.v_dim), k[i], read);
    }
    wanted = v - decay * read;
  }
  const float delta = wanted * beta;
  float out = 0.0f;
  for (uint32_t i = 0; i < shape.k_dim; ++i) {
    const size_t at = first + size_t{i} * shape.v_dim;
    const float element = std::fma(k[i], delta, state.Get(at) * decay);
    state.Set(at, element);
    out = std::fma(element, q[i], out);
  }
  return shape.rule == DeltaRule::kAdd ? std::fma(skip, v, out) : out;
}

// 1 / sqrt(mean(x^2) + eps) of what is normed together.
float InverseRms(const GatedDeltaArgs& args, const float* x) {
  const uint32_t size = args.shape.norm_size();
  float lanes[16] = {};
  for (uint32_t i = 0; i < size; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  return 1.0f / std::sqrt(ReferenceSumTree(lanes) / static_cast<float>(size) + args.eps);
}

// The gate of a row of outputs, after the norm or, of Mamba-2, before it.
void Gate(const GatedDeltaArgs& args, const float* z, float* out) {
  const uint32_t size = args.shape.norm_size();
  const bool is_first = args.shape.rule == DeltaRule::kAdd;
  for (uint32_t at = 0; at < args.shape.value_size(); at += size) {
    for (uint32_t i = at; i < at + size && is_first; ++i) out[i] *= Silu(z[i]);
    const float scale = InverseRms(args, out + at);
    for (uint32_t i = at; i < at + size; ++i) {
      out[i] = (out[i] * scale) * args.norm[is_first ? i : i - at];
      if (!is_first) out[i] *= Silu(z[i]);
    }
  }
}

void ComputeRow(const State& state, uint32_t row) {
  const GatedDeltaArgs& args = state.args;
  const DeltaShape& shape = args.shape;
  float* q = args.input + size_t{row} * shape.input_size();
  float* k = q + shape.key_size();
  const float* v = k + shape.key_size();
  const float* z = v + shape.value_size();
  float* beta = q + shape.num_channels() + shape.value_size();
  float* decay = beta + shape.num_v_heads;
  Convolve(state, q);
  if (shape.rule == DeltaRule::kAdd) {
    StepGates(args.rates, args.dt_bias, shape.num_v_heads, beta, decay);
  } else {
    const float q_factor = 1.0f / std::sqrt(static_cast<float>(shape.k_dim));
    for (uint32_t h = 0; h < shape.num_k_heads; ++h) {
      NormalizeHead(q + size_t{h} * shape.k_dim, shape.k_dim, q_factor);
      NormalizeHead(k + size_t{h} * shape.k_dim, shape.k_dim, 1.0f);
    }
    DeltaGates(args.rates, args.dt_bias, shape.num_v_heads, beta, decay);
  }
  float* out = args.out + size_t{row} * shape.value_size();
  for (uint32_t h = 0; h < shape.num_v_heads; ++h) {
    const size_t head = size_t{shape.KeyHeadOf(h)} * shape.k_dim;
    const float skip = args.skips == nullptr ? 0.0f : args.skips[h];
    const Token token = {q + head, k + head, beta[h], decay[h], skip};
    for (uint32_t c = 0; c < shape.v_dim; ++c) {
      const size_t first = size_t{h} * shape.k_dim * shape.v_dim + c;
      const size_t at = size_t{h} * shape.v_dim + c;
      out[at] = StepColumn(state, token, v[at], first);
    }
  }
  Gate(args, z, out);
}

}  // namespace

void ReferenceGatedDelta(ThreadPool&, const GatedDeltaArgs& args) {
  for (const AttentionSpan& span : args.spans) {
    const State state{args, span};
    for (uint32_t r = 0; r < span.num_rows; ++r) ComputeRow(state, span.first_row + r);
  }
}

void ReferenceSigmoidMul(ThreadPool&, const SigmoidMulArgs& args) {
  for (uint32_t r = 0; r < args.rows; ++r) {
    for (uint32_t i = 0; i < args.k; ++i) {
      args.x[size_t{r} * args.k + i] /=
          1.0f + ReferenceExp(-args.gate[size_t{r} * args.gate_stride + i]);
    }
  }
}

}  // namespace baton::kernels
