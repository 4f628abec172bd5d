// How Baton's processes notice over gRPC that the other end's host has gone without a word: each
// client of a long stream pings after kKeepaliveTimeMs without a byte from the server and gives the
// connection up kKeepaliveTimeoutMs later. Without that TCP alone would hold it for a quarter of an
// hour. Servers must allow such pings, or gRPC takes them for an attack. The router's server pings
// its clients too, less often: nothing of ours waits for theirs.
#ifndef BATON_BASE_KEEPALIVE_H_
#define BATON_BASE_KEEPALIVE_H_

namespace baton {

inline constexpr int kKeepaliveTimeMs = 1000;
inline constexpr int kKeepaliveTimeoutMs = 2000;
// A server takes pings at shorter intervals for a flood. This is half of what clients do, as timers
// are not exact.
inline constexpr int kMinPingIntervalMs = kKeepaliveTimeMs / 2;

// When the router gives a gRPC connection up. A client that is alive notices nothing: its library
// answers pings, and connects anew for its next call.
struct ServerKeepalive {
  int time_ms = 60'000;       // silence before a ping, with calls and without
  int timeout_ms = 20'000;    // for its answer: a host that has gone holds a descriptor for 80 s
  int max_idle_ms = 300'000;  // without a call
};

}  // namespace baton

#endif  // BATON_BASE_KEEPALIVE_H_
