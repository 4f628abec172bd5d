// How requests start and end.
#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/engine/engine_core.h"

namespace baton::engine {

using device::StageRange;
using device::StepStage;
using kv::BlockHandle;
using kv::BlockState;
using kv::ChainLinks;
using kv::DeriveChainKey;
using kv::FirstToken;
using kv::HandoffOutcome;
using kv::HandoffOutcomeName;
using kv::Seal;
using kv::TransportKind;
using limits::kMaxChoices;
using limits::kMaxDeadlineUs;
using limits::kMaxStopTokens;
using limits::kMaxTopLogprobs;
using limits::kRetryHintMs;
using model::GivesVector;
using model::Pooling;
using model::PoolingName;
using model::SampledToken;
using scheduler::SchedulerRole;
using scheduler::Sequence;
using scheduler::SequenceSpec;
using wire::ValidateSamplingParams;

namespace {

bool IsForLoad(const Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

// The router may hear of this side's end before the peer's own report. This side then says that the
// peer gave up, and the router blames no link.
FailedPart FailedPartHere(HandoffOutcome outcome) {
  return outcome == HandoffOutcome::kPeerGaveUp ? FailedPart::kPeer : FailedPart::kHandOff;
}

}  // namespace

LiveRequest* EngineCore::FindLive(const RequestKey& key) const {
  LiveRequest* const request = requests_.Find(key.uid);
  return request != nullptr && request->spec.key == key ? request : nullptr;
}

// ---- Starts.

void EngineCore::StartRequestNow(std::unique_ptr<RequestSpec> spec) {
  if (LiveRequest* const old = requests_.Find(spec->key.uid)) {
    if (old->spec.key.attempt == spec->key.attempt) {
      ++numbers_.stale_events;  // a repetition; the first one is being served
      return;
    }
    if (old->spec.key.attempt > spec->key.attempt) {
      ++numbers_.stale_events;
      return Reject(
          *spec, Aborted("attempt {} is older than {}", spec->key.attempt, old->spec.key.attempt));
    }
  }
  // A message that is no request changes nothing. A running attempt of its request goes on too.
  if (const Status status = CheckSpec(*spec); !status.ok()) return Reject(*spec, status);
  if (LiveRequest* const old = requests_.Find(spec->key.uid)) {
    if (Retarget(old, *spec) || HandOver(old, *spec)) return;
    Abandon(old, RequestState::kCancelled,
            Cancelled("attempt {} took its place", spec->key.attempt));
  }
  // Memory for penalties is taken for as many tokens as can ever be output.
  spec->sampling.max_tokens =
      std::min(spec->sampling.max_tokens, config_.max_context - spec->num_prompt_tokens);
  const auto num_tokens = static_cast<uint64_t>(spec->tokens.size());
  auto owned = std::make_unique<LiveRequest>(std::move(*spec), now_us_);
  owned->limits = {.max_tokens = owned->spec.sampling.max_tokens,
                   .max_context = config_.max_context};
  if (const Status status = FollowGrammar(owned.get()); !status.ok()) {
    return Reject(owned->spec, status);
  }
  if (const Status status = Admit(owned.get()); !status.ok()) return Reject(owned->spec, status);

  LiveRequest* const request = requests_.Add(std::move(owned));
  const RequestKey key = request->spec.key;
  RenewLease(request->spec.session);
  numbers_.prompt_tokens += num_tokens;
  ++numbers_.states[static_cast<size_t>(RequestState::kAccepted)];
  if (request->prompt_sequence != SequenceId()) {
    requests_.AddSequence(request->prompt_sequence, {request, 0, /*is_prompt=*/true});
  }
  if (request->spec.kind == RequestKind::kSource) {
    request->source = sources_.Start(request->spec, request->prompt_sequence, now_us_);
  } else if (request->spec.kind == RequestKind::kDest) {
    ReportReserved(request);
    // Last: when the receive cannot be opened the request ends here.
    dests_.Start(request->spec, std::move(dest_start_), now_us_);
  }
  if (LiveRequest* const started = FindLive(key)) AwaitMasksOrEnd(started);
}

// A request is a word from the router: nobody renews while nothing runs, and the rest of an old
// lease may be short.
void EngineCore::RenewLease(SessionId session) {
  Session& lease = sessions_.try_emplace(session, Session{}).first->second;
  lease.lease_until_us = std::max(lease.lease_until_us, now_us_ + config_.request_lease_us);
}

bool EngineCore::Retarget(LiveRequest* old, const RequestSpec& spec) {
  RequestSpec& held = old->spec;
  const bool same_prompt = held.kind == RequestKind::kSource && spec.kind == RequestKind::kSource &&
                           held.tokens == spec.tokens &&
                           held.num_prompt_tokens == spec.num_prompt_tokens &&
                           held.num_choices == spec.num_choices && held.tenant == spec.tenant;
  if (!same_prompt || old->source == nullptr || !old->source->machine.CanRetarget()) return false;
  // That attempt was cancelled before a lower one was given, and the transport still reads for it.
  if (sources_.Holds(spec.key)) return false;
  TakeNewAttempt(old, spec);
  // The router's next placement hears the same as of a new one.
  if (old->state >= RequestState::kPrefillStarted) {
    ReportRetargeted(*old, scheduler_.Find(old->source->sequence)->num_hit_tokens);
  }
  sources_.Retarget(old->source, spec, now_us_);
  return true;
}

void EngineCore::TakeNewAttempt(LiveRequest* request, const RequestSpec& spec) {
  request->spec.key = spec.key;
  request->spec.session = spec.session;
  request->spec.kind = spec.kind;
  request->spec.peer = spec.peer;
  request->deadline_us = now_us_ + spec.deadline_us;
  RenewLease(spec.session);
}

bool EngineCore::HandOver(LiveRequest* old, const RequestSpec& spec) {
  const bool may = spec.kind == RequestKind::kSource && old->spec.kind != RequestKind::kSource &&
                   old->spec.num_choices == 1 && spec.num_choices == 1 &&
                   old->spec.num_prompt_tokens == spec.num_prompt_tokens &&
                   old->spec.tenant == spec.tenant && parts_.transport != nullptr &&
                   CanOpenTransfer().ok() && !sources_.Holds(spec.key);
  Choice& choice = old->choices.front();
  const Sequence* const sequence = may ? scheduler_.Find(choice.sequence) : nullptr;
  if (sequence == nullptr) return false;
  // The KV of its last token is not computed; the router may know fewer tokens than were sampled.
  const std::vector<TokenId>& tokens = sequence->spec.tokens;
  const size_t num_tokens = spec.tokens.size();
  // A fixed state is that of all computed tokens, and of no fewer.
  const bool has_state = kv_view_.layout->state_blocks == 0 || num_tokens == sequence->num_computed;
  const bool has_kv = has_state && num_tokens < tokens.size() &&
                      num_tokens <= sequence->num_computed &&
                      std::equal(spec.tokens.begin(), spec.tokens.end(), tokens.begin());
  if (!has_kv || !scheduler_.Hold(sequence->id())) return false;
  TakeNewAttempt(old, spec);
  old->spec.tokens = spec.tokens;
  old->state = RequestState::kPrefillDone;
  ReportRetargeted(*old, sequence->num_hit_tokens);
  requests_.EraseSequence(std::exchange(choice.sequence, SequenceId()));

  Seal seal;
  seal.first_tokens.push_back({.choice = 0, .token = tokens[num_tokens]});
  seal.next_output_index = old->num_replayed() + 1;
  seal.num_tokens = static_cast<uint32_t>(num_tokens);
  seal.num_cached = sequence->num_hit_tokens;
  seal.chain = ChainLinks(sequence->spec.chain_key, kv_view_.layout->block_size, spec.tokens);
  // Slots of the last block beyond the tokens hold KV of this request, which the decode worker
  // writes anew.
  old->source = sources_.Start(old->spec, sequence->id(), now_us_);
  sources_.SetBlocks(old->source, *sequence);
  sources_.SealInTurns(old->source, std::move(seal), now_us_);
  return true;
}

void EngineCore::ReportRetargeted(const LiveRequest& request, uint32_t num_hit_tokens) {
  const auto report = [&](RequestState state) {
    ++numbers_.states[static_cast<size_t>(state)];
    outbox_.Add({.session = request.spec.session,
                 .key = request.spec.key,
                 .state = state,
                 .cached_tokens = num_hit_tokens,
                 .retargeted = true});
  };
  report(RequestState::kPrefillStarted);
  if (request.state >= RequestState::kPrefillDone) report(RequestState::kPrefillDone);
}

Status EngineCore::CheckSpec(const RequestSpec& spec) const {
  const size_t num_tokens = spec.tokens.size();
  if (spec.key.attempt == 0) return InvalidArgument("attempt 0: placements count from 1");
  if (num_tokens == 0 || num_tokens >= config_.max_context) {
    return InvalidArgument("{} tokens are outside [1, {}]", num_tokens, config_.max_context - 1);
  }
  if (spec.num_prompt_tokens == 0 || spec.num_prompt_tokens > num_tokens) {
    return InvalidArgument("num_prompt_tokens {} is outside [1, {}]", spec.num_prompt_tokens,
                           num_tokens);
  }
  if (spec.num_choices == 0 || spec.num_choices > kMaxChoices) {
    return InvalidArgument("n {} is outside [1, {}]", spec.num_choices, kMaxChoices);
  }
  const size_t num_replayed = num_tokens - spec.num_prompt_tokens;
  if (num_replayed > 0 && spec.num_choices > 1) {
    return InvalidArgument("{} replayed tokens with n {}: they belong to one choice", num_replayed,
                           spec.num_choices);
  }
  if (spec.sampling.max_tokens <= num_replayed) {
    return InvalidArgument("max_tokens {} leaves nothing after {} replayed tokens",
                           spec.sampling.max_tokens, num_replayed);
  }
  const uint32_t vocab_size = parts_.model->vocab_size();
  for (const std::span<const TokenId> list :
       {std::span<const TokenId>(spec.tokens),
        std::span<const TokenId>(spec.sampling.stop_token_ids)}) {
    for (const TokenId token : list) {
      if (token < 0 || static_cast<uint32_t>(token) >= vocab_size) {
        return InvalidArgument("token {} is outside [0, {})", token, vocab_size);
      }
    }
  }
  if (spec.sampling.stop_token_ids.size() > kMaxStopTokens) {
    return InvalidArgument("{} stop tokens are more than {}", spec.sampling.stop_token_ids.size(),
                           kMaxStopTokens);
  }
  if (spec.deadline_us <= 0 || spec.deadline_us > kMaxDeadlineUs) {
    return InvalidArgument("a deadline of {} us is outside (0, {}]", spec.deadline_us,
                           kMaxDeadlineUs);
  }
  if (spec.kind == RequestKind::kEmbed) BATON_RETURN_IF_ERROR(CheckEmbeds(spec));
  if (spec.sampling.grammar && parts_.guides == nullptr) {
    return FailedPrecondition("this worker does not constrain answers");
  }
  return ValidateSamplingParams(spec.sampling, vocab_size);
}

Status EngineCore::CheckEmbeds(const RequestSpec& spec) const {
  if (parts_.model->hidden_size() == 0 || !GivesVector(config_.pooling)) {
    return FailedPrecondition("this worker's model gives no embeddings: its pooling is \"{}\"",
                              PoolingName(config_.pooling));
  }
  const size_t num_replayed = spec.tokens.size() - spec.num_prompt_tokens;
  if (spec.num_choices != 1 || num_replayed > 0 || spec.sampling.grammar) {
    return InvalidArgument(
        "an embedding has one choice, no replayed tokens and no grammar; n {}, replayed {}",
        spec.num_choices, num_replayed);
  }
  return OkStatus();
}

SequenceSpec EngineCore::MakeSequenceSpec(const LiveRequest& request, SequenceId id) const {
  const bool embeds = request.spec.kind == RequestKind::kEmbed;
  // A mean needs all hidden states, which come with logits.
  const bool logs_prompt = embeds ? config_.pooling == Pooling::kMean
                                  : request.spec.sampling.prompt_logprobs.has_value() &&
                                        request.spec.kind != RequestKind::kDest;
  return {.id = id,
          .uid = request.spec.key.uid,
          .attempt = request.spec.key.attempt,
          .choice = 0,
          .num_choices = request.spec.num_choices,
          .tokens = request.spec.tokens,
          .num_prompt_tokens = request.spec.num_prompt_tokens,
          .limits = request.limits,
          .chain_key = DeriveChainKey(config_.cluster_secret, request.spec.tenant),
          .is_cacheable = request.spec.is_cacheable,
          .priority = request.spec.priority,
          .logs_prompt = logs_prompt,
          .embeds = embeds};
}

Status EngineCore::Admit(LiveRequest* request) {
  const RequestSpec& spec = request->spec;
  if (draining_) return Unavailable("this worker is draining");
  if (requests_.size() >= config_.max_requests) {
    return ResourceExhausted("{} requests are live, the limit is {}", requests_.size(),
                             config_.max_requests);
  }
  const bool prefills = config_.scheduler.role == SchedulerRole::kPrefill;
  if (!prefills && spec.kind == RequestKind::kSource) {
    return Aborted("this decode worker does not hold the KV of {} tokens of the request",
                   spec.tokens.size());
  }
  const bool embeds = spec.kind == RequestKind::kEmbed;
  if (!embeds && prefills != (spec.kind == RequestKind::kSource)) {
    return FailedPrecondition("a {} worker does not take this kind of request",
                              prefills ? "prefill" : "decode");
  }
  if (!embeds && spec.kind != RequestKind::kLocal) {
    if (parts_.transport == nullptr) return FailedPrecondition("this worker has no KV transport");
    BATON_RETURN_IF_ERROR(CanOpenTransfer());
  }
  if (spec.kind == RequestKind::kDest) return AdmitDest(request);
  // This attempt was given before and cancelled, and the cancelled one still waits for the
  // transport.
  if (spec.kind == RequestKind::kSource && sources_.Holds(spec.key)) {
    return Aborted("attempt {} was given before and its hand-off is not over", spec.key.attempt);
  }
  const SequenceId id(++last_sequence_id_);
  BATON_RETURN_IF_ERROR(scheduler_.AddWaiting(MakeSequenceSpec(*request, id), now_us_));
  request->prompt_sequence = id;
  if (embeds) request->pool.emplace(config_.pooling, parts_.model->hidden_size());
  return OkStatus();
}

Status EngineCore::CanOpenTransfer() const {
  const uint32_t num_open = sources_.num_open() + dests_.num_open();
  if (num_open < config_.max_transfers) return OkStatus();
  return ResourceExhausted("{} hand-offs are open, the limit is {}", num_open,
                           config_.max_transfers);
}

Status EngineCore::AdmitDest(LiveRequest* request) {
  const RequestSpec& spec = request->spec;
  const auto num_tokens = static_cast<uint32_t>(spec.tokens.size());
  const SequenceSpec sequence = MakeSequenceSpec(*request, SequenceId());
  DestStart start;
  start.num_state = kv_view_.layout->state_blocks;
  start.num_data = kv_view_.layout->BlocksOfSequence(num_tokens);
  start.chain = ChainLinks(sequence.chain_key, kv_view_.layout->block_size, spec.tokens);
  if (prefix_index_) {
    // At least the block of the last token crosses, and with it the seal. So does a fixed state:
    // that of the whole prompt is nowhere but at the prefill worker.
    const uint32_t most = kv_view_.layout->BlocksFor(num_tokens) - 1;
    start.num_held = prefix_index_->Acquire({start.chain, spec.tokens}, most, BlockState::kReserved,
                                            spec.key.uid, &start.blocks);
  }
  const uint32_t num_new =
      scheduler_.BlocksToReserve(num_tokens, spec.num_choices) - start.num_held;
  Status status = scheduler_.CanReserve(sequence, start.num_held);
  if (status.ok() && !pool_.Allocate(num_new, BlockState::kReserved, spec.key.uid, &start.blocks)) {
    status = ResourceExhausted("the request needs {} KV blocks, {} are free", num_new,
                               pool_.num_available());
  }
  if (!status.ok()) {
    for (const BlockHandle block : start.blocks) pool_.DropRequestRef(block);
    return status;
  }
  if (prefix_index_) {
    prefix_index_->CountQuery(num_tokens, start.num_held * kv_view_.layout->block_size);
  }
  dest_start_ = std::move(start);
  return OkStatus();
}

void EngineCore::Reject(const RequestSpec& spec, const Status& status) {
  ++numbers_.states[static_cast<size_t>(RequestState::kRejected)];
  outbox_.Add({.session = spec.session,
               .key = spec.key,
               .state = RequestState::kRejected,
               .status = status,
               .retry_after_ms = IsForLoad(status) ? kRetryHintMs : 0});
}

// ---- Ends.

void EngineCore::SetState(LiveRequest* request, RequestState state, uint32_t cached_tokens) {
  request->state = state;
  ++numbers_.states[static_cast<size_t>(state)];
  outbox_.Add({.session = request->spec.session,
               .key = request->spec.key,
               .state = state,
               .cached_tokens = cached_tokens});
}

void EngineCore::ReportReserved(LiveRequest* request) {
  request->state = RequestState::kReserved;
  ++numbers_.states[static_cast<size_t>(request->state)];
  const uint64_t num_crossing = dest_start_.num_data - dest_start_.num_held;
  outbox_.Add({.session = request->spec.session,
               .key = request->spec.key,
               .state = request->state,
               .kv_total_bytes = num_crossing * kv_view_.layout->BlockBytes()});
}

void EngineCore::Abandon(LiveRequest* request, RequestState state, const Status& status) {
  const RequestKey key = request->spec.key;
  const std::string reason = status.ToString();
  if (request->spec.kind == RequestKind::kSource) sources_.Cancel(key, reason, now_us_);
  if (request->spec.kind == RequestKind::kDest) dests_.Cancel(key, reason, now_us_);
  End(request, state, status, FailedPart::kComputation);
}

void EngineCore::End(LiveRequest* request, RequestState state, const Status& status,
                     FailedPart failed_part) {
  // A source's prompt is removed when the hand-off lets go of its blocks.
  const bool owns_prompt =
      request->spec.kind == RequestKind::kLocal || request->spec.kind == RequestKind::kEmbed;
  if (owns_prompt && request->prompt_sequence != SequenceId()) {
    scheduler_.Remove(request->prompt_sequence);
  }
  for (const Choice& choice : request->choices) {
    if (choice.sequence != SequenceId()) scheduler_.Remove(choice.sequence);
  }
  ++numbers_.states[static_cast<size_t>(state)];
  outbox_.Add({.session = request->spec.session,
               .key = request->spec.key,
               .state = state,
               .status = status,
               .failed_part = state == RequestState::kFailed ? failed_part : FailedPart::kNotTold});
  requests_.Erase(request);
}

void EngineCore::CancelSession(SessionId session, std::string_view why) {
  std::vector<LiveRequest*> mine;
  requests_.ForEach([&](LiveRequest& request) {
    if (request.spec.session == session) mine.push_back(&request);
  });
  for (LiveRequest* request : mine)
    Abandon(request, RequestState::kCancelled, Cancelled("{}", why));
  sessions_.erase(session);
}

// ---- What the hand-offs tell.

void EngineCore::OnSourceGranted(const RequestKey& key) {
  LiveRequest* const request = FindLive(key);
  if (request == nullptr) return;
  const RequestState reached = request->state;
  SetState(request, RequestState::kGranted);
  request->state = reached;  // the prompt's progress, which a grant does not change
}

void EngineCore::OnSourceStranded(const RequestKey& key, HandoffOutcome outcome,
                                  const Status& status) {
  LiveRequest* const request = FindLive(key);
  if (request == nullptr) return;
  ++numbers_.states[static_cast<size_t>(RequestState::kStranded)];
  outbox_.Add({.session = request->spec.session,
               .key = key,
               .state = RequestState::kStranded,
               .status = status,
               .failed_part = FailedPartHere(outcome)});
}

void EngineCore::OnSourceDone(const RequestKey& key) {
  ++numbers_.outcomes[static_cast<size_t>(HandoffOutcome::kApplied)];
  if (LiveRequest* const request = FindLive(key)) {
    request->source = nullptr;
    End(request, RequestState::kHandedOff, OkStatus());
  }
}

void EngineCore::OnTransferFailed(const RequestKey& key, HandoffOutcome outcome,
                                  const Status& status) {
  ++numbers_.outcomes[static_cast<size_t>(outcome)];
  BATON_LOG_WARN("request {} attempt {}: hand-off {}: {}", key.uid, key.attempt,
                 HandoffOutcomeName(outcome), status.ToString());
  if (LiveRequest* const request = FindLive(key)) {
    request->source = nullptr;
    End(request, RequestState::kFailed, status, FailedPartHere(outcome));
  }
}

void EngineCore::OnDestProgress(const RequestKey& key, uint64_t kv_bytes) {
  const LiveRequest* const request = FindLive(key);
  if (request == nullptr) return;
  outbox_.Add({.session = request->spec.session,
               .key = key,
               .state = RequestState::kReserved,
               .kv_bytes = kv_bytes});
}

void EngineCore::OnDestVerified(const RequestKey& key, const TransferResult& result) {
  ++numbers_.outcomes[static_cast<size_t>(HandoffOutcome::kApplied)];
  numbers_.kv_bytes_received += result.kv_bytes;
  LiveRequest* const request = FindLive(key);
  if (request == nullptr) return;
  request->state = RequestState::kVerified;
  ++numbers_.states[static_cast<size_t>(RequestState::kVerified)];
  const auto peer = peers_.find(request->spec.peer);
  outbox_.Add({.session = request->spec.session,
               .key = key,
               .state = RequestState::kVerified,
               .cached_tokens = result.num_cached,
               .kv_bytes = result.kv_bytes,
               .transport = peer == peers_.end() ? TransportKind::kAuto : peer->second,
               .transfer_us = result.transfer_us});
}

void EngineCore::OnDestBound(const RequestKey& key, const Seal& seal,
                             std::span<const BlockHandle> blocks) {
  const StageRange adopt(parts_.stages, StepStage::kAdopt);
  LiveRequest* const request = FindLive(key);
  if (request == nullptr) {
    // Cancelled in the same turn; nobody runs it.
    for (const BlockHandle block : blocks) pool_.DropRequestRef(block);
    return;
  }
  first_tokens_.clear();
  for (const FirstToken& first : seal.first_tokens) {
    SampledToken& sampled = first_tokens_.emplace_back();
    sampled.token = first.token;
    sampled.has_logprob = first.logprob.has_value();
    sampled.logprob = first.logprob.value_or(0);
    sampled.num_top =
        static_cast<uint32_t>(std::min<size_t>(first.top_logprobs.size(), kMaxTopLogprobs));
    std::copy_n(first.top_logprobs.begin(), sampled.num_top, sampled.top.begin());
  }
  StartChoices(request);
  scheduler_.AddBound(MakeSequenceSpec(*request, SequenceId()), blocks, starts_, &copies_, now_us_);
  CopyBlocks();
  // A guide that cannot go on ends the request when the next token is sampled.
  (void)AwaitMasks(request);
  if (request->num_open_choices == 0) End(request, RequestState::kFinished, OkStatus());
}

}  // namespace baton::engine
