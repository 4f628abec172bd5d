#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/cublaslt_abi.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/library.h"
#include "tests/kernels/gpu_check/model_shape.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/timing.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::gpu_check {
namespace {

using cuda::Bf16;
using simt_test::RandomBf16;

constexpr size_t kWorkspaceBytes = 64 << 20;
constexpr int kMaxAlgorithms = 4;
constexpr double kNearExact = 1e-2;  // a bf16 output rounds to 2^-9

absl::Status FromLt(const char* what, cublasStatus_t status) {
  if (status == 0) return absl::OkStatus();
  return Internal("{}: cuBLAS status {}", what, status);
}

absl::StatusOr<CublasLtTable> LoadCublasLt(const ForeignTools& tools, std::string* path) {
  BATON_ASSIGN_OR_RETURN(const Library library, OpenLibrary({.name = "libcublasLt.so.13",
                                                             .flag = tools.cublaslt,
                                                             .environment = "BATON_CUBLASLT",
                                                             .python = tools.python}));
  *path = library.path;
  CublasLtTable table;
#define BATON_FIND(name) {BATON_SYMBOL_NAME(name), reinterpret_cast<void**>(&table.name), true},
  const Symbol symbols[] = {BATON_CUBLASLT_FUNCTIONS(BATON_FIND)};
#undef BATON_FIND
  BATON_RETURN_IF_ERROR(FindSymbols(library, symbols));
  return table;
}

// Device memory of one product.
struct LtOperands {
  const void* w;
  const void* x;
  void* y;
  void* workspace;  // kWorkspaceBytes
};

// y [m][n] = x [m][k] w [n][k]^T in bf16 with sums in fp32, as the library sees it: column-major
// y^T = w x^T, w transposed.
class LtProduct {
 public:
  LtProduct(const CublasLtTable& lt, cublasLtHandle_t handle) : lt_(lt), handle_(handle) {}
  ~LtProduct() {
    for (cublasLtMatrixLayout_t layout : layouts_) {
      if (layout != nullptr) lt_.cublasLtMatrixLayoutDestroy(layout);
    }
    if (desc_ != nullptr) lt_.cublasLtMatmulDescDestroy(desc_);
  }
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;

  absl::Status Describe(uint32_t m, uint32_t n, uint32_t k) {
    BATON_RETURN_IF_ERROR(FromLt(
        "MatmulDescCreate", lt_.cublasLtMatmulDescCreate(&desc_, kCublasCompute32F, kCudaReal32F)));
    const int transposed = kCublasOpTransposed;
    BATON_RETURN_IF_ERROR(FromLt("MatmulDescSetAttribute",
                                 lt_.cublasLtMatmulDescSetAttribute(
                                     desc_, kMatmulDescTransA, &transposed, sizeof(transposed))));
    // Rows and columns of w^T, x^T and y^T.
    const std::pair<uint32_t, uint32_t> sizes[] = {{k, n}, {k, m}, {n, m}};
    for (size_t i = 0; i < 3; ++i) {
      const auto [rows, columns] = sizes[i];
      BATON_RETURN_IF_ERROR(
          FromLt("MatrixLayoutCreate",
                 lt_.cublasLtMatrixLayoutCreate(&layouts_[i], kCudaReal16BF, rows, columns, rows)));
    }
    return FindAlgorithms();
  }

  const std::vector<cublasLtMatmulAlgo_t>& algorithms() const { return algorithms_; }

  // One launch.
  absl::Status Multiply(const cublasLtMatmulAlgo_t& algorithm, const LtOperands& operands,
                        void* stream) const {
    const float one = 1;
    const float zero = 0;
    return FromLt("Matmul", lt_.cublasLtMatmul(handle_, desc_, &one, operands.w, layouts_[0],
                                               operands.x, layouts_[1], &zero, operands.y,
                                               layouts_[2], operands.y, layouts_[2], &algorithm,
                                               operands.workspace, kWorkspaceBytes, stream));
  }

