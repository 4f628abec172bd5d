#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::gpu_check {
namespace {

using cuda::Bf16;
using cuda::GemmPath;
using simt_test::RandomBf16;

constexpr double kElementwise = 5e-6;       // as in cuda_kernels_test
constexpr double kSiluOfFarGate = 2.7e-37;  // times |up|: kernel_table.h
constexpr double kGemm = 1e-4;

// rows x dim.
struct RowShape {
  uint32_t rows;
  uint32_t dim;
};

// The first value that is no rounding of the exact one, or OK.
absl::Status CompareRoundings(const std::vector<Bf16>& got, const std::vector<double>& exact,
                              double absolute = 0) {
  for (size_t i = 0; i < exact.size(); ++i) {
    if (cuda::IsRoundingOf(got[i], exact[i], {kElementwise, absolute})) continue;
    return Internal("out[{}] is {}, exact {}", i, FloatFromBf16(got[i].bits), exact[i]);
  }
  return absl::OkStatus();
}

absl::Status CheckRmsNorm(const DeviceBody& body, const RowShape& shape) {
  const size_t count = size_t{shape.rows} * shape.dim;
  const std::vector<Bf16> x = RandomBf16(count, 1);
  std::vector<Bf16> residual = RandomBf16(count, 2);
  const std::vector<Bf16> weight = RandomBf16(shape.dim, 3);
  DeviceArray<Bf16> x_device(body, x);
  DeviceArray<Bf16> residual_device(body, residual);
  DeviceArray<Bf16> weight_device(body, weight);
  DeviceArray<Bf16> out(body, count);
  for (const auto* array : {&x_device, &residual_device, &weight_device, &out}) {
    BATON_RETURN_IF_ERROR(array->status());
  }
  BATON_RETURN_IF_ERROR(
      body.kernels().rms_norm({x_device.data(), residual_device.data(), weight_device.data(),
                               out.data(), shape.rows, shape.dim, 1e-5f},
                              nullptr));
  const std::vector<Bf16> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  const std::vector<double> exact = cuda::ReferenceRmsNorm(
      {x.data(), residual.data(), weight.data(), nullptr, shape.rows, shape.dim, 1e-5f});
  if (!SameValues(residual_device.Values(), residual)) return Internal("residual has other bits");
  return CompareRoundings(got, exact);
}

absl::Status CheckSiluMul(const DeviceBody& body, const RowShape& shape) {
  const std::vector<Bf16> gate_up = RandomBf16(size_t{2} * shape.rows * shape.dim, 4, 4.0f);
  DeviceArray<Bf16> in(body, gate_up);
  DeviceArray<Bf16> out(body, gate_up.size() / 2);
  BATON_RETURN_IF_ERROR(in.status());
  BATON_RETURN_IF_ERROR(out.status());
  BATON_RETURN_IF_ERROR(
      body.kernels().silu_mul({in.data(), out.data(), shape.rows, shape.dim}, nullptr));
  const std::vector<Bf16> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  constexpr double kLargestUp = 32;
  return CompareRoundings(got,
                          cuda::ReferenceSiluMul({gate_up.data(), nullptr, shape.rows, shape.dim}),
                          kSiluOfFarGate * kLargestUp);
}

absl::Status CheckEmbed(const DeviceBody& body, const RowShape& shape) {
  constexpr uint32_t kIds = 11;
  const std::vector<Bf16> table = RandomBf16(size_t{kIds} * shape.dim, 5);
  std::vector<uint32_t> ids(shape.rows);
  for (uint32_t i = 0; i < shape.rows; ++i) ids[i] = i * 7 % (kIds + 1);  // one is unknown
  DeviceArray<Bf16> table_device(body, table);
  DeviceArray<uint32_t> ids_device(body, ids);
  DeviceArray<Bf16> out(body, size_t{shape.rows} * shape.dim);
  BATON_RETURN_IF_ERROR(table_device.status());
  BATON_RETURN_IF_ERROR(ids_device.status());
  BATON_RETURN_IF_ERROR(out.status());
  BATON_RETURN_IF_ERROR(body.kernels().embed(
      {table_device.data(), ids_device.data(), out.data(), shape.rows, kIds, shape.dim}, nullptr));
  const std::vector<Bf16> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  std::vector<Bf16> expected(got.size());
  cuda::ReferenceEmbed({table.data(), ids.data(), expected.data(), shape.rows, kIds, shape.dim});
  return SameValues(got, expected) ? absl::OkStatus() : Internal("out has other bits");
}

// One product and the path that makes it.
struct GemmCase {
  const char* name;
  GemmPath path;
  uint32_t m;
  uint32_t n;
  uint32_t k;
};

// Hopper: the bits of the model; any GPU: near exact arithmetic. `error` gets the distance.
absl::Status CheckGemm(const StageInput& input, const GemmCase& c, double& error) {
  const DeviceBody& body = input.body;
  const std::vector<Bf16> x = RandomBf16(size_t{c.m} * c.k, 6);
  const std::vector<Bf16> w = RandomBf16(size_t{c.n} * c.k, 7);
  DeviceArray<Bf16> x_device(body, x);
  DeviceArray<Bf16> w_device(body, w);
  DeviceArray<float> y(body, size_t{c.m} * c.n);
  DeviceArray<std::byte> partials(body, cuda::GemmPartialBytes(c.m, c.n, c.k));
  DeviceArray<uint32_t> counters(body, std::vector<uint32_t>(cuda::kGemmCounters));
  BATON_RETURN_IF_ERROR(x_device.status());
  BATON_RETURN_IF_ERROR(w_device.status());
  BATON_RETURN_IF_ERROR(y.status());
  BATON_RETURN_IF_ERROR(partials.status());
  BATON_RETURN_IF_ERROR(counters.status());
  BATON_RETURN_IF_ERROR(
      body.kernels().gemm_bf16({.x = x_device.data(),
                                .w = w_device.data(),
                                .y_float = y.data(),
                                .m = c.m,
                                .n = c.n,
                                .k = c.k,
                                .partials = partials.data(),
                                .counters = counters.data(),
                                .partial_bytes = cuda::GemmPartialBytes(c.m, c.n, c.k),
                                .path = c.path},
                               nullptr));
  const std::vector<float> got = y.Values();
  BATON_RETURN_IF_ERROR(y.status());
  const std::vector<uint32_t> after = counters.Values();
  if (std::any_of(after.begin(), after.end(), [](uint32_t count) { return count != 0; })) {
    return Internal("a counter is not set back");
  }
  std::vector<float> bits(got.size());
  cuda::GemmParams host = {
      .x = x.data(), .w = w.data(), .y_float = bits.data(), .m = c.m, .n = c.n, .k = c.k};
  error = cuda::RelativeError(got.data(), cuda::ReferenceGemm(host));
  if (!(error < kGemm)) return Internal("relative error {:.3g}", error);
  if (input.major != 9) return absl::OkStatus();
  cuda::ReferenceGemmBits(host);
  if (SameValues(got, bits)) return absl::OkStatus();
  return Internal("other bits than the tensor cores' model, relative error {:.3g}", error);
}

template <typename Check>
absl::Status AddRows(const char* name, const std::vector<RowShape>& shapes, const Check& check,
                     Report& report) {
  Finding finding{.name = name, .detail = fmt::format("{} shapes", shapes.size())};
  for (const RowShape& shape : shapes) {
    const absl::Status status = check(shape);
    if (status.ok()) continue;
    finding.verdict = Verdict::kFail;
    finding.detail =
        fmt::format("{} x {}: {}", shape.rows, shape.dim, std::string(status.message()));
    break;
  }
  return report.Add(std::move(finding));
}

}  // namespace

