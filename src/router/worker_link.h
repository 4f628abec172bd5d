// The seam between the router's core and the network: what the core can tell a worker. The gRPC
// implementation is grpc_worker_session.h and grpc_registry_service.h; tests and simulations bring
// their own.
//
// Invariants
//  1. Calls come from the router's thread, never block and never call back into the core.
//  2. Messages on one link arrive in order or the link breaks; a break is told to the core as an
//     event, also when the core itself closed the link (then the event is ignored).
//  3. Buffers are bounded: a link whose peer does not read breaks instead of growing.
#ifndef BATON_ROUTER_WORKER_LINK_H_
#define BATON_ROUTER_WORKER_LINK_H_

#include <memory>
#include <string_view>
#include <vector>

#include "src/router/worker_messages.h"

namespace baton::router {

// The session with one worker: orders for requests. Destroying it closes it, and with it every
// request on that worker.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;
  // `decode` will receive the KV.
  virtual void StartPrefill(const PlacementSpec& spec, const WorkerName& decode) = 0;
  // `prefill` will send the KV; null = the worker computes the prompt itself.
  virtual void StartDecode(const PlacementSpec& spec, const WorkerName* prefill) = 0;
  // The worker, of either role, computes the prompt's vector alone.
  virtual void StartEmbedding(const PlacementSpec& spec) = 0;
  // Cancels this and every older attempt.
  virtual void Cancel(RequestUid uid, uint32_t attempt) = 0;
  // Renews the leases of all requests of this session.
  virtual void Renew(uint32_t lease_ms) = 0;
};

// The router's half of a worker's lease stream. Destroying it ends the stream.
class LeaseStream {
 public:
  virtual ~LeaseStream() = default;
  // Accepts the worker.
  virtual void Accept(uint32_t heartbeat_ms) = 0;
  // Refuses the worker with a sentence that names the differing field, and ends the stream.
  virtual void Refuse(std::string_view reason) = 0;
  // Replaces the worker's list of peers.
  virtual void SendPeers(const std::vector<const WorkerDescription*>& peers) = 0;
  // Asks for PrefixEvents that begin with a reset.
  virtual void AskPrefixResync() = 0;
  // Asks the worker to leave within `timeout_ms`; 0 = within its own limit.
  virtual void AskDrain(uint32_t timeout_ms) = 0;
};

// Opens sessions.
class WorkerConnector {
 public:
  virtual ~WorkerConnector() = default;
  // Starts connecting; what happens arrives as RouterCore::OnSession* events with this `session`.
  virtual std::unique_ptr<WorkerSession> Connect(SessionRef session,
                                                 const WorkerDescription& worker) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_LINK_H_
