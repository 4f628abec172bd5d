// The worker's registrations and data connections: what src/worker's Registration and a KvEndpoint
// do in a real process.
#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/sim/sim_codec.h"
#include "src/sim/sim_router.h"
#include "src/sim/sim_worker.h"

namespace baton::sim {

using engine::SessionId;
using kv::ChainKeyCheck;
using kv::DeriveChainKey;
using kv::kDefaultTenant;
using kv::PrefixChange;
using limits::kHeartbeatMs;
using router::LinkKind;
using router::PrefixBatch;
using router::WorkerDescription;
using router::WorkerLoadReport;

namespace {

constexpr int64_t kRegisterTimeoutUs = 1'000'000;
constexpr int64_t kRegisterAgainUs = 100'000;
constexpr int64_t kDialTimeoutUs = 1'000'000;
constexpr size_t kHelloBytes = 4096;
constexpr size_t kLoadBytes = 512;

}  // namespace

// ---- Registration.

WorkerDescription SimWorker::Describe() const {
  WorkerDescription worker;
  worker.name = {name(), incarnation_};
  worker.role = options_.role;
  worker.fingerprint.layout_id = options_.layout.LayoutId();
  worker.fingerprint.weights_id = 2;
  worker.fingerprint.tokenizer_id = 3;
  worker.fingerprint.numerics_id = 4;
  worker.weights_text = "toy";
  worker.layout_text = options_.layout.ToString();
  worker.max_context = options_.max_context;
  worker.block_size = options_.layout.block_size;
  worker.state_blocks = options_.layout.state_blocks;
  worker.window_blocks = MakeConfig().scheduler.WindowBlocks();
  worker.num_blocks = options_.num_blocks;
  worker.max_running = options_.max_running;
  worker.transports = {LinkKind::kShm, LinkKind::kTcp};
  worker.chain_check = ChainKeyCheck(DeriveChainKey(kSimSecret, kDefaultTenant));
  worker.model = options_.model;
  return worker;
}

void SimWorker::Register(SimRouter* router) {
  auto lease = std::make_shared<SimLease>();
  lease->router = router;
  lease->worker = this;
  leases_.push_back(lease);
  fabric_->network->Send(*process_, router->process(), kHelloBytes,
                         [lease, description = Describe()]() mutable {
                           lease->router->OnHello(lease, std::move(description));
                         });
  process_->Post(fabric_->events->now_us() + kRegisterTimeoutUs, [this, lease] {
    if (!lease->accepted) OnLeaseClosed(lease);
  });
}

void SimWorker::OnLeaseClosed(const std::shared_ptr<SimLease>& lease) {
  if (!std::exchange(lease->worker_open, false)) return;
  leases_.erase(std::remove(leases_.begin(), leases_.end(), lease), leases_.end());
  fabric_->network->Send(*process_, lease->router->process(), 0,
                         [lease] { lease->router->OnLeaseLost(lease); });
  process_->Post(fabric_->events->now_us() + kRegisterAgainUs,
                 [this, router = lease->router] { Register(router); });
}

void SimWorker::BreakWith(const SimRouter* router, std::string_view /*why*/) {
  const std::vector<std::shared_ptr<SimLease>> leases = leases_;
  for (const auto& lease : leases) {
    if (lease->router == router) OnLeaseClosed(lease);
  }
  const std::map<SessionId, std::shared_ptr<SimSessionStream>> sessions = sessions_;
  for (const auto& [id, stream] : sessions) {
    if (stream->router == router) OnSessionClosed(stream);
  }
}

void SimWorker::ReportLoad() {
  for (const auto& lease : leases_) {
    if (!lease->accepted) continue;
    WorkerLoadReport load = ToLoadReport(core_->Snapshot(), transport_.Links());
    load.draining = leaving_;
    load.ready = !leaving_;
    fabric_->network->Send(*process_, lease->router->process(), kLoadBytes,
                           [lease, load = std::move(load)]() mutable {
                             lease->router->OnLoad(lease, std::move(load));
                           });
  }
}

// Heartbeats, news of the prefix cache, and connections that are missing.
void SimWorker::KeepHouse() {
  ReportLoad();
  journal_->Take(&changes_);
  for (const PrefixChange& change : changes_) {
    if (change.added) {
      held_[change.link] = change.ordinal;
    } else {
      held_.erase(change.link);
    }
  }
  for (const auto& lease : leases_) {
    if (!lease->accepted) continue;
    lease->feed.Take(changes_, held_);
    while (lease->feed.has_batch()) {
      PrefixBatch batch = lease->feed.NextBatch();
      const size_t num_bytes = 16 * batch.changes.size();
      fabric_->network->Send(
          *process_, lease->router->process(), num_bytes,
          [lease, batch = std::move(batch)] { lease->router->OnPrefixes(lease, batch); });
    }
  }
  DialMissing();
  process_->Post(fabric_->events->now_us() + int64_t{kHeartbeatMs} * 1000, [this] { KeepHouse(); });
}

// ---- Data connections.

void SimWorker::OnPeers(const std::shared_ptr<SimLease>& lease, std::vector<SimPeer> peers) {
  if (!lease->worker_open) return;
  lease->peers = std::move(peers);
  DialMissing();
}

bool SimWorker::IsWanted(Incarnation peer) const {
  return std::any_of(leases_.begin(), leases_.end(), [peer](const auto& lease) {
    return std::any_of(lease->peers.begin(), lease->peers.end(),
                       [peer](const SimPeer& wanted) { return wanted.incarnation == peer; });
  });
}

void SimWorker::DialMissing() {
  for (const auto& [incarnation, peer] : transport_.Dialled()) {
    if (IsWanted(incarnation)) continue;
    const uint64_t epoch = transport_.EpochOf(incarnation);
    transport_.LinkDown(incarnation, epoch, "no router lists this worker any more");
    fabric_->network->Send(*process_, peer->process(), 0,
                           [peer = peer, epoch, from = incarnation_] {
                             peer->LinkDown(from, epoch, "the peer closed the connection");
                           });
  }
  for (const auto& lease : leases_) {
    for (const SimPeer& peer : lease->peers) {
      const bool is_busy = dialling_.find(peer.incarnation) != dialling_.end();
      if (!is_busy && !transport_.IsUp(peer.incarnation)) Dial(peer);
    }
  }
}

void SimWorker::Dial(const SimPeer& peer) {
  dialling_[peer.incarnation] = peer.worker;
  fabric_->network->Send(*process_, peer.worker->process(), 256, [this, mine = incarnation_, peer] {
    peer.worker->OnDialled(this, mine, peer.incarnation);
  });
  process_->Post(fabric_->events->now_us() + kDialTimeoutUs,
                 [this, incarnation = peer.incarnation] { dialling_.erase(incarnation); });
}

void SimWorker::OnDialled(SimWorker* from, Incarnation from_life, Incarnation wanted) {
  if (wanted != incarnation_ || from->incarnation_ != from_life) return;  // the dialler gives up
  const uint64_t epoch = fabric_->next_epoch++;
  const bool pulls = (process_->index() + from->process_->index()) % 2 == 0;
  // The welcome goes out before anything else of this connection.
  fabric_->network->Send(*process_, *from->process_, 256, [this, from, wanted, epoch, pulls] {
    from->dialling_.erase(wanted);
    if (wanted != incarnation_) return;  // died meanwhile: its end of file follows
    from->transport_.LinkDown(wanted, 0, "a newer connection took its place");
    from->transport_.LinkUp(&transport_, epoch, pulls, /*dialled=*/true);
  });
  transport_.LinkDown(from_life, 0, "a newer connection took its place");
  transport_.LinkUp(&from->transport_, epoch, pulls, /*dialled=*/false);
}

void SimWorker::BreakLink(SimWorker* peer, uint64_t epoch, std::string_view why) {
  transport_.LinkDown(peer->incarnation_, epoch, why);
  // The end of the stream follows all that was on its way to the peer, a welcome too.
  fabric_->network->Send(*process_, *peer->process_, 0, [mine = incarnation_, peer, epoch] {
    peer->transport_.LinkDown(mine, epoch, "the peer closed the connection");
  });
}

}  // namespace baton::sim
