#include "src/api/trace_json.h"

#include "src/api/json_writer.h"

namespace baton::api {

using obs::EventName;
using obs::kNumRequestEvents;
using obs::kNumRequestStages;
using obs::kResumeReasonNames;
using obs::RequestEvent;
using obs::RequestStage;
using obs::StageName;
using router::RequestTimings;
using router::RequestTrace;
using router::TraceNotes;
using router::WorkerBeside;

namespace {

void WriteTimes(const RequestTrace& trace, JsonWriter* json) {
  const int64_t accepted_us = *trace.lifetime.TimeOf(RequestEvent::kAccepted);
  json->Key("accepted_us").Int(accepted_us);
  json->Key("end_us").Int(trace.end_us);
  json->Key("queue_us").Int(trace.queue_us);
  json->Key("events_us").BeginObject();
  for (size_t i = 0; i < kNumRequestEvents; ++i) {
    const auto event = static_cast<RequestEvent>(i);
    const std::optional<int64_t> time_us = trace.lifetime.TimeOf(event);
    if (time_us) json->Key(EventName(event)).Int(*time_us - accepted_us);
  }
  json->EndObject();
  json->Key("stages_us").BeginObject();
  for (size_t i = 0; i < kNumRequestStages; ++i) {
    json->Key(StageName(static_cast<RequestStage>(i))).Int(trace.stages_us[i]);
  }
  json->EndObject();
}

void WriteWork(const RequestTrace& trace, JsonWriter* json) {
  const RequestTimings& timings = trace.timings;
  json->Key("prompt_tokens").Uint(trace.num_prompt_tokens);
  json->Key("cached_tokens").Uint(timings.cached_tokens);
  json->Key("output_tokens").Uint(trace.num_output_tokens);
  json->Key("choices").Uint(trace.num_choices);
  json->Key("path").String(timings.disaggregated ? "disagg" : "local");
  json->Key("route").String(trace.notes.RouteText());
  json->Key("held_tokens").Uint(trace.notes.route.held_tokens);
  json->Key("for_prefix").Bool(trace.notes.route.for_prefix);
  json->Key("prefill_worker").String(timings.prefill_worker);
  json->Key("decode_worker").String(timings.decode_worker);
  json->Key("transport").String(timings.transport);
  json->Key("kv_bytes").Uint(timings.kv_bytes);
  json->Key("longest_gap_us").Int(trace.notes.longest_gap_us);
  json->Key("longest_gap_idx").Uint(trace.notes.longest_gap_idx);
}

void WriteBeside(std::string_view name, const WorkerBeside& worker, JsonWriter* json) {
  json->Key(name).BeginObject();
  json->Key("running").Uint(worker.running);
  json->Key("waiting").Uint(worker.waiting);
  json->Key("free_blocks").Uint(worker.free_blocks);
  json->Key("num_blocks").Uint(worker.num_blocks);
  json->EndObject();
}

void WriteLoad(const TraceNotes& notes, JsonWriter* json) {
  json->Key("load").BeginObject();
  json->Key("running").Uint(notes.num_running);
  json->Key("waiting").Uint(notes.num_waiting);
  WriteBeside("prefill", notes.prefill, json);
  WriteBeside("decode", notes.decode, json);
  json->EndObject();
  json->Key("placed_again_us").Int(notes.again_us);
  json->Key("resumes").BeginObject();
  for (size_t i = 0; i < notes.resumes.size(); ++i) {
    if (notes.resumes[i] > 0) json->Key(kResumeReasonNames[i]).Uint(notes.resumes[i]);
  }
  json->EndObject();
}

void WriteTrace(const RequestTrace& trace, JsonWriter* json) {
  json->BeginObject();
  json->Key("request_uid").String(trace.uid.ToHex());
  json->Key("request_id").String(trace.request_id);
  json->Key("answer_id").String(trace.answer_id);
  json->Key("model").String(trace.model);
  json->Key("state").String(trace.state);
  json->Key("status").Int(trace.http_status);
  json->Key("error").String(trace.error);
  json->Key("attempt").Uint(trace.attempt);
  WriteTimes(trace, json);
  WriteWork(trace, json);
  WriteLoad(trace.notes, json);
  json->EndObject();
}

}  // namespace

std::string TraceJson(const std::vector<std::shared_ptr<const RequestTrace>>& traces,
                      const ClockPair& now) {
  JsonWriter json;
  json.BeginObject().Key("role").String("router").Key("worker_id").String("router-0");
  json.Key("steady_us").Int(now.steady_us).Key("unix_us").Int(now.wall_unix_us);
  json.Key("requests").BeginArray();
  for (const auto& trace : traces) WriteTrace(*trace, &json);
  json.EndArray().EndObject();
  return json.Take();
}

}  // namespace baton::api
