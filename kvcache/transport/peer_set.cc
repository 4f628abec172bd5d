#include "kvcache/transport/peer_set.h"

#include <algorithm>
#include <utility>

namespace baton::kv {

PeerSet::PeerSet(TransportKind kind, std::string host_id, const KvEndpointTimers& timers)
    : kind_(kind), host_id_(std::move(host_id)), timers_(timers) {}

std::vector<PeerSet::Way> PeerSet::WaysTo(const ResolvedPeer& peer) const {
  std::vector<Way> ways;
  const bool same_host = !host_id_.empty() && peer.address.host_id == host_id_;
  if (kind_ != TransportKind::kTcp && same_host && peer.unix_socket.has_value()) {
    ways.push_back({TransportKind::kShm, *peer.unix_socket});
  }
  if (kind_ == TransportKind::kShm) return ways;
  for (const SocketAddress& address : peer.tcp) ways.push_back({TransportKind::kTcp, address});
  return ways;
}

PeerSet::Peer* PeerSet::Find(Incarnation peer) {
  const auto entry = peers_.find(peer);
  return entry == peers_.end() ? nullptr : &entry->second;
}

std::vector<Incarnation> PeerSet::Replace(const std::vector<ResolvedPeer>& peers, int64_t now_us) {
  absl::flat_hash_map<Incarnation, Peer> next;
  for (const ResolvedPeer& resolved : peers) {
    const Incarnation id = resolved.address.incarnation;
    Peer* const known = Find(id);
    Peer& peer = next[id];
    if (known != nullptr) peer = std::move(*known);
    const bool is_new = known == nullptr || peer.state == State::kUnreachable;
    peer.resolved = resolved;
    peer.ways = WaysTo(resolved);
    peer.next_way = std::min(peer.next_way, peer.ways.empty() ? 0 : peer.ways.size() - 1);
    if (is_new) {
      peer.state = State::kWaiting;
      peer.due_us = now_us;
      peer.backoff_us = timers_.backoff_min_us;
    }
    if (peer.ways.empty() && peer.state == State::kWaiting) {
      peer.state = State::kUnreachable;
      peer.failure =
          !resolved.failure.empty()
              ? resolved.failure
              : fmt::format(
                    "no transport in common: {} is wanted here, peer {} offers "
                    "tcp \"{}\" and shm \"{}\" on host {} (here {})",
                    TransportKindName(kind_), resolved.address.worker_id, resolved.address.tcp,
                    resolved.address.unix_name, resolved.address.host_id, host_id_);
    }
  }
  std::vector<Incarnation> removed;
  for (const auto& [id, peer] : peers_) {
    if (!next.contains(id)) removed.push_back(id);
  }
  peers_ = std::move(next);
  return removed;
}

std::optional<DialAttempt> PeerSet::NextAttempt(int64_t now_us) {
  for (auto& [id, peer] : peers_) {
    if (peer.state != State::kWaiting || peer.due_us > now_us) continue;
    if (peer.ways.empty()) {  // a new list took its addresses away while it was connected
      peer.state = State::kUnreachable;
      continue;
    }
    const Way& way = peer.ways[peer.next_way];
    peer.state = State::kDialling;
    return DialAttempt{id, way.kind, way.address};
  }
  return std::nullopt;
}

int64_t PeerSet::NextDueUs() const {
  int64_t due_us = 0;
  for (const auto& [id, peer] : peers_) {
    if (peer.state != State::kWaiting) continue;
    due_us = due_us == 0 ? peer.due_us : std::min(due_us, peer.due_us);
  }
  return due_us;
}

void PeerSet::OnUp(Incarnation id) {
  Peer* const peer = Find(id);
  if (peer == nullptr) return;
  peer->state = State::kUp;
  peer->next_way = 0;
  peer->backoff_us = timers_.backoff_min_us;
  peer->failure.clear();
  peer->failures.clear();
}

void PeerSet::OnFailed(Incarnation id, const std::string& failure, int64_t now_us) {
  Peer* const peer = Find(id);
  if (peer == nullptr) return;
  if (IsNews(id, failure)) {
    if (peer->failures.size() == kMaxKnownFailures) peer->failures.erase(peer->failures.begin());
    peer->failures.push_back(failure);
  }
  peer->failure = failure;
  peer->state = State::kWaiting;
  if (peer->next_way + 1 < peer->ways.size()) {
    ++peer->next_way;
    peer->due_us = now_us;
    return;
  }
  peer->next_way = 0;
  peer->due_us = now_us + peer->backoff_us;
  peer->backoff_us = std::min(2 * peer->backoff_us, timers_.backoff_max_us);
}

void PeerSet::OnLost(Incarnation id, const std::string& failure, int64_t now_us) {
  Peer* const peer = Find(id);
  if (peer == nullptr) return;
  peer->failure = failure;
  peer->state = State::kWaiting;
  peer->due_us = now_us + peer->backoff_us;
}

bool PeerSet::IsNews(Incarnation id, const std::string& failure) const {
  const auto entry = peers_.find(id);
  return entry == peers_.end() ||
         std::ranges::find(entry->second.failures, failure) == entry->second.failures.end();
}

std::vector<LinkInfo> PeerSet::AbsentPeers() const {
  std::vector<LinkInfo> links;
  for (const auto& [id, peer] : peers_) {
    if (peer.state == State::kUp) continue;
    LinkInfo link;
    link.peer = id;
    link.worker_id = peer.resolved.address.worker_id;
    link.dialled = true;
    link.last_failure = peer.failure;
    links.push_back(std::move(link));
  }
  return links;
}

}  // namespace baton::kv
