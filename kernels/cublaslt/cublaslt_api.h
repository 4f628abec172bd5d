// The part of cuBLASLt's C interface that is called here. It is declared here so that a build
// without the library's headers can load the library where it is. (The headers come with half a
// gigabyte of library.) Names, values and layouts are those of cublasLt.h and library_types.h,
// whose interfaces newer versions keep.
//
// Nothing here is defined or linked; cublaslt_library.h finds the functions at run time, and the
// loopback (tests/cublaslt) defines them for tests.
#ifndef BATON_KERNELS_CUBLASLT_CUBLASLT_API_H_
#define BATON_KERNELS_CUBLASLT_CUBLASLT_API_H_

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
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, int attribute,
                                                const void* value, size_t bytes);
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
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, void* stream);
// NOLINTEND

}  // extern "C"

namespace baton::kernels::cublaslt {

inline constexpr cublasStatus_t kSuccess = 0;
inline constexpr cublasComputeType_t kCompute32F = 68;
inline constexpr cudaDataType_t kReal32F = 0;
inline constexpr cudaDataType_t kReal16BF = 14;
inline constexpr int kOpTransposed = 1;
// Attributes, and the type of what they are set to.
inline constexpr int kMatmulDescTransA = 3;                   // int32_t
inline constexpr int kLayoutColumns = 3;                      // uint64_t
inline constexpr int kPreferenceMaxWorkspace = 1;             // uint64_t, bytes
inline constexpr int kPreferenceReductions = 3;               // uint32_t, a mask
inline constexpr int kPreferenceAlignments[] = {5, 6, 7, 8};  // uint32_t, bytes; of A, B, C, D
// Partial sums are kept in the type of the sums, not in that of the output.
inline constexpr uint32_t kReductionInComputeType = 2;

}  // namespace baton::kernels::cublaslt

#endif  // BATON_KERNELS_CUBLASLT_CUBLASLT_API_H_
