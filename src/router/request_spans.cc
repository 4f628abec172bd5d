#include "src/router/request_spans.h"

#include <utility>

#include "fmt/format.h"

#include "src/base/split_mix.h"

namespace baton {
namespace {

// The operation's name by the answer's: "chatcmpl-..." or "cmpl-...".
std::string_view OperationOf(const RequestTrace& trace) {
  return trace.answer_id.starts_with("chatcmpl") ? "chat" : "text_completion";
}

std::vector<SpanAttribute> AttributesOf(const RequestTrace& trace) {
  const RequestTimings& timings = trace.timings;
  return {{"gen_ai.operation.name", std::string(OperationOf(trace))},
          {"gen_ai.provider.name", std::string("baton")},
          {"gen_ai.request.model", trace.model},
          {"gen_ai.response.model", trace.model},
          {"gen_ai.response.id", trace.answer_id},
          {"gen_ai.request.choice.count", int64_t{trace.num_choices}},
          {"gen_ai.usage.input_tokens", int64_t{trace.num_prompt_tokens}},
          {"gen_ai.usage.output_tokens", int64_t{trace.num_output_tokens}},
          {"http.response.status_code", int64_t{trace.http_status}},
          {"baton.request_id", trace.request_id},
          {"baton.request_uid", trace.uid.ToHex()},
          {"baton.path", std::string(timings.disaggregated ? "disagg" : "local")},
          {"baton.prefill_worker", timings.prefill_worker},
          {"baton.decode_worker", timings.decode_worker},
          {"baton.transport", timings.transport},
          {"baton.kv_bytes", static_cast<int64_t>(timings.kv_bytes)},
          {"baton.cached_tokens", int64_t{timings.cached_tokens}},
          {"baton.resumes", int64_t{timings.resumes}}};
}

}  // namespace

SpanIds SpanIdsOfRequest(const SpanIds& client, RequestUid uid) {
  if (client.valid() && !client.sampled) return {};
  SpanIds own = client;
  if (!client.valid()) own = {.trace_hi = uid.hi, .trace_lo = uid.lo, .sampled = true};
  // As random as the uid is, and another than the client's for any two of its requests.
  own.span_id = SplitMix(uid.hi ^ SplitMix(uid.lo + kSplitMixStep)) | 1;
  return own;
}

std::vector<Span> SpansOfRequest(const RequestTrace& trace, const SpanIds& own,
                                 uint64_t parent_id) {
  std::vector<Span> spans(1);
  Span& whole = spans[0];
  whole.context = own;
  whole.parent_id = parent_id;
  whole.name = fmt::format("{} {}", OperationOf(trace), trace.model);
  whole.kind = SpanKind::kServer;
  whole.start_us = trace.lifetime.TimeOf(RequestEvent::kAccepted).value_or(trace.end_us);
  whole.end_us = trace.end_us;
  whole.attributes = AttributesOf(trace);
  if (trace.http_status >= 500) {  // a refusal is no error of the server, by the convention
    whole.error = fmt::format("status {}", trace.http_status);
    whole.attributes.push_back({"error.type", fmt::format("{}", trace.http_status)});
  }
  int64_t from_us = whole.start_us;
  for (size_t i = 0; i < kNumRequestStages; ++i) {
    const int64_t until_us = from_us + trace.stages_us[i];
    if (until_us > from_us) {
      Span stage;
      stage.context = own;
      stage.context.span_id = SplitMix(own.span_id + (i + 1) * kSplitMixStep) | 1;
      stage.parent_id = own.span_id;
      stage.name = StageName(static_cast<RequestStage>(i));
      stage.start_us = from_us;
      stage.end_us = until_us;
      spans.push_back(std::move(stage));
    }
    from_us = until_us;
  }
  return spans;
}

}  // namespace baton
