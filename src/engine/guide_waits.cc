#include "src/engine/guide_waits.h"

#include <algorithm>

#include "src/base/clock.h"

namespace baton::engine {

Status GuideWaits::Follow(LiveRequest* request) const {
  if (!request->spec.sampling.grammar) return OkStatus();
  const auto on_ready = [inbox = inbox_, uid = request->spec.key.uid] {
    inbox->Post(MaskReady{uid});
  };
  return request->FollowGrammar(state_->parts.guides, on_ready);
}

bool GuideWaits::HasMask(AnswerGuide* guide) {
  const int64_t began_us = SystemClock().NowUs();
  const bool is_there = guide->IsReady(std::max<int64_t>(wait_us_, 0));
  wait_us_ -= SystemClock().NowUs() - began_us;
  return is_there;
}

Status GuideWaits::Await(LiveRequest* request) {
  if (!request->spec.sampling.grammar) return OkStatus();
  bool all_there = true;
  for (const Choice& choice : request->choices) {
    if (choice.guide == nullptr || choice.finished) continue;
    const bool is_there = HasMask(choice.guide.get());
    if (is_there) BATON_RETURN_IF_ERROR(choice.guide->Mask().status());
    if (choice.sequence != SequenceId()) {
      state_->scheduler.SetAwaiting(choice.sequence, !is_there);
    }
    all_there = all_there && is_there;
  }
  // A prompt gives the first tokens of all its choices.
  if (request->prompt_sequence != SequenceId()) {
    state_->scheduler.SetAwaiting(request->prompt_sequence, !all_there);
  }
  return OkStatus();
}

}  // namespace baton::engine
