// The part of cuBLASLt's C interface that gpu_check calls, declared here so that a build without
// the library's headers (they come with half a gigabyte of library) can load it where it is.
// Values and layouts as in cublasLt.h and library_types.h, whose older interfaces newer versions
// keep.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_CUBLASLT_ABI_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_CUBLASLT_ABI_H_

#include <cstddef>
#include <cstdint>

extern "C" {

// NOLINTBEGIN: names and types are the library's.
typedef int cublasStatus_t;  // an enum; 0 is success
typedef int cublasComputeType_t;
typedef int cudaDataType_t;
typedef void* cublasLtHandle_t;
typedef struct cublasLtMatmulDescOpaque* cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayoutOpaque* cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreferenceOpaque* cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};

size_t cublasLtGetVersion(void);
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, int attribute,
                                              const void* value, size_t bytes);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    int attribute, const void* value, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference,
                                              int num_requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* num_found);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, void* stream);
// NOLINTEND

}  // extern "C"

namespace baton::gpu_check {

inline constexpr int kCublasCompute32F = 68;
inline constexpr int kCudaReal32F = 0;
inline constexpr int kCudaReal16BF = 14;
inline constexpr int kCublasOpTransposed = 1;
inline constexpr int kMatmulDescTransA = 3;
inline constexpr int kPreferenceMaxWorkspaceBytes = 1;

// X(name): every function that is called. A library without one of them is too old.
#define BATON_CUBLASLT_FUNCTIONS(X)       \
  X(cublasLtGetVersion)                   \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmul)

// Pointers into the library.
struct CublasLtTable {
#define BATON_DECLARE(name) decltype(&::name) name = nullptr;
  BATON_CUBLASLT_FUNCTIONS(BATON_DECLARE)
#undef BATON_DECLARE
};

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_CUBLASLT_ABI_H_
