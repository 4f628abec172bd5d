#include "src/worker/worker_admin.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/base/clock.h"
#include "src/base/hex.h"
#include "src/base/host_port.h"

namespace baton::worker {

using device::CoreShareStats;
using engine::EngineSnapshot;
using engine::RequestRow;
using engine::RequestStatus;
using kv::BadSliceReason;
using kv::BlockInfo;
using kv::BlockState;
using kv::BlockStateName;
using kv::CloseReason;
using kv::CloseReasonName;
using kv::IpcStats;
using kv::kNumCloseReasons;
using kv::kNumNcclDropReasons;
using kv::NcclDropReason;
using kv::NcclDropReasonName;
using kv::NcclStats;
using kv::TransportKind;
using kv::TransportStats;
using obs::AddMetricAliases;
using obs::AdminProviders;
using obs::AdminServer;
using obs::MetricAliasRole;
using obs::RegisterBatonMetrics;
using obs::RegisterSpanMetrics;
using scheduler::StepShape;
using text::GrammarMemory;

namespace {

// A prefill step is planned to 100 ms; a loop that has not turned for this long hangs.
constexpr int64_t kLiveLimitUs = 10'000'000;
// So long after its last step a worker uses nothing of its machine; shorter than a scrape or two
// would show 0 between the requests of a light load.
constexpr int64_t kUseIsOverUs = 10'000'000;

// Places in kStepPhaseNames.
constexpr size_t kPrefillOnly = 0;
constexpr size_t kDecodeOnly = 1;
constexpr size_t kMixed = 2;

// The label of baton_kv_ipc_faults_total{reason}.
constexpr std::array<std::string_view, 3> kIpcFaultNames = {"late", "protocol", "overrun"};

constexpr auto kBadChecksum = static_cast<size_t>(BadSliceReason::kBadChecksum);

// Index into kTransportNames.
size_t TransportIndex(TransportKind kind) {
  if (kind == TransportKind::kShm) return 1;
  if (kind == TransportKind::kTcp) return 2;
  if (kind == TransportKind::kNccl) return 3;
  if (kind == TransportKind::kCudaIpc) return 4;
  return 0;
}

}  // namespace

WorkerAdmin::WorkerAdmin(WorkerAdminConfig config)
    : config_(std::move(config)),
      metrics_(RegisterBatonMetrics(&registry_)),
      span_metrics_(RegisterSpanMetrics(&registry_)) {
  registry_.SetConstantLabel("role", config_.role);
  registry_.SetConstantLabel("worker", config_.worker_id);
  registry_.SetConstantLabel("model", config_.model);
  RegisterGrammars();
  RegisterConnectionMetrics();
  metrics_.kv_block_tokens->Set(config_.block_size);
  metrics_.ShowObjective(obs::Objective::kItl, config_.itl_objective_us);
  registry_.AddRefresh([this] { Refresh(); });
  AddMetricAliases(config_.aliases, MetricAliasRole::kWorker, metrics_, &registry_);
}

void WorkerAdmin::RegisterGrammars() {
  // A mask takes some 10 us, and the first one of a grammar up to 2 s.
  static constexpr std::array kMaskBounds = {10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6,
                                             1e-3,  5e-3,  20e-3, 100e-3, 0.5,    2.0};
  mask_seconds_ = registry_.AddHistogram(
      {"baton_structured_mask_seconds",
       "Masks of tokens for answers with a grammar, the compilation of the grammar included."},
      kMaskBounds);
  structured_waiting_ = registry_.AddGauge(
      {"baton_structured_waiting",
       "Answers whose next token waits for the mask of their grammar; other answers go on."});
  const auto add_bytes = [this](std::string_view kind) {
    return registry_.AddGauge(
        {"baton_structured_bytes",
         "Memory of all grammars that are kept or that answers follow: masks, states of lexers."},
        {{"kind", std::string(kind)}});
  };
  structured_mask_bytes_ = add_bytes("masks");
  structured_lexer_bytes_ = add_bytes("lexers");
  late_masks_total_ = registry_.AddCounter(
      {"baton_structured_late_masks_total",
       "Tokens computed again later, because the mask of a grammar was not there in time."});
}

void WorkerAdmin::RefreshGrammars() {
  if (config_.grammars == nullptr) return;
  const GrammarMemory memory = config_.grammars->memory();
  structured_mask_bytes_->Set(static_cast<double>(memory.mask_bytes));
  structured_lexer_bytes_->Set(static_cast<double>(memory.lexer_bytes));
}

void WorkerAdmin::RegisterConnectionMetrics() {
  checkpoints_kept_total_ = registry_.AddCounter(
      {"baton_state_checkpoints_kept_total", "Copies of fixed states kept in the prefix cache."});
  checkpoints_dropped_total_ = registry_.AddCounter(
      {"baton_state_checkpoints_dropped_total",
       "Kept copies of fixed states that were given up, or taken by a request."});
  checkpoints_skipped_total_ = registry_.AddCounter(
      {"baton_state_checkpoints_skipped_total",
       "Copies of fixed states that were due and not made: their part of the pool had no room."});
  const auto add_speculation = [this](std::string_view result) {
    return registry_.AddCounter(
        {"baton_speculation_tokens_total",
         "Guessed tokens that decode steps verified, and those of them that saved a step."},
        {{"result", std::string(result)}});
  };
  proposed_tokens_total_ = add_speculation("proposed");
  accepted_tokens_total_ = add_speculation("accepted");
  tls_bytes_total_ = registry_.AddCounter(
      {"baton_kv_tls_bytes_total", "KV bytes received and verified over connections with TLS."});
  for (size_t i = 1; i < kNumCloseReasons; ++i) {
    closes_total_[i] = registry_.AddCounter(
        {"baton_kv_connection_ends_total",
         "KV connections that ended, were refused or did not come about."},
        {{"reason", std::string(CloseReasonName(static_cast<CloseReason>(i)))}});
  }
  RegisterIpc();
  RegisterCores();
  if (config_.gate != nullptr) {
    gate_overruns_total_ = registry_.AddCounter(
        {"baton_launch_gate_overruns_total",
         "Calls to devices that a step of a divided model waited for in vain, or they for it."});
  }
  if (config_.nccl == nullptr) return;
  nccl_built_total_ = registry_.AddCounter(
      {"baton_kv_nccl_communicators_total", "NCCL communicators that both sides have built."});
  nccl_batches_total_ = registry_.AddCounter(
      {"baton_kv_nccl_batches_total", "Buffers of KV that were sent or received over NCCL."});
  nccl_lost_total_ = registry_.AddCounter(
      {"baton_kv_nccl_peers_lost_total",
       "Peers given up for a time, because several communicators in a row delivered nothing."});
  nccl_ending_ = registry_.AddGauge(
      {"baton_kv_nccl_ending_communicators", "NCCL communicators that are being ended now."});
  for (size_t i = 1; i < kNumNcclDropReasons; ++i) {
    nccl_drops_total_[i] = registry_.AddCounter(
        {"baton_kv_nccl_drops_total",
         "NCCL communicators that were given up or refused, and peers with another NCCL."},
        {{"reason", std::string(NcclDropReasonName(static_cast<NcclDropReason>(i)))}});
  }
}

void WorkerAdmin::RegisterIpc() {
  if (config_.ipc == nullptr) return;
  ipc_offers_total_ = registry_.AddCounter(
      {"baton_kv_ipc_offers_total", "Batches of KV slices that were offered and pulled."});
  for (size_t i = 0; i < kIpcFaultNames.size(); ++i) {
    ipc_faults_total_[i] = registry_.AddCounter(
        {"baton_kv_ipc_faults_total", "Words about batches that were lost, late or wrong."},
        {{"reason", std::string(kIpcFaultNames[i])}});
  }
}

void WorkerAdmin::RefreshIpc() {
  if (config_.ipc == nullptr) return;
  const IpcStats now = config_.ipc->OfferStats();
  ipc_offers_total_->Add(now.offers - last_ipc_.offers);
  ipc_faults_total_[0]->Add(now.late - last_ipc_.late);
  ipc_faults_total_[1]->Add(now.protocol - last_ipc_.protocol);
  ipc_faults_total_[2]->Add(now.overruns - last_ipc_.overruns);
  last_ipc_ = now;
}

void WorkerAdmin::RegisterCores() {
  if (config_.cores == nullptr) return;
  lent_core_seconds_total_ = registry_.AddSecondsCounter(
      {"baton_lent_core_seconds_total",
       "Time of this worker's cores on which other workers of the host computed."});
  borrowed_core_seconds_total_ =
      registry_.AddSecondsCounter({"baton_borrowed_core_seconds_total",
                                   "Time of other workers' cores on which this worker computed."});
  core_waits_total_ = registry_.AddCounter(
      {"baton_core_waits_total", "Steps that waited for a core that this worker had lent."});
  seized_cores_total_ = registry_.AddCounter(
      {"baton_seized_cores_total",
       "Cores that this worker took back from one that was stopped, dead or slow."});
}

void WorkerAdmin::RefreshCores() {
  if (config_.cores == nullptr) return;
  const CoreShareStats now = config_.cores->Stats();
  const auto seconds = [](uint64_t us) { return static_cast<double>(us) * 1e-6; };
  lent_core_seconds_total_->Add(seconds(now.lent_us - last_cores_.lent_us));
  borrowed_core_seconds_total_->Add(seconds(now.borrowed_us - last_cores_.borrowed_us));
  core_waits_total_->Add(now.num_waits - last_cores_.num_waits);
  seized_cores_total_->Add(now.num_seized - last_cores_.num_seized);
  last_cores_ = now;
}

void WorkerAdmin::RefreshGate() {
  if (config_.gate == nullptr) return;
  const uint64_t now = config_.gate->num_overruns();
  gate_overruns_total_->Add(now - last_overruns_);
  last_overruns_ = now;
}

void WorkerAdmin::RefreshNccl() {
  if (config_.nccl == nullptr) return;
  const NcclStats now = config_.nccl->CommunicatorStats();
  nccl_built_total_->Add(now.built - last_nccl_.built);
  nccl_batches_total_->Add(now.batches - last_nccl_.batches);
  nccl_lost_total_->Add(now.lost - last_nccl_.lost);
  nccl_ending_->Set(static_cast<double>(now.ending));
  for (size_t i = 1; i < kNumNcclDropReasons; ++i) {
    nccl_drops_total_[i]->Add(now.dropped[i] - last_nccl_.dropped[i]);
  }
  last_nccl_ = now;
}

void WorkerAdmin::RefreshConnections(const TransportStats& now) {
  metrics_.kv_checksum_fail_total->Add(now.bad_slices[kBadChecksum] -
                                       last_transport_.bad_slices[kBadChecksum]);
  tls_bytes_total_->Add(now.tls_bytes_received - last_transport_.tls_bytes_received);
  for (size_t i = 1; i < kNumCloseReasons; ++i) {
    closes_total_[i]->Add(now.closes[i] - last_transport_.closes[i]);
  }
  last_transport_ = now;
}

WorkerAdmin::~WorkerAdmin() {
  if (server_) server_->Stop();
}

StatusOr<std::unique_ptr<WorkerAdmin>> WorkerAdmin::Start(WorkerAdminConfig config) {
  StatusOr<HostPort> address = ParseHostPort(config.address);
  if (!address.ok()) return WithPrefix(address.status(), "--admin");
  std::unique_ptr<WorkerAdmin> admin(new WorkerAdmin(std::move(config)));
  WorkerAdmin* const self = admin.get();
  AdminProviders providers;
  providers.live = [self] { return self->Live(); };
  providers.ready = [self] { return self->config_.ready(); };
  providers.started = [] { return OkStatus(); };
  providers.requests_json = [self] { return self->RequestsJson(); };
  providers.blocks_json = [self] { return self->BlocksJson(); };
  providers.trace_json = [self] {
    return StepsToJson(self->steps_.Last(), self->config_.role, self->config_.worker_id,
                       SystemClock());
  };
  auto server = AdminServer::Start(std::move(address->host), address->port, &self->registry_,
                                   std::move(providers), self->config_.sites);
  if (!server.ok()) return WithPrefix(server.status(), "--admin");
  admin->server_ = *std::move(server);
  return admin;
}

void WorkerAdmin::OnVerified(const RequestStatus& status) {
  const size_t index = TransportIndex(status.transport);
  metrics_.kv_transfer_bytes_total[index]->Add(status.kv_bytes);
  metrics_.kv_transfer_seconds[index]->Observe(static_cast<double>(status.transfer_us) * 1e-6);
}

void WorkerAdmin::OnStep(const StepShape& shape, int64_t elapsed_us) {
  const size_t phase = shape.decode_rows == 0      ? kPrefillOnly
                       : shape.prefill_tokens == 0 ? kDecodeOnly
                                                   : kMixed;
  metrics_.step_seconds[phase]->Observe(static_cast<double>(elapsed_us) * 1e-6);
  const int64_t now_us = SystemClock().NowUs();
  last_step_us_[phase] = now_us;
  steps_.Add(shape, elapsed_us, now_us);
}

void WorkerAdmin::SetRates(const MachineRates& rates) {
  MutexLock lock(refresh_mutex_);
  rates_ = rates;
}

void WorkerAdmin::Refresh() {
  const EngineSnapshot now = config_.engine->Snapshot();
  const TransportStats transport = config_.transport->Stats();
  MutexLock lock(refresh_mutex_);
  metrics_.requests_running->Set(now.scheduler.num_running + now.scheduler.num_prefilling +
                                 now.scheduler.num_prompt_done);
  metrics_.requests_waiting->Set(now.scheduler.num_waiting);
  for (size_t i = 0; i < kBlockStateNames.size(); ++i) {
    metrics_.kv_blocks[i]->Set(now.blocks.by_state[i]);
  }
  metrics_.kv_pool_blocks->Set(now.blocks.total);
  metrics_.batch_limit->Set(now.scheduler.batch_limit);
  metrics_.preemptions_total->Add(now.scheduler.num_preemptions - last_.scheduler.num_preemptions);
  metrics_.steps_ahead_total->Add(now.num_steps_ahead - last_.num_steps_ahead);
  metrics_.wasted_rows_total->Add(now.num_wasted_rows - last_.num_wasted_rows);
  structured_waiting_->Set(now.scheduler.num_awaiting);
  checkpoints_kept_total_->Add(now.prefix.checkpoints_kept - last_.prefix.checkpoints_kept);
  checkpoints_dropped_total_->Add(now.prefix.checkpoints_dropped -
                                  last_.prefix.checkpoints_dropped);
  checkpoints_skipped_total_->Add(now.prefix.checkpoints_skipped -
                                  last_.prefix.checkpoints_skipped);
  late_masks_total_->Add(now.num_late_masks - last_.num_late_masks);
  proposed_tokens_total_->Add(now.proposed_tokens - last_.proposed_tokens);
  accepted_tokens_total_->Add(now.accepted_tokens - last_.accepted_tokens);
  metrics_.prefix_cache_queries_total->Add(now.prefix.queried_tokens - last_.prefix.queried_tokens);
  metrics_.prefix_cache_hits_total->Add(now.prefix.hit_tokens - last_.prefix.hit_tokens);
  metrics_.kv_chain_mismatch_total->Add(now.chain_mismatches - last_.chain_mismatches);
  RefreshGrammars();
  RefreshConnections(transport);
  RefreshNccl();
  RefreshIpc();
  RefreshGate();
  RefreshCores();
  metrics_.stale_events_total->Add(now.stale_events - last_.stale_events);
  metrics_.prefill_backlog_seconds->Set(static_cast<double>(now.scheduler.backlog_us) * 1e-6);
  if (now.blocks.total > 0) {
    metrics_.decode_kv_pressure->Set(1.0 - static_cast<double>(now.blocks.num_unheld()) /
                                               now.blocks.total);
  }
  if (rates_.read_bytes_per_s > 0) {
    // The averages of the last steps of the kind that moves them, until long after them.
    const auto is_over = [&, now_us = SystemClock().NowUs()](size_t phase) {
      return now_us - last_step_us_[phase] > kUseIsOverUs;
    };
    metrics_.mbu_ratio->Set(
        is_over(kDecodeOnly) ? 0 : now.decode_bytes_per_s / rates_.read_bytes_per_s);
    metrics_.mfu_ratio->Set(is_over(kPrefillOnly) ? 0
                                                  : now.prefill_flops_per_s / rates_.flops_per_s);
  }
  if (now.transfer_us > 0) {
    metrics_.exposed_transfer_ratio->Set(static_cast<double>(now.exposed_us) /
                                         static_cast<double>(now.transfer_us));
  }
  last_ = now;
}

Status WorkerAdmin::Live() const {
  const int64_t age_us = SystemClock().NowUs() - config_.engine->Snapshot().updated_us;
  if (age_us <= kLiveLimitUs) return OkStatus();
  return Unavailable("the engine loop has not turned for {} ms", age_us / 1000);
}

StatusOr<std::string> WorkerAdmin::RequestsJson() {
  BATON_ASSIGN_OR_RETURN(const std::vector<RequestRow> requests, config_.engine->DebugRequests());
  return RequestsToJson(requests, config_.worker_id);
}

std::string RequestsToJson(const std::vector<RequestRow>& requests, std::string_view worker_id) {
  nlohmann::json rows = nlohmann::json::array();
  for (const RequestRow& row : requests) {
    // A row that is the rest of a hand-off has no choices any more.
    for (uint32_t choice = 0; choice < std::max(row.num_choices, 1u); ++choice) {
      rows.push_back({{"request_uid", row.key.uid.ToHex()},
                      {"choice", choice},
                      {"num_choices", row.num_choices},
                      {"attempt", row.key.attempt},
                      {"state", row.state},
                      {"age_ms", row.age_us / 1000},
                      {"worker", worker_id},
                      {"prompt_tokens", row.num_prompt_tokens},
                      {"output_tokens", row.num_output_tokens},
                      {"peer", row.peer.value() == 0 ? "" : HexFromU64(row.peer.value())}});
    }
  }
  return rows.dump();
}

StatusOr<std::string> WorkerAdmin::BlocksJson() {
  BATON_ASSIGN_OR_RETURN(const std::vector<BlockInfo> blocks, config_.engine->DebugBlocks());
  return BlocksToJson(blocks);
}

std::string BlocksToJson(const std::vector<BlockInfo>& blocks) {
  nlohmann::json rows = nlohmann::json::array();
  for (const BlockInfo& block : blocks) {
    // The pool still knows the last owner of a free block; shown, it would look like a leak.
    const bool is_free = block.state == BlockState::kFree;
    rows.push_back({{"index", block.handle.index.value()},
                    {"generation", block.handle.generation},
                    {"state", BlockStateName(block.state)},
                    {"request_uid", is_free ? "" : block.owner.ToHex()},
                    {"refs", block.request_refs + block.transfer_refs},
                    {"kept", block.kept}});
  }
  return rows.dump();
}

}  // namespace baton::worker
