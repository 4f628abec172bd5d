// worker.proto to plain values and back. Messages of a worker are checked here: the code after this
// file may rely on the ranges that the proto's comments state. Pure; any thread.
#ifndef BATON_ROUTER_WORKER_CODEC_H_
#define BATON_ROUTER_WORKER_CODEC_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "src/base/status.h"
#include "src/base/wire_versions.h"
#include "src/router/model_catalog.h"
#include "src/router/worker_messages.h"

namespace baton::router {

// Whether the API may call a model by this id: 1 to 256 bytes of UTF-8 without '/' and ASCII
// control characters. The id may not be "default", which stands for the only model.
bool IsModelId(std::string_view id);

// Everything but `model`, which needs the tokenizer (model_catalog.h). FailedPrecondition: the
// worker and this router (`own`) have no wire version in common, which is looked at first;
// InvalidArgument names the field and its value.
StatusOr<WorkerDescription> DecodeHello(const v1::WorkerHello& hello,
                                        const WireRange& own = kWireVersions);
// Moves the part about the model, with the tokenizer's megabytes, out of a hello.
ModelClaim TakeClaim(v1::WorkerHello* hello);
WorkerLoadReport DecodeLoad(const v1::WorkerLoad& load);
// InvalidArgument names what is too long or no whole number of links.
StatusOr<PrefixBatch> DecodePrefix(const v1::PrefixEvents& events);
// A finish reason that this version does not know becomes kLength, which hides no text of the last
// token.
std::vector<WorkerToken> DecodeStep(const v1::StepEvents& step);
WorkerRequestStatus DecodeStatus(const v1::RequestStatus& status);

void EncodeStartPrefill(const PlacementSpec& spec, const WorkerName& decode,
                        v1::RouterMessage* out);
// `prefill` null = local.
void EncodeStartDecode(const PlacementSpec& spec, const WorkerName* prefill,
                       v1::RouterMessage* out);
void EncodeStartEmbedding(const PlacementSpec& spec, v1::RouterMessage* out);
void EncodeCancel(RequestUid uid, uint32_t attempt, v1::RouterMessage* out);
// The hello that opens a session with `worker`. `router`: this router's incarnation.
void EncodeSessionHello(Incarnation router, const WorkerDescription& worker, const WireRange& own,
                        v1::SessionHello* out);
// `refusal` empty = accepted.
void EncodeAck(Incarnation router, std::string_view refusal, v1::RegisterAck* out);
void EncodePeers(const std::vector<const WorkerDescription*>& peers, v1::PeerList* out);

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_CODEC_H_
