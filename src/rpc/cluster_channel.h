// The settings that every gRPC channel from one process of a cluster to another has in common. Any
// thread.
#ifndef BATON_RPC_CLUSTER_CHANNEL_H_
#define BATON_RPC_CLUSTER_CHANNEL_H_

#include "grpcpp/support/channel_arguments.h"

#include "src/base/keepalive.h"

namespace baton::rpc {

// Answers of limits::kMaxClusterMessageBytes, keepalive (src/base/keepalive.h), no proxy of the
// environment, a second for each try to connect, and tries `first_backoff_ms` to a second apart:
// gRPC's own back-off would hide a process that has come back for up to two minutes. (What is set
// once more later does not count.)
grpc::ChannelArguments ClusterChannelArguments(int first_backoff_ms,
                                               int ping_timeout_ms = kKeepaliveTimeoutMs);

}  // namespace baton::rpc

#endif  // BATON_RPC_CLUSTER_CHANNEL_H_
