// worker.proto to plain values and back. What comes from a worker is checked here: everything
// behind this file may rely on the ranges that the proto's comments state. Pure; any thread.
#ifndef BATON_ROUTER_WORKER_CODEC_H_
#define BATON_ROUTER_WORKER_CODEC_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "src/base/status.h"
#include "src/router/worker_messages.h"

namespace baton {

// The newest and oldest wire version this router speaks.
inline constexpr uint32_t kWireMin = 1;
inline constexpr uint32_t kWireMax = 1;

// Everything but `model`, which needs the tokenizer (model_catalog.h). InvalidArgument names the
// field and its value.
StatusOr<WorkerDescription> DecodeHello(const v1::WorkerHello& hello);
WorkerLoadReport DecodeLoad(const v1::WorkerLoad& load);
// InvalidArgument names what is too long or no whole number of links.
StatusOr<PrefixBatch> DecodePrefix(const v1::PrefixEvents& events);
// Events with an enum value that this version does not know are dropped.
std::vector<WorkerToken> DecodeStep(const v1::StepEvents& step);
WorkerRequestStatus DecodeStatus(const v1::RequestStatus& status);

void EncodeStartPrefill(const PlacementSpec& spec, const WorkerName& decode,
                        v1::RouterMessage* out);
// `prefill` null = local.
void EncodeStartDecode(const PlacementSpec& spec, const WorkerName* prefill,
                       v1::RouterMessage* out);
void EncodeCancel(RequestUid uid, uint32_t attempt, v1::RouterMessage* out);
void EncodePeers(const std::vector<const WorkerDescription*>& peers, v1::PeerList* out);

}  // namespace baton

#endif  // BATON_ROUTER_WORKER_CODEC_H_
