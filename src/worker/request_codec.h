// Converts requests, tokens and states between worker.proto and the engine's plain types. Pure; any
// thread. A router may have faults, so every number of its messages is checked.
#ifndef BATON_WORKER_REQUEST_CODEC_H_
#define BATON_WORKER_REQUEST_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "baton/v1/common.pb.h"
#include "baton/v1/worker.pb.h"
#include "src/base/limits.h"
#include "src/base/span_ids.h"
#include "src/base/wire_versions.h"
#include "src/engine/engine_types.h"

namespace baton::worker {

// The limits that incoming requests are checked against; constant.
struct SessionLimits {
  Incarnation incarnation;
  bool prefill = false;  // the role: a prefill worker refuses StartDecode
  uint32_t vocab_size = 0;
  uint32_t max_context = 0;
  size_t max_queued_events = limits::kMaxQueuedEvents;  // to one router
  WireRange wire = kWireVersions;
};

// FailedPrecondition unless the session is for this worker, in a version that the worker speaks.
Status CheckSessionHello(const v1::SessionHello& hello, const SessionLimits& limits);
// Fills `out` from a StartPrefill, StartDecode or StartEmbedding. out->key is set as far as the
// message has it, also on failure, so that the refusal can name the request. InvalidArgument names
// the field and its range; FailedPrecondition when the message is for the other role.
Status RequestSpecFromProto(const v1::RouterMessage& message, const SessionLimits& limits,
                            engine::RequestSpec* out);
// The span to which the work of a start belongs; not valid where the start has none.
SpanIds SpanIdsFromProto(const v1::RouterMessage& start);
engine::RequestKey RequestKeyFromProto(const v1::CancelRequest& cancel);

v1::TransportKind ToProto(kv::TransportKind kind);
void ToProto(const engine::TokenEvent& event, v1::TokenEvent* out);
void ToProto(const engine::RequestStatus& status, v1::RequestStatus* out);

}  // namespace baton::worker

#endif  // BATON_WORKER_REQUEST_CODEC_H_
