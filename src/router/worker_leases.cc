#include "src/router/worker_leases.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/ranges.h"

#include "src/base/limits.h"
#include "src/base/log.h"

namespace baton::router {

using kv::ChainKeyCheck;
using kv::DeriveChainKey;
using kv::kDefaultTenant;
using limits::kHeartbeatMs;
using limits::kRenewEveryUs;
using limits::kRequestLeaseUs;
using obs::BatonMetrics;
using obs::RefusalReason;

namespace {

// A worker that refuses sessions while its lease lives is tried again this often.
constexpr int64_t kReconnectUs = 250'000;

// Slots of the prefix index that a tick cleans: 0.1 ms of reading, all of its 2^22 in 64 ticks.
constexpr size_t kSweepSlots = 1 << 16;

// For placement, which does not ask why a link is down.
bool AreAlike(const LinkView& a, const LinkView& b) {
  return a.to == b.to && a.to_incarnation == b.to_incarnation && a.up == b.up &&
         a.bytes_per_s == b.bytes_per_s;
}

}  // namespace

void WorkerLeases::OnWorkerHello(LeaseId lease, WorkerDescription worker,
                                 std::unique_ptr<LeaseStream> stream, int64_t now_us) {
  state_->Advance(now_us);
  if (const std::optional<Refusal> refusal = state_->registry.RefusalFor(worker, state_->now_us)) {
    BATON_LOG_ERROR("worker {} is refused: {}", worker.name.worker_id, refusal->text);
    CountRefusals(refusal->reason, 1);
    stream->Refuse(refusal->text);
    return;
  }
  if (const RegisteredWorker* former = state_->registry.FindByWorkerId(worker.name.worker_id)) {
    DropWorker(former->lease, "its next life has registered");
  }
  BATON_LOG_INFO("{} worker {} joins with model {}, {} blocks, pid {}", WorkerRoleName(worker.role),
                 worker.name.worker_id, worker.model->id, worker.num_blocks, worker.pid);
  RegisteredWorker& added =
      state_->registry.Add(lease, std::move(worker), std::move(stream), now_us);
  for (const UnpairedView& other : state_->registry.NoteUnpaired(added)) {
    const std::string& own = added.description.name.worker_id;
    BATON_LOG_WARN("{} hands nothing to {}, which computes prompts itself: {}",
                   added.IsPrefill() ? own : other.with, added.IsPrefill() ? other.with : own,
                   other.why);
  }
  state_->NoteFirst(added);
  added.stream->Accept(kHeartbeatMs);
  TrackPrefixes(added, now_us);
  OpenSession(added);
  MembersChanged();
}

void WorkerLeases::CountRefusals(RefusalReason reason, uint64_t num_refused) {
  state_->metrics->registrations_refused_total[static_cast<size_t>(reason)]->Add(num_refused);
}

void WorkerLeases::OnWorkerLoad(LeaseId lease, WorkerLoadReport load, int64_t now_us) {
  state_->Advance(now_us);
  RegisteredWorker* worker = state_->registry.Find(lease);
  if (worker == nullptr) return;
  const uint32_t free_before = worker->NumFreeBlocks();
  const uint32_t limit_before = worker->BatchLimit();
  const bool usable_before = worker->Usable(now_us);
  const std::vector<LinkView> links_before = worker->load.links;
  state_->registry.OnLoad(*worker, std::move(load), now_us);
  const std::vector<LinkView>& links = worker->load.links;
  const bool changed =
      worker->Usable(now_us) != usable_before ||
      !std::equal(links.begin(), links.end(), links_before.begin(), links_before.end(), &AreAlike);
  if (changed) state_->workers_changed = true;
  const bool has_more_room =
      worker->NumFreeBlocks() > free_before || worker->BatchLimit() > limit_before;
  if (changed || has_more_room) queue_->TryAgain();
  queue_->PlaceQueued(now_us);
}

void WorkerLeases::TrackPrefixes(const RegisteredWorker& worker, int64_t now_us) {
  const uint64_t check = worker.description.chain_check;
  if (check == 0) return;  // no prefix cache
  if (check == ChainKeyCheck(DeriveChainKey(state_->config.cluster_secret, kDefaultTenant))) {
    state_->prefixes.AddWorker(worker.lease, now_us);
  } else if (!std::exchange(warned_key_, true)) {
    BATON_LOG_WARN(
        "worker {} has another cluster secret than the router: requests are placed "
        "without regard to its prefix cache (--cluster-secret-file)",
        worker.description.name.worker_id);
  }
}

void WorkerLeases::OnPrefixEvents(LeaseId lease, const PrefixBatch& batch, int64_t now_us) {
  state_->Advance(now_us);
  RegisteredWorker* worker = state_->registry.Find(lease);
  if (worker == nullptr) return;
  worker->heard_us = now_us;
  const PrefixOutcome outcome = state_->prefixes.Apply(lease, batch, now_us);
  if (outcome != PrefixOutcome::kGap) return;
  BATON_LOG_WARN("worker {}: changes of its prefix cache before number {} were lost",
                 worker->description.name.worker_id, batch.first_sequence);
  AskResyncs(now_us);
}

void WorkerLeases::AskResyncs(int64_t now_us) {
  for (const LeaseId lease : state_->prefixes.TakeDueResyncs(now_us)) {
    RegisteredWorker* worker = state_->registry.Find(lease);
    if (worker == nullptr) continue;
    worker->stream->AskPrefixResync();
    state_->metrics->prefix_index_resyncs_total->Add();
  }
}

void WorkerLeases::OnLeaseClosed(LeaseId lease) { DropWorker(lease, "its registration ended"); }

StatusOr<Incarnation> WorkerLeases::DrainWorker(std::string_view worker_id, uint32_t timeout_ms) {
  RegisteredWorker* worker = state_->registry.FindByWorkerId(worker_id);
  if (worker == nullptr) {
    std::vector<std::string> known;
    for (const auto& [lease, other] : state_->registry.workers()) {
      known.push_back(other.description.name.worker_id);
    }
    std::ranges::sort(known);  // their leases are in the order in which they came
    return NotFound("no worker '{}' is registered; there are: {}", worker_id,
                    known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
  }
  BATON_LOG_INFO("worker {} is asked to leave: {} requests of this router run there", worker_id,
                 worker->num_requests);
  worker->drain_asked = true;
  // As if its next report had come now, but for being a sign of life.
  WorkerLoadReport load = worker->load;
  const int64_t heard_us = worker->heard_us;
  state_->registry.OnLoad(*worker, std::move(load), state_->now_us);
  worker->heard_us = heard_us;
  state_->workers_changed = true;
  worker->stream->AskDrain(timeout_ms);
  return worker->description.name.incarnation;
}

std::optional<uint64_t> WorkerLeases::NumericsOf(std::string_view worker_id) {
  const RegisteredWorker* worker = state_->registry.FindByWorkerId(worker_id);
  if (worker == nullptr) return std::nullopt;
  return worker->description.fingerprint.numerics_id;
}

void WorkerLeases::ForgiveSilence(int64_t late_us) {
  for (auto& [lease, worker] : state_->registry.workers()) {
    worker.heard_us += late_us;
    worker.progress_us += late_us;
    for (auto& [decode, link] : worker.links) link.ForgiveSilence(late_us);
  }
}

void WorkerLeases::OpenSession(RegisteredWorker& worker) {
  ++worker.session_epoch;
  worker.session_up = false;
  worker.reconnect_us = 0;
  worker.session =
      connector_->Connect(SessionRef{worker.lease, worker.session_epoch}, worker.description);
}

RegisteredWorker* WorkerLeases::FindSession(SessionRef session) {
  RegisteredWorker* worker = state_->registry.Find(session.lease);
  return worker != nullptr && worker->session_epoch == session.epoch ? worker : nullptr;
}

void WorkerLeases::OnSessionUp(SessionRef session, int64_t now_us) {
  state_->Advance(now_us);
  RegisteredWorker* worker = FindSession(session);
  if (worker == nullptr) return;
  worker->session_up = true;
  worker->num_failed_sessions = 0;
  worker->progress_us = now_us;
  worker->session->Renew(kRequestLeaseUs / 1000);
  state_->workers_changed = true;
  queue_->TryAgain();
  queue_->PlaceQueued(now_us);
}

void WorkerLeases::OnSessionDown(SessionRef session, std::string_view reason, int64_t now_us) {
  state_->Advance(now_us);
  RegisteredWorker* worker = FindSession(session);
  if (worker == nullptr || worker->session == nullptr) return;
  if (worker->session_up) {
    BATON_LOG_WARN("the session with worker {} ended: {}", worker->description.name.worker_id,
                   reason);
  } else if (std::has_single_bit(++worker->num_failed_sessions)) {
    // It is tried up to four times a second for as long as the worker registers.
    BATON_LOG_WARN("no session with worker {} at {} after {} tries: {}",
                   worker->description.name.worker_id, worker->description.grpc_address,
                   worker->num_failed_sessions, reason);
  }
  worker->session_up = false;
  worker->session.reset();
  worker->reconnect_us = now_us + kReconnectUs;
  state_->workers_changed = true;
  recovery_->RecoverRequestsOn(session.lease, now_us);
}

void WorkerLeases::DropWorker(LeaseId lease, std::string_view reason) {
  RegisteredWorker* worker = state_->registry.Find(lease);
  if (worker == nullptr) return;
  BATON_LOG_WARN("worker {} is gone: {}", worker->description.name.worker_id, reason);
  worker->session_up = false;
  recovery_->RecoverRequestsOn(lease, state_->now_us);
  state_->prefixes.RemoveWorker(lease);
  state_->registry.Remove(lease, state_->now_us);
  MembersChanged();
}

void WorkerLeases::MembersChanged() {
  models_changed_ = true;
  queue_->TryAgain();
  state_->workers_changed = true;
  state_->registry.SendPeerLists();
}

void WorkerLeases::ReportDecodePool() {
  // Blocks of the decode workers that count together.
  struct Pool {
    uint64_t num_blocks = 0;
    uint64_t num_free = 0;
    uint64_t batch_limit = 0;
    uint32_t block_size = 0;  // equal in a model's workers, as their layout is
  };
  std::map<const BatonMetrics*, Pool> pools;
  pools[state_->metrics];  // a pool without workers is told too
  if (state_->config.model_metrics != nullptr) {
    state_->config.model_metrics->ForEach(
        [&](const std::string& /*id*/, const BatonMetrics& metrics) { pools[&metrics]; });
  }
  for (const auto& [lease, worker] : state_->registry.workers()) {
    if (worker.IsPrefill()) continue;
    Pool& pool = pools[state_->MetricsOf(worker.description.model->id)];
    pool.num_blocks += worker.description.num_blocks;
    pool.num_free += worker.NumFreeBlocks();
    pool.batch_limit += worker.BatchLimit();
    pool.block_size = worker.description.block_size;
  }
  for (const auto& [metrics, pool] : pools) {
    const auto num_used = static_cast<double>(pool.num_blocks - pool.num_free);
    metrics->kv_pool_blocks->Set(static_cast<double>(pool.num_blocks));
    metrics->kv_block_tokens->Set(pool.block_size);
    metrics->batch_limit->Set(static_cast<double>(pool.batch_limit));
    metrics->decode_kv_pressure->Set(
        pool.num_blocks == 0 ? 0 : num_used / static_cast<double>(pool.num_blocks));
  }
}

void WorkerLeases::CheckWorkers(int64_t now_us) {
  for (const LeaseId lease : state_->registry.Dead(now_us)) {
    DropWorker(lease, "no heartbeat for 2 s");
  }
  if (state_->registry.ForgetLongGone(now_us)) models_changed_ = true;
  AskResyncs(now_us);
  state_->prefixes.Sweep(kSweepSlots);
  state_->metrics->prefix_index_links->Set(static_cast<double>(state_->prefixes.num_entries()));
  state_->metrics->prefix_index_bytes->Set(static_cast<double>(state_->prefixes.memory_bytes()));
  const uint64_t not_kept = state_->prefixes.num_not_kept();
  state_->metrics->prefix_index_not_kept_total->Add(not_kept -
                                                    std::exchange(num_not_kept_, not_kept));
  ReportDecodePool();
  const bool renew = now_us - renewed_us_ >= kRenewEveryUs;
  if (renew) renewed_us_ = now_us;
  for (auto& [lease, worker] : state_->registry.workers()) {
    if (worker.load.draining && !worker.IsPrefill() && worker.num_requests > 0) {
      moves_->MoveAwayFrom(worker, now_us);
    }
    if (worker.session == nullptr && now_us >= worker.reconnect_us) OpenSession(worker);
    if (renew && worker.session_up && worker.num_requests > 0) {
      worker.session->Renew(kRequestLeaseUs / 1000);
    }
  }
}

}  // namespace baton::router
