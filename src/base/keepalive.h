// How Baton's processes notice over gRPC that the other end's host has gone without a word: each
// client of a long stream pings after kKeepaliveTimeMs without a byte from the server and gives the
// connection up kKeepaliveTimeoutMs later. Without that TCP alone would hold it for a quarter of an
// hour. Servers must allow such pings, or gRPC takes them for an attack.
#ifndef BATON_BASE_KEEPALIVE_H_
#define BATON_BASE_KEEPALIVE_H_

namespace baton {

inline constexpr int kKeepaliveTimeMs = 1000;
inline constexpr int kKeepaliveTimeoutMs = 2000;
// What a server takes for a flood: half of what clients do, as timers are not exact.
inline constexpr int kMinPingIntervalMs = kKeepaliveTimeMs / 2;

}  // namespace baton

#endif  // BATON_BASE_KEEPALIVE_H_
