// Where a net's state lies, the inputs of its convolution, and its part of the kernel table.
// Included by kernels only.
#ifndef BATON_KERNELS_CUDA_DELTA_INPUTS_H_
#define BATON_KERNELS_CUDA_DELTA_INPUTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// The functions of the table, and the resources of their kernels.
absl::Status DeltaInputs(const DeltaParams& params, void* stream);
absl::Status DeltaScan(const DeltaParams& params, void* stream);
absl::Status DeltaGate(const DeltaParams& params, void* stream);
absl::Status ClearBlocks(const ClearBlocksParams& params, void* stream);
extern const KernelInfo kDeltaInputsInfo;
extern const KernelInfo kDeltaScanInfos[2];  // kDeltaKeyDims
extern const KernelInfo kDeltaGateInfo;
extern const KernelInfo kClearBlocksInfo;

// InvalidArgument naming what no kernel of a net takes.
absl::Status CheckDelta(const char* kernel, const DeltaParams& params);

// A span, and the blocks of its sequence's state [num_state_blocks].
struct DeltaSequence {
  DeltaSpan span;
  const uint32_t* blocks;
};

BATON_DEVICE DeltaSequence SequenceOf(const DeltaParams& params, uint32_t span) {
  return {params.spans[span], params.states + size_t{span} * params.num_state_blocks};
}

// Walks down a state in equal steps, none longer than a slice.
class StateCursor {
 public:
  // `byte` is of the state of the layer.
  BATON_DEVICE StateCursor(const DeltaStateBlocks& state, const uint32_t* blocks, uint32_t byte)
      : state_(state),
        block_(blocks + (state.offset + byte) / state.slice_bytes),
        within_((state.offset + byte) % state.slice_bytes) {
    SetAt();
  }
  BATON_DEVICE float* at() const { return reinterpret_cast<float*>(at_); }
  BATON_DEVICE void Advance(uint32_t bytes) {
    within_ += bytes;
    at_ += bytes;
    if (!simt::guard(within_ >= state_.slice_bytes)) return;
    within_ -= state_.slice_bytes;
    ++block_;
    SetAt();
  }

 private:
  BATON_DEVICE void SetAt() { at_ = state_.base + *block_ * state_.block_stride_bytes + within_; }

  const DeltaStateBlocks& state_;
  const uint32_t* block_;
  uint32_t within_;
  std::byte* at_;
};

// The stored input of a channel, in [0, num_taps - 1): the oldest is 0.
BATON_DEVICE float* TailAt(const DeltaParams& params, const uint32_t* blocks, uint32_t slot,
                           uint32_t channel) {
  const uint32_t word = slot * params.dims.num_channels() + channel;
  return StateCursor(params.state, blocks, params.dims.matrix_bytes() + word * 4).at();
}

// The input of a channel in row `idx` of a span; before its first row what earlier steps left.
BATON_DEVICE float InputAt(const DeltaParams& params, const DeltaSequence& sequence, int32_t idx,
                           uint32_t channel) {
  if (simt::guard(idx >= 0)) {
    const size_t row = sequence.span.first_row + static_cast<uint32_t>(idx);
    return simt::from_bf16(params.x[row * params.dims.num_channels() + channel]);
  }
  if (!simt::guard(sequence.span.position > 0)) return 0.0f;
  const uint32_t slot = params.dims.num_taps - 1 + static_cast<uint32_t>(idx);
  return *TailAt(params, sequence.blocks, slot, channel);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_DELTA_INPUTS_H_
