// Where a request stands in its client's trace: W3C Trace Context,
// https://www.w3.org/TR/trace-context (section 3.2, the header `traceparent`). Values; any thread.
#ifndef BATON_BASE_SPAN_IDS_H_
#define BATON_BASE_SPAN_IDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// A span as others name it. Ids of a valid context are not 0.
struct SpanIds {
  uint64_t trace_hi = 0;  // the 16 bytes of the trace's id, big-endian
  uint64_t trace_lo = 0;
  uint64_t span_id = 0;
  bool sampled = false;  // spans below it are to be recorded

  bool valid() const { return (trace_hi | trace_lo) != 0 && span_id != 0; }
  friend bool operator==(const SpanIds&, const SpanIds&) = default;
};

// The context of a `traceparent`; nothing when it is malformed, which counts as none at all. A
// version after 00 is read as far as 00 goes.
std::optional<SpanIds> ParseTraceparent(std::string_view text);

// The ids as they are on wires: 16 and 8 bytes, big-endian.
std::string TraceIdBytes(const SpanIds& context);
std::string SpanIdBytes(uint64_t span_id);

}  // namespace baton

#endif  // BATON_BASE_SPAN_IDS_H_
