// Router's words as engine's words and back: what src/worker's and src/router's codecs do by way of
// protobuf, done directly. Pure; any thread.
#ifndef BATON_SIM_SIM_CODEC_H_
#define BATON_SIM_SIM_CODEC_H_

#include <vector>

#include "kvcache/transport/transport_types.h"
#include "src/engine/engine_snapshot.h"
#include "src/engine/engine_types.h"
#include "src/router/worker_messages.h"

namespace baton {

SamplingParams ToSamplingParams(const SamplingSettings& settings);
// An order of a router as a request of the engine, without its session.
RequestSpec ToEngineSpec(const PlacementSpec& spec, RequestKind kind, Incarnation peer);
WorkerToken ToWorkerToken(const TokenEvent& event);
WorkerRequestStatus ToWorkerStatus(const RequestStatus& status);
// A heartbeat; whether the worker is ready or leaves is the caller's to fill in.
WorkerLoadReport ToLoadReport(const EngineSnapshot& snapshot, const std::vector<LinkInfo>& links);

}  // namespace baton

#endif  // BATON_SIM_SIM_CODEC_H_
