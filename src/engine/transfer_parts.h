// The parts of an engine that the hand-offs of both sides use, and the interface by which hand-offs
// report to the engine. Engine thread.
#ifndef BATON_ENGINE_TRANSFER_PARTS_H_
#define BATON_ENGINE_TRANSFER_PARTS_H_

#include <cstdint>
#include <span>

#include "kvcache/block_pool.h"
#include "kvcache/handoff.h"
#include "kvcache/transport/kv_transport.h"
#include "scheduler/scheduler.h"
#include "src/engine/engine_types.h"
#include "src/engine/kv_store.h"

namespace baton::engine {

// Parts of the engine that a hand-off acts upon; all outlive it.
struct TransferParts {
  kv::BlockPool* pool = nullptr;
  scheduler::Scheduler* scheduler = nullptr;
  KvStore* kv = nullptr;
  kv::KvTransport* transport = nullptr;
  const HandoffWire* wire = nullptr;
};

// Time between two reports to the router about one transfer: half of the time between two looks of
// a router. At most ten short messages a second.
inline constexpr int64_t kTellProgressUs = 100'000;

// How a verified transfer went.
struct TransferResult {
  uint64_t kv_bytes = 0;
  int64_t transfer_us = 0;  // from the first slice's arrival to the last's
  uint32_t num_cached = 0;  // tokens of the prompt in the prefill worker's prefix cache, as it says
};

// Hears of the progress of hand-offs of live requests. Called between two steps.
class TransferOwner {
 public:
  virtual ~TransferOwner() = default;
  // At the prefill worker: the decode worker's grant arrived.
  virtual void OnSourceGranted(const RequestKey& key) = 0;
  // At the prefill worker: the decode worker has applied the transfer; nothing is held for the
  // request any more.
  virtual void OnSourceDone(const RequestKey& key) = 0;
  // At the prefill worker: the decode worker is lost; the blocks are kept for a while, for a
  // Retarget.
  virtual void OnSourceStranded(const RequestKey& key, kv::HandoffOutcome outcome,
                                const Status& status) = 0;
  // At the decode worker: slices of a slow transfer arrive. At most one call every kTellProgressUs.
  virtual void OnDestProgress(const RequestKey& key, uint64_t kv_bytes) = 0;
  // At the decode worker: everything arrived and matches.
  virtual void OnDestVerified(const RequestKey& key, const TransferResult& result) = 0;
  // At the decode worker: takes over one request reference of each block; the first ones hold the
  // prompt's KV, the rest are spare.
  virtual void OnDestBound(const RequestKey& key, const kv::Seal& seal,
                           std::span<const kv::BlockHandle> blocks) = 0;
  // At either worker: ended without success; nothing is held for the request any more.
  virtual void OnTransferFailed(const RequestKey& key, kv::HandoffOutcome outcome,
                                const Status& status) = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_TRANSFER_PARTS_H_
