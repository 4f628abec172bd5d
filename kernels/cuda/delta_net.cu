// The gated delta net around its scan: the short convolution, lengths of q and k, gates; and the
// norm and gate of what was read.
//
// Work: half a warp for up to 128 channels of a row, 16 lanes apart, which are a head of q or k or
// a part of v; one more for the row's gates. Of the output half a warp for a head. The lanes and
// the tree of sums are those of the processor's vectors. Bytes a row: 2 channels in, predecessors
// from L2, 4 channels out, then 6 a value. Flops: 2 taps + 15 a channel. Limit: memory (few rows:
// latency). Reached: kernels/NOTES.md.
#include "kernels/cuda/delta_inputs.h"
#include "kernels/cuda/fma_exp.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"
#include "kernels/softplus.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kLanes = 16;
constexpr uint32_t kNetThreads = 128;
constexpr uint32_t kUnitsACta = kNetThreads / kLanes;
constexpr uint32_t kLaneChannels = 8;
constexpr uint32_t kUnitChannels = kLanes * kLaneChannels;
static_assert(kUnitChannels == kDeltaKeyDims[1], "a head of q or k is one unit");
constexpr float kL2Epsilon = 1e-6f;  // as kernels/cpu/delta_inputs.h

// Heads of q and of k, parts of v, and the gates of a row.
constexpr uint32_t NumUnits(const DeltaDims& dims) {
  return 2 * dims.num_k_heads + (dims.value_size() - 1) / kUnitChannels + 1 + 1;
}

// silu of the convolution of a channel of row `idx` of a span.
BATON_DEVICE float Convolve(const DeltaParams& params, const DeltaSequence& sequence, uint32_t idx,
                            uint32_t channel) {
  const uint32_t num_taps = params.dims.num_taps;
  const float* taps = params.taps + size_t{channel} * num_taps;
  float sum = 0.0f;
  for (uint32_t j = 0; j < num_taps; ++j) {
    const int32_t from = static_cast<int32_t>(idx + j) - static_cast<int32_t>(num_taps - 1);
    sum = simt::fma(taps[j], InputAt(params, sequence, from, channel), sum);
  }
  return SigmoidTimes(sum, sum);
}

// The sum of half a warp's values, by the tree 8, 4, 2, 1; all lanes of the warp call it.
BATON_DEVICE float SumOfLanes(float value) {
  BATON_UNROLL
  for (uint32_t step = kLanes / 2; step > 0; step /= 2) value += simt::shfl_xor(value, step);
  return value;
}

// Logits of a row's heads to beta and decay, as DeltaGates.
BATON_DEVICE void OpenGates(const DeltaParams& params, uint32_t row, uint32_t lane) {
  const uint32_t num_heads = params.dims.num_v_heads;
  float* beta = params.gates + size_t{row} * 2 * num_heads;
  float* decay = beta + num_heads;
  for (uint32_t h = lane; simt::guard(h < num_heads); h += kLanes) {
    beta[h] = 1.0f / (1.0f + Exp(-beta[h]));
    decay[h] = Exp(params.rates[h] * Softplus(decay[h] + params.dt_bias[h]));
  }
}

// The channels of one unit of a row: [first, end), none of the unit of gates.
struct UnitChannels {
  uint32_t first;
  uint32_t end;
  float length;  // to which the head is brought; 0: it stays
};

BATON_DEVICE UnitChannels ChannelsOf(const DeltaDims& dims, uint32_t unit) {
  const uint32_t num_key_units = 2 * dims.num_k_heads;
  if (simt::guard(unit < num_key_units)) {
    const float of_q = 1.0f / simt::square_root(static_cast<float>(dims.k_dim));
    return {unit * dims.k_dim, (unit + 1) * dims.k_dim, unit < dims.num_k_heads ? of_q : 1.0f};
  }
  const uint32_t first = 2 * dims.key_size() + (unit - num_key_units) * kUnitChannels;
  const uint32_t end = first + kUnitChannels;
  return {first, end < dims.num_channels() ? end : dims.num_channels(), 0.0f};
}

