#include "src/worker/worker_load.h"

#include <algorithm>
#include <cstddef>

#include "src/base/limits.h"
#include "src/base/wire_text.h"
#include "src/worker/request_codec.h"

namespace baton::worker {

using engine::EngineSnapshot;
using kv::BlockState;
using kv::LinkInfo;
using kv::PeerAddress;
using kv::TransportKind;
using limits::kMaxWorkerIdBytes;
using scheduler::SchedulerLoad;

void FillLoad(const EngineSnapshot& snapshot, const std::vector<LinkInfo>& links,
              v1::WorkerLoad* out) {
  const SchedulerLoad& scheduler = snapshot.scheduler;
  out->set_running(scheduler.num_running);
  out->set_waiting(scheduler.num_waiting + scheduler.num_prefilling);
  out->set_backlog_tokens(scheduler.backlog_tokens);
  out->set_prefill_tokens_per_s(snapshot.prefill_tokens_per_s);
  out->set_step_us(
      static_cast<uint32_t>(std::clamp<int64_t>(snapshot.decode_step_us, 0, UINT32_MAX)));
  out->set_batch_limit(scheduler.batch_limit);
  v1::BlockCounts* blocks = out->mutable_blocks();
  blocks->set_total(snapshot.blocks.total);
  blocks->set_free(snapshot.blocks.of(BlockState::kFree));
  blocks->set_cached(snapshot.blocks.of(BlockState::kCached));
  blocks->set_computing(snapshot.blocks.of(BlockState::kComputing));
  blocks->set_bound(snapshot.blocks.of(BlockState::kBound));
  blocks->set_exported(snapshot.blocks.of(BlockState::kExported));
  blocks->set_reserved(snapshot.blocks.of(BlockState::kReserved));
  blocks->set_receiving(snapshot.blocks.of(BlockState::kReceiving));
  blocks->set_draining(snapshot.blocks.of(BlockState::kDraining));
  blocks->set_quarantined(snapshot.blocks.of(BlockState::kQuarantined));
  for (const LinkInfo& link : links) {
    if (!link.dialled) continue;
    v1::LinkLoad* row = out->add_links();
    row->set_to(link.worker_id);
    row->set_to_incarnation(link.peer.value());
    row->set_transport(ToProto(link.kind));
    row->set_up(link.up);
    if (!link.up) row->set_failure(WireText(link.last_failure));
  }
}

Status CanHandOff(const std::vector<LinkInfo>& links) {
  const LinkInfo* first_failed = nullptr;
  size_t num_failed = 0;
  for (const LinkInfo& link : links) {
    if (!link.dialled) continue;
    if (link.up || link.last_failure.empty()) return OkStatus();
    if (first_failed == nullptr) first_failed = &link;
    ++num_failed;
  }
  if (first_failed == nullptr) return OkStatus();
  return Unavailable(
      "no KV can be handed over: the links to all {} decode workers are down; {}: {}", num_failed,
      first_failed->worker_id, WireText(first_failed->last_failure));
}

namespace {

// True when the peer names one of `kinds`. A peer that names none has only transports that this
// worker's router does not know.
bool SharesTransport(const v1::Peer& peer, const std::vector<TransportKind>& kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [&](TransportKind kind) {
    return std::find(peer.transports().begin(), peer.transports().end(), ToProto(kind)) !=
           peer.transports().end();
  });
}

}  // namespace

std::vector<PeerAddress> PeerAddresses(const std::vector<v1::Peer>& peers,
                                       const std::vector<TransportKind>& kinds) {
  std::vector<PeerAddress> addresses;
  for (const v1::Peer& peer : peers) {
    const std::string& id = peer.worker().worker_id();
    if (id.empty() || id.size() > kMaxWorkerIdBytes || peer.worker().incarnation() == 0) continue;
    if (!SharesTransport(peer, kinds)) continue;
    addresses.push_back({.worker_id = id,
                         .incarnation = Incarnation(peer.worker().incarnation()),
                         .host_id = peer.host_id(),
                         .tcp = peer.kv_address(),
                         .unix_name = peer.kv_unix()});
  }
  return addresses;
}

}  // namespace baton::worker
