#include "src/rpc/cluster_channel.h"

#include "src/base/limits.h"

namespace baton::rpc {

using limits::kMaxClusterMessageBytes;

grpc::ChannelArguments ClusterChannelArguments(int first_backoff_ms, int ping_timeout_ms) {
  constexpr int kMaxBackoffMs = 1000;
  // One try takes so long at most, TLS and the first frame of HTTP/2 included. A router's tries
  // begin anew each time: with less, none succeeds over a long way or at a busy host.
  constexpr int kConnectTimeoutMs = 1000;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxClusterMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, first_backoff_ms);
  // gRPC ends a try to connect after this time, despite the argument's name.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ping_timeout_ms);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as it takes
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

}  // namespace baton::rpc
