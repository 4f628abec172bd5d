#include "src/engine/transfer_news.h"

#include <algorithm>

#include "src/base/limits.h"
#include "src/base/log.h"

namespace baton::engine {

using device::StageRange;
using device::StepStage;
using kv::BlockHandle;
using kv::FirstToken;
using kv::HandoffOutcome;
using kv::HandoffOutcomeName;
using kv::Seal;
using limits::kMaxChoices;
using limits::kMaxTopLogprobs;
using model::SampledToken;

namespace {

// The router may hear of this side's end before the peer's own report. This side then says that the
// peer gave up, and the router blames no link.
FailedPart FailedPartHere(HandoffOutcome outcome) {
  return outcome == HandoffOutcome::kPeerGaveUp ? FailedPart::kPeer : FailedPart::kHandOff;
}

}  // namespace

TransferNews::TransferNews(EngineState* state, RequestLife* life, GuideWaits* guides,
                           ChoiceTokens* tokens)
    : state_(state), life_(life), guides_(guides), tokens_(tokens) {
  first_tokens_.reserve(kMaxChoices);
}

void TransferNews::OnSourceGranted(const RequestKey& key) {
  if (LiveRequest* const request = state_->FindLive(key)) life_->NoteGranted(request);
}

void TransferNews::OnSourceStranded(const RequestKey& key, HandoffOutcome outcome,
                                    const Status& status) {
  if (const LiveRequest* const request = state_->FindLive(key)) {
    life_->TellStranded(*request, status, FailedPartHere(outcome));
  }
}

void TransferNews::OnSourceDone(const RequestKey& key) {
  ++state_->numbers.outcomes[static_cast<size_t>(HandoffOutcome::kApplied)];
  if (LiveRequest* const request = state_->FindLive(key)) {
    request->source = nullptr;
    life_->End(request, RequestState::kHandedOff, OkStatus());
  }
}

void TransferNews::OnTransferFailed(const RequestKey& key, HandoffOutcome outcome,
                                    const Status& status) {
  ++state_->numbers.outcomes[static_cast<size_t>(outcome)];
  BATON_LOG_WARN("request {} attempt {}: hand-off {}: {}", key.uid, key.attempt,
                 HandoffOutcomeName(outcome), status.ToString());
  if (LiveRequest* const request = state_->FindLive(key)) {
    request->source = nullptr;
    life_->End(request, RequestState::kFailed, status, FailedPartHere(outcome));
  }
}

void TransferNews::OnDestProgress(const RequestKey& key, uint64_t kv_bytes) {
  if (const LiveRequest* const request = state_->FindLive(key)) {
    life_->TellReceived(*request, kv_bytes);
  }
}

void TransferNews::OnDestVerified(const RequestKey& key, const TransferResult& result) {
  ++state_->numbers.outcomes[static_cast<size_t>(HandoffOutcome::kApplied)];
  state_->numbers.kv_bytes_received += result.kv_bytes;
  if (LiveRequest* const request = state_->FindLive(key)) life_->ReachVerified(request, result);
}

void TransferNews::OnDestBound(const RequestKey& key, const Seal& seal,
                               std::span<const BlockHandle> blocks) {
  const StageRange adopt(state_->parts.stages, StepStage::kAdopt);
  LiveRequest* const request = state_->FindLive(key);
  if (request == nullptr) {
    // Cancelled in the same turn; nobody runs it.
    for (const BlockHandle block : blocks) state_->pool.DropRequestRef(block);
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
  tokens_->Bind(request, first_tokens_, blocks);
  // A guide that cannot go on ends the request when the next token is sampled.
  (void)guides_->Await(request);
  if (request->num_open_choices == 0) {
    life_->End(request, RequestState::kFinished, OkStatus());
  }
}

}  // namespace baton::engine
