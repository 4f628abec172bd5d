#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cublaslt/lt_product.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/model_shape.h"
#include "tests/kernels/gpu_check/program.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/timing.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::gpu_check {
namespace {

using cublaslt::CublasLtTable;
using cublaslt::LtHandle;
using cublaslt::LtProduct;
using cuda::Bf16;
using simt_test::RandomBf16;

constexpr size_t kWorkspaceBytes = 64 << 20;
constexpr int kMaxAlgorithms = 4;
constexpr uint32_t kCheckedColumns = 16;
constexpr double kNearExact = 1e-2;  // a bf16 output rounds to 2^-9

using Algorithms = std::vector<cublasLtMatmulAlgo_t>;

// At least one.
absl::StatusOr<Algorithms> AlgorithmsFor(LtProduct& product, uint32_t m) {
  BATON_ASSIGN_OR_RETURN(Algorithms found, product.Candidates(m, kWorkspaceBytes, kMaxAlgorithms));
  if (found.empty()) return Internal("cuBLASLt knows no algorithm");
  return found;
}

// A library that says what it computed: 3 x 24 x 40 against exact arithmetic.
absl::Status CheckSmallProduct(const StageInput& input, const LtHandle& handle) {
  constexpr uint32_t kM = 3;
  constexpr uint32_t kN = 24;
  constexpr uint32_t kK = 40;
  const std::vector<Bf16> x = RandomBf16(size_t{kM} * kK, 31);
  const std::vector<Bf16> w = RandomBf16(size_t{kN} * kK, 32);
  DeviceArray<Bf16> x_device(input.body, x);
  DeviceArray<Bf16> w_device(input.body, w);
  DeviceArray<Bf16> y(input.body, size_t{kM} * kN);
  DeviceArray<std::byte> workspace(input.body, kWorkspaceBytes);
  BATON_RETURN_IF_ERROR(FirstFailure(x_device, w_device, y, workspace));
  BATON_ASSIGN_OR_RETURN(const auto product, LtProduct::Create(handle, {.n = kN, .k = kK}));
  BATON_ASSIGN_OR_RETURN(const auto algorithms, AlgorithmsFor(*product, kM));
  BATON_RETURN_IF_ERROR(product->Multiply(algorithms[0],
                                          {x_device.data(), w_device.data(), y.data(), kM},
                                          {workspace.data(), kWorkspaceBytes}, nullptr));
  std::vector<float> got;
  for (const Bf16 value : y.Values()) got.push_back(FloatFromBf16(value.bits));
  BATON_RETURN_IF_ERROR(y.status());
  const std::vector<double> exact = cuda::ReferenceGemm(
      {.x = x.data(), .w = w.data(), .y_float = got.data(), .m = kM, .n = kN, .k = kK});
  const double error = cuda::RelativeError(got.data(), exact);
  return error < kNearExact ? absl::OkStatus() : Internal("relative error {:.3g}", error);
}

// One shape, timed with each algorithm that the library offers; the fastest one's finding.
class LtTiming {
 public:
  LtTiming(const StageInput& input, const LtHandle& handle)
      : input_(input), handle_(handle), workspace_(input.body, kWorkspaceBytes) {}
  const absl::Status& status() const { return workspace_.status(); }

  absl::Status Add(const ProductShape& shape, uint32_t m, Report& report, MeasuredLimits& limits) {
    RandomMemory w(input_, size_t{2} * shape.n * shape.k, 0.02f);
    RandomMemory x(input_, size_t{2} * m * shape.k, 1.0f);
    DeviceArray<Bf16> y(input_.body, size_t{m} * shape.n);
    TimedCase timed = {.name = fmt::format("cublaslt {} m {}", shape.name, m),
                       .bytes = 2.0 * shape.n * shape.k + 2.0 * m * (shape.n + shape.k),
                       .flops = 2.0 * m * shape.n * shape.k};
    if (!report.Begin(timed.name)) return absl::OkStatus();
    std::vector<double> best_us;
    absl::Status status;
    for (const absl::Status& made : {w.status(), x.status(), y.status()}) status.Update(made);
    if (status.ok()) status = TimeAll(shape, {&w, x.Piece(0, 0), y.data(), m}, &best_us);
    if (!status.ok()) {
      return report.Add({timed.name, Verdict::kFail, std::string(status.message())});
    }
    const double best = MedianOf(best_us);
    const bool computing_binds = timed.flops >= kComputeFlopsPerByte * timed.bytes;
    if (input_.body.is_gpu && best > 0 && computing_binds) {
      limits.bf16_flops_per_s = std::max(limits.bf16_flops_per_s, timed.flops / best * 1e6);
      // With this row already: the stage may be stopped at any shape.
      report.Describe("limits", JsonOf(limits));
    }
    StageInput without_limits = input_;
    without_limits.limits = {};
    return AddSamples(without_limits, timed, best_us, {.name = timed.name}, report);
  }

 private:
  // Where operands lie.
  struct Memory {
    RandomMemory* w;
    const void* x;
    void* y;
    uint32_t m;
  };

