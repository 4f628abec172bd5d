// KvEndpoint: the KvTransport between processes. One per worker, one thread ("kv-transport") that
// serves all connections with epoll. A connection is either
//   shm: an abstract unix socket; the dialler's sealed arena is passed over it and mapped
//        read-only, slice frames name blocks in it, and the receiver copies and checks them in one
//        pass; or
//   tcp: slice frames carry the bytes, read by the kernel straight into the destination block, or
//        decrypted into it with KvEndpointOptions::tls.
// A prefill worker dials, a decode worker listens. One connection serves each pair.
//
// Invariants (beside KvTransport's)
//  1. Nothing that a peer sends, or fails to send, stops the process, blocks the thread, or makes
//     it allocate more than limits::kMaxControlBytes for that peer.
//  2. A peer that does not read holds back only its own queue; each connection gets a bounded share
//     of every turn of the loop.
//  3. A frame is taken only after both sides proved that they know the same cluster secret; who has
//     not proved it yet takes no place from those who have.
//
// Owner: the worker; the arena and the sink outlive it.
#ifndef BATON_KVCACHE_TRANSPORT_KV_ENDPOINT_H_
#define BATON_KVCACHE_TRANSPORT_KV_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/kv_arena.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/pool_exchange.h"
#include "kvcache/transport/socket_io.h"
#include "src/base/clock.h"
#include "src/tls/tls_files.h"

namespace baton::kv {

// Identity of this boot and network namespace: equal host ids can reach each other's abstract unix
// sockets and may share memory. "" when /proc cannot be read (then shm is not tried).
std::string HostId();

// Times of a connection's life, microseconds; the defaults suit one LAN.
struct KvEndpointTimers {
  int64_t connect_us = 1'000'000;
  int64_t hello_us = 1'000'000;         // from connected to Welcome, TLS included
  int64_t frame_gap_us = 2'000'000;     // inside one frame, without a byte
  int64_t write_stall_us = 10'000'000;  // queued and no byte taken: one KV lease
  int64_t control_ttl_us = 2'000'000;   // a control message waiting for its peer
  int64_t backoff_min_us = 50'000;      // first wait before dialling again; doubles
  int64_t backoff_max_us = 2'000'000;
};

// Limits of queues and tables. A connection holds 64 KiB to read into. TLS takes 225 KiB more for
// encrypted bytes, and OpenSSL's two records of 17 KiB: 323 KiB. With the defaults a full endpoint
// (256 connections, 64 strangers) has 20 MiB of them, or 121 MiB with TLS (64 more strangers).
// Bytes that wait in the queues come on top.
struct KvEndpointLimits {
  uint32_t max_connections = 256;  // ready, or dialled by this side
  // Accepted and not introduced yet. One more takes the place of the oldest, which is refused: a
  // peer that knows the secret needs two round trips, so whoever stays longer is no peer. TLS takes
  // one more round trip and signatures on both sides; who is in it is counted apart, so that nobody
  // without a certificate takes the place of one that has shown one. The part of one address keeps
  // a flood from it away from the others.
  uint32_t max_strangers = 64;
  uint32_t max_strangers_per_address = 32;
  uint32_t max_queued_slices = 1u << 17;                   // per peer; 48 bytes each
  uint32_t max_queued_controls = 1024;                     // per peer
  uint64_t max_queued_control_bytes = uint64_t{16} << 20;  // per peer
  uint32_t max_parked_peers = 64;  // peers not connected that control messages wait for
  uint32_t max_open_transfers = 4096;
};

// How an endpoint is set up.
struct KvEndpointOptions {
  std::string worker_id;
  Incarnation incarnation;
  std::string cluster_secret;  // "" pairs only with ""
  std::string numerics_id;
  bool allow_inexact = false;  // pair with other numerics when the peer allows it too
  // Connections over tcp are mutual TLS with these; empty = plaintext. shm stays on this host,
  // where the kernel keeps other users out.
  tls::TlsFiles tls;
  // kShm or kTcp: only that one is listened on and dialled; kAuto: both.
  TransportKind kind = TransportKind::kAuto;
  // When it is not kAuto, a transport over this endpoint moves the slices in this way. The endpoint
  // then carries words only, and its log says so.
  TransportKind slices = TransportKind::kAuto;
  // When it is not null, a transport over this endpoint has its blocks elsewhere. This exchange is
  // then handed over in place of the arena, to peers that have one too. Needs kShm. Outlives the
  // endpoint.
  PoolExchange* pools = nullptr;
  // "host:port" (port 0 = any) that accepts peers; "" = this endpoint only dials.
  std::string listen;
  KvEndpointTimers timers;
  KvEndpointLimits limits;
  const Clock* clock = &SystemClock();
  // Looks a name up (socket_io.h); tests give one that they play.
  std::function<StatusOr<std::vector<SocketAddress>>(std::string_view text)> resolve =
      [](std::string_view text) { return ResolveTcp(text); };
};

// The interface of transports between processes; see the file comment.
class KvEndpoint : public KvTransport {
 public:
  // Binds the listeners (so that addresses can be advertised); Start begins to serve them.
  // InvalidArgument for a bad option or TLS file; Unavailable naming the address when it is in use.
  // `arena` outlives the endpoint.
  static StatusOr<std::unique_ptr<KvEndpoint>> Create(const KvEndpointOptions& options,
                                                      const KvArena* arena);

  // "host:port" as bound, "" = none.
  virtual std::string tcp_address() const = 0;
  // Abstract socket name without the leading NUL, "" = none.
  virtual std::string unix_name() const = 0;

  // The complete set of peers to dial; replaces the former one. New ones are dialled at once and
  // again (with back-off) whenever the connection is lost; connections to those that left are
  // closed. A worker id with a new incarnation is a new peer. Host names are looked up here, one
  // after the other, so the call may block for the resolver: one thread at a time, and none that
  // others wait for. Peers whose addresses are known are dialled before; while a name is not found,
  // what was found before in the peer's life counts. `is_old` is asked before each name: true ends
  // the call. Returns the first address that could not be resolved; the other peers are dialled all
  // the same, and the same list may be set again.
  virtual Status SetPeers(std::span<const PeerAddress> peers,
                          const std::function<bool()>& is_old) = 0;
  Status SetPeers(std::span<const PeerAddress> peers) {
    return SetPeers(peers, [] { return false; });
  }
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_KV_ENDPOINT_H_
