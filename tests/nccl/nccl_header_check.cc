// Our declarations against nccl.h, where that is installed: every value, size, offset and function
// type that nccl_api.h states. Nothing runs; a difference does not compile.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "kvcache/transport/nccl/nccl_api.h"
#include "kvcache/transport/nccl/nccl_library.h"

namespace baton::kv::nccl {
namespace {

// NCCL's type -> ours.
template <typename T>
struct Ours {
  using Type = T;
};
template <>
struct Ours<ncclComm_t> {
  using Type = Comm*;
};
template <>
struct Ours<ncclComm_t*> {
  using Type = Comm**;
};
template <>
struct Ours<ncclResult_t> {
  using Type = Result;
};
template <>
struct Ours<ncclResult_t*> {
  using Type = Result*;
};
template <>
struct Ours<ncclUniqueId> {
  using Type = UniqueId;
};
template <>
struct Ours<ncclUniqueId*> {
  using Type = UniqueId*;
};
template <>
struct Ours<ncclConfig_t*> {
  using Type = Config*;
};
template <>
struct Ours<ncclDataType_t> {
  using Type = DataType;
};
template <>
struct Ours<cudaStream_t> {
  using Type = Stream;
};
template <typename R, typename... Args>
struct Ours<R(Args...)> {
  using Type = typename Ours<R>::Type(typename Ours<Args>::Type...);
};

#define BATON_SAME_FUNCTION(name) \
  static_assert(std::is_same_v<Ours<decltype(::name)>::Type, decltype(functions::name)>, #name);
BATON_NCCL_FUNCTIONS(BATON_SAME_FUNCTION, BATON_SAME_FUNCTION)
#undef BATON_SAME_FUNCTION

static_assert(int{ncclSuccess} == kSuccess && int{ncclUnhandledCudaError} == kUnhandledCudaError &&
              int{ncclSystemError} == kSystemError && int{ncclInternalError} == kInternalError &&
              int{ncclInvalidArgument} == kInvalidArgument &&
              int{ncclInvalidUsage} == kInvalidUsage && int{ncclRemoteError} == kRemoteError &&
              int{ncclInProgress} == kInProgress && int{ncclUint8} == kUint8);
static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId) && alignof(ncclUniqueId) == 1);
static_assert(sizeof(ncclResult_t) == sizeof(Result) && sizeof(ncclDataType_t) == sizeof(DataType));

#define BATON_SAME_FIELD(theirs, ours)                                      \
  static_assert(offsetof(ncclConfig_t, theirs) == offsetof(Config, ours) && \
                    sizeof(ncclConfig_t::theirs) == sizeof(Config::ours),   \
                #theirs);
BATON_SAME_FIELD(size, size)
BATON_SAME_FIELD(magic, magic)
BATON_SAME_FIELD(version, version)
BATON_SAME_FIELD(blocking, blocking)
BATON_SAME_FIELD(cgaClusterSize, cga_cluster_size)
BATON_SAME_FIELD(minCTAs, min_ctas)
BATON_SAME_FIELD(maxCTAs, max_ctas)
BATON_SAME_FIELD(netName, net_name)
BATON_SAME_FIELD(splitShare, split_share)
BATON_SAME_FIELD(trafficClass, traffic_class)
BATON_SAME_FIELD(commName, comm_name)
BATON_SAME_FIELD(collnetEnable, collnet_enable)
BATON_SAME_FIELD(CTAPolicy, cta_policy)
BATON_SAME_FIELD(shrinkShare, shrink_share)
BATON_SAME_FIELD(nvlsCTAs, nvls_ctas)
BATON_SAME_FIELD(nChannelsPerNetPeer, n_channels_per_net_peer)
BATON_SAME_FIELD(nvlinkCentricSched, nvlink_centric_sched)
#undef BATON_SAME_FIELD

// A newer header may have more fields after ours; the version that we state says which we mean.
static_assert(NCCL_VERSION_CODE != kDeclaredVersion || sizeof(ncclConfig_t) == sizeof(Config));
constexpr ncclConfig_t kInitial = NCCL_CONFIG_INITIALIZER;
static_assert(kInitial.magic == Config{}.magic && kInitial.blocking == Config{}.blocking);

}  // namespace
}  // namespace baton::kv::nccl
