// Facts that a worker tells of itself: its hello to routers, and its memory to the operator. Pure;
// any thread.
#ifndef BATON_WORKER_WORKER_FACTS_H_
#define BATON_WORKER_WORKER_FACTS_H_

#include "src/worker/hello_codec.h"
#include "src/worker/kv_parts.h"
#include "src/worker/memory_sum.h"
#include "src/worker/worker_config.h"
#include "src/worker/worker_model.h"

namespace baton::worker {

// All but its incarnation and its addresses.
HelloFacts HelloFactsOf(const WorkerConfig& config, const WorkerModel& model, const KvParts& kv);
// `owns_weights`: no other worker of the process had them before.
MemoryFacts MemoryFactsOf(const WorkerConfig& config, const WorkerModel& model, const KvParts& kv,
                          bool owns_weights);

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_FACTS_H_
