// out = activation(gate) * up, elementwise; a kernel for each activation. And x *= sigmoid(gate).
//
// Work: one thread for eight elements of a row. Bytes: 6 an element. Flops: about 25 an element
// (exp is a polynomial, the same as on the processor), 29 for gelu. Limit: memory. Reached:
// kernels/NOTES.md.
#include "kernels/cuda/fma_exp.h"
#include "kernels/cuda/gate_times.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kGateThreads = 128;

template <float (*kTimes)(float gate, float up)>
BATON_DEVICE void MultiplyGates(const GateMulParams& params) {
  const uint32_t num_groups = params.dim / kVec;
  const uint32_t ctas_a_row = (num_groups + kGateThreads - 1) / kGateThreads;
  const size_t row = simt::block().x / ctas_a_row;
  const uint32_t at = simt::block().x % ctas_a_row * kGateThreads + simt::thread();
  simt::wait_for_previous();
  if (!simt::guard(at < num_groups)) return;
  const auto* gates = reinterpret_cast<const Vec16*>(params.gate_up) + row * 2 * num_groups;
  const Vec16 gate = gates[at];
  const Vec16 up = gates[num_groups + at];
  Vec16 result;
  BATON_UNROLL
  for (uint32_t w = 0; w < 4; ++w) {
    result.words[w] = Pair(kTimes(Element(gate, 2 * w), Element(up, 2 * w)),
                           kTimes(Element(gate, 2 * w + 1), Element(up, 2 * w + 1)));
  }
  reinterpret_cast<Vec16*>(params.out)[row * num_groups + at] = result;
}

BATON_KERNEL(kGateThreads) SiluMulKernel(GateMulParams params) { MultiplyGates<SiluTimes>(params); }
BATON_KERNEL(kGateThreads) GeluMulKernel(GateMulParams params) { MultiplyGates<GeluTimes>(params); }

BATON_KERNEL(kGateThreads) SigmoidMulKernel(SigmoidMulParams params) {
  const uint32_t num_groups = params.dim / kVec;
  const uint32_t ctas_a_row = (num_groups + kGateThreads - 1) / kGateThreads;
  const size_t row = simt::block().x / ctas_a_row;
  const uint32_t group = simt::block().x % ctas_a_row * kGateThreads + simt::thread();
  simt::wait_for_previous();
  if (!simt::guard(group < num_groups)) return;
  const size_t at = row * num_groups + group;
  const Vec16 gate = reinterpret_cast<const Vec16*>(params.gate)[at];
  auto* x = reinterpret_cast<Vec16*>(params.x) + at;
  const Vec16 old = *x;
  Vec16 result;
  BATON_UNROLL
  for (uint32_t w = 0; w < 4; ++w) {
    result.words[w] = Pair(SigmoidTimes(Element(old, 2 * w), Element(gate, 2 * w)),
                           SigmoidTimes(Element(old, 2 * w + 1), Element(gate, 2 * w + 1)));
  }
  *x = result;
}

template <typename Params>
absl::Status Launch(const char* name, void (*kernel)(Params), const Params& params, void* stream) {
  constexpr uint32_t kMaxDim = 1u << 20;
  if (absl::Status status = CheckDim(name, params.dim, kMaxDim); !status.ok()) return status;
  if (params.num_rows == 0) return absl::OkStatus();
  const uint64_t ctas_a_row = (params.dim / kVec + kGateThreads - 1) / kGateThreads;
  const uint64_t ctas = ctas_a_row * params.num_rows;
  if (ctas > kMaxGridX) {
    return absl::InvalidArgumentError(std::string(name) + ": too many rows for one grid");
  }
  return simt::launch({.name = name,
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kGateThreads,
                       .overlaps = true,
                       .stream = stream},
                      kernel, params);
}

}  // namespace

const KernelInfo kSiluMulInfo = {"SiluMulKernel", kGateThreads, 0};
const KernelInfo kGeluMulInfo = {"GeluMulKernel", kGateThreads, 0};
const KernelInfo kSigmoidMulInfo = {"SigmoidMulKernel", kGateThreads, 0};

absl::Status SiluMul(const GateMulParams& params, void* stream) {
  return Launch("SiluMul", SiluMulKernel, params, stream);
}

absl::Status GeluMul(const GateMulParams& params, void* stream) {
  return Launch("GeluMul", GeluMulKernel, params, stream);
}

absl::Status SigmoidMul(const SigmoidMulParams& params, void* stream) {
  return Launch("SigmoidMul", SigmoidMulKernel, params, stream);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
