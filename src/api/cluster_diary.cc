#include "src/api/cluster_diary.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

#include "src/api/openai_json.h"
#include "src/base/version.h"
#include "src/obs/request_lifetime.h"

namespace baton::api {

using obs::kResumeReasonNames;
using obs::RequestEvent;
using obs::RequestStage;
using router::LinkKindName;
using router::LinkView;
using router::ProcessView;
using router::RequestTimings;
using router::RequestTrace;

namespace {

// Characters of an answer's id: 48 bits tell answers apart, and are too few to ask for one.
constexpr size_t kIdLength = 12;

double MsOf(int64_t us) { return static_cast<double>(us) / 1000.0; }

// "chatcmpl-0123456789abcdef..." is "0123456789ab".
std::string ShortId(const RequestTrace& trace) {
  const std::string& id = trace.answer_id;
  const size_t mark = id.find_last_of("-_");
  const std::string tail = mark == std::string::npos ? id : id.substr(mark + 1);
  return (tail.empty() ? trace.uid.ToHex() : tail).substr(0, kIdLength);
}

int64_t StageUs(const RequestTrace& trace, RequestStage stage) {
  return trace.stages_us[static_cast<size_t>(stage)];
}

bool Happened(const RequestTrace& trace, RequestEvent event) {
  return trace.lifetime.TimeOf(event).has_value();
}

// Wall time of a moment of the steady clock.
int64_t WallMs(int64_t steady_us, const ClockPair& now) {
  return (now.wall_unix_us - (now.steady_us - steady_us)) / 1000;
}

std::string EventText(std::string_view json) { return fmt::format("data: {}\n\n", json); }

JsonWriter BeginEvent(std::string_view type, int64_t time_ms) {
  JsonWriter json;
  json.BeginObject().Key("version").Int(ClusterDiary::kVersion);
  json.Key("type").String(type).Key("time_ms").Int(time_ms);
  return json;
}

void WriteWorker(const ProcessView& worker, JsonWriter* json) {
  json->BeginObject();
  json->Key("id").String(worker.worker_id);
  json->Key("role").String(worker.role);
  json->Key("incarnation").String(worker.incarnation);
  json->Key("model").String(worker.model);
  json->Key("ready").Bool(worker.ready);
  json->Key("draining").Bool(worker.draining);
  json->Key("running").Uint(worker.running);
  json->Key("waiting").Uint(worker.waiting);
  json->Key("blocks").BeginObject();
  for (const auto& [state, count] : worker.kv_blocks) json->Key(state).Uint(count);
  json->EndObject();
  json->Key("links").BeginArray();
  for (const LinkView& link : worker.links) {
    json->BeginObject();
    json->Key("to").String(link.to);
    json->Key("transport").String(LinkKindName(link.kind));
    json->Key("bytes_per_s").Uint(link.bytes_per_s);
    json->Key("up").Bool(link.up);
    json->Key("why").String(link.why);
    json->EndObject();
  }
  json->EndArray().EndObject();
}

void WriteStages(const RequestTrace& trace, JsonWriter* json) {
  const auto ms = [&](RequestStage stage) { return MsOf(StageUs(trace, stage)); };
  json->Key("stages_ms").BeginObject();
  json->Key("queue").Milli(ms(RequestStage::kAdmit) + ms(RequestStage::kQueuePrefill));
  json->Key("prefill").Milli(ms(RequestStage::kPrefill));
  json->Key("transfer").Milli(ms(RequestStage::kKvWait) + ms(RequestStage::kKvTransfer));
  json->Key("wait").Milli(ms(RequestStage::kQueueDecode));
  json->Key("first_step").Milli(ms(RequestStage::kFirstStep));
  json->Key("decode").Milli(ms(RequestStage::kDecode));
  json->EndObject();
}

// Mean time between tokens of a choice; null for answers of fewer than two.
void WriteItl(const RequestTrace& trace, JsonWriter* json) {
  json->Key("itl_ms");
  const double num_gaps =
      static_cast<double>(trace.num_output_tokens) / std::max(trace.num_choices, 1u) - 1;
  const auto first_us = trace.lifetime.TimeOf(RequestEvent::kFirstToken);
  if (num_gaps < 1 || !first_us.has_value()) {
    json->Null();
  } else {
    json->Milli(MsOf(trace.end_us - *first_us) / num_gaps);
  }
}

// Its KV has crossed a link and is whole at the decode worker.
bool HasCrossed(const RequestTrace& trace) {
  return trace.timings.disaggregated && trace.timings.kv_bytes > 0 &&
         Happened(trace, RequestEvent::kVerified);
}

// Where the request ran; "" before a worker had it.
std::string_view PathOf(const RequestTrace& trace) {
  if (!Happened(trace, RequestEvent::kAdmitted)) return "";
  return trace.timings.disaggregated ? "disagg" : "local";
}

}  // namespace

std::string ClusterDiary::Add(const ClusterLook& look) {
  new_events_.clear();
  CompareProcesses(look);
  CompareRequests(look);
  look_us_ = look.now.steady_us;
  std::string body = ClusterBody(look);
  const bool is_due = !has_looked_ || look.now.steady_us - cluster_us_ >= kQuietUs;
  has_looked_ = true;
  if (body == cluster_body_ && !is_due) return std::exchange(new_events_, {});
  cluster_body_ = std::move(body);
  cluster_us_ = look.now.steady_us;
  JsonWriter json = BeginEvent("cluster", look.now.wall_unix_us / 1000);
  // The body is an object's text: its members follow those of the event.
  cluster_event_ = EventText(json.Take() + "," + cluster_body_.substr(1));
  return cluster_event_ + std::exchange(new_events_, {});
}

std::string ClusterDiary::Welcome(const ClockPair& now, int64_t interval_us) const {
  JsonWriter json = BeginEvent("hello", now.wall_unix_us / 1000);
  json.Key("server_version").String(baton::kVersion);
  json.Key("incarnation").String(router_incarnation_);
  json.Key("interval_ms").Int(interval_us / 1000).EndObject();
  std::string text = EventText(json.Take()) + cluster_event_;
  for (const std::string& event : past_) text += event;
  return text;
}

void ClusterDiary::Keep(JsonWriter& json) {
  json.EndObject();
  past_.push_back(EventText(json.Take()));
  if (past_.size() > kMaxPast) past_.pop_front();
  new_events_ += past_.back();
}

void ClusterDiary::Tell(const Notice& notice, int64_t time_ms) {
  JsonWriter json = BeginEvent("notice", time_ms);
  json.Key("kind").String(notice.kind);
  if (!notice.worker.empty()) json.Key("worker").String(notice.worker);
  if (!notice.to.empty()) json.Key("to").String(notice.to);
  if (!notice.why.empty()) json.Key("why").String(notice.why);
  if (!notice.id.empty()) json.Key("id").String(notice.id);
  Keep(json);
}

void ClusterDiary::CompareProcesses(const ClusterLook& look) {
  const int64_t time_ms = look.now.wall_unix_us / 1000;
  for (auto it = processes_.begin(); it != processes_.end();) {
    const auto& rows = look.topology.processes;
    const bool stays = std::any_of(rows.begin(), rows.end(), [&](const ProcessView& row) {
      return row.worker_id == it->first;
    });
    if (!stays) {
      Tell({.kind = it->second.draining ? "worker_left" : "worker_lost", .worker = it->first},
           time_ms);
    }
    it = stays ? std::next(it) : processes_.erase(it);
  }
  for (const ProcessView& process : look.topology.processes) CompareProcess(process, time_ms);
}

void ClusterDiary::CompareProcess(const ProcessView& process, int64_t time_ms) {
  const auto [it, is_new] = processes_.try_emplace(process.worker_id);
  KnownProcess& known = it->second;
  const bool is_router = process.role == "router";
  const auto tell = [&](std::string_view kind) {
    if (has_looked_) Tell({.kind = kind, .worker = process.worker_id}, time_ms);
  };
  if (is_router) {
    router_incarnation_ = process.incarnation;
    if (known.ready != process.ready) tell(process.ready ? "router_ready" : "router_not_ready");
  } else if (is_new) {
    tell("worker_joined");
  } else if (known.incarnation != process.incarnation) {
    tell("worker_restarted");
    known.links.clear();
  } else if (known.ready != process.ready) {
    tell(process.ready ? "worker_ready" : "worker_not_ready");
  }
  if (process.draining && (is_new || !known.draining)) tell("drain_began");
  known.incarnation = process.incarnation;
  known.ready = process.ready;
  known.draining = process.draining;
  CompareLinks(process, known, time_ms);
}

void ClusterDiary::CompareLinks(const ProcessView& process, KnownProcess& known, int64_t time_ms) {
  std::map<std::string, bool> links;
  for (const LinkView& link : process.links) {
    links[link.to] = link.up;
    const auto before = known.links.find(link.to);
    const bool changed = before == known.links.end() ? link.up : before->second != link.up;
    if (!has_looked_ || !changed) continue;
    Tell({.kind = link.up ? "link_up" : "link_down",
          .worker = process.worker_id,
          .to = link.to,
          .why = link.why},
         time_ms);
  }
  known.links = std::move(links);
}

void ClusterDiary::CompareRequests(const ClusterLook& look) {
  std::map<RequestUid, KnownRequest> present;
  std::vector<const RequestTrace*> ended;
  pace_ = {.elapsed_us = has_looked_ ? look.now.steady_us - look_us_ : 0};
  for (const auto& trace : look.traces) {
    const auto before = requests_.find(trace->uid);
    const bool is_new = before == requests_.end();
    KnownRequest known = is_new ? KnownRequest{.is_live = true} : before->second;
    if (!is_new && known.is_live) CompareRequest(*trace, known, look.now);
    const bool is_live = trace->http_status == 0;
    if (known.is_live && !is_live) ended.push_back(trace.get());
    if (is_live && !known.handoff_told && HasCrossed(*trace)) {
      TellHandoff(*trace, look.now);
      known.handoff_told = true;
    }
    known.is_live = is_live;
    known.num_resumes = trace->timings.resumes;
    known.num_tokens = trace->num_output_tokens;
    present[trace->uid] = known;
  }
  requests_ = std::move(present);
  std::sort(ended.begin(), ended.end(),
            [](const auto* a, const auto* b) { return a->end_us < b->end_us; });
  const size_t limit = has_looked_ ? kMaxPerLook : kMaxFirst;
  const size_t first = ended.size() > limit ? ended.size() - limit : 0;
  if (has_looked_) num_skipped_ += first;
  for (size_t i = first; i < ended.size(); ++i) TellAnswer(*ended[i], look.now);
}

void ClusterDiary::CompareRequest(const RequestTrace& trace, const KnownRequest& known,
                                  const ClockPair& now) {
  if (trace.num_output_tokens > known.num_tokens) {
    const double num_tokens = trace.num_output_tokens - known.num_tokens;
    pace_.num_tokens += num_tokens;
    // A stream that has just begun is timed from its first token on.
    const bool has_begun = known.num_tokens > 0;
    const int64_t first_us = trace.lifetime.TimeOf(RequestEvent::kFirstToken).value_or(look_us_);
    const int64_t from_us = has_begun ? look_us_ : std::max(look_us_, first_us);
    const int64_t until_us = std::min(trace.end_us, now.steady_us);
    const double num_steps = num_tokens / std::max(trace.num_choices, 1u) - (has_begun ? 0 : 1);
    if (num_steps > 0 && until_us > from_us) {
      pace_.stream_us += static_cast<double>(until_us - from_us);
      pace_.num_steps += num_steps;
    }
  }
  if (trace.timings.resumes <= known.num_resumes) return;
  std::string why;
  for (size_t i = 0; i < trace.notes.resumes.size(); ++i) {
    if (trace.notes.resumes[i] == 0) continue;
    if (!why.empty()) why += ", ";
    why += kResumeReasonNames[i];
  }
  const std::string id = ShortId(trace);
  Tell({.kind = "placed_again", .worker = trace.timings.decode_worker, .why = why, .id = id},
       now.wall_unix_us / 1000);
}

void ClusterDiary::TellHandoff(const RequestTrace& trace, const ClockPair& now) {
  const int64_t verified_us = *trace.lifetime.TimeOf(RequestEvent::kVerified);
  JsonWriter json = BeginEvent("handoff", WallMs(verified_us, now));
  json.Key("id").String(ShortId(trace));
  json.Key("from").String(trace.timings.prefill_worker);
  json.Key("to").String(trace.timings.decode_worker);
  json.Key("transport").String(trace.timings.transport);
  json.Key("bytes").Uint(trace.timings.kv_bytes);
  json.Key("ms").Milli(
      MsOf(StageUs(trace, RequestStage::kKvWait) + StageUs(trace, RequestStage::kKvTransfer)));
  Keep(json);
}

void ClusterDiary::TellAnswer(const RequestTrace& trace, const ClockPair& now) {
  const RequestTimings& timings = trace.timings;
  KnownRequest& known = requests_[trace.uid];
  if (!known.handoff_told && HasCrossed(trace)) TellHandoff(trace, now);
  known.handoff_told = true;
  JsonWriter json = BeginEvent("answer", WallMs(trace.end_us, now));
  json.Key("id").String(ShortId(trace));
  json.Key("model").String(trace.model);
  json.Key("status").Int(trace.http_status);
  json.Key("path").String(PathOf(trace));
  json.Key("prefill_worker").String(timings.prefill_worker);
  json.Key("decode_worker").String(timings.decode_worker);
  json.Key("transport").String(timings.transport);
  json.Key("kv_bytes").Uint(timings.kv_bytes);
  json.Key("prompt_tokens").Uint(trace.num_prompt_tokens);
  json.Key("cached_tokens").Uint(timings.cached_tokens);
  json.Key("output_tokens").Uint(trace.num_output_tokens);
  WriteStages(trace, &json);
  WriteItl(trace, &json);
  json.Key("longest_gap_ms").Milli(MsOf(trace.notes.longest_gap_us));
  json.Key("resumes").BeginObject();
  for (size_t i = 0; i < trace.notes.resumes.size(); ++i) {
    if (trace.notes.resumes[i] > 0) json.Key(kResumeReasonNames[i]).Uint(trace.notes.resumes[i]);
  }
  json.EndObject();
  Keep(json);
}

std::string ClusterDiary::ClusterBody(const ClusterLook& look) const {
  JsonWriter json;
  json.BeginObject();
  json.Key("models").String(look.topology.model);
  const auto& rows = look.topology.processes;
  const bool has_router = !rows.empty() && rows.front().role == "router";
  json.Key("ready").Bool(has_router && rows.front().ready);
  json.Key("workers").BeginArray();
  for (const ProcessView& process : rows) {
    if (process.role != "router") WriteWorker(process, &json);
  }
  json.EndArray();
  WriteRequests(look, &json);
  WriteObjectives(look.topology, &json);
  json.Key("tokens_per_s");
  json.Milli(pace_.elapsed_us > 0 ? pace_.num_tokens * 1e6 / static_cast<double>(pace_.elapsed_us)
                                  : 0);
  json.Key("itl_ms");
  if (pace_.num_steps > 0) {
    json.Milli(pace_.stream_us / pace_.num_steps / 1000);
  } else {
    json.Null();
  }
  json.Key("skipped").Uint(num_skipped_);
  json.EndObject();
  return json.Take();
}

void ClusterDiary::WriteRequests(const ClusterLook& look, JsonWriter* json) const {
  size_t num_live = 0;
  size_t num_unplaced = 0;
  for (const auto& trace : look.traces) {
    if (trace->http_status != 0) continue;
    ++num_live;
    if (!Happened(*trace, RequestEvent::kAdmitted)) ++num_unplaced;
  }
  json->Key("num_live").Uint(num_live);
  json->Key("num_unplaced").Uint(num_unplaced);
  json->Key("requests").BeginArray();
  size_t num_shown = 0;
  for (const auto& trace : look.traces) {
    if (trace->http_status != 0) continue;
    if (++num_shown > kMaxRequests) break;
    json->BeginObject();
    json->Key("id").String(ShortId(*trace));
    json->Key("state").String(trace->state);
    json->Key("age_ms").Int((trace->end_us - *trace->lifetime.TimeOf(RequestEvent::kAccepted)) /
                            1000);
    json->Key("path").String(PathOf(*trace));
    json->Key("prefill_worker").String(trace->timings.prefill_worker);
    json->Key("decode_worker").String(trace->timings.decode_worker);
    json->Key("prompt_tokens").Uint(trace->num_prompt_tokens);
    json->Key("tokens").Uint(trace->num_output_tokens);
    json->Key("longest_gap_ms").Milli(MsOf(trace->notes.longest_gap_us));
    json->EndObject();
  }
  json->EndArray();
}

}  // namespace baton::api
