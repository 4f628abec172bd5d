// IpcParts: limits, times and counters that both halves of an IpcTransport share. P is the prefill
// worker, D the decode worker. Internal to kvcache/transport/ipc; all but the counters belong to
// the transport's thread.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_PARTS_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_PARTS_H_

#include <cstdint>

#include "kvcache/transport/slice_transport.h"

namespace baton::kv {

// Deadlines, microseconds.
struct IpcTimers {
  int64_t answer_us = 1'000'000;      // from Offer to Done; then it is offered again. Doubles
  int64_t max_answer_us = 8'000'000;  // up to this
  int64_t repost_us = 1'000;          // after an Offer that found the queue of words full
};

// Sizes of tables.
struct IpcLimits {
  uint32_t max_offers = 2;      // P: of one peer, without an answer
  uint32_t num_slots = 4;       // D: launches under way
  uint32_t max_peer_slots = 2;  // D: of one peer
  // P: bytes that one offer names, at least one slice and at most kMaxIpcOfferSlices.
  uint64_t offer_bytes = uint64_t{32} << 20;
};

// Counts of what happened; any thread reads them.
struct IpcCounters {
  EventCounter offers;    // that the decode worker answered, or that were copied here
  EventCounter late;      // that were offered again
  EventCounter protocol;  // messages that no honest peer sends
};

// Everything that both halves use.
struct IpcParts : SliceParts {
  IpcTimers timers;
  IpcLimits limits;
  size_t slice_bytes = 0;
  IpcCounters* ipc_counters = nullptr;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_PARTS_H_
