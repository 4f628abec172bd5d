// PlacementQueue: which request is placed next, and how it gets back when it was refused or has
// lost a worker. The router's thread.
//
// Requests for vectors are a line of their own: prefill workers may have room for them while all
// answers wait for decode workers.
//
// Invariants
//  1. In each line, requests that were placed before come first. The others stand in the order of
//     AgedArrivalUs, equal ones as they came.
//  2. No request is placed at a worker that an earlier one of either line claims.
//  3. So two kinds of requests of a line pass an earlier one: those of a higher priority that come
//     within the difference of priorities times kPriorityStepUs, and those that need none of the
//     workers that it waits for.
//  4. A line is not walked beyond a request that claims all that the rest of it waits for.
#ifndef BATON_ROUTER_PLACEMENT_QUEUE_H_
#define BATON_ROUTER_PLACEMENT_QUEUE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "src/router/placer.h"

namespace baton::router {

// See the file comment.
class PlacementQueue {
 public:
  // All outlive the queue.
  PlacementQueue(RouterState* state, WaitingRequests* waiting, RequestTable* table,
                 const RoutePlanner* planner, Placer* placer)
      : state_(state), waiting_(waiting), table_(table), planner_(planner), placer_(placer) {}

  // A new request, after all that go before it. At priority 0 among equals it is the last one; else
  // the cost is that of an insertion amid the queue.
  void Add(const RouterRequest& request);
  // Requests of its line that a new one would wait for at most, of all models.
  size_t NumBefore(const RouterRequest& request) const;
  // The placement of `request` has ended: it waits again, before all others and not placed before
  // `not_before_us`. `keep`: the worker that keeps its KV for the next placement.
  void Requeue(RouterRequest& request, int64_t not_before_us, KeptSource keep);
  // There may be room where there was none.
  void TryAgain() { changed_ = true; }
  // Places what there is room for, when anything has changed.
  void PlaceQueued(int64_t now_us);

 private:
  // One that waits.
  struct Entry {
    RequestUid uid;
    int64_t aged_us = 0;  // AgedArrivalUs; INT64_MIN: it was placed before
    uint64_t number = 0;  // of its arrival among all lines
  };
  using Line = std::deque<Entry>;

  // The outcome of one look at an entry.
  enum class Look : uint8_t {
    kGone,     // placed, or ended
    kWaits,    // and so do later ones of its line that need the same workers
    kWaitsBy,  // for workers, or its tenant's share, that no later one waits for because of it
  };

  // The place of a new request in a line.
  static Line::const_iterator PlaceOf(const Line& line, int64_t aged_us);
  // The line whose first entry is next, of those that are not `done`; kNumLines = none.
  size_t NextLine(const std::array<bool, kNumLines>& done) const;
  // Places it, or adds what it claims.
  Look Try(const Entry& entry, int64_t now_us, PlacementClaims* claims);
  // Whether its tenant's share of KV leaves a new request room: kWaitAside or kEnded if not.
  std::optional<Placing> CheckShare(RouterRequest& request);
  bool BlocksRest(size_t line, const PlacementClaim& claim) const;

  RouterState* const state_;
  WaitingRequests* const waiting_;
  RequestTable* const table_;
  const RoutePlanner* const planner_;
  Placer* const placer_;
  std::array<Line, kNumLines> lines_;  // by the invariant; may name requests that have ended
  uint64_t num_added_ = 0;
  bool changed_ = false;  // PlaceQueued has something to try
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLACEMENT_QUEUE_H_
