// The spans of a request as its router saw it: one for the whole, named as OpenTelemetry's
// conventions for generative AI say, and one below it for each stage of the critical path
// (src/obs/request_lifetime.h) that took time, so that these sum to the whole. No text of prompts
// or answers. Pure; any thread.
#ifndef BATON_ROUTER_REQUEST_SPANS_H_
#define BATON_ROUTER_REQUEST_SPANS_H_

#include <vector>

#include "src/base/ids.h"
#include "src/base/span_ids.h"
#include "src/obs/span.h"
#include "src/router/request_traces.h"

namespace baton {

// The span of a request: in the client's trace, or, without one, in one that has the uid as its id.
// Not valid when the client says that its trace is not sampled.
SpanIds SpanIdsOfRequest(const SpanIds& client, RequestUid uid);

// Of a request that has ended; `own` from SpanIdsOfRequest, `parent_id` the client's span or 0.
std::vector<Span> SpansOfRequest(const RequestTrace& trace, const SpanIds& own, uint64_t parent_id);

}  // namespace baton

#endif  // BATON_ROUTER_REQUEST_SPANS_H_