  // The fastest algorithm, whose bits are then looked at.
  absl::Status TimeAll(const ProductShape& shape, const Memory& memory,
                       std::vector<double>* best_us) {
    BATON_ASSIGN_OR_RETURN(const auto product,
                           LtProduct::Create(handle_, {.n = shape.n, .k = shape.k}));
    BATON_ASSIGN_OR_RETURN(const Algorithms algorithms, AlgorithmsFor(*product, memory.m));
    const size_t bytes = size_t{2} * shape.n * shape.k;
    const cublasLtMatmulAlgo_t* best = nullptr;
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
      const auto launch = [&](void* stream, uint32_t i) {
        return product->Multiply(algorithm,
                                 {memory.x, memory.w->Piece(bytes, i), memory.y, memory.m},
                                 {workspace_.data(), kWorkspaceBytes}, stream);
      };
      std::vector<double> samples_us;
      BATON_RETURN_IF_ERROR(
          input_.body.time(WorkOf(input_, memory.w->NumPieces(bytes), launch), &samples_us));
      if (best != nullptr && MedianOf(samples_us) >= MedianOf(*best_us)) continue;
      *best_us = samples_us;
      best = &algorithm;
    }
    BATON_RETURN_IF_ERROR(
        product->Multiply(*best, {memory.x, memory.w->Piece(bytes, 0), memory.y, memory.m},
                          {workspace_.data(), kWorkspaceBytes}, nullptr));
    for (const uint32_t row : {0u, memory.m - 1}) {
      for (const uint32_t column : {0u, shape.n - kCheckedColumns}) {
        BATON_RETURN_IF_ERROR(CheckCorner(shape, memory, row, column));
      }
    }
    return absl::OkStatus();
  }

  // Some neighbours of one row of y against exact arithmetic.
  absl::Status CheckCorner(const ProductShape& shape, const Memory& memory, uint32_t row,
                           uint32_t column) {
    const auto read = [this](const void* from, size_t first, std::vector<Bf16>* to) {
      return input_.body.copy_out(to->data(), static_cast<const Bf16*>(from) + first,
                                  to->size() * sizeof(Bf16));
    };
    std::vector<Bf16> x(shape.k);
    std::vector<Bf16> w(size_t{kCheckedColumns} * shape.k);
    std::vector<Bf16> y(kCheckedColumns);
    BATON_RETURN_IF_ERROR(read(memory.y, size_t{row} * shape.n + column, &y));
    BATON_RETURN_IF_ERROR(read(memory.x, size_t{row} * shape.k, &x));
    BATON_RETURN_IF_ERROR(read(memory.w->Piece(0, 0), size_t{column} * shape.k, &w));
    std::vector<float> got;
    for (const Bf16 value : y) got.push_back(FloatFromBf16(value.bits));
    const std::vector<double> exact = cuda::ReferenceGemm({.x = x.data(),
                                                           .w = w.data(),
                                                           .y_float = got.data(),
                                                           .m = 1,
                                                           .n = kCheckedColumns,
                                                           .k = shape.k});
    const double error = cuda::RelativeError(got.data(), exact);
    if (error < kNearExact) return absl::OkStatus();
    return Internal("row {} from column {} on: relative error {:.3g}", row, column, error);
  }

  const StageInput& input_;
  const LtHandle& handle_;
  DeviceArray<std::byte> workspace_;
};

}  // namespace

absl::StatusOr<CublasLtTable> FindCublasLt(const ForeignTools& tools) {
  return cublaslt::LoadCublasLt(
      {.library = tools.cublaslt, .python_folders = PackagesOf(tools.python)});
}

absl::Status CheckCublasLt(const StageInput& input, Report& report, MeasuredLimits& limits) {
  if (!input.body.is_gpu && input.tools.cublaslt.empty()) {
    return report.Add({"cublaslt", Verdict::kNotRun, "it computes on a GPU only"});
  }
  const absl::StatusOr<CublasLtTable> table = FindCublasLt(input.tools);
  if (!table.ok()) {
    return report.Add({"cublaslt", Verdict::kNotRun, std::string(table.status().message())});
  }
  if (!report.BeginNeeded("cublaslt")) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<LtHandle>> handle = LtHandle::Create(*table);
  const absl::Status status = handle.ok() ? CheckSmallProduct(input, **handle) : handle.status();
  Finding finding{.name = "cublaslt"};
  finding.verdict = status.ok() ? Verdict::kPass : Verdict::kFail;
  finding.detail = status.ok() ? fmt::format("version {}, {}", table->version, table->path)
                               : std::string(status.message());
  BATON_RETURN_IF_ERROR(report.Add(std::move(finding)));
  if (!status.ok()) return absl::OkStatus();
  LtTiming timing(input, **handle);
  if (!timing.status().ok()) {
    return report.Add(
        {"cublaslt workspace", Verdict::kFail, std::string(timing.status().message())});
  }
  // Many rows first: they are the limit of computing.
  std::vector<uint32_t> counts = RowCounts(input.is_tiny);
  std::reverse(counts.begin(), counts.end());
  for (const uint32_t m : counts) {
    for (const ProductShape& shape : ProductsOf(ShapeFor(input.is_tiny))) {
      if (shape.is_output && m > kMostOutputRows) continue;
      BATON_RETURN_IF_ERROR(timing.Add(shape, m, report, limits));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
