#include "kernels/cuda/delta_reference.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/math.h"
#include "kernels/ops.h"
#include "src/device/thread_pool.h"

namespace baton::kernels::cuda {

namespace {

std::vector<float> Floats(const Bf16* values, size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = FloatFromBf16(values[i].bits);
  return out;
}

DeltaShape ShapeOf(const DeltaDims& dims) {
  return {dims.num_k_heads, dims.num_v_heads, dims.k_dim, dims.v_dim, dims.num_taps};
}

// q | k | v | z | beta | decay of a row, side by side.
std::vector<float> InputOf(const DeltaParams& params, size_t row) {
  const DeltaDims& dims = params.dims;
  std::vector<float> input = Floats(params.x + row * dims.num_channels(), dims.num_channels());
  const std::vector<float> z = Floats(params.z + row * dims.value_size(), dims.value_size());
  input.insert(input.end(), z.begin(), z.end());
  const float* gates = params.gates + row * 2 * dims.num_v_heads;
  input.insert(input.end(), gates, gates + 2 * dims.num_v_heads);
  return input;
}

// The state of one layer and sequence, element by element.
class StateElements {
 public:
  StateElements(const DeltaParams& params, const uint32_t* blocks)
      : params_(params), blocks_(blocks) {}
  size_t size() const { return params_.dims.state_bytes() / sizeof(float); }
  std::byte* At(size_t idx) const {
    const DeltaStateBlocks& state = params_.state;
    const size_t byte = state.offset + idx * sizeof(float);
    return state.base + blocks_[byte / state.slice_bytes] * state.block_stride_bytes +
           byte % state.slice_bytes;
  }

 private:
  const DeltaParams& params_;
  const uint32_t* blocks_;
};

void Clear(const StateElements& state) {
  for (size_t i = 0; i < state.size(); ++i) std::memset(state.At(i), 0, sizeof(float));
}

// Returns whether all elements are finite.
bool Copy(const StateElements& from, const StateElements& to) {
  bool is_finite = true;
  for (size_t i = 0; i < from.size(); ++i) {
    float value = 0;
    std::memcpy(&value, from.At(i), sizeof(value));
    std::memcpy(to.At(i), &value, sizeof(value));
    is_finite = is_finite && value - value == 0.0f;
  }
  return is_finite;
}

// Rows [begin, end) of a span.
void ComputeRows(const DeltaParams& params, const DeltaView& view, uint32_t span_idx,
                 uint32_t begin, uint32_t end) {
  if (begin == end) return;
  const DeltaDims& dims = params.dims;
  const DeltaSpan& of = params.spans[span_idx];
  std::vector<float> input;
  for (uint32_t row = begin; row < end; ++row) {
    const std::vector<float> of_row = InputOf(params, size_t{of.first_row} + row);
    input.insert(input.end(), of_row.begin(), of_row.end());
  }
  std::vector<float> taps(size_t{dims.num_channels()} * dims.num_taps);
  for (size_t i = 0; i < taps.size(); ++i) {
    taps[i % dims.num_taps * dims.num_channels() + i / dims.num_taps] = params.taps[i];
  }
  std::vector<float> out(size_t{end - begin} * dims.value_size());
  AttentionSpan span{.kv = {}, .first_row = 0, .num_rows = end - begin, .first_pos = 0};
  span.kv.state = {params.states + size_t{span_idx} * params.num_state_blocks,
                   params.num_state_blocks};
  GatedDeltaArgs args{};
  args.kv = view.kv;
  args.slice = view.slice;
  args.offset = params.state.offset;
  args.spans = {&span, 1};
  args.shape = ShapeOf(dims);
  args.input = input.data();
  args.taps = taps.data();
  args.rates = params.rates;
  args.dt_bias = params.dt_bias;
  args.norm = params.norm;
  args.eps = params.eps;
  args.out = out.data();
  device::ThreadPool pool(1);
  ReferenceOps().gated_delta(pool, args);
  Bf16* to = params.out + (size_t{of.first_row} + begin) * dims.value_size();
  std::transform(out.begin(), out.end(), to, [](float x) { return Bf16{Bf16FromFloat(x)}; });
}

}  // namespace

void ReferenceDeltaNet(const DeltaParams& params, const DeltaView& view) {
  for (uint32_t i = 0; i < params.num_spans; ++i) {
    const DeltaSpan& span = params.spans[i];
    if (span.num_rows == 0) continue;
    const StateElements state(params, params.states + size_t{i} * params.num_state_blocks);
    if (span.position == 0) Clear(state);
    ComputeRows(params, view, i, 0, span.copy_rows);
    if (span.copy_rows > 0) {
      const StateElements copy(params, params.copies + size_t{span.copy} * params.num_state_blocks);
      if (!Copy(state, copy)) params.broken[i] = 1;
    }
    ComputeRows(params, view, i, span.copy_rows, span.num_rows);
  }
}

void ReferenceSigmoidMulBits(const SigmoidMulParams& params) {
  const size_t size = size_t{params.num_rows} * params.dim;
  const std::vector<float> gate = Floats(params.gate, size);
  std::vector<float> x = Floats(params.x, size);
  device::ThreadPool pool(1);
  ReferenceOps().sigmoid_mul(pool,
                             {gate.data(), params.dim, params.num_rows, params.dim, x.data()});
  for (size_t i = 0; i < size; ++i) params.x[i].bits = Bf16FromFloat(x[i]);
}

}  // namespace baton::kernels::cuda
