// How requests with a grammar wait for their masks, while other requests go on.
#include <algorithm>
#include <string>

#include "src/base/clock.h"
#include "src/engine/engine_core.h"

namespace baton::engine {

Status EngineCore::FollowGrammar(LiveRequest* request) {
  if (!request->spec.sampling.grammar) return OkStatus();
  const auto on_ready = [inbox = inbox_, uid = request->spec.key.uid] {
    inbox->Post(MaskReady{uid});
  };
  return request->FollowGrammar(parts_.guides, on_ready);
}

bool EngineCore::HasMask(AnswerGuide* guide) {
  const int64_t began_us = SystemClock().NowUs();
  const bool is_there = guide->IsReady(std::max<int64_t>(guide_wait_us_, 0));
  guide_wait_us_ -= SystemClock().NowUs() - began_us;
  return is_there;
}

Status EngineCore::AwaitMasks(LiveRequest* request) {
  if (!request->spec.sampling.grammar) return OkStatus();
  bool all_there = true;
  for (const Choice& choice : request->choices) {
    if (choice.guide == nullptr || choice.finished) continue;
    const bool is_there = HasMask(choice.guide.get());
    if (is_there) BATON_RETURN_IF_ERROR(choice.guide->Mask().status());
    if (choice.sequence != SequenceId()) scheduler_.SetAwaiting(choice.sequence, !is_there);
    all_there = all_there && is_there;
  }
  // A prompt gives the first tokens of all its choices.
  if (request->prompt_sequence != SequenceId()) {
    scheduler_.SetAwaiting(request->prompt_sequence, !all_there);
  }
  return OkStatus();
}

void EngineCore::AwaitMasksOrEnd(LiveRequest* request) {
  const Status status = AwaitMasks(request);
  if (status.ok()) return;
  Abandon(request, RequestState::kFailed, FailedPrecondition("{}", std::string(status.message())));
}

}  // namespace baton::engine
