// CublasLtTable: cuBLASLt's functions, found at run time. Nothing links cuBLASLt, so one binary
// starts with or without it, and a test takes the loopback (tests/cublaslt) through the same door.
//
// The table is constant once it is loaded and its library is never unloaded. Any thread.
#ifndef BATON_KERNELS_CUBLASLT_CUBLASLT_LIBRARY_H_
#define BATON_KERNELS_CUBLASLT_CUBLASLT_LIBRARY_H_

#include <cstddef>
#include <string>

#include "kernels/cublaslt/cublaslt_api.h"
#include "src/base/library.h"
#include "src/base/status.h"

namespace baton::kernels::cublaslt {

// The oldest version that is taken, 13.0: that of the CUDA that this is built with.
inline constexpr size_t kMinVersion = 130'000;

// X(name): every function that is called.
#define BATON_CUBLASLT_FUNCTIONS(X)       \
  X(cublasLtGetVersion)                   \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmul)

// See the file comment.
struct CublasLtTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declarator
#define BATON_DECLARE(name) decltype(&::name) name = nullptr;
  BATON_CUBLASLT_FUNCTIONS(BATON_DECLARE)
#undef BATON_DECLARE
  size_t version = 0;  // of the library, as cublasLtGetVersion gives it
  std::string path;    // where it was found, for the log
};

// The first library found: that of the flag --cublaslt-library, or of BATON_CUBLASLT_LIBRARY, or a
// libcublasLt.so.13. In one line: NotFound naming every place when there is none,
// FailedPrecondition naming the file when it lacks functions (which) or is older than kMinVersion
// (its version).
StatusOr<CublasLtTable> LoadCublasLt(const LibrarySearch& search);

// "13.0.2" of 130002.
std::string VersionText(size_t version);

// OK for kSuccess; otherwise Internal with the call and the number of the error.
Status ToStatus(const char* call, cublasStatus_t status);

}  // namespace baton::kernels::cublaslt

#endif  // BATON_KERNELS_CUBLASLT_CUBLASLT_LIBRARY_H_