BATON_KERNEL(kNetThreads) DeltaInputsKernel(DeltaParams params) {
  simt::wait_for_previous();
  const DeltaDims& dims = params.dims;
  const uint32_t num_units = NumUnits(dims);
  const uint32_t ctas_a_row = (num_units + kUnitsACta - 1) / kUnitsACta;
  const uint32_t row = simt::block().x / ctas_a_row;
  const uint32_t unit = simt::block().x % ctas_a_row * kUnitsACta + simt::thread() / kLanes;
  const uint32_t lane = simt::thread() % kLanes;
  const uint32_t span = params.row_spans[row];
  if (simt::guard(span == kPaddingRow)) return;
  const DeltaSequence sequence = SequenceOf(params, span);
  const UnitChannels channels = ChannelsOf(dims, unit);
  float values[kLaneChannels];
  float squares = 0.0f;
  BATON_UNROLL
  for (uint32_t i = 0; i < kLaneChannels; ++i) {
    const uint32_t channel = channels.first + i * kLanes + lane;
    values[i] = 0.0f;
    if (!simt::guard(channel < channels.end)) continue;
    values[i] = Convolve(params, sequence, row - sequence.span.first_row, channel);
    squares = simt::fma(values[i], values[i], squares);
  }
  const float length = simt::square_root(SumOfLanes(squares) + kL2Epsilon);
  const float scale = channels.length == 0.0f ? 1.0f : channels.length / length;
  float* out = params.inputs + size_t{row} * dims.num_channels();
  BATON_UNROLL
  for (uint32_t i = 0; i < kLaneChannels; ++i) {
    const uint32_t channel = channels.first + i * kLanes + lane;
    if (simt::guard(channel < channels.end)) out[channel] = values[i] * scale;
  }
  if (simt::guard(unit + 1 == num_units)) OpenGates(params, row, lane);
}

BATON_KERNEL(kNetThreads) DeltaGateKernel(DeltaParams params) {
  simt::wait_for_previous();
  const DeltaDims& dims = params.dims;
  const uint32_t ctas_a_row = (dims.num_v_heads + kUnitsACta - 1) / kUnitsACta;
  const size_t row = simt::block().x / ctas_a_row;
  const uint32_t head = simt::block().x % ctas_a_row * kUnitsACta + simt::thread() / kLanes;
  const uint32_t lane = simt::thread() % kLanes;
  if (simt::guard(params.row_spans[row] == kPaddingRow)) return;
  const uint32_t size = simt::guard(head < dims.num_v_heads) ? dims.v_dim : 0;
  const size_t first = size_t{head} * dims.v_dim;
  const float* read = params.inputs + row * dims.num_channels() + 2 * dims.key_size() + first;
  float squares = 0.0f;
  for (uint32_t i = lane; i < size; i += kLanes) squares = simt::fma(read[i], read[i], squares);
  const float mean = SumOfLanes(squares) / static_cast<float>(dims.v_dim);
  const float scale = 1.0f / simt::square_root(mean + params.eps);
  const size_t at = row * dims.value_size() + first;
  for (uint32_t i = lane; i < size; i += kLanes) {
    const float z = simt::from_bf16(params.z[at + i]);
    params.out[at + i] = simt::to_bf16(read[i] * scale * params.norm[i] * SigmoidTimes(z, z));
  }
}

absl::Status LaunchRows(const char* name, void (*kernel)(DeltaParams), const DeltaParams& params,
                        uint32_t units_a_row, void* stream) {
  if (absl::Status status = CheckDelta(name, params); !status.ok()) return status;
  if (params.num_rows == 0) return absl::OkStatus();
  const uint64_t ctas = uint64_t{(units_a_row - 1) / kUnitsACta + 1} * params.num_rows;
  if (ctas > kMaxGridX) {
    return absl::InvalidArgumentError(std::string(name) + ": too many rows for one grid");
  }
  return simt::launch({.name = name,
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kNetThreads,
                       .overlaps = true,
                       .stream = stream},
                      kernel, params);
}

}  // namespace

const KernelInfo kDeltaInputsInfo = {"DeltaInputsKernel", kNetThreads, 0};
const KernelInfo kDeltaGateInfo = {"DeltaGateKernel", kNetThreads, 0};

absl::Status DeltaInputs(const DeltaParams& params, void* stream) {
  return LaunchRows("DeltaInputs", DeltaInputsKernel, params, NumUnits(params.dims), stream);
}

absl::Status DeltaGate(const DeltaParams& params, void* stream) {
  return LaunchRows("DeltaGate", DeltaGateKernel, params, params.dims.num_v_heads, stream);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
