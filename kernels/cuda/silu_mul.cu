// out = silu(gate) * up, elementwise.
//
// Work: one thread for eight elements of a row. Bytes: 6 an element. Flops: about 25 an element
// (exp is a polynomial, the same as on the processor). Limit: memory. Reached: not yet measured on
// a GPU.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/math.h"
#include "kernels/simt/device.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kSiluThreads = 128;

BATON_DEVICE float SiluTimes(float gate, float up) { return gate / (1.0f + Exp(-gate)) * up; }

BATON_KERNEL(kSiluThreads) SiluMulKernel(SiluMulParams params) {
  const uint32_t num_groups = params.dim / kVec;
  const uint32_t ctas_a_row = (num_groups + kSiluThreads - 1) / kSiluThreads;
  const size_t row = simt::block().x / ctas_a_row;
  const uint32_t at = simt::block().x % ctas_a_row * kSiluThreads + simt::thread();
  if (!simt::guard(at < num_groups)) return;
  const auto* gates = reinterpret_cast<const Vec16*>(params.gate_up) + row * 2 * num_groups;
  const Vec16 gate = simt::load_once(gates + at);
  const Vec16 up = simt::load_once(gates + num_groups + at);
  Vec16 result;
  BATON_UNROLL
  for (uint32_t w = 0; w < 4; ++w) {
    result.words[w] = Pair(SiluTimes(Element(gate, 2 * w), Element(up, 2 * w)),
                           SiluTimes(Element(gate, 2 * w + 1), Element(up, 2 * w + 1)));
  }
  reinterpret_cast<Vec16*>(params.out)[row * num_groups + at] = result;
}

}  // namespace

const KernelInfo kSiluMulInfo = {"SiluMulKernel", kSiluThreads, 0};

absl::Status SiluMul(const SiluMulParams& params, void* stream) {
  constexpr uint32_t kMaxDim = 1u << 20;
  if (absl::Status status = CheckDim("SiluMul", params.dim, kMaxDim); !status.ok()) return status;
  if (params.num_rows == 0) return absl::OkStatus();
  const uint64_t ctas_a_row = (params.dim / kVec + kSiluThreads - 1) / kSiluThreads;
  const uint64_t ctas = ctas_a_row * params.num_rows;
  if (ctas > kMaxGridX) return absl::InvalidArgumentError("SiluMul: too many rows for one grid");
  return simt::launch({.name = "SiluMul",
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kSiluThreads,
                       .stream = stream},
                      SiluMulKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
