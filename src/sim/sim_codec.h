// Router's words as engine's words and back: what src/worker's and src/router's codecs do by way of
// protobuf, done directly. Pure; any thread.
#ifndef BATON_SIM_SIM_CODEC_H_
#define BATON_SIM_SIM_CODEC_H_

#include <vector>

#include "kvcache/transport/transport_types.h"
#include "src/engine/engine_snapshot.h"
#include "src/engine/engine_types.h"
#include "src/router/worker_messages.h"

namespace baton::sim {

// An order of a router as a request of the engine, without its session.
engine::RequestSpec ToEngineSpec(const router::PlacementSpec& spec, engine::RequestKind kind,
                                 Incarnation peer);
router::WorkerToken ToWorkerToken(const engine::TokenEvent& event);
router::WorkerRequestStatus ToWorkerStatus(const engine::RequestStatus& status);
// A heartbeat; whether the worker is ready or leaves is the caller's to fill in.
router::WorkerLoadReport ToLoadReport(const engine::EngineSnapshot& snapshot,
                                      const std::vector<kv::LinkInfo>& links);

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_CODEC_H_
