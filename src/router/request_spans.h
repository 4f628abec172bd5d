// The spans of a request as its router saw it. One span is for the whole request, and one below it
// for each stage of the critical path (src/obs/request_lifetime.h) that took time. The stages'
// spans so sum to the whole. Names follow OpenTelemetry's conventions for generative AI
// (https://github.com/open-telemetry/semantic-conventions-genai, 2026). Attributes that a request
// does not have are left out. No text of prompts or answers. Pure; any thread.
#ifndef BATON_ROUTER_REQUEST_SPANS_H_
#define BATON_ROUTER_REQUEST_SPANS_H_

#include <span>
#include <vector>

#include "src/base/ids.h"
#include "src/base/span_ids.h"
#include "src/obs/span.h"
#include "src/router/generate_request.h"
#include "src/router/request_traces.h"

namespace baton::router {

// The span of a request: in the client's trace, or, without one, in one that has the uid as its id.
// Not valid when `sampler` does not record it.
SpanIds SpanIdsOfRequest(const SpanIds& client, RequestUid uid,
                         const obs::TraceSampler& sampler = {});

// Parts of a request's span that its trace does not hold.
struct SpanFacts {
  const GenerateRequest& spec;
  std::span<const scheduler::FinishReason> finished;  // by choice; kNone = it did not end by itself
};

// Spans of a request that has ended; `own` from SpanIdsOfRequest.
std::vector<obs::Span> SpansOfRequest(const RequestTrace& trace, const SpanIds& own,
                                      const SpanFacts& facts);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_SPANS_H_