 private:
  absl::Status FindAlgorithms() {
    cublasLtMatmulPreference_t preference = nullptr;
    BATON_RETURN_IF_ERROR(
        FromLt("MatmulPreferenceCreate", lt_.cublasLtMatmulPreferenceCreate(&preference)));
    cublasLtMatmulHeuristicResult_t results[kMaxAlgorithms] = {};
    int num_found = 0;
    absl::Status status =
        FromLt("MatmulPreferenceSetAttribute",
               lt_.cublasLtMatmulPreferenceSetAttribute(preference, kPreferenceMaxWorkspaceBytes,
                                                        &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
    if (status.ok()) {
      status = FromLt("MatmulAlgoGetHeuristic",
                      lt_.cublasLtMatmulAlgoGetHeuristic(handle_, desc_, layouts_[0], layouts_[1],
                                                         layouts_[2], layouts_[2], preference,
                                                         kMaxAlgorithms, results, &num_found));
    }
    lt_.cublasLtMatmulPreferenceDestroy(preference);
    BATON_RETURN_IF_ERROR(status);
    for (int i = 0; i < num_found; ++i) {
      if (results[i].state == 0) algorithms_.push_back(results[i].algo);
    }
    return algorithms_.empty() ? Internal("cuBLASLt knows no algorithm") : absl::OkStatus();
  }

  const CublasLtTable& lt_;
  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t layouts_[3] = {};
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
};

// A library that says what it computed: 3 x 24 x 40 against exact arithmetic.
absl::Status CheckSmallProduct(const StageInput& input, const CublasLtTable& lt,
                               cublasLtHandle_t handle) {
  constexpr uint32_t kM = 3;
  constexpr uint32_t kN = 24;
  constexpr uint32_t kK = 40;
  const std::vector<Bf16> x = RandomBf16(size_t{kM} * kK, 31);
  const std::vector<Bf16> w = RandomBf16(size_t{kN} * kK, 32);
  DeviceArray<Bf16> x_device(input.body, x);
  DeviceArray<Bf16> w_device(input.body, w);
  DeviceArray<Bf16> y(input.body, size_t{kM} * kN);
  DeviceArray<std::byte> workspace(input.body, kWorkspaceBytes);
  BATON_RETURN_IF_ERROR(x_device.status());
  BATON_RETURN_IF_ERROR(w_device.status());
  BATON_RETURN_IF_ERROR(y.status());
  BATON_RETURN_IF_ERROR(workspace.status());
  LtProduct product(lt, handle);
  BATON_RETURN_IF_ERROR(product.Describe(kM, kN, kK));
  BATON_RETURN_IF_ERROR(
      product.Multiply(product.algorithms()[0],
                       {w_device.data(), x_device.data(), y.data(), workspace.data()}, nullptr));
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
  LtTiming(const StageInput& input, const CublasLtTable& lt, cublasLtHandle_t handle)
      : input_(input), lt_(lt), handle_(handle), workspace_(input.body, kWorkspaceBytes) {}
  const absl::Status& status() const { return workspace_.status(); }

  absl::Status Add(const ProductShape& shape, uint32_t m, Report& report, MeasuredLimits& limits) {
    LtProduct product(lt_, handle_);
    RandomMemory w(input_, size_t{2} * shape.n * shape.k, 0.02f);
    RandomMemory x(input_, size_t{2} * m * shape.k, 1.0f);
    DeviceArray<Bf16> y(input_.body, size_t{m} * shape.n);
    TimedCase timed = {.name = fmt::format("cublaslt {} m {}", shape.name, m),
                       .bytes = 2.0 * shape.n * shape.k + 2.0 * m * (shape.n + shape.k),
                       .flops = 2.0 * m * shape.n * shape.k};
    std::vector<double> best_us;
    absl::Status status = product.Describe(m, shape.n, shape.k);
    for (const absl::Status& made : {w.status(), x.status(), y.status()}) {
      if (status.ok()) status = made;
    }
    if (status.ok()) status = TimeAll(product, {&w, x.Piece(0, 0), y.data()}, shape, &best_us);
    if (!status.ok()) {
      return report.Add({timed.name, Verdict::kFail, std::string(status.message())});
    }
    const double best = MedianOf(best_us);
    if (input_.body.is_gpu && best > 0) {
      limits.bf16_flops_per_s = std::max(limits.bf16_flops_per_s, timed.flops / best * 1e6);
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
  };

  absl::Status TimeAll(const LtProduct& product, const Memory& memory, const ProductShape& shape,
                       std::vector<double>* best_us) {
    const size_t bytes = size_t{2} * shape.n * shape.k;
    for (const cublasLtMatmulAlgo_t& algorithm : product.algorithms()) {
      const auto launch = [&](void* stream, uint32_t i) {
        return product.Multiply(
            algorithm, {memory.w->Piece(bytes, i), memory.x, memory.y, workspace_.data()}, stream);
      };
      std::vector<double> samples_us;
      BATON_RETURN_IF_ERROR(
          input_.body.time(WorkOf(input_, memory.w->NumPieces(bytes), launch), &samples_us));
      if (best_us->empty() || MedianOf(samples_us) < MedianOf(*best_us)) *best_us = samples_us;
    }
    return absl::OkStatus();
  }

  const StageInput& input_;
  const CublasLtTable& lt_;
  cublasLtHandle_t handle_;
  DeviceArray<std::byte> workspace_;
};

}  // namespace

absl::Status CheckCublasLt(const StageInput& input, Report& report, MeasuredLimits& limits) {
  if (!input.body.is_gpu && input.tools.cublaslt.empty()) {
    return report.Add({"cublaslt", Verdict::kNotRun, "it computes on a GPU only"});
  }
  std::string path;
  const absl::StatusOr<CublasLtTable> lt = LoadCublasLt(input.tools, &path);
  if (!lt.ok()) {
    return report.Add({"cublaslt", Verdict::kNotRun, std::string(lt.status().message())});
  }
  cublasLtHandle_t handle = nullptr;
  absl::Status status = FromLt("Create", lt->cublasLtCreate(&handle));
  if (status.ok()) status = CheckSmallProduct(input, *lt, handle);
  Finding finding{.name = "cublaslt"};
  finding.verdict = status.ok() ? Verdict::kPass : Verdict::kFail;
  finding.detail = status.ok() ? fmt::format("version {}, {}", lt->cublasLtGetVersion(), path)
                               : std::string(status.message());
  BATON_RETURN_IF_ERROR(report.Add(std::move(finding)));
  if (!status.ok()) return absl::OkStatus();
  LtTiming timing(input, *lt, handle);
  if (!timing.status().ok()) {
    return report.Add(
        {"cublaslt workspace", Verdict::kFail, std::string(timing.status().message())});
  }
  for (const ProductShape& shape : ProductsOf(ShapeFor(input.is_tiny))) {
    for (const uint32_t m : RowCounts(input.is_tiny)) {
      if (shape.is_output && m > kMostOutputRows) continue;
      BATON_RETURN_IF_ERROR(timing.Add(shape, m, report, limits));
    }
  }
  lt->cublasLtDestroy(handle);
  return absl::OkStatus();
}

}  // namespace baton::gpu_check
