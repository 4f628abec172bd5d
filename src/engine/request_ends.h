// RequestEnds: ends requests before their work is done: cancelled by a router, after their
// deadline, after the silence of their router, or with a fault. Engine thread.
#ifndef BATON_ENGINE_REQUEST_ENDS_H_
#define BATON_ENGINE_REQUEST_ENDS_H_

#include <cstdint>
#include <string_view>

#include "src/engine/engine_state.h"
#include "src/engine/request_life.h"
#include "src/engine/session_leases.h"
#include "src/engine/transfer_hub.h"

namespace baton::engine {

// See the file comment.
class RequestEnds {
 public:
  // All outlive it.
  RequestEnds(EngineState* state, RequestLife* life, TransferHub* hub, SessionLeases* leases)
      : state_(state), life_(life), hub_(hub), leases_(leases) {}

  // Lets go of everything that the request holds, then ends it.
  void Abandon(LiveRequest* request, RequestState state, const Status& status);
  void AbandonAll(const Status& status);
  // Drops this and older attempts of a request.
  void Cancel(const RequestKey& key);
  void CancelSession(SessionId session, std::string_view why);
  // Enforces deadlines and leases: no request outlives either by more than a turn.
  void Expire();
  // When Expire has something to do.
  int64_t NextDueUs() const;

 private:
  EngineState* const state_;
  RequestLife* const life_;
  TransferHub* const hub_;
  SessionLeases* const leases_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_REQUEST_ENDS_H_
