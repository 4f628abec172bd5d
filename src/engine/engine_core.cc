// The loop: events, timers, turns.
#include "src/engine/engine_core.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "src/base/check.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/model/model_config.h"

namespace baton::engine {

using device::StageRange;
using device::StepStage;
using kv::Applied;
using kv::BlockPool;
using kv::Grant;
using kv::HandoffMessage;
using kv::KvLayout;
using kv::Nack;
using kv::PrefixIndex;
using kv::Revoke;
using kv::StateLimits;
using limits::kMaxChoices;
using model::ForwardModel;
using model::kMinContextTokens;
using scheduler::kMaxProposalRows;
using scheduler::Proposer;
using scheduler::Scheduler;
using scheduler::SchedulerConfig;

namespace {

// Requests whose grammar is compiled already start in the turn that they come in.
constexpr int64_t kStartGuideWaitUs = 2'000;

// Checkpoints take half of the pool at most.
constexpr uint32_t kCheckpointShare = 2;

// Tokens between two checkpoints of a prompt: a power of two, and their KV takes no less memory
// than a checkpoint.
uint32_t CheckpointTokens(const KvLayout& layout) {
  constexpr uint32_t kLeast = 512;
  const uint64_t least = std::max(uint64_t{layout.state_blocks} * layout.block_size,
                                  uint64_t{std::max(kLeast, layout.block_size)});
  const auto tokens = std::bit_ceil(std::min<uint64_t>(least, limits::kMaxContextTokens));
  return layout.BlocksFor(static_cast<uint32_t>(tokens)) * layout.block_size;
}

SchedulerConfig WithLayout(SchedulerConfig config, const KvLayout& layout) {
  config.block_size = layout.block_size;
  config.state_blocks = layout.state_blocks;
  if (layout.state_blocks == 0) {
    config.checkpoint_tokens = 0;
  } else if (config.checkpoint_tokens == 0) {
    config.checkpoint_tokens = CheckpointTokens(layout);
  }
  return config;
}

std::unique_ptr<PrefixIndex> MakePrefixIndex(const EngineConfig& config, const EngineParts& parts,
                                             BlockPool* pool) {
  if (!config.prefix_cache) return nullptr;
  const KvLayout& layout = parts.kv->layout();
  const StateLimits states{.state_blocks = layout.state_blocks,
                           .max_blocks = pool->num_blocks() / kCheckpointShare};
  return std::make_unique<PrefixIndex>(pool, layout.block_size, parts.prefixes, states);
}

TransferParts MakeTransferParts(const EngineParts& parts, BlockPool* pool, Scheduler* scheduler) {
  return {.pool = pool,
          .scheduler = scheduler,
          .kv = parts.kv,
          .transport = parts.transport,
          .wire = parts.wire};
}

// Items of one plan at most: a decode row for each running sequence and a chunk of each prompt.
uint32_t MaxItems(const SchedulerConfig& config) {
  return config.max_running + config.max_prefilling;
}

// Null where nothing is guessed.
Proposer* ProposerOf(const EngineConfig& config, const EngineParts& parts, Speculator* own) {
  if (parts.proposer != nullptr) return parts.proposer;
  return config.speculate == SpeculateMode::kOff ? nullptr : own;
}

StepBatch MakeBatch(const SchedulerConfig& config, const ForwardModel& model, bool guesses) {
  return StepBatch({.max_tokens = config.max_batch_tokens,
                    .max_items = MaxItems(config),
                    .max_more_logits = limits::kMaxPromptLogRows + (guesses ? kMaxProposalRows : 0),
                    .vocab_size = model.vocab_size(),
                    .hidden_size = model.hidden_size(),
                    .samples = model.samples()});
}

}  // namespace

Status EngineCore::CheckConfig(const EngineConfig& config, const EngineParts& parts) {
  if (parts.model == nullptr || parts.kv == nullptr || parts.listener == nullptr) {
    return InvalidArgument("an engine needs a model, a KV store and a listener");
  }
  if ((parts.transport == nullptr) != (parts.wire == nullptr)) {
    return InvalidArgument("a transport and a wire format go together");
  }
  if (config.max_context < kMinContextTokens || config.max_context > parts.model->max_context()) {
    return InvalidArgument("max_context {} is outside [{}, {}]", config.max_context,
                           kMinContextTokens, parts.model->max_context());
  }
  if (config.scheduler.max_batch_tokens > parts.model->max_rows()) {
    return InvalidArgument("max_batch_tokens {} is above the model's rows, {}",
                           config.scheduler.max_batch_tokens, parts.model->max_rows());
  }
  const uint32_t block_size = parts.kv->layout().block_size;
  if (config.scheduler.max_batch_tokens < config.scheduler.max_running + block_size) {
    return InvalidArgument("max_batch_tokens {} is below max_running {} and a block of {}",
                           config.scheduler.max_batch_tokens, config.scheduler.max_running,
                           block_size);
  }
  if (config.scheduler.checkpoint_tokens % block_size != 0) {
    return InvalidArgument("checkpoint_tokens {} is no multiple of a block of {}",
                           config.scheduler.checkpoint_tokens, block_size);
  }
  const bool guesses = config.speculate != SpeculateMode::kOff || parts.proposer != nullptr;
  if (parts.kv->layout().state_blocks > 0 && guesses) {
    return InvalidArgument(
        "--speculate {}: the model's layers keep a state that no wrong guess can be taken out of; "
        "use off",
        SpeculateModeName(config.speculate));
  }
  if (config.layers_per_group == 0 || config.max_requests == 0 || config.inbox_capacity == 0) {
    return InvalidArgument("layers_per_group {}, max_requests {}, inbox_capacity {}: none may be 0",
                           config.layers_per_group, config.max_requests, config.inbox_capacity);
  }
  return OkStatus();
}

EngineCore::EngineCore(const EngineConfig& config, const EngineParts& parts, EngineInbox* inbox)
    : config_(config),
      parts_(parts),
      inbox_(inbox),
      kv_view_(parts.kv->view()),
      pool_(kv_view_.num_blocks),
      prefix_index_(MakePrefixIndex(config, parts, &pool_)),
      speculator_(config.speculate, &requests_),
      scheduler_(WithLayout(config.scheduler, *kv_view_.layout), &pool_, prefix_index_.get(),
                 ProposerOf(config, parts, &speculator_)),
      sampler_(parts.model->vocab_size(), config.eog_tokens),
      sources_(MakeTransferParts(parts, &pool_, &scheduler_), config, this),
      dests_(MakeTransferParts(parts, &pool_, &scheduler_), config, parts.model->vocab_size(),
             this),
      outbox_(parts.listener),
      batches_{MakeBatch(config.scheduler, *parts.model,
                         ProposerOf(config, parts, &speculator_) != nullptr),
               MakeBatch(config.scheduler, *parts.model,
                         ProposerOf(config, parts, &speculator_) != nullptr)} {
  const uint32_t max_items = MaxItems(config.scheduler);
  outbox_.Reserve(2 * max_items + kMaxChoices + limits::kMaxPromptLogRows + kMaxProposalRows);
  pending_.reserve(config.inbox_capacity);
  uses_.reserve(max_items);
  seals_.reserve(2 * max_items);  // the blocks of a prompt's tokens, and those of its state
  hit_seals_.reserve(max_items);
  results_.reserve(max_items);
  first_steps_.reserve(max_items);
  done_prompts_.reserve(max_items);
  finished_.reserve(max_items);
  failed_.reserve(max_items);
  starts_.reserve(kMaxChoices);
  copies_.reserve(kMaxChoices);
  first_tokens_.reserve(kMaxChoices);
  now_us_ = parts_.clock->NowUs();
  Publish();
}

EngineCore::~EngineCore() {
  // Nobody is told of this step's tokens.
  if (in_flight_) (void)parts_.model->End(batch().chosen());
}

bool EngineCore::Turn() {
  now_us_ = parts_.clock->NowUs();
  inbox_->Take(&pending_);
  if (in_flight_ && (!pending_.empty() || now_us_ >= NextDueUs())) Settle();
  guide_wait_us_ = kStartGuideWaitUs;
  // Handling an event may not add to the vector: only Take does.
  for (EngineEvent& event : pending_) Handle(std::move(event));
  numbers_.num_events += pending_.size();
  pending_.clear();
  num_scanned_ = 0;
  Tick();
  outbox_.Flush();
  const bool ran = RunStep();
  outbox_.Flush();
  Publish();
  return ran || !pending_.empty() || inbox_->HasEvents();
}

void EngineCore::Wait() { inbox_->WaitAndTake(NextDueUs(), &pending_); }

int64_t EngineCore::NextDueUs() const {
  int64_t due_us = std::min(
      {now_us_ + config_.idle_wake_us, sources_.NextDeadlineUs(), dests_.NextDeadlineUs()});
  requests_.ForEach([&](const LiveRequest& r) { due_us = std::min(due_us, r.deadline_us); });
  for (const auto& [id, session] : sessions_) due_us = std::min(due_us, session.lease_until_us);
  return due_us;
}

// ---- Events.

void EngineCore::Handle(EngineEvent event) {
  if (auto* start = std::get_if<StartRequest>(&event)) {
    StartRequestNow(std::move(start->spec));
  } else if (auto* cancel = std::get_if<CancelRequest>(&event)) {
    LiveRequest* const request = requests_.Find(cancel->key.uid);
    if (request == nullptr || request->spec.key.attempt > cancel->key.attempt) return;
    Abandon(request, RequestState::kCancelled, Cancelled("cancelled by the router"));
  } else if (auto* close = std::get_if<CloseSession>(&event)) {
    CancelSession(close->session, "the router's session ended");
  } else if (auto* renew = std::get_if<RenewSession>(&event)) {
    const auto session = sessions_.find(renew->session);
    if (session != sessions_.end()) session->second.lease_until_us = now_us_ + renew->lease_us;
  } else if (auto* message = std::get_if<PeerMessage>(&event)) {
    HandlePeerMessage(*message);
  } else if (auto* up = std::get_if<PeerConnected>(&event)) {
    peers_[up->peer] = up->kind;
  } else if (auto* lost = std::get_if<PeerLost>(&event)) {
    peers_.erase(lost->peer);
    sources_.OnPeerDown(lost->peer, lost->reason, now_us_);
    dests_.OnPeerDown(lost->peer, lost->reason, now_us_);
  } else if (auto* progress = std::get_if<ReceiveProgress>(&event)) {
    dests_.OnReceiveProgress(*progress, now_us_);
  } else if (auto* refused = std::get_if<SliceRefused>(&event)) {
    dests_.OnBadSlice(refused->slice, now_us_);
  } else if (auto* received = std::get_if<ReceiveClosed>(&event)) {
    dests_.OnReceiveClosed(received->transfer, now_us_);
  } else if (auto* sent = std::get_if<SendClosed>(&event)) {
    sources_.OnSendClosed(sent->peer, sent->transfer, now_us_);
  } else if (std::holds_alternative<BeginDrain>(event)) {
    draining_ = true;
  } else if (auto* fail = std::get_if<FailAll>(&event)) {
    std::vector<LiveRequest*> all;
    requests_.ForEach([&](LiveRequest& request) { all.push_back(&request); });
    for (LiveRequest* request : all) Abandon(request, RequestState::kFailed, fail->status);
  } else if (auto* ready = std::get_if<MaskReady>(&event)) {
    LiveRequest* const request = requests_.Find(ready->uid);
    if (request != nullptr) AwaitMasksOrEnd(request);
  } else if (auto* debug = std::get_if<DebugRequest>(&event)) {
    AnswerDebug(debug->query.get());
  }
}

void EngineCore::HandlePeerMessage(const PeerMessage& message) {
  if (message.message == nullptr || parts_.transport == nullptr) return;
  const StageRange transfer(parts_.stages, StepStage::kTransfer);
  // Messages that only a prefill worker receives go to the sources. Messages that only a decode
  // worker receives go to the destinations. A Revoke says who sent it.
  const HandoffMessage& m = *message.message;
  const auto* revoke = std::get_if<Revoke>(&m);
  const bool to_source = std::holds_alternative<Grant>(m) || std::holds_alternative<Applied>(m) ||
                         std::holds_alternative<Nack>(m) ||
                         (revoke != nullptr && revoke->from_decode);
  if (to_source) {
    sources_.OnMessage(message, now_us_);
  } else {
    dests_.OnMessage(message.peer, m, now_us_);
  }
}

// ---- Timers.

void EngineCore::Tick() {
  sources_.Tick(now_us_);
  dests_.Tick(now_us_);
  ExpireRequests();
}

void EngineCore::ExpireRequests() {
  // Seldom true, so the lists are made only then.
  bool any = false;
  requests_.ForEach([&](const LiveRequest& r) { any = any || r.deadline_us <= now_us_; });
  for (const auto& [id, session] : sessions_) any = any || session.lease_until_us <= now_us_;
  if (!any) return;
  std::vector<LiveRequest*> late;
  requests_.ForEach([&](LiveRequest& request) {
    if (request.deadline_us <= now_us_) late.push_back(&request);
  });
  for (LiveRequest* request : late) {
    Abandon(request, RequestState::kFailed,
            DeadlineExceeded("the request's deadline of {} ms passed",
                             request->spec.deadline_us / 1000));
  }
  std::vector<SessionId> silent;
  for (const auto& [id, session] : sessions_) {
    if (session.lease_until_us <= now_us_) silent.push_back(id);
  }
  for (const SessionId id : silent) {
    CancelSession(id, "the router's lease on the request ended");
  }
}

}  // namespace baton::engine
