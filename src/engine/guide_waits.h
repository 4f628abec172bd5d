// GuideWaits: how requests with a grammar wait for their masks, while other requests go on. Nothing
// to do for requests without one. Engine thread.
#ifndef BATON_ENGINE_GUIDE_WAITS_H_
#define BATON_ENGINE_GUIDE_WAITS_H_

#include <cstdint>

#include "src/engine/engine_inbox.h"
#include "src/engine/engine_state.h"

namespace baton::engine {

// See the file comment.
class GuideWaits {
 public:
  // Both outlive it. `inbox` gets a MaskReady when a mask is there that a request waits for.
  GuideWaits(EngineState* state, EngineInbox* inbox) : state_(state), inbox_(inbox) {}

  // From now on all calls of HasMask together wait for so long at most.
  void Allow(int64_t wait_us) { wait_us_ = wait_us; }
  // Gives the request's choices their guides. ResourceExhausted: too many wait for theirs.
  Status Follow(LiveRequest* request) const;
  // The mask of the guide's next token is there.
  bool HasMask(AnswerGuide* guide);
  // Lets the scheduler sample the request's sequences as soon as their masks are there. The error
  // of a guide that cannot go on: the request must end.
  Status Await(LiveRequest* request);

 private:
  EngineState* const state_;
  EngineInbox* const inbox_;
  int64_t wait_us_ = 0;  // that this turn may still wait for masks
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_GUIDE_WAITS_H_
