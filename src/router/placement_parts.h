// Parts of a request's placement: what runs at each worker, whose KV it may take, and the move that
// may follow it. Plain data of RouterRequest; the router's thread.
#ifndef BATON_ROUTER_PLACEMENT_PARTS_H_
#define BATON_ROUTER_PLACEMENT_PARTS_H_

#include <cstdint>

#include "src/router/lease_id.h"
#include "src/router/request_traces.h"
#include "src/router/worker_registry.h"

namespace baton::router {

// The part of a placement that runs at one worker.
struct PlacementHalf {
  LeaseId lease;       // 0 = this half does not exist
  PlacementCost cost;  // what it counts in the registry
  uint32_t attempt = 0;
  bool shares = false;  // the prompt's full blocks are counted in the worker's SharedBlocks
  bool live = false;    // started and not known to have ended
  LeaseId link_to;      // of a prefill half: the hand-off counts in its link to this worker
  uint64_t link_bytes = 0;

  bool Is(LeaseId other) const { return lease == other && lease.value() != 0; }
};

// A worker that holds the KV of the attempt before, so that it can be the source of the next one: a
// prefill worker whose decode worker was lost, or a decode worker that drains.
struct KeptSource {
  LeaseId lease;  // 0 = none
  uint32_t attempt = 0;
};

// A prefill worker whose KV came too slowly to a request: for a while the request uses none of that
// worker's links.
struct SlowSource {
  LeaseId prefill;  // 0 = none
  int64_t until_us = 0;

  bool Is(LeaseId other, int64_t now_us) const { return prefill == other && now_us < until_us; }
};

// The next placement of a stream that leaves a draining worker. Its decode worker was asked; until
// it has reserved, the current placement goes on.
struct AskedMove {
  PlacementHalf decode;       // at the worker that was asked; lease 0 = there is no move
  LeaseId source;             // whose KV it takes, or who computes it; 0 = the decode worker itself
  uint32_t num_replayed = 0;  // as the decode worker was told
  bool exact = true;
  RouteNote note;
  int64_t asked_us = 0;

  bool on() const { return decode.lease.value() != 0; }
  bool Is(LeaseId lease, uint32_t attempt) const {
    return decode.Is(lease) && decode.attempt == attempt;
  }
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLACEMENT_PARTS_H_
