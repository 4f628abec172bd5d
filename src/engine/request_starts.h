// RequestStarts: begins the requests that routers order. An order of a higher attempt may take over
// what a live one has computed: the KV then goes to another decode worker. Engine thread.
#ifndef BATON_ENGINE_REQUEST_STARTS_H_
#define BATON_ENGINE_REQUEST_STARTS_H_

#include <memory>

#include "src/engine/engine_state.h"
#include "src/engine/guide_waits.h"
#include "src/engine/request_admission.h"
#include "src/engine/request_ends.h"
#include "src/engine/request_life.h"
#include "src/engine/session_leases.h"
#include "src/engine/transfer_hub.h"

namespace baton::engine {

// The parts that starts are made with; all outlive them.
struct StartParts {
  EngineState* state = nullptr;
  RequestLife* life = nullptr;
  GuideWaits* guides = nullptr;
  TransferHub* hub = nullptr;
  SessionLeases* leases = nullptr;
  RequestEnds* ends = nullptr;
};

// See the file comment.
class RequestStarts {
 public:
  explicit RequestStarts(const StartParts& parts);

  // Begins the request, or tells its router why not. A repeated or older attempt is void.
  void Start(std::unique_ptr<RequestSpec> spec);
  // A mask is there that the request waits for.
  void OnMaskReady(const RequestUid& uid);

 private:
  // Sends the same prompt to another decode worker and keeps what is computed. False when nothing
  // is kept.
  bool Retarget(LiveRequest* old, const RequestSpec& spec);
  // A request that decodes here goes on at another worker: hands off the KV of `spec.tokens`. False
  // when this worker has not all of it.
  bool HandOver(LiveRequest* old, const RequestSpec& spec);
  // The sequence of a request that such an order may take over; null: the order may not.
  const scheduler::Sequence* SequenceToHandOver(const LiveRequest& old,
                                                const RequestSpec& spec) const;
  void TakeNewAttempt(LiveRequest* request, const RequestSpec& spec);
  // A new request, of no attempt that is live.
  void Begin(RequestSpec spec);
  void AwaitMasksOrEnd(LiveRequest* request);
  void RenewLease(SessionId session);

  EngineState* const state_;
  RequestLife* const life_;
  GuideWaits* const guides_;
  TransferHub* const hub_;
  SessionLeases* const leases_;
  RequestEnds* const ends_;
  RequestAdmission admission_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_REQUEST_STARTS_H_
