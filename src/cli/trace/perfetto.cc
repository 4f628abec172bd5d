#include "src/cli/trace/perfetto.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/device/step_stage.h"

namespace baton::cli {

using device::StageOfStep;
using device::StepStageName;

namespace {

using nlohmann::ordered_json;

constexpr int64_t kStepsRow = 1;
constexpr int64_t kFirstRequestRow = 2;

// A span of a process that needs a row of its own while it lasts.
struct RowSpan {
  int64_t begin_us = 0;
  int64_t end_us = 0;
  std::string name;
  ordered_json args;
  std::vector<StageSpan> parts;  // beneath it, from begin_us on
};

// Events of one trace.
class EventList {
 public:
  explicit EventList(int64_t began_us) : began_us_(began_us) {}

  void NameProcess(size_t pid, const TracePage& page) {
    Meta("process_name", pid, 0, fmt::format("{} ({})", page.worker_id, page.role));
  }
  void NameRow(size_t pid, int64_t row, const std::string& name) {
    Meta("thread_name", pid, row, name);
  }
  void Add(size_t pid, int64_t row, RowSpan span) {
    events_.push_back({{"ph", "X"},
                       {"pid", pid},
                       {"tid", row},
                       {"ts", span.begin_us - began_us_},
                       {"dur", span.end_us - span.begin_us},
                       {"name", std::move(span.name)},
                       {"args", std::move(span.args)}});
    for (const StageSpan& part : span.parts) {
      if (part.elapsed_us <= 0) continue;
      Add(pid, row,
          {.begin_us = span.begin_us,
           .end_us = span.begin_us + part.elapsed_us,
           .name = part.name,
           .args = ordered_json::object()});
      span.begin_us += part.elapsed_us;
    }
  }
  ordered_json Take() { return std::move(events_); }

 private:
  void Meta(const char* kind, size_t pid, int64_t row, const std::string& name) {
    events_.push_back(
        {{"ph", "M"}, {"pid", pid}, {"tid", row}, {"name", kind}, {"args", {{"name", name}}}});
  }

  const int64_t began_us_;
  ordered_json events_ = ordered_json::array();
};

int64_t BeganUs(const std::vector<TracePage>& pages) {
  int64_t began_us = std::numeric_limits<int64_t>::max();
  for (const TracePage& page : pages) {
    for (const auto& request : page.requests) began_us = std::min(began_us, request.accepted_us);
    for (const auto& step : page.steps)
      began_us = std::min(began_us, step.end_us - step.elapsed_us);
  }
  return began_us == std::numeric_limits<int64_t>::max() ? 0 : began_us;
}

std::string LabelOf(const TracedRequest& request) {
  return request.answer_id.empty() ? request.request_uid : request.answer_id;
}

RowSpan WholeSpan(const TracedRequest& request) {
  return {.begin_us = request.accepted_us,
          .end_us = request.end_us,
          .name = LabelOf(request),
          .args = {{"request_uid", request.request_uid},
                   {"request_id", request.request_id},
                   {"status", request.status},
                   {"state", request.state},
                   {"prompt_tokens", request.num_prompt_tokens},
                   {"cached_tokens", request.num_cached_tokens},
                   {"output_tokens", request.num_output_tokens},
                   {"prefill_worker", request.prefill_worker},
                   {"decode_worker", request.decode_worker},
                   {"transport", request.transport},
                   {"kv_bytes", request.kv_bytes},
                   {"attempts", request.num_attempts}},
          .parts = request.stages};
}

bool IsPrefillStage(const std::string& stage) { return stage == "prefill"; }
bool IsDecodeStage(const std::string& stage) { return stage == "first_step" || stage == "decode"; }

// The stages of `request` that `worker_id` worked on.
void AddWorkerSpans(const TracedRequest& request, const std::string& worker_id,
                    std::vector<RowSpan>* spans) {
  int64_t begin_us = request.accepted_us;
  for (const StageSpan& stage : request.stages) {
    const int64_t end_us = begin_us + stage.elapsed_us;
    const bool is_here = (IsPrefillStage(stage.name) && request.prefill_worker == worker_id) ||
                         (IsDecodeStage(stage.name) && request.decode_worker == worker_id);
    if (is_here && stage.elapsed_us > 0) {
      spans->push_back({.begin_us = begin_us,
                        .end_us = end_us,
                        .name = stage.name + " " + LabelOf(request),
                        .args = {{"request_uid", request.request_uid}},
                        .parts = {}});
    }
    begin_us = end_us;
  }
}

// Each span into the first row that is free when it begins.
void AddInRows(size_t pid, std::vector<RowSpan> spans, EventList* events) {
  std::stable_sort(spans.begin(), spans.end(),
                   [](const RowSpan& a, const RowSpan& b) { return a.begin_us < b.begin_us; });
  std::vector<int64_t> busy_until_us;
  for (RowSpan& span : spans) {
    const auto free = std::find_if(busy_until_us.begin(), busy_until_us.end(),
                                   [&](int64_t until_us) { return until_us <= span.begin_us; });
    const auto row = kFirstRequestRow + (free - busy_until_us.begin());
    if (free == busy_until_us.end()) {
      busy_until_us.push_back(span.end_us);
      events->NameRow(pid, row, fmt::format("requests {}", busy_until_us.size()));
    } else {
      *free = span.end_us;
    }
    events->Add(pid, row, std::move(span));
  }
}

void AddSteps(size_t pid, const TracePage& page, EventList* events) {
  if (page.steps.empty()) return;
  events->NameRow(pid, kStepsRow, "steps");
  for (const TracedStep& step : page.steps) {
    events->Add(pid, kStepsRow,
                {.begin_us = step.end_us - step.elapsed_us,
                 .end_us = step.end_us,
                 .name = StepStageName(StageOfStep(step.num_prefill_tokens, step.num_decode_rows)),
                 .args = {{"prefill_tokens", step.num_prefill_tokens},
                          {"decode_rows", step.num_decode_rows}},
                 .parts = {}});
  }
}

}  // namespace

std::string PerfettoJson(const std::vector<TracePage>& pages) {
  const int64_t began_us = BeganUs(pages);
  EventList events(began_us);
  for (size_t i = 0; i < pages.size(); ++i) {
    const size_t pid = i + 1;
    events.NameProcess(pid, pages[i]);
    AddSteps(pid, pages[i], &events);
    std::vector<RowSpan> spans;
    for (const TracePage& page : pages) {
      for (const TracedRequest& request : page.requests) {
        if (&page == &pages[i]) spans.push_back(WholeSpan(request));
        if (&page != &pages[i]) AddWorkerSpans(request, pages[i].worker_id, &spans);
      }
    }
    AddInRows(pid, std::move(spans), &events);
  }
  const ordered_json root = {{"displayTimeUnit", "ms"},
                             {"otherData", {{"began_unix_us", std::to_string(began_us)}}},
                             {"traceEvents", events.Take()}};
  return root.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace baton::cli
