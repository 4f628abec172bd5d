#include "src/engine/request_starts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/engine_checks.h"

namespace baton::engine {

using kv::ChainLinks;
using kv::Seal;
using scheduler::Sequence;

RequestStarts::RequestStarts(const StartParts& parts)
    : state_(parts.state),
      life_(parts.life),
      guides_(parts.guides),
      hub_(parts.hub),
      leases_(parts.leases),
      ends_(parts.ends),
      admission_(parts.state, parts.hub) {}

void RequestStarts::Start(std::unique_ptr<RequestSpec> spec) {
  LiveRequest* const old = state_->requests.Find(spec->key.uid);
  if (old != nullptr) {
    if (old->spec.key.attempt == spec->key.attempt) {
      ++state_->numbers.stale_events;  // a repetition; the first one is being served
      return;
    }
    if (old->spec.key.attempt > spec->key.attempt) {
      ++state_->numbers.stale_events;
      return life_->Reject(
          *spec, Aborted("attempt {} is older than {}", spec->key.attempt, old->spec.key.attempt));
    }
  }
  // A message that is no request changes nothing. A running attempt of its request goes on too.
  if (const Status status = CheckSpec(*spec, state_->config, state_->parts); !status.ok()) {
    return life_->Reject(*spec, status);
  }
  if (old != nullptr) {
    if (Retarget(old, *spec) || HandOver(old, *spec)) return;
    ends_->Abandon(old, RequestState::kCancelled,
                   Cancelled("attempt {} took its place", spec->key.attempt));
  }
  Begin(std::move(*spec));
}

void RequestStarts::Begin(RequestSpec spec) {
  // Memory for penalties is taken for as many tokens as can ever be output.
  const uint32_t max_context = state_->config.max_context;
  spec.sampling.max_tokens =
      std::min(spec.sampling.max_tokens, max_context - spec.num_prompt_tokens);
  const auto num_tokens = static_cast<uint64_t>(spec.tokens.size());
  auto owned = std::make_unique<LiveRequest>(std::move(spec), state_->now_us);
  owned->limits = {.max_tokens = owned->spec.sampling.max_tokens, .max_context = max_context};
  if (const Status status = guides_->Follow(owned.get()); !status.ok()) {
    return life_->Reject(owned->spec, status);
  }
  DestStart dest;
  if (const Status status = admission_.Admit(owned.get(), &dest); !status.ok()) {
    return life_->Reject(owned->spec, status);
  }

  LiveRequest* const request = state_->requests.Add(std::move(owned));
  const RequestKey key = request->spec.key;
  RenewLease(request->spec.session);
  state_->numbers.prompt_tokens += num_tokens;
  life_->NoteAccepted();
  if (request->prompt_sequence != SequenceId()) {
    state_->requests.AddSequence(request->prompt_sequence, {request, 0, /*is_prompt=*/true});
  }
  if (request->spec.kind == RequestKind::kSource) {
    request->source =
        hub_->sources().Start(request->spec, request->prompt_sequence, state_->now_us);
  } else if (request->spec.kind == RequestKind::kDest) {
    const uint64_t num_crossing = dest.num_data - dest.num_held;
    life_->ReachReserved(request, num_crossing * state_->kv_view.layout->BlockBytes());
    // Last: when the receive cannot be opened the request ends here.
    hub_->dests().Start(request->spec, std::move(dest), state_->now_us);
  }
  if (LiveRequest* const started = state_->FindLive(key)) AwaitMasksOrEnd(started);
}

void RequestStarts::OnMaskReady(const RequestUid& uid) {
  if (LiveRequest* const request = state_->requests.Find(uid)) AwaitMasksOrEnd(request);
}

void RequestStarts::AwaitMasksOrEnd(LiveRequest* request) {
  const Status status = guides_->Await(request);
  if (status.ok()) return;
  ends_->Abandon(request, RequestState::kFailed, GuideFailure(status));
}

void RequestStarts::RenewLease(SessionId session) {
  leases_->Begin(session, state_->now_us + state_->config.request_lease_us);
}

// ---- Orders that go on with what is computed.

bool RequestStarts::Retarget(LiveRequest* old, const RequestSpec& spec) {
  RequestSpec& held = old->spec;
  const bool same_prompt = held.kind == RequestKind::kSource && spec.kind == RequestKind::kSource &&
                           held.tokens == spec.tokens &&
                           held.num_prompt_tokens == spec.num_prompt_tokens &&
                           held.num_choices == spec.num_choices && held.tenant == spec.tenant;
  if (!same_prompt || old->source == nullptr || !old->source->machine.CanRetarget()) return false;
  // That attempt was cancelled before a lower one was given, and the transport still reads for it.
  if (hub_->sources().Holds(spec.key)) return false;
  TakeNewAttempt(old, spec);
  // The router's next placement hears the same as of a new one.
  if (old->state >= RequestState::kPrefillStarted) {
    life_->TellRetargeted(*old, state_->scheduler.Find(old->source->sequence)->num_hit_tokens);
  }
  hub_->sources().Retarget(old->source, spec, state_->now_us);
  return true;
}

void RequestStarts::TakeNewAttempt(LiveRequest* request, const RequestSpec& spec) {
  request->spec.key = spec.key;
  request->spec.session = spec.session;
  request->spec.kind = spec.kind;
  request->spec.peer = spec.peer;
  request->deadline_us = state_->now_us + spec.deadline_us;
  RenewLease(spec.session);
}

const Sequence* RequestStarts::SequenceToHandOver(const LiveRequest& old,
                                                  const RequestSpec& spec) const {
  const bool may = spec.kind == RequestKind::kSource && old.spec.kind != RequestKind::kSource &&
                   old.spec.num_choices == 1 && spec.num_choices == 1 &&
                   old.spec.num_prompt_tokens == spec.num_prompt_tokens &&
                   old.spec.tenant == spec.tenant && state_->parts.transport != nullptr &&
                   hub_->CanOpen().ok() && !hub_->sources().Holds(spec.key);
  const Sequence* const sequence =
      may ? state_->scheduler.Find(old.choices.front().sequence) : nullptr;
  if (sequence == nullptr) return nullptr;
  // The KV of its last token is not computed; the router may know fewer tokens than were sampled.
  const std::vector<TokenId>& tokens = sequence->spec.tokens;
  const auto num_tokens = static_cast<uint32_t>(spec.tokens.size());
  // A fixed state is that of all computed tokens, and of no fewer.
  const bool has_state =
      state_->kv_view.layout->state_blocks == 0 || num_tokens == sequence->num_computed;
  // The other worker asks for no block that none of its rows sees. Those after fewer tokens see
  // blocks that may be gone here; the prompt is then computed anew.
  const bool has_window =
      sequence->table.num_released() <= state_->scheduler.config().NumUnseenBlocks(num_tokens);
  const bool has_kv = has_state && has_window && num_tokens < tokens.size() &&
                      num_tokens <= sequence->num_computed &&
                      std::equal(spec.tokens.begin(), spec.tokens.end(), tokens.begin());
  return has_kv ? sequence : nullptr;
}

bool RequestStarts::HandOver(LiveRequest* old, const RequestSpec& spec) {
  const Sequence* const sequence = SequenceToHandOver(*old, spec);
  if (sequence == nullptr || !state_->scheduler.Hold(sequence->id())) return false;
  TakeNewAttempt(old, spec);
  old->spec.tokens = spec.tokens;
  old->state = RequestState::kPrefillDone;
  life_->TellRetargeted(*old, sequence->num_hit_tokens);
  state_->requests.EraseSequence(std::exchange(old->choices.front().sequence, SequenceId()));

  const size_t num_tokens = spec.tokens.size();
  Seal seal;
  seal.first_tokens.push_back({.choice = 0, .token = sequence->spec.tokens[num_tokens]});
  seal.next_output_index = old->num_replayed() + 1;
  seal.num_tokens = static_cast<uint32_t>(num_tokens);
  seal.num_cached = sequence->num_hit_tokens;
  seal.chain =
      ChainLinks(sequence->spec.chain_key, state_->kv_view.layout->block_size, spec.tokens);
  // Slots of the last block beyond the tokens hold KV of this request, which the decode worker
  // writes anew.
  old->source = hub_->sources().Start(old->spec, sequence->id(), state_->now_us);
  hub_->sources().SetBlocks(old->source, *sequence);
  hub_->sources().SealInTurns(old->source, std::move(seal), state_->now_us);
  return true;
}

}  // namespace baton::engine
