#include <vector>

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_table.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::gpu_check {
namespace {

using cuda::Bf16;
using simt_test::RandomBf16;

constexpr float kEps = 1e-5f;

// A product of m rows of k that is added to a residual of `hidden` columns, and one of the norm of
// this into `dim` gates and their ups.
struct NormCase {
  const char* name;
  uint32_t m;
  uint32_t k;
  uint32_t hidden;
  uint32_t dim;
};

// The operands and results of both products.
struct NormArrays {
  NormArrays(const DeviceBody& body, const NormCase& c)
      : x(body, RandomBf16(size_t{c.m} * c.k, 61)),
        w(body, RandomBf16(size_t{c.hidden} * c.k, 62, 0.1f)),
        w_gates(body, RandomBf16(size_t{2} * c.dim * c.hidden, 63)),
        weight(body, RandomBf16(c.hidden, 64)),
        residual(body, RandomBf16(size_t{c.m} * c.hidden, 65)),
        other_residual(body, RandomBf16(size_t{c.m} * c.hidden, 65)),
        added(body, size_t{c.m} * c.hidden),
        normed(body, size_t{c.m} * c.hidden),
        gated(body, size_t{c.m} * c.dim),
        other_gated(body, size_t{c.m} * c.dim),
        squares(body, size_t{c.m} * c.hidden / 8),
        partials(body, cuda::kGemmMaxPartialBytes),
        counters(body, std::vector<uint32_t>(cuda::kGemmCounters)) {}

  absl::Status status() const {
    return FirstFailure(x, w, w_gates, weight, residual, other_residual, added, normed, gated,
                        other_gated, squares, partials, counters);
  }
  cuda::GemmParams Product(const NormCase& c, Bf16* y) {
    return {.x = x.data(),
            .w = w.data(),
            .y_bf16 = y,
            .m = c.m,
            .n = c.hidden,
            .k = c.k,
            .partials = partials.data(),
            .counters = counters.data(),
            .partial_bytes = cuda::kGemmMaxPartialBytes,
            .path = cuda::GemmPath::kNarrow};
  }
  cuda::GemmParams GateProduct(const NormCase& c, const Bf16* from, Bf16* y) {
    cuda::GemmParams product = Product(c, y);
    product.x = from;
    product.w = w_gates.data();
    product.n = 2 * c.dim;
    product.k = c.hidden;
    return product;
  }

  DeviceArray<Bf16> x;
  DeviceArray<Bf16> w;
  DeviceArray<Bf16> w_gates;
  DeviceArray<Bf16> weight;
  DeviceArray<Bf16> residual;
  DeviceArray<Bf16> other_residual;
  DeviceArray<Bf16> added;
  DeviceArray<Bf16> normed;
  DeviceArray<Bf16> gated;
  DeviceArray<Bf16> other_gated;
  DeviceArray<float> squares;
  DeviceArray<std::byte> partials;
  DeviceArray<uint32_t> counters;
};

// In two launches, by the bits of three.
absl::Status CheckNorm(const DeviceBody& body, const NormCase& c) {
  NormArrays on(body, c);
  BATON_RETURN_IF_ERROR(on.status());
  const cuda::KernelTable& table = body.kernels();
  BATON_RETURN_IF_ERROR(table.gemm_bf16(on.Product(c, on.added.data()), nullptr));
  BATON_RETURN_IF_ERROR(table.rms_norm({on.added.data(), on.residual.data(), on.weight.data(),
                                        on.normed.data(), c.m, c.hidden, kEps},
                                       nullptr));
  constexpr cuda::GateKind kGate = cuda::GateKind::kSilu;
  BATON_RETURN_IF_ERROR(
      table.gemm_gated({on.GateProduct(c, on.normed.data(), on.gated.data()), kGate}, nullptr));
  BATON_RETURN_IF_ERROR(
      table.gemm_sum({on.Product(c, on.other_residual.data()), on.squares.data()}, nullptr));
  BATON_RETURN_IF_ERROR(
      table.gemm_gated({on.GateProduct(c, on.other_residual.data(), on.other_gated.data()),
                        kGate,
                        {on.weight.data(), on.squares.data(), kEps}},
                       nullptr));
  const std::vector<Bf16> residual = on.residual.Values();
  const std::vector<Bf16> gated = on.gated.Values();
  BATON_RETURN_IF_ERROR(on.status());
  BATON_RETURN_IF_ERROR(ExpectSameBits("residual", on.other_residual.Values(), residual));
  BATON_RETURN_IF_ERROR(ExpectSameBits("gated", on.other_gated.Values(), gated));
  return on.status();
}

}  // namespace

absl::Status CheckJoinedNorms(const StageInput& input, Report& report) {
  const std::vector<NormCase> tiny = {{"gemm narrow norm", 3, 264, 328, 40}};
  const std::vector<NormCase> full = {{"gemm narrow norm", 1, 4096, 4096, 14336},
                                      {"gemm narrow norm of 8", 8, 14336, 1032, 520}};
  for (const NormCase& c : input.is_tiny ? tiny : full) {
    if (!report.Begin(c.name)) continue;
    if (input.major != 9) {
      BATON_RETURN_IF_ERROR(report.Add({c.name, Verdict::kNotRun, "needs sm_90"}));
      continue;
    }
    const absl::Status status = OfCase(CheckNorm(input.body, c),
                                       {{"m", c.m},
                                        {"k", c.k},
                                        {"hidden", c.hidden},
                                        {"dim", c.dim},
                                        {"inputs", "norm_checks.cc: RandomBf16, seeds 61 to 65"}});
    BATON_RETURN_IF_ERROR(
        report.Add(OutcomeOf(c.name, status, fmt::format("{} x {} x {}", c.m, c.hidden, c.k))));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
