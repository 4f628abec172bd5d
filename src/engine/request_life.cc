#include "src/engine/request_life.h"

#include "src/base/limits.h"

namespace baton::engine {

using kv::TransportKind;
using limits::kRetryHintMs;

namespace {

bool IsForLoad(const Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

}  // namespace

void RequestLife::Reject(const RequestSpec& spec, const Status& status) {
  Count(RequestState::kRejected);
  state_->outbox.Add({.session = spec.session,
                      .key = spec.key,
                      .state = RequestState::kRejected,
                      .status = status,
                      .retry_after_ms = IsForLoad(status) ? kRetryHintMs : 0});
}

void RequestLife::Reach(LiveRequest* request, RequestState state, uint32_t cached_tokens) {
  request->state = state;
  Count(state);
  state_->outbox.Add({.session = request->spec.session,
                      .key = request->spec.key,
                      .state = state,
                      .cached_tokens = cached_tokens});
}

void RequestLife::ReachReserved(LiveRequest* request, uint64_t kv_total_bytes) {
  request->state = RequestState::kReserved;
  Count(request->state);
  state_->outbox.Add({.session = request->spec.session,
                      .key = request->spec.key,
                      .state = request->state,
                      .kv_total_bytes = kv_total_bytes});
}

void RequestLife::ReachVerified(LiveRequest* request, const TransferResult& result) {
  request->state = RequestState::kVerified;
  Count(RequestState::kVerified);
  const auto peer = state_->peers.find(request->spec.peer);
  state_->outbox.Add(
      {.session = request->spec.session,
       .key = request->spec.key,
       .state = RequestState::kVerified,
       .cached_tokens = result.num_cached,
       .kv_bytes = result.kv_bytes,
       .transport = peer == state_->peers.end() ? TransportKind::kAuto : peer->second,
       .transfer_us = result.transfer_us});
}

void RequestLife::NoteGranted(LiveRequest* request) {
  const RequestState reached = request->state;
  Reach(request, RequestState::kGranted);
  request->state = reached;
}

void RequestLife::TellReceived(const LiveRequest& request, uint64_t kv_bytes) {
  state_->outbox.Add({.session = request.spec.session,
                      .key = request.spec.key,
                      .state = RequestState::kReserved,
                      .kv_bytes = kv_bytes});
}

void RequestLife::TellStranded(const LiveRequest& request, const Status& status,
                               FailedPart failed_part) {
  Count(RequestState::kStranded);
  state_->outbox.Add({.session = request.spec.session,
                      .key = request.spec.key,
                      .state = RequestState::kStranded,
                      .status = status,
                      .failed_part = failed_part});
}

void RequestLife::TellRetargeted(const LiveRequest& request, uint32_t num_hit_tokens) {
  const auto report = [&](RequestState state) {
    Count(state);
    state_->outbox.Add({.session = request.spec.session,
                        .key = request.spec.key,
                        .state = state,
                        .cached_tokens = num_hit_tokens,
                        .retargeted = true});
  };
  report(RequestState::kPrefillStarted);
  if (request.state >= RequestState::kPrefillDone) report(RequestState::kPrefillDone);
}

void RequestLife::End(LiveRequest* request, RequestState state, const Status& status,
                      FailedPart failed_part) {
  // A source's prompt is removed when the hand-off lets go of its blocks.
  const bool owns_prompt =
      request->spec.kind == RequestKind::kLocal || request->spec.kind == RequestKind::kEmbed;
  if (owns_prompt && request->prompt_sequence != SequenceId()) {
    state_->scheduler.Remove(request->prompt_sequence);
  }
  for (const Choice& choice : request->choices) {
    if (choice.sequence != SequenceId()) state_->scheduler.Remove(choice.sequence);
  }
  Count(state);
  state_->outbox.Add(
      {.session = request->spec.session,
       .key = request->spec.key,
       .state = state,
       .status = status,
       .failed_part = state == RequestState::kFailed ? failed_part : FailedPart::kNotTold});
  state_->requests.Erase(request);
}

}  // namespace baton::engine
