// Remembers requests for /debug/trace.
#include <algorithm>
#include <utility>

#include "src/router/request_spans.h"
#include "src/router/router_core.h"

namespace baton::router {

using obs::RequestEvent;

namespace {

WorkerBeside BesideOf(const RegisteredWorker& worker) {
  return {.running = worker.load.running,
          .waiting = worker.load.waiting,
          .free_blocks = worker.NumFreeBlocks(),
          .num_blocks = worker.load.num_blocks};
}

}  // namespace

void RouterCore::NotePlacement(RouterRequest& request, const RegisteredWorker* prefill,
                               const RegisteredWorker& decode, int64_t now_us) {
  TraceNotes& notes = request.notes;
  if (notes.unplaced_us >= 0) notes.again_us += now_us - std::exchange(notes.unplaced_us, -1);
  notes.prefill = prefill == nullptr ? WorkerBeside{} : BesideOf(*prefill);
  notes.decode = BesideOf(decode);
}

std::shared_ptr<RequestTrace> RouterCore::TraceOf(const RouterRequest& request,
                                                  int64_t end_us) const {
  auto trace = std::make_shared<RequestTrace>();
  trace->uid = request.uid;
  trace->request_id = request.spec.request_id;
  trace->answer_id = request.spec.answer_id;
  trace->model = request.spec.model->id;
  trace->state = RouterStateName(request.life.state());
  trace->attempt = request.attempt();
  trace->num_choices = request.spec.num_choices;
  trace->num_prompt_tokens = static_cast<uint32_t>(request.spec.prompt.size());
  trace->num_output_tokens = request.num_delivered;
  trace->timings = request.Timings();
  trace->lifetime = request.lifetime;
  trace->end_us = std::max(end_us, request.spec.received_us);
  trace->stages_us = request.lifetime.StagesUntilUs(trace->end_us);
  trace->notes = request.notes;
  return trace;
}

void RouterCore::Remember(const RouterRequest& request, int http_status) {
  if (request.spec.is_own()) return;
  std::shared_ptr<RequestTrace> trace = TraceOf(request, now_us_);
  trace->http_status = http_status;
  if (http_status == 200) {  // it ended with its last token, as the stages of the metrics do
    trace->stages_us = request.lifetime.StagesUs();
    trace->end_us = request.spec.received_us + request.lifetime.EndToEndUs();
  }
  if (request.span.valid()) {
    config_.spans->Add(SpansOfRequest(*trace, request.span, {request.spec, request.finished}));
  }
  const bool was_placed = request.lifetime.TimeOf(RequestEvent::kAdmitted).has_value();
  if (was_placed) return traces_.AddServed(std::move(trace));
  traces_.AddRefused(std::move(trace));
}

std::vector<std::shared_ptr<const RequestTrace>> RouterCore::Traces(int64_t now_us) const {
  std::vector<std::shared_ptr<const RequestTrace>> traces = traces_.All();
  const auto num_ended = static_cast<std::ptrdiff_t>(traces.size());
  for (const auto& [uid, request] : requests_) {
    if (!request->spec.is_own()) traces.push_back(TraceOf(*request, now_us));
  }
  std::sort(traces.begin() + num_ended, traces.end(), [](const auto& a, const auto& b) {
    return a->lifetime.TimeOf(RequestEvent::kAccepted) <
           b->lifetime.TimeOf(RequestEvent::kAccepted);
  });
  return traces;
}

}  // namespace baton::router
