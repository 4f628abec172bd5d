// ClusterWorld: the routers, what passes between them and the workers, and faults.
#include <algorithm>
#include <utility>

#include "tests/kvcache/cluster_world.h"

namespace baton::kv {

void ClusterWorld::Place(uint8_t request) {
  RouterSide& router = routers_[request];
  const uint32_t attempt = router.machine.OnPlaced(/*local=*/false);
  Expect(attempt != 0, "places what does not wait");
  if (attempt > 1) router.decode = static_cast<uint8_t>((router.decode + 1) % shape_->num_decodes);
  router.prefill_live = router.decode_live = true;
  const Command start{Command::Kind::kStart, static_cast<uint8_t>(attempt), router.decode,
                      decode_life_[router.decode]};
  router.commands[0].push_back(start);
  router.commands[1 + router.decode].push_back(start);
}

void ClusterWorld::OnCommandAtPrefill(uint8_t request, const Command& command) {
  if (command.kind == Command::Kind::kStart) return StartSource(request, command);
  if (SourceSide* side = FindSource(request, command.attempt)) CancelSource(*side);
}

void ClusterWorld::OnCommandAtDecode(uint8_t request, const Command& command) {
  if (command.kind == Command::Kind::kStart) return StartDest(request, command.decode, command);
  if (DestSide* side = FindDest(request, command.decode, command.attempt)) CancelDest(*side);
}

void ClusterWorld::Tell(uint8_t request, uint8_t worker, Notice notice) {
  if (!routers_[request].alive) return;
  if (!shape_->slow_router) return OnNotice(request, worker, notice);
  routers_[request].notices[worker].push_back(notice);
}

void ClusterWorld::OnNotice(uint8_t request, uint8_t worker, const Notice& notice) {
  RouterSide& router = routers_[request];
  HandoffRequest& machine = router.machine;
  const bool is_current = machine.attempt() == notice.attempt;
  const bool is_prefill = worker == 0;
  bool& live = is_prefill ? router.prefill_live : router.decode_live;
  switch (notice.kind) {
    case Notice::Kind::kFirstToken:
      if (machine.Admits(notice.attempt)) router.known = std::max<uint8_t>(router.known, 1);
      return;
    case Notice::Kind::kLastToken:
      if (!machine.Admits(notice.attempt)) return;
      live = false;
      router.known = 2;
      return Finish(request, machine.OnDone());
    case Notice::Kind::kVerified:
      machine.OnProgress(notice.attempt, PlacementProgress::kAllKvAtDecode);
      return;
    case Notice::Kind::kHandedOff:
      if (is_current) live = false;
      return;
    case Notice::Kind::kStranded:
      return Lose(request,
                  machine.OnFault(notice.attempt, PlacementFault::kTransferStopped, router.known));
    case Notice::Kind::kFailed: {
      if (is_current) live = false;
      const auto fault =
          is_prefill ? PlacementFault::kPrefillFailed : PlacementFault::kDecodeFailed;
      return Lose(request, machine.OnFault(notice.attempt, fault, router.known));
    }
    case Notice::Kind::kRejected:
      if (is_current) live = false;
      return Lose(request, machine.OnRefused(notice.attempt, /*by_decode=*/true));
    case Notice::Kind::kDied: {
      if (!is_prefill && worker != 1 + router.decode) return;
      live = false;
      const auto fault = is_prefill ? PlacementFault::kPrefillDied : PlacementFault::kDecodeDied;
      return Lose(request, machine.OnFault(machine.attempt(), fault, router.known));
    }
  }
}

void ClusterWorld::Lose(uint8_t request, const RecoverDecision& decision) {
  if (decision.kind == RecoverDecision::Kind::kIgnored) return;
  Expect(decision.orders.release_workers, "a lost placement keeps its workers");
  RouterSide& router = routers_[request];
  if (decision.orders.tell_client) return Finish(request, decision.orders);
  Release(request, /*keep_prefill=*/decision.retarget);
  if (router.machine.attempt() < shape_->max_attempts) return Place(request);
  Finish(request, router.machine.OnFailed());
  Release(request, /*keep_prefill=*/false);
}

void ClusterWorld::Finish(uint8_t request, const RequestOrders& orders) {
  if (orders.tell_client) ++routers_[request].num_told;
  if (orders.release_workers) Release(request, /*keep_prefill=*/false);
}

void ClusterWorld::Release(uint8_t request, bool keep_prefill) {
  RouterSide& router = routers_[request];
  const Command cancel{Command::Kind::kCancel, static_cast<uint8_t>(router.machine.attempt()),
                       router.decode};
  if (std::exchange(router.decode_live, false)) {
    router.commands[1 + router.decode].push_back(cancel);
  }
  if (keep_prefill) return;
  if (std::exchange(router.prefill_live, false)) router.commands[0].push_back(cancel);
}

// ---- Faults.

void ClusterWorld::DoFault(const ClusterStep& step) {
  using Kind = ClusterStep::Kind;
  --faults_left_;
  switch (step.kind) {
    case Kind::kCrashPrefill:
      return CrashPrefill();
    case Kind::kCrashDecode:
      return CrashDecode(step.a);
    case Kind::kCut:
      return CutConnection(step.a);
    case Kind::kCancel:
      return Finish(step.a, routers_[step.a].machine.OnCancelled());
    case Kind::kCrashRouter:
      for (uint8_t r = 0; r < routers_.size(); ++r) {
        if (shape_->router_each && r != step.a) continue;
        RouterSide& router = routers_[r];
        router.alive = false;
        for (auto& queue : router.commands) queue.clear();
        for (auto& queue : router.notices) queue.clear();
        router.gone_pending = static_cast<uint8_t>((1u << (1 + shape_->num_decodes)) - 1);
      }
      return;
    default:
      Expect(false, "a fault that nobody does");
  }
}

void ClusterWorld::ClearPackets(std::optional<uint8_t> decode) {
  std::erase_if(packets_, [&](const Packet& p) { return !decode || p.decode == *decode; });
}

// Its next life is there at once and knows nothing.
void ClusterWorld::CrashPrefill() {
  sources_.clear();
  parked_.clear();
  ClearPackets(std::nullopt);
  for (Ledger::Block& block : prefill_ledger_.blocks) block = {};
  for (DestSide& side : dests_) side.down_pending = !side.machine.finished();
  for (uint8_t r = 0; r < routers_.size(); ++r) {
    routers_[r].commands[0].clear();
    routers_[r].gone_pending = static_cast<uint8_t>(routers_[r].gone_pending & ~1u);
    Tell(r, 0, {Notice::Kind::kDied, 0});
  }
}

void ClusterWorld::CrashDecode(uint8_t decode) {
  const Incarnation former = LifeOf(decode);
  ++decode_life_[decode];
  std::erase_if(dests_, [decode](const DestSide& side) { return side.decode == decode; });
  ClearPackets(decode);
  for (Ledger::Block& block : decode_ledgers_[decode].blocks) block = {};
  for (SourceSide& side : sources_) {
    const bool is_peer = side.machine.spec().decode_incarnation == former;
    if (is_peer && !side.machine.finished()) side.down_pending = true;
  }
  const auto worker = static_cast<uint8_t>(1 + decode);
  for (uint8_t r = 0; r < routers_.size(); ++r) {
    routers_[r].commands[worker].clear();
    routers_[r].gone_pending = static_cast<uint8_t>(routers_[r].gone_pending & ~(1u << worker));
    Tell(r, worker, {Notice::Kind::kDied, 0});
  }
}

void ClusterWorld::CutConnection(uint8_t decode) {
  ClearPackets(decode);
  for (SourceSide& side : sources_) {
    if (side.machine.spec().decode_incarnation == LifeOf(decode)) side.down_pending = true;
  }
  for (DestSide& side : dests_) {
    if (side.decode == decode && !side.machine.finished()) side.down_pending = true;
  }
}

// The end of the router's stream, or of its lease: a worker lets go of its requests at once.
void ClusterWorld::OnRouterGone(uint8_t request, uint8_t worker) {
  RouterSide& router = routers_[request];
  router.gone_pending = static_cast<uint8_t>(router.gone_pending & ~(1u << worker));
  for (SourceSide& side : sources_) {
    if (worker == 0 && side.request == request) CancelSource(side);
  }
  for (DestSide& side : dests_) {
    if (worker == 1 + side.decode && side.request == request) CancelDest(side);
  }
}

}  // namespace baton::kv
