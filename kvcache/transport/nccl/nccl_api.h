// The part of NCCL's C interface that this server calls, declared here so that every build has the
// transport, with or without NCCL's headers: names, values and layouts of nccl.h 2.28.9, whose
// binary interface later versions keep (a configuration says its own size and version).
// tests/nccl/nccl_header_check.cc holds each line against nccl.h where that is installed.
//
// Nothing here is defined or linked; nccl_library.h finds the functions at run time.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_API_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <cstdint>

namespace baton::kv::nccl {

// major * 10000 + minor * 100 + patch, as ncclGetVersion gives it.
inline constexpr int kDeclaredVersion = 22809;

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// Bytes are all that is sent.
enum DataType : int { kUint8 = 1 };

// A communicator; opaque.
struct Comm;
// A cudaStream_t, or a simt::HostStream* of the runner.
using Stream = void*;

// Names a communicator that is being built; both ranks have the same one.
struct UniqueId {
  char internal[128];
};

// How a communicator is built. All fields of 2.28.9, since their number is part of its version.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kDeclaredVersion;
  int blocking = INT_MIN;  // INT_MIN: NCCL decides
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* comm_name = nullptr;
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
  int n_channels_per_net_peer = INT_MIN;
  int nvlink_centric_sched = INT_MIN;
};

// Declared for their types only.
namespace functions {
Result ncclGetVersion(int* version);
Result ncclGetUniqueId(UniqueId* id);
Result ncclCommInitRankConfig(Comm** comm, int num_ranks, UniqueId id, int rank, Config* config);
Result ncclCommGetAsyncError(Comm* comm, Result* result);
Result ncclCommFinalize(Comm* comm);
Result ncclCommDestroy(Comm* comm);
Result ncclCommAbort(Comm* comm);
Result ncclCommRegister(Comm* comm, void* buffer, size_t size, void** handle);
Result ncclCommDeregister(Comm* comm, void* handle);
Result ncclSend(const void* from, size_t count, DataType type, int peer, Comm* comm, Stream stream);
Result ncclRecv(void* to, size_t count, DataType type, int peer, Comm* comm, Stream stream);
const char* ncclGetErrorString(Result result);
}  // namespace functions

}  // namespace baton::kv::nccl

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_API_H_
