// PeerSet: which peers an endpoint dials, over what, and when. It holds the list that the router
// names, the ways to each peer, and back-off between rounds of them. Ways are shared memory first,
// then the addresses of the peer's name over tcp, in turn. Pure; time is an argument. The
// endpoint's thread.
//
// Invariants
//  1. A peer is in one state: waiting for its time, being dialled, or connected.
//  2. Waits between rounds of attempts double from backoff_min_us to backoff_max_us; a connection
//     that was ready resets them.
//  3. A peer that no common kind can reach is never dialled and says so in AbsentPeers().
#ifndef BATON_KVCACHE_TRANSPORT_PEER_SET_H_
#define BATON_KVCACHE_TRANSPORT_PEER_SET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/socket_io.h"
#include "kvcache/transport/transport_types.h"

namespace baton::kv {

// A peer whose addresses are looked up.
struct ResolvedPeer {
  PeerAddress address;
  std::vector<SocketAddress> tcp;  // of its name, the one to be tried first in front
  std::optional<SocketAddress> unix_socket;
  std::string failure;  // why an address could not be looked up
};

// One connection to be made now.
struct DialAttempt {
  Incarnation peer;
  TransportKind kind = TransportKind::kTcp;
  SocketAddress address;
};

// See the file comment.
class PeerSet {
 public:
  // `host_id`: this side's. `kind`: what this side allows.
  PeerSet(TransportKind kind, std::string host_id, const KvEndpointTimers& timers);

  // Takes a new list. New peers are due at once; known ones keep their state. Returns the peers
  // that are no longer in the list.
  std::vector<Incarnation> Replace(const std::vector<ResolvedPeer>& peers, int64_t now_us);

  // An attempt that is due, now counted as being dialled; nothing when none is.
  std::optional<DialAttempt> NextAttempt(int64_t now_us);
  // When the next attempt is due, 0 = none waits.
  int64_t NextDueUs() const;

  // Outcomes. Unknown peers are ignored: they left the list meanwhile.
  void OnUp(Incarnation peer);
  // An attempt failed before it was ready: the next way is tried at once, or a new round later.
  void OnFailed(Incarnation peer, const std::string& failure, int64_t now_us);
  // A ready connection ended.
  void OnLost(Incarnation peer, const std::string& failure, int64_t now_us);

  bool contains(Incarnation peer) const { return peers_.contains(peer); }
  // Whether an attempt at this peer did not fail so since it was last connected. Ways that fail
  // differently take turns, so the last failure alone does not tell.
  bool IsNews(Incarnation peer, const std::string& failure) const;
  // All peers that are not connected.
  std::vector<LinkInfo> AbsentPeers() const;

 private:
  // Where a peer stands; see invariant 1.
  enum class State : uint8_t { kWaiting, kDialling, kUp, kUnreachable };
  // One address to dial.
  struct Way {
    TransportKind kind = TransportKind::kTcp;
    SocketAddress address;
  };
  struct Peer {
    ResolvedPeer resolved;
    std::vector<Way> ways;  // to try, best first
    size_t next_way = 0;
    State state = State::kWaiting;
    int64_t due_us = 0;
    int64_t backoff_us = 0;
    std::string failure;
    std::vector<std::string> failures;  // since it was last connected, the newest kMaxKnownFailures
  };
  static constexpr size_t kMaxKnownFailures = 2 * kMaxAddressesOfName;

  std::vector<Way> WaysTo(const ResolvedPeer& peer) const;
  Peer* Find(Incarnation peer);

  const TransportKind kind_;
  const std::string host_id_;
  const KvEndpointTimers timers_;
  absl::flat_hash_map<Incarnation, Peer> peers_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_PEER_SET_H_
