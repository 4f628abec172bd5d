#include "src/router/request_spans.h"

#include <string>
#include <utility>

#include "fmt/format.h"

#include "src/base/split_mix.h"

namespace baton::router {

using obs::kNumRequestStages;
using obs::RequestEvent;
using obs::RequestStage;
using obs::Span;
using obs::SpanAttribute;
using obs::SpanKind;
using obs::StageName;
using obs::TraceSampler;
using scheduler::FinishReason;

namespace {

// The operation's name by the answer's: "chatcmpl-..." or "cmpl-...".
std::string_view OperationOf(const RequestTrace& trace) {
  return trace.answer_id.starts_with("chatcmpl") ? "chat" : "text_completion";
}

// Names, sizes and the way that it took.
std::vector<SpanAttribute> BatonAttributesOf(const RequestTrace& trace) {
  const RequestTimings& timings = trace.timings;
  return {{"gen_ai.operation.name", std::string(OperationOf(trace))},
          {"gen_ai.provider.name", std::string("baton")},
          {"gen_ai.request.model", trace.model},
          {"gen_ai.response.model", trace.model},
          {"gen_ai.response.id", trace.answer_id},
          {"gen_ai.usage.input_tokens", int64_t{trace.num_prompt_tokens}},
          {"gen_ai.usage.output_tokens", int64_t{trace.num_output_tokens}},
          {"http.response.status_code", int64_t{trace.http_status}},
          {"baton.request_id", trace.request_id},
          {"baton.request_uid", trace.uid.ToHex()},
          {"baton.path", std::string(timings.disaggregated ? "disagg" : "local")},
          {"baton.route", std::string(trace.notes.RouteText())},
          {"baton.prefill_worker", timings.prefill_worker},
          {"baton.decode_worker", timings.decode_worker},
          {"baton.transport", timings.transport},
          {"baton.kv_bytes", static_cast<int64_t>(timings.kv_bytes)},
          {"baton.resumes", int64_t{timings.resumes}}};
}

// The parameters that the client gave.
void AddRequestAttributes(const GenerateRequest& spec, std::vector<SpanAttribute>* attributes) {
  const wire::SamplingParams& sampling = spec.sampling;
  const auto add = [attributes](std::string_view key, auto value) {
    attributes->push_back({key, value});
  };
  add("gen_ai.request.temperature", double{sampling.temperature});
  add("gen_ai.request.top_p", double{sampling.top_p});
  if (sampling.top_k > 0) add("gen_ai.request.top_k", int64_t{sampling.top_k});
  if (sampling.frequency_penalty != 0) {
    add("gen_ai.request.frequency_penalty", double{sampling.frequency_penalty});
  }
  if (sampling.presence_penalty != 0) {
    add("gen_ai.request.presence_penalty", double{sampling.presence_penalty});
  }
  if (spec.names_length) add("gen_ai.request.max_tokens", int64_t{sampling.max_tokens});
  if (spec.names_seed) add("gen_ai.request.seed", static_cast<int64_t>(sampling.seed));
  if (spec.is_streamed) add("gen_ai.request.stream", true);
  if (spec.num_choices != 1) add("gen_ai.request.choice.count", int64_t{spec.num_choices});
}

// "stop", "length" of each choice that ended so.
void AddFinishReasons(std::span<const FinishReason> finished,
                      std::vector<SpanAttribute>* attributes) {
  std::vector<std::string> reasons;
  for (const FinishReason reason : finished) {
    if (reason == FinishReason::kNone) continue;
    reasons.emplace_back(reason == FinishReason::kLength ? "length" : "stop");
  }
  if (!reasons.empty()) attributes->push_back({"gen_ai.response.finish_reasons", reasons});
}

std::vector<SpanAttribute> AttributesOf(const RequestTrace& trace, const SpanFacts& facts) {
  const RequestTimings& timings = trace.timings;
  std::vector<SpanAttribute> attributes = BatonAttributesOf(trace);
  AddRequestAttributes(facts.spec, &attributes);
  AddFinishReasons(facts.finished, &attributes);
  if (timings.cached_tokens > 0) {
    attributes.push_back({"gen_ai.usage.cache_read.input_tokens", int64_t{timings.cached_tokens}});
  }
  const auto first_us = trace.lifetime.TimeToFirstTokenUs();
  if (facts.spec.is_streamed && first_us.has_value()) {
    attributes.push_back(
        {"gen_ai.response.time_to_first_chunk", static_cast<double>(*first_us) * 1e-6});
  }
  return attributes;
}

}  // namespace

SpanIds SpanIdsOfRequest(const SpanIds& client, RequestUid uid, const TraceSampler& sampler) {
  SpanIds own = client;
  if (!client.valid()) own = {.trace_hi = uid.hi, .trace_lo = uid.lo};
  if (!sampler.Records(client, own.trace_lo)) return {};
  own.sampled = true;
  // As random as the uid is, and another than the client's for any two of its requests.
  own.span_id = SplitMix(uid.hi ^ SplitMix(uid.lo + kSplitMixStep)) | 1;
  return own;
}

std::vector<Span> SpansOfRequest(const RequestTrace& trace, const SpanIds& own,
                                 const SpanFacts& facts) {
  std::vector<Span> spans(1);
  Span& whole = spans[0];
  whole.context = own;
  whole.parent_id = facts.spec.trace.span_id;
  whole.name = fmt::format("{} {}", OperationOf(trace), trace.model);
  whole.kind = SpanKind::kServer;
  whole.start_us = trace.lifetime.TimeOf(RequestEvent::kAccepted).value_or(trace.end_us);
  whole.end_us = trace.end_us;
  whole.attributes = AttributesOf(trace, facts);
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

}  // namespace baton::router
