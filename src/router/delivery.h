// Delivery: from the tokens of workers to the answer of a client: merges the streams of the
// workers, turns tokens into text, and pauses clients that read slowly. The router's thread.
//
// Invariants
//  1. No token of a first placement reaches a sink before the decode worker has reserved blocks or
//     all tokens are known, so that a refusal gets a proper status. No token reaches a client
//     twice.
//  2. One request has at most limits::kMaxPendingTokens undelivered tokens.
#ifndef BATON_ROUTER_DELIVERY_H_
#define BATON_ROUTER_DELIVERY_H_

#include <cstdint>

#include "src/router/request_table.h"
#include "src/router/router_state.h"
#include "src/router/waiting_requests.h"
#include "src/router/worker_messages.h"

namespace baton::router {

// See the file comment. Every function may end the request.
class Delivery {
 public:
  // All outlive the delivery.
  Delivery(RouterState* state, WaitingRequests* waiting, RequestTable* table)
      : state_(state), waiting_(waiting), table_(table) {}

  // A token of the current placement.
  void TakeToken(RouterRequest& request, WorkerToken token, int64_t now_us);
  // The log-probability of a token of the prompt, from any placement of the request: what is known
  // is not taken twice, so the attempt does not matter. The rows of one worker have no gap.
  void TakePromptToken(RouterRequest& request, const WorkerToken& token, int64_t now_us);
  // How far a worker is with the prompt. The client is told when it is further than before.
  void TakeProgress(RouterRequest& request, const WorkerToken& token, int64_t now_us);
  // The decode worker has room for it: a step of its model's queue. Nothing is delivered yet.
  void Accept(RouterRequest& request, int64_t now_us);
  // Gives the client what is in order.
  void Deliver(RouterRequest& request);
  // When every token is known, delivers them and says so: what failed of the placement had nothing
  // left to give.
  bool DeliverIfComplete(RouterRequest& request);

 private:
  void TellPromptEnd(RouterRequest& request);
  bool DeliverNext(RouterRequest& request, uint32_t choice);

  RouterState* const state_;
  WaitingRequests* const waiting_;
  RequestTable* const table_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_DELIVERY_H_
