// RequestAdmission: whether the engine has room for a request, and the blocks or the place in the
// scheduler's queue that it takes. Engine thread.
#ifndef BATON_ENGINE_REQUEST_ADMISSION_H_
#define BATON_ENGINE_REQUEST_ADMISSION_H_

#include "src/engine/dest_transfers.h"
#include "src/engine/engine_state.h"
#include "src/engine/transfer_hub.h"

namespace baton::engine {

// See the file comment.
class RequestAdmission {
 public:
  // Both outlive it.
  RequestAdmission(EngineState* state, const TransferHub* hub) : state_(state), hub_(hub) {}

  // Takes what the request needs: a sequence that waits, or, for kDest, the blocks in `dest`. The
  // request passed CheckSpec and is not live yet. An error says why there is no room, or that this
  // worker does not do it; nothing is taken then.
  Status Admit(LiveRequest* request, DestStart* dest);

 private:
  // This worker can do this kind of request now.
  Status CheckKind(const RequestSpec& spec) const;
  Status ReserveBlocks(const LiveRequest& request, DestStart* dest);

  EngineState* const state_;
  const TransferHub* const hub_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_REQUEST_ADMISSION_H_
