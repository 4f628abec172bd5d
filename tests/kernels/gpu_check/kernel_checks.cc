#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::gpu_check {
namespace {

using cuda::Bf16;
using cuda::GemmPath;
using simt_test::RandomBf16;

constexpr double kElementwise = 5e-6;  // as in cuda_kernels_test
constexpr double kFarGate = 2.7e-37;   // times |up|: kernel_table.h
constexpr double kGemm = 1e-4;
constexpr uint64_t kSeedX = 6;  // of a product's operands
constexpr uint64_t kSeedW = 7;

// rows x dim.
struct RowShape {
  uint32_t rows;
  uint32_t dim;
};

// With or without the norm of what is added.
absl::Status CheckRmsNorm(const DeviceBody& body, const RowShape& shape, bool is_normed) {
  const size_t count = size_t{shape.rows} * shape.dim;
  const std::vector<Bf16> x = RandomBf16(count, 1);
  std::vector<Bf16> residual = RandomBf16(count, 2);
  const std::vector<Bf16> weights = RandomBf16(size_t{2} * shape.dim, 3);
  DeviceArray<Bf16> x_device(body, x);
  DeviceArray<Bf16> residual_device(body, residual);
  DeviceArray<Bf16> weights_device(body, weights);
  DeviceArray<Bf16> out(body, count);
  for (const auto* array : {&x_device, &residual_device, &weights_device, &out}) {
    BATON_RETURN_IF_ERROR(array->status());
  }
  const auto params = [&](const Bf16* added, Bf16* sum, const Bf16* weight, Bf16* result) {
    return cuda::RmsNormParams{
        added,      sum,       weight, result,
        shape.rows, shape.dim, 1e-5f,  is_normed ? weight + shape.dim : nullptr};
  };
  BATON_RETURN_IF_ERROR(body.kernels().rms_norm(
      params(x_device.data(), residual_device.data(), weights_device.data(), out.data()), nullptr));
  const std::vector<Bf16> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  const cuda::SummedRows sums =
      cuda::ReferenceResidual(params(x.data(), residual.data(), weights.data(), nullptr));
  residual = residual_device.Values();
  BATON_RETURN_IF_ERROR(residual_device.status());
  const std::vector<double> exact =
      cuda::ReferenceRmsNorm(params(x.data(), residual.data(), weights.data(), nullptr));
  const double relative = is_normed ? kElementwise : 0;
  Differences of_residual("residual");
  Differences of_out("out");
  for (size_t i = 0; i < count; ++i) {
    if (!cuda::IsRoundingOf(residual[i], sums.values[i],
                            {relative, relative * sums.magnitudes[i]})) {
      of_residual.Note(i, residual[i], sums.values[i]);
    }
    if (!cuda::IsRoundingOf(got[i], exact[i], {kElementwise})) of_out.Note(i, got[i], exact[i]);
  }
  BATON_RETURN_IF_ERROR(of_residual.Result(count));
  return of_out.Result(count);
}

absl::Status CheckGateMul(const DeviceBody& body, const RowShape& shape, bool is_gelu) {
  const std::vector<Bf16> gate_up = RandomBf16(size_t{2} * shape.rows * shape.dim, 4, 4.0f);
  DeviceArray<Bf16> in(body, gate_up);
  DeviceArray<Bf16> out(body, gate_up.size() / 2);
  BATON_RETURN_IF_ERROR(FirstFailure(in, out));
  const cuda::GateMulParams params = {in.data(), out.data(), shape.rows, shape.dim};
  const cuda::GateMulParams host = {gate_up.data(), nullptr, shape.rows, shape.dim};
  BATON_RETURN_IF_ERROR(is_gelu ? body.kernels().gelu_mul(params, nullptr)
                                : body.kernels().silu_mul(params, nullptr));
  const std::vector<Bf16> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  const std::vector<double> exact =
      is_gelu ? cuda::ReferenceGeluMul(host) : cuda::ReferenceSiluMul(host);
  Differences of_out("out");
  for (size_t i = 0; i < exact.size(); ++i) {
    const Bf16* gate = &gate_up[i + i / shape.dim * shape.dim];
    const Bf16 up = gate[shape.dim];
    const cuda::Tolerance of_silu = {kElementwise, kFarGate * std::abs(FloatFromBf16(up.bits))};
    const cuda::Tolerance tolerance = is_gelu ? cuda::GeluMulTolerance(*gate, up) : of_silu;
    if (cuda::IsRoundingOf(got[i], exact[i], tolerance)) continue;
    if (of_out.empty()) of_out.Add("operands", {{"gate", BitsOf(*gate)}, {"up", BitsOf(up)}});
    of_out.Note(i, got[i], exact[i]);
  }
  return of_out.Result(exact.size());
}

absl::Status CheckEmbed(const DeviceBody& body, const RowShape& shape) {
  constexpr uint32_t kIds = 11;
  constexpr float kScale = 25.298221f;
  const std::vector<Bf16> table = RandomBf16(size_t{kIds} * shape.dim, 5);
  std::vector<uint32_t> ids(shape.rows);
  for (uint32_t i = 0; i < shape.rows; ++i) ids[i] = i * 7 % (kIds + 1);  // one is unknown
  const std::vector<uint32_t> fed = {7, 3};  // the last row's comes from another kernel
  if (!ids.empty()) ids.back() = cuda::kFedId | 1;
  DeviceArray<Bf16> table_device(body, table);
  DeviceArray<uint32_t> ids_device(body, ids);
  DeviceArray<uint32_t> fed_device(body, fed);
  BATON_RETURN_IF_ERROR(fed_device.status());
  DeviceArray<Bf16> out(body, size_t{shape.rows} * shape.dim);
  BATON_RETURN_IF_ERROR(FirstFailure(table_device, ids_device, out));
  BATON_RETURN_IF_ERROR(
      body.kernels().embed({table_device.data(), ids_device.data(), out.data(), shape.rows, kIds,
                            shape.dim, kScale, fed_device.data()},
                           nullptr));
  const std::vector<Bf16> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  std::vector<Bf16> expected(got.size());
  cuda::ReferenceEmbed(
      {table.data(), ids.data(), expected.data(), shape.rows, kIds, shape.dim, kScale, fed.data()});
  return ExpectSameBits("out", got, expected);
}

bool NeedsWgmma(GemmPath path) {
  return path == GemmPath::kNarrow || path == GemmPath::kWgmma128 || path == GemmPath::kWgmma192 ||
         path == GemmPath::kWgmma256;
}

// One product and the path that makes it.
struct GemmCase {
  const char* name;
  GemmPath path;
  uint32_t m;
  uint32_t n;
  uint32_t k;
};

// The bits of the model where one is known; any GPU: near exact arithmetic. `error` gets the
// distance.
absl::Status CheckGemm(const StageInput& input, const GemmCase& c, double& error) {
  const DeviceBody& body = input.body;
  const std::vector<Bf16> x = RandomBf16(size_t{c.m} * c.k, kSeedX);
  const std::vector<Bf16> w = RandomBf16(size_t{c.n} * c.k, kSeedW);
  DeviceArray<Bf16> x_device(body, x);
  DeviceArray<Bf16> w_device(body, w);
  DeviceArray<float> y(body, size_t{c.m} * c.n);
  DeviceArray<std::byte> partials(body, cuda::GemmPartialBytes(c.m, c.n, c.k));
  DeviceArray<uint32_t> counters(body, std::vector<uint32_t>(cuda::kGemmCounters));
  BATON_RETURN_IF_ERROR(FirstFailure(x_device, w_device, y, partials, counters));
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
  const std::vector<double> exact = cuda::ReferenceGemm(host);
  error = cuda::RelativeError(got.data(), exact);
  if (!(error < kGemm)) return TooFar("y", error, got, exact);
  const std::optional<simt::TensorCore> core = simt::TensorCoreOf(input.major);
  if (!core.has_value()) return absl::OkStatus();
  cuda::ReferenceGemmBits(host, *core);
  Differences differences = Compare("y by the tensor cores' model", got, bits);
  if (!differences.empty()) {
    const size_t row = differences.first() / c.n;
    const size_t column = differences.first() % c.n;
    differences.Add("operands", {{"x", HexOfElements(&x[row * c.k], c.k)},
                                 {"w", HexOfElements(&w[column * c.k], c.k)}});
  }
  return differences.Result(got.size());
}

// Gates in the product that makes them, by the bits of the product and of the gates after it.
absl::Status CheckGated(const StageInput& input, const GemmCase& c, cuda::GateKind gate) {
  const DeviceBody& body = input.body;
  DeviceArray<Bf16> x(body, RandomBf16(size_t{c.m} * c.k, kSeedX));
  DeviceArray<Bf16> w(body, RandomBf16(size_t{c.n} * c.k, kSeedW));
  DeviceArray<Bf16> gate_up(body, size_t{c.m} * c.n);
  DeviceArray<Bf16> wanted(body, size_t{c.m} * c.n / 2);
  DeviceArray<Bf16> gated(body, size_t{c.m} * c.n / 2);
  DeviceArray<std::byte> partials(body, cuda::GemmPartialBytes(c.m, c.n, c.k));
  DeviceArray<uint32_t> counters(body, std::vector<uint32_t>(cuda::kGemmCounters));
  BATON_RETURN_IF_ERROR(FirstFailure(x, w, gate_up, wanted, gated, partials, counters));
  cuda::GemmParams params = {.x = x.data(),
                             .w = w.data(),
                             .y_bf16 = gate_up.data(),
                             .m = c.m,
                             .n = c.n,
                             .k = c.k,
                             .partials = partials.data(),
                             .counters = counters.data(),
                             .partial_bytes = cuda::GemmPartialBytes(c.m, c.n, c.k)};
  BATON_RETURN_IF_ERROR(body.kernels().gemm_bf16(params, nullptr));
  const cuda::GateMulParams gates = {gate_up.data(), wanted.data(), c.m, c.n / 2};
  BATON_RETURN_IF_ERROR(gate == cuda::GateKind::kSilu ? body.kernels().silu_mul(gates, nullptr)
                                                      : body.kernels().gelu_mul(gates, nullptr));
  params.y_bf16 = gated.data();
  params.path = c.path;
  BATON_RETURN_IF_ERROR(body.kernels().gemm_gated({params, gate}, nullptr));
  const std::vector<Bf16> got = gated.Values();
  const std::vector<Bf16> expected = wanted.Values();
  BATON_RETURN_IF_ERROR(FirstFailure(gated, wanted));
  return ExpectSameBits("gated, by two launches", got, expected);
}

template <typename Check>
absl::Status AddRows(const char* name, const std::vector<RowShape>& shapes, const Check& check,
                     Report& report) {
  if (!report.Begin(name)) return absl::OkStatus();
  for (const RowShape& shape : shapes) {
    const absl::Status status =
        OfCase(check(shape), {{"rows", shape.rows},
                              {"dim", shape.dim},
                              {"inputs", "RandomBf16 with the seeds of kernel_checks.cc"}});
    if (status.ok()) continue;
    Finding finding = OutcomeOf(name, status, "");
    finding.detail = fmt::format("{} x {}: {}", shape.rows, shape.dim, finding.detail);
    return report.Add(std::move(finding));
  }
  return report.Add({.name = name, .detail = fmt::format("{} shapes", shapes.size())});
}

absl::Status CheckRows(const StageInput& input, Report& report) {
  const std::vector<RowShape> shapes =
      input.is_tiny ? std::vector<RowShape>{{1, 8}, {3, 1064}}
                    : std::vector<RowShape>{{1, 8}, {7, 1064}, {33, 4096}, {257, 14336}};
  const DeviceBody& body = input.body;
  for (const bool flag : {false, true}) {
    const auto check_norm = [&](const RowShape& s) { return CheckRmsNorm(body, s, flag); };
    const auto check_gate = [&](const RowShape& s) { return CheckGateMul(body, s, flag); };
    BATON_RETURN_IF_ERROR(
        AddRows(flag ? "rms_norm of a norm" : "rms_norm", shapes, check_norm, report));
    BATON_RETURN_IF_ERROR(AddRows(flag ? "gelu_mul" : "silu_mul", shapes, check_gate, report));
  }
  return AddRows(
      "embed", shapes, [&](const RowShape& s) { return CheckEmbed(body, s); }, report);
}

absl::Status CheckProducts(const StageInput& input, Report& report) {
  const DeviceBody& body = input.body;
  const std::vector<GemmCase> tiny = {{"gemm wgmma256", GemmPath::kWgmma256, 3, 257, 72},
                                      {"gemm wgmma192", GemmPath::kWgmma192, 3, 193, 264},
                                      {"gemm wgmma128", GemmPath::kWgmma128, 65, 130, 328},
                                      {"gemm tile128", GemmPath::kTile128, 3, 129, 264},
                                      {"gemm tile64", GemmPath::kTile64, 65, 66, 328},
                                      {"gemm narrow", GemmPath::kNarrow, 33, 65, 264},
                                      {"gemm rows32", GemmPath::kRows32, 33, 65, 264},
                                      {"gemm rows8", GemmPath::kRows8, 3, 67, 328}};
  // The model takes 117 ns for 16 products: the first is one row of o_proj of an 8B model, 123 ms.
  const std::vector<GemmCase> full = {
      {"gemm rows8", GemmPath::kRows8, 1, 4096, 4096},
      {"gemm rows8 deep", GemmPath::kRows8, 8, 1030, 14336},
      {"gemm rows32", GemmPath::kRows32, 33, 1030, 4096},
      {"gemm narrow8", GemmPath::kNarrow, 3, 1030, 14336},
      {"gemm narrow32", GemmPath::kNarrow, 17, 1030, 4096},
      {"gemm narrow64", GemmPath::kNarrow, 33, 1030, 4096},
      {"gemm narrow8, one segment", GemmPath::kNarrow, 1, 16900, 1288},
      {"gemm tile64", GemmPath::kTile64, 129, 519, 2880},
      {"gemm tile128", GemmPath::kTile128, 129, 519, 2880},
      {"gemm wgmma128", GemmPath::kWgmma128, 129, 519, 2880},
      {"gemm wgmma192", GemmPath::kWgmma192, 129, 519, 2880},
      {"gemm wgmma256", GemmPath::kWgmma256, 9, 16900, 520},
      {"gemm auto", GemmPath::kAuto, 257, 300, 1032}};
  for (const GemmCase& c : input.is_tiny ? tiny : full) {
    if (!report.Begin(c.name)) continue;
    double error = 0;
    if (NeedsWgmma(c.path) && input.major != 9) {
      BATON_RETURN_IF_ERROR(report.Add({c.name, Verdict::kNotRun, "needs sm_90"}));
      continue;
    }
    constexpr uint32_t kTile128Bytes = 128 * 1024;
    if (c.path == GemmPath::kTile128 && body.kernels().max_shared_bytes() < kTile128Bytes) {
      BATON_RETURN_IF_ERROR(
          report.Add({c.name, Verdict::kNotRun, "needs 128 KiB of shared memory"}));
      continue;
    }
    const absl::Status status =
        OfCase(CheckGemm(input, c, error),
               {{"m", c.m},
                {"n", c.n},
                {"k", c.k},
                {"inputs",
                 fmt::format("x = RandomBf16(m k, {}), w = RandomBf16(n k, {})", kSeedX, kSeedW)}});
    BATON_RETURN_IF_ERROR(report.Add(OutcomeOf(
        c.name, status, fmt::format("{} x {} x {}, relative error {:.2g}", c.m, c.n, c.k, error))));
  }
  return absl::OkStatus();
}

absl::Status CheckJoinedGates(const StageInput& input, Report& report) {
  const std::vector<GemmCase> tiny = {{"gemm narrow gated", GemmPath::kNarrow, 9, 80, 264},
                                      {"gemm rows32 gated", GemmPath::kRows32, 9, 80, 264},
                                      {"gemm rows8 gated", GemmPath::kRows8, 3, 80, 72}};
  const std::vector<GemmCase> full = {{"gemm rows8 gated", GemmPath::kRows8, 1, 28672, 4096},
                                      {"gemm rows32 gated", GemmPath::kRows32, 17, 1040, 14336},
                                      {"gemm narrow8 gated", GemmPath::kNarrow, 8, 28672, 4096},
                                      {"gemm narrow32 gated", GemmPath::kNarrow, 32, 1040, 14336}};
  for (const GemmCase& c : input.is_tiny ? tiny : full) {
    if (!report.Begin(c.name)) continue;
    if (NeedsWgmma(c.path) && input.major != 9) {
      BATON_RETURN_IF_ERROR(report.Add({c.name, Verdict::kNotRun, "needs sm_90"}));
      continue;
    }
    absl::Status status = CheckGated(input, c, cuda::GateKind::kSilu);
    if (status.ok()) status = CheckGated(input, c, cuda::GateKind::kGelu);
    BATON_RETURN_IF_ERROR(report.Add(OutcomeOf(
        c.name,
        OfCase(status, {{"m", c.m},
                        {"n", c.n},
                        {"k", c.k},
                        {"inputs", fmt::format("x = RandomBf16(m k, {}), w = RandomBf16(n k, {})",
                                               kSeedX, kSeedW)}}),
        fmt::format("{} x {} x {}", c.m, c.n, c.k))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckKernels(const StageInput& input, Report& report) {
  if (input.kernels != KernelList::kOthers) {
    BATON_RETURN_IF_ERROR(CheckProducts(input, report));
    BATON_RETURN_IF_ERROR(CheckJoinedGates(input, report));
    BATON_RETURN_IF_ERROR(CheckJoinedRopes(input, report));
    BATON_RETURN_IF_ERROR(CheckJoinedNorms(input, report));
  }
  BATON_RETURN_IF_ERROR(CheckAttentionKernels(input, report));
  if (input.kernels == KernelList::kAsynchronous) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(CheckRows(input, report));
  BATON_RETURN_IF_ERROR(CheckPackedWeights(input, report));
  BATON_RETURN_IF_ERROR(CheckRopeAppend(input, report));
  BATON_RETURN_IF_ERROR(CheckShortConv(input, report));
  BATON_RETURN_IF_ERROR(CheckDeltaNets(input, report));
  BATON_RETURN_IF_ERROR(CheckExperts(input, report));
  BATON_RETURN_IF_ERROR(CheckKvSlices(input, report));
  BATON_RETURN_IF_ERROR(CheckSample(input, report));
  // The last: they wait for one another, and end the context when they waited too long.
  return CheckExchanges(input, report);
}

}  // namespace baton::kernels::gpu_check
