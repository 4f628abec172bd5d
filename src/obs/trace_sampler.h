// Which traces are recorded, as OpenTelemetry's built-in samplers decide
// (https://opentelemetry.io/docs/specs/otel/trace/sdk/#sampling). Pure values; any thread.
#ifndef BATON_OBS_TRACE_SAMPLER_H_
#define BATON_OBS_TRACE_SAMPLER_H_

#include <cstdint>

#include "src/base/span_ids.h"

namespace baton::obs {

// By default "parentbased_always_on".
struct TraceSampler {
  bool asks_parent = true;  // a client's trace is recorded as the client says
  // Share of the other traces that is recorded, 0 to 1: those whose id, its last 64 bits read as a
  // number, is below that share of all numbers. Every SDK that counts so chooses the same ones.
  double share = 1;

  // Whether to record a request of this trace. `parent` is the client's context; not valid = none.
  bool Records(const SpanIds& parent, uint64_t trace_lo) const;
};

}  // namespace baton::obs

#endif  // BATON_OBS_TRACE_SAMPLER_H_
