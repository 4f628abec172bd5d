// The two kinds of stream between a router and a worker, as both ends see them, and what a world
// consists of. Plain data; one thread.
#ifndef BATON_SIM_SIM_STREAMS_H_
#define BATON_SIM_SIM_STREAMS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "src/engine/cancellable_starts.h"
#include "src/engine/engine_types.h"
#include "src/router/worker_messages.h"
#include "src/sim/event_queue.h"
#include "src/sim/sim_mail.h"
#include "src/sim/sim_network.h"
#include "src/worker/prefix_teller.h"

namespace baton::sim {

class SimRouter;
class SimWorker;

// A decode worker that a prefill worker is to be connected with.
struct SimPeer {
  SimWorker* worker = nullptr;
  Incarnation incarnation;
};

// A worker's registration with a router.
struct SimLease {
  SimRouter* router = nullptr;
  SimWorker* worker = nullptr;
  router::LeaseId id;        // set by the router
  bool router_open = false;  // the router's end
  bool worker_open = true;   // the worker's end
  bool accepted = false;     // the worker has heard so
  worker::PrefixTeller feed;
  uint64_t num_loads = 0;      // that were reported
  std::vector<SimPeer> peers;  // as the router said last
};

// A router's session with a worker.
struct SimSessionStream {
  SimRouter* router = nullptr;
  SimWorker* worker = nullptr;
  router::SessionRef ref;
  engine::SessionId id;  // at the worker
  bool router_open = true;
  bool router_up = false;
  bool worker_open = false;
  engine::CancellableStarts starts;  // at the worker
};

// The parts that all of a world share.
struct SimFabric {
  EventQueue* events = nullptr;
  SimNetwork* network = nullptr;
  std::vector<SimRouter*> routers;
  std::vector<SimWorker*> workers;
  uint64_t next_epoch = 1;  // of data connections
  SimViolate violate;       // told of every broken promise
  SimMail mail{&violate};
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_STREAMS_H_
