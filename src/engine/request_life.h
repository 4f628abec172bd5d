// RequestLife: moves requests from state to state, up to their end. Each state that a request
// reaches is counted and told to its router here, and only here. Engine thread.
#ifndef BATON_ENGINE_REQUEST_LIFE_H_
#define BATON_ENGINE_REQUEST_LIFE_H_

#include <cstdint>

#include "src/engine/engine_state.h"
#include "src/engine/transfer_parts.h"

namespace baton::engine {

// See the file comment.
class RequestLife {
 public:
  // `state` outlives it.
  explicit RequestLife(EngineState* state) : state_(state) {}

  // The order does not become a request.
  void Reject(const RequestSpec& spec, const Status& status);
  // The request is live. Its router hears of it with the next state.
  void NoteAccepted() { Count(RequestState::kAccepted); }
  // `cached_tokens` goes with prefill started.
  void Reach(LiveRequest* request, RequestState state, uint32_t cached_tokens = 0);
  // At a decode worker: the blocks are there, and so many bytes will cross.
  void ReachReserved(LiveRequest* request, uint64_t kv_total_bytes);
  void ReachVerified(LiveRequest* request, const TransferResult& result);
  // At a prefill worker. How far the prompt is does not change with a grant.
  void NoteGranted(LiveRequest* request);
  // So many bytes have arrived, of a slow transfer.
  void TellReceived(const LiveRequest& request, uint64_t kv_bytes);
  // The decode worker is lost; the request waits for a higher attempt.
  void TellStranded(const LiveRequest& request, const Status& status, FailedPart failed_part);
  // A higher attempt goes on with what is computed: its placement hears the same as of a new one.
  // `num_hit_tokens` came from the prefix cache when the prompt began.
  void TellRetargeted(const LiveRequest& request, uint32_t num_hit_tokens);

  // The request is over, and pointers to it become void. It holds nothing outside the scheduler,
  // which drops its sequences. `failed_part`: with kFailed, what failed.
  void End(LiveRequest* request, RequestState state, const Status& status,
           FailedPart failed_part = FailedPart::kNotTold);

 private:
  void Count(RequestState state) { ++state_->numbers.states[static_cast<size_t>(state)]; }

  EngineState* const state_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_REQUEST_LIFE_H_
