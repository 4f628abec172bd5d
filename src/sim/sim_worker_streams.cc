// The worker's registrations and data connections: what src/worker's Registration and a KvEndpoint
// do in a real process.
#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/sim/sim_marks.h"
#include "src/sim/sim_router.h"
#include "src/sim/sim_worker.h"
#include "src/wire/answer_grammar.h"
#include "src/worker/worker_load.h"

namespace baton::sim {

using engine::EngineSnapshot;
using engine::SessionId;
using kv::ChainKeyCheck;
using kv::DeriveChainKey;
using kv::kDefaultTenant;
using kv::LinkInfo;
using kv::PeerAddress;
using kv::TransportKind;
using limits::kHeartbeatMs;
using worker::FillLoad;
using worker::HelloFacts;
using worker::PeerAddresses;
using worker::PrefixNews;
using worker::ToProto;

namespace {

constexpr int64_t kRegisterTimeoutUs = 1'000'000;
constexpr int64_t kRegisterAgainUs = 100'000;
constexpr int64_t kDialTimeoutUs = 1'000'000;
constexpr size_t kHelloBytes = 4096;
constexpr size_t kLoadBytes = 512;
constexpr size_t kChangeBytes = 16;
// A worker that was asked to leave is started again so long after its end.
constexpr int64_t kDownUs = 300'000;

const std::vector<TransportKind>& Transports() {
  static const std::vector<TransportKind> transports = {TransportKind::kShm, TransportKind::kTcp};
  return transports;
}

}  // namespace

// ---- Registration.

// All routers and workers of a simulation know each other's processes: addresses are for show.
HelloFacts SimWorker::Describe() const {
  HelloFacts facts;
  facts.worker_id = name();
  facts.incarnation = incarnation_;
  facts.role = options_.role;
  facts.layout_id = options_.layout.LayoutId();
  facts.weights_id = "toy weights";
  facts.tokenizer_id = 3;
  facts.numerics_id = "toy numerics";
  facts.layout_text = options_.layout.ToString();
  facts.numerics_text = "exact";
  facts.grpc_address = name() + ":1";
  facts.admin_address = "admin:" + name();
  facts.kv_address = "kv:" + name();
  facts.kv_unix = "unix:" + name();
  facts.host_id = "one host";
  facts.pid = 1000 + process_->index();
  facts.model_id = options_.model->id;
  facts.max_context = options_.max_context;
  facts.block_size = options_.layout.block_size;
  facts.state_blocks = options_.layout.state_blocks;
  facts.window_blocks = MakeConfig().scheduler.WindowBlocks();
  facts.num_blocks = options_.num_blocks;
  facts.max_running = options_.max_running;
  facts.tokenizer = "toy tokenizer";
  facts.transports = Transports();
  facts.vocab_size = options_.model->vocab_size;
  facts.chain_check = ChainKeyCheck(DeriveChainKey(kSimSecret, kDefaultTenant));
  facts.grammar_version = wire::kAnswerGrammarVersion;
  facts.logs_prompts = true;
  facts.embedding_refusal = "none";
  facts.loaded_unix_s = options_.model->created_unix_s;
  return facts;
}

void SimWorker::Report(const std::shared_ptr<SimLease>& lease, size_t num_bytes,
                       const v1::WorkerReport& report, uint64_t mark) {
  fabric_->network->Send(*process_, lease->router->process(), num_bytes,
                         [lease, letter = fabric_->mail.Seal(report, mark)] {
                           lease->router->OnReport(lease, letter);
                         });
}

void SimWorker::Register(SimRouter* router) {
  auto lease = std::make_shared<SimLease>();
  lease->router = router;
  lease->worker = this;
  leases_.push_back(lease);
  const HelloFacts facts = Describe();
  auto* const report = fabric_->mail.Blank<v1::WorkerReport>();
  ToProto(facts, report->mutable_hello());
  Report(lease, kHelloBytes, *report, MarkOf(facts));
  process_->Post(fabric_->events->now_us() + kRegisterTimeoutUs, [this, lease] {
    if (!lease->accepted) OnLeaseClosed(lease);
  });
}

// As Registration (src/worker) does.
void SimWorker::OnDirective(const std::shared_ptr<SimLease>& lease, const SimLetter& letter) {
  SimMail& mail = fabric_->mail;
  const auto* const directive = mail.Open<v1::RouterDirective>(letter);
  if (directive == nullptr) return;
  switch (directive->kind_case()) {
    case v1::RouterDirective::kAck: {
      const v1::RegisterAck& ack = directive->ack();
      mail.Check("RegisterAck", letter.mark,
                 MarkOfAck(ack.router_incarnation(), ack.heartbeat_ms(), ack.refusal()));
      if (!ack.refusal().empty()) return OnLeaseClosed(lease);
      lease->accepted = lease->worker_open;
      return lease->feed.TellAll();
    }
    case v1::RouterDirective::kPeers: {
      const std::vector<v1::Peer> list(directive->peers().peers().begin(),
                                       directive->peers().peers().end());
      const std::vector<PeerAddress> peers = PeerAddresses(list, Transports());
      mail.Check("PeerList", letter.mark, MarkOf(peers));
      return OnPeers(lease, peers);
    }
    case v1::RouterDirective::kDrain:
      mail.Check("DrainCommand", letter.mark, MarkOfNumber(directive->drain().timeout_ms()));
      return Leave(kDownUs);
    case v1::RouterDirective::kResync:
      return lease->feed.TellAll();
    case v1::RouterDirective::KIND_NOT_SET:
      break;
  }
  mail.Refuse("RouterDirective", InvalidArgument("it is of no kind"));
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
  const EngineSnapshot snapshot = core_->Snapshot();
  const std::vector<LinkInfo> links = transport_.Links();
  for (const auto& lease : leases_) {
    if (!lease->accepted) continue;
    auto* const report = fabric_->mail.Blank<v1::WorkerReport>();
    v1::WorkerLoad* const load = report->mutable_load();
    FillLoad(snapshot, links, load);
    load->set_draining(leaving_);
    load->set_ready(!leaving_);
    load->set_sequence_number(++lease->num_loads);
    Report(lease, kLoadBytes, *report,
           MarkOf(snapshot, links, !leaving_, leaving_, lease->num_loads));
  }
}

// Heartbeats, news of the prefix cache, and connections that are missing.
void SimWorker::KeepHouse() {
  ReportLoad();
  journal_->Take(&changes_);
  held_.Apply(changes_);
  for (const auto& lease : leases_) {
    if (!lease->accepted) continue;
    lease->feed.Take(changes_, held_);
    while (lease->feed.has_batch()) {
      const PrefixNews news = lease->feed.NextNews();
      auto* const report = fabric_->mail.Blank<v1::WorkerReport>();
      ToProto(news, report->mutable_prefix());
      Report(lease, kChangeBytes * news.changes.size(), *report, MarkOf(news));
    }
  }
  DialMissing();
  process_->Post(fabric_->events->now_us() + int64_t{kHeartbeatMs} * 1000, [this] { KeepHouse(); });
}

// ---- Data connections.

void SimWorker::OnPeers(const std::shared_ptr<SimLease>& lease,
                        const std::vector<PeerAddress>& peers) {
  if (!lease->worker_open) return;
  lease->peers.clear();
  for (const PeerAddress& peer : peers) {
    const auto found =
        std::find_if(fabric_->workers.begin(), fabric_->workers.end(),
                     [&peer](const SimWorker* worker) { return worker->name() == peer.worker_id; });
    if (found != fabric_->workers.end()) lease->peers.push_back({*found, peer.incarnation});
  }
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
