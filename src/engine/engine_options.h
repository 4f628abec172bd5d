// How an engine is set up: its numbers and the parts it is joined with. Plain data.
#ifndef BATON_ENGINE_ENGINE_OPTIONS_H_
#define BATON_ENGINE_ENGINE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvcache/handoff_action.h"
#include "kvcache/prefix_listener.h"
#include "kvcache/transport/kv_transport.h"
#include "scheduler/scheduler.h"
#include "src/base/clock.h"
#include "src/base/ids.h"
#include "src/base/limits.h"
#include "src/device/core_share.h"
#include "src/device/step_stage.h"
#include "src/device/thread_pool.h"
#include "src/engine/answer_guide.h"
#include "src/engine/engine_types.h"
#include "src/engine/kv_store.h"
#include "src/engine/speculator.h"
#include "src/model/forward_model.h"
#include "src/model/row_pool.h"

namespace baton::engine {

// Numbers of one engine; constant.
struct EngineConfig {
  scheduler::SchedulerConfig scheduler;  // block_size is set from the arena's layout
  bool prefix_cache = true;              // keep full blocks and reuse them for equal beginnings
  SpeculateMode speculate = SpeculateMode::kOff;
  uint32_t max_context = 1;                        // tokens of a sequence
  Incarnation incarnation;                         // of this worker
  std::string cluster_secret;                      // keys the hash chains
  std::vector<TokenId> eog_tokens;                 // end a choice unless the request ignores them
  model::Pooling pooling = model::Pooling::kLast;  // of the model, for kEmbed
  kv::HandoffTimers handoff;
  uint64_t hash_bytes_per_turn = 16 << 20;  // of a hand-over, between two steps: about 2 ms
  uint32_t layers_per_group = 5;            // crossed at once: 6 groups in a model of 30 layers
  uint32_t max_requests = limits::kMaxLiveRequests;    // live
  uint32_t max_transfers = limits::kMaxOpenTransfers;  // hand-offs of either side that hold blocks
  uint32_t max_bound_transfers = 2048;  // kept after binding to answer repeated messages
  size_t inbox_capacity = limits::kMaxInboxEvents;     // refusable events
  int64_t request_lease_us = limits::kRequestLeaseUs;  // without a word from the router
  int64_t idle_wake_us = 500'000;  // an idle loop turns this often, for liveness
};

// The parts that an engine is joined with; everything outlives it.
struct EngineParts {
  model::ForwardModel* model = nullptr;
  KvStore* kv = nullptr;
  kv::KvTransport* transport = nullptr;  // null: only local requests
  const HandoffWire* wire = nullptr;     // null with transport
  EngineListener* listener = nullptr;
  kv::PrefixListener* prefixes = nullptr;  // hears what the prefix cache holds; may be null
  // Hears of every step and how long it took; engine thread. May be empty.
  std::function<void(const scheduler::StepShape&, int64_t elapsed_us)> on_step;
  // Guesses tokens in place of EngineConfig::speculate; null = as that says.
  scheduler::Proposer* proposer = nullptr;
  AnswerGuides* guides = nullptr;       // null: requests with a grammar are refused
  device::StageSink* stages = nullptr;  // hears what the engine thread is at; may be null
  // The cores of a model on the processor, held while there are steps to compute; the engine thread
  // owns them from its start to its end. Null: the model's threads may always run.
  device::CoreShare* cores = nullptr;
  // Threads that share the rows of logits which the host reads, beside the engine thread, which
  // alone calls it while the engine lives: that of a model on the processor, or of a device's host.
  // Null: the engine thread reads all rows.
  device::ThreadPool* pool = nullptr;
  const Clock* clock = &SystemClock();
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_OPTIONS_H_
