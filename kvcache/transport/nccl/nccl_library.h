// NcclTable: NCCL's functions, found at run time. Nothing links NCCL, so one binary starts with or
// without it, and a test takes the loopback (tests/nccl) through the same door.
//
// The table is constant once it is loaded and its library is never unloaded. Any thread.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_LIBRARY_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_LIBRARY_H_

#include <string>

#include "kvcache/transport/nccl/nccl_api.h"
#include "src/base/library.h"
#include "src/base/status.h"

namespace baton::kv::nccl {

// The oldest version that is taken: the first whose non-blocking communicators can be finalized,
// aborted and given a number of ctas, and are what later versions still do.
inline constexpr int kMinVersion = 21800;

// X(name): must be there. O(name): newer than kMinVersion, null where missing.
#define BATON_NCCL_FUNCTIONS(X, O) \
  X(ncclGetVersion)                \
  X(ncclGetUniqueId)               \
  X(ncclCommInitRankConfig)        \
  X(ncclCommGetAsyncError)         \
  X(ncclCommFinalize)              \
  X(ncclCommDestroy)               \
  X(ncclCommAbort)                 \
  X(ncclSend)                      \
  X(ncclRecv)                      \
  X(ncclGetErrorString)            \
  O(ncclCommRegister)              \
  O(ncclCommDeregister)

// See the file comment.
struct NcclTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declarator
#define BATON_DECLARE(name) decltype(&functions::name) name = nullptr;
  BATON_NCCL_FUNCTIONS(BATON_DECLARE, BATON_DECLARE)
#undef BATON_DECLARE
  int version = 0;   // of the library, as ncclGetVersion gives it
  std::string path;  // where it was found, for the log
};

// The first library found: that of the flag --nccl-library, or of BATON_NCCL_LIBRARY, or a
// libnccl.so.2. In one line: NotFound naming every place when there is none,
// FailedPrecondition naming the file when it lacks functions (which) or is older than kMinVersion
// (its version).
StatusOr<NcclTable> LoadNccl(const LibrarySearch& search);

// "2.28.9" of 22809.
std::string VersionText(int version);

// OK for kSuccess and kInProgress; otherwise Unavailable with the call and NCCL's words.
Status ToStatus(const NcclTable& table, const char* call, Result result);

}  // namespace baton::kv::nccl

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_LIBRARY_H_