absl::Status CheckKernels(const StageInput& input, Report& report) {
  const std::vector<RowShape> shapes =
      input.is_tiny ? std::vector<RowShape>{{1, 8}, {3, 1064}}
                    : std::vector<RowShape>{{1, 8}, {7, 1064}, {33, 4096}, {257, 14336}};
  const DeviceBody& body = input.body;
  BATON_RETURN_IF_ERROR(AddRows(
      "rms_norm", shapes, [&](const RowShape& s) { return CheckRmsNorm(body, s); }, report));
  BATON_RETURN_IF_ERROR(AddRows(
      "silu_mul", shapes, [&](const RowShape& s) { return CheckSiluMul(body, s); }, report));
  BATON_RETURN_IF_ERROR(AddRows(
      "embed", shapes, [&](const RowShape& s) { return CheckEmbed(body, s); }, report));
  const std::vector<GemmCase> tiny = {{"gemm rows8", GemmPath::kRows8, 3, 67, 328},
                                      {"gemm rows32", GemmPath::kRows32, 33, 65, 264},
                                      {"gemm tile64", GemmPath::kTile64, 65, 66, 328},
                                      {"gemm tile128", GemmPath::kTile128, 3, 129, 264}};
  // The model takes 117 ns for 16 products: the first is one row of o_proj of an 8B model, 123 ms.
  const std::vector<GemmCase> full = {{"gemm rows8", GemmPath::kRows8, 1, 4096, 4096},
                                      {"gemm rows8 deep", GemmPath::kRows8, 8, 1030, 14336},
                                      {"gemm rows32", GemmPath::kRows32, 33, 1030, 4096},
                                      {"gemm tile64", GemmPath::kTile64, 129, 519, 2880},
                                      {"gemm tile128", GemmPath::kTile128, 129, 519, 2880},
                                      {"gemm auto", GemmPath::kAuto, 257, 300, 1032}};
  for (const GemmCase& c : input.is_tiny ? tiny : full) {
    Finding finding{.name = c.name};
    double error = 0;
    const absl::Status status = CheckGemm(input, c, error);
    finding.verdict = status.ok() ? Verdict::kPass : Verdict::kFail;
    finding.detail = status.ok()
                         ? fmt::format("{} x {} x {}, relative error {:.2g}", c.m, c.n, c.k, error)
                         : std::string(status.message());
    BATON_RETURN_IF_ERROR(report.Add(std::move(finding)));
  }
  BATON_RETURN_IF_ERROR(CheckRopeAppend(input, report));
  BATON_RETURN_IF_ERROR(CheckAttentionKernels(input, report));
  return CheckKvSlices(input, report);
}

}  // namespace baton::gpu_check
