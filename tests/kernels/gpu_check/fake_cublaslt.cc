// A cuBLASLt that multiplies on the processor, to run gpu_check's calls where there is none. It
// takes the one kind of product that gpu_check asks for and refuses any other.
// $FAKE_CUBLASLT_LACKS: "result", every product is zero; "algorithm", none is known.
#include <cstdlib>
#include <string_view>

#include "kernels/math.h"
#include "tests/kernels/gpu_check/cublaslt_abi.h"

namespace {

constexpr cublasStatus_t kInvalid = 7;

bool Lacks(std::string_view what) {
  const char* const lacks = std::getenv("FAKE_CUBLASLT_LACKS");
  return lacks != nullptr && what == lacks;
}

}  // namespace

struct cublasLtMatmulDescOpaque {
  bool is_transposed = false;
};
struct cublasLtMatrixLayoutOpaque {
  uint64_t rows;
  uint64_t columns;
  int64_t stride;
};
struct cublasLtMatmulPreferenceOpaque {};

extern "C" {

size_t cublasLtGetVersion(void) { return 130'000; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = handle;  // anything that is not null
  return 0;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return 0; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  using namespace baton::gpu_check;
  if (compute != kCublasCompute32F || scale != kCudaReal32F) return kInvalid;
  *desc = new cublasLtMatmulDescOpaque;
  return 0;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return 0;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, int attribute,
                                              const void* value, size_t bytes) {
  if (attribute != baton::gpu_check::kMatmulDescTransA || bytes != sizeof(int)) return kInvalid;
  desc->is_transposed = *static_cast<const int*>(value) == baton::gpu_check::kCublasOpTransposed;
  return 0;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  if (type != baton::gpu_check::kCudaReal16BF) return kInvalid;
  *layout = new cublasLtMatrixLayoutOpaque{rows, columns, stride};
  return 0;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return 0;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque;
  return 0;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return 0;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, int attribute,
                                                    const void*, size_t bytes) {
  const bool is_known = attribute == baton::gpu_check::kPreferenceMaxWorkspaceBytes;
  return is_known && bytes == sizeof(uint64_t) ? 0 : kInvalid;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int num_requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* num_found) {
  *num_found = num_requested > 0 && !Lacks("algorithm") ? 1 : 0;
  if (*num_found > 0) results[0] = {};
  return 0;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void*, size_t, void*) {
  const bool is_plain =
      *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
  const bool agree = a_layout->rows == b_layout->rows && a_layout->columns == d_layout->rows &&
                     b_layout->columns == d_layout->columns;
  if (!desc->is_transposed || !is_plain || !agree) return kInvalid;
  const auto* w = static_cast<const uint16_t*>(a);
  const auto* x = static_cast<const uint16_t*>(b);
  auto* y = static_cast<uint16_t*>(d);
  const uint64_t depth = Lacks("result") ? 0 : a_layout->rows;
  for (uint64_t m = 0; m < d_layout->columns; ++m) {
    for (uint64_t n = 0; n < d_layout->rows; ++n) {
      float sum = 0;
      for (uint64_t k = 0; k < depth; ++k) {
        sum += baton::FloatFromBf16(w[n * a_layout->stride + k]) *
               baton::FloatFromBf16(x[m * b_layout->stride + k]);
      }
      y[m * d_layout->stride + n] = baton::Bf16FromFloat(sum);
    }
  }
  return 0;
}

}  // extern "C"
