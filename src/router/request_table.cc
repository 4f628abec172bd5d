#include "src/router/request_table.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/log.h"
#include "src/router/request_spans.h"

namespace baton::router {

using kv::HandoffRequestState;
using kv::RequestOrders;
using obs::Objective;
using obs::RequestEvent;
using obs::RequestFinish;
using scheduler::FinishReason;

namespace {

// A client that waits for its deadline itself may be heard so long before it passes here.
constexpr int64_t kCancelSlackUs = 100'000;

// Finish of a request whose choices have all ended: kLength as soon as one choice was cut.
RequestFinish FinishOf(const RouterRequest& request) {
  const bool is_cut = std::ranges::count(request.finished, FinishReason::kLength) > 0;
  return is_cut ? RequestFinish::kLength : RequestFinish::kStop;
}

// Finish of a request that ended by `code`.
RequestFinish FinishOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCancelled:
    case ErrorCode::kSlowClient:
      return RequestFinish::kCancelled;
    case ErrorCode::kDeadlineExceeded:
      return RequestFinish::kDeadline;
    default:
      return RequestFinish::kError;
  }
}

// Tokens of the answer that its client has: none where the answer has none.
uint32_t NumAnswerTokens(const RouterRequest& request) {
  return request.spec.has_tokens() ? request.num_delivered : 0;
}

// A worker that has seen the request's natural end stops without being told; a Cancel would only
// race with its own last message.
bool StopsByItself(const RouterRequest& request, const PlacementHalf& half) {
  const bool is_prefill = &half == &request.prefill;
  if (is_prefill && request.verified) return true;
  const bool kv_is_there = request.verified || request.is_local;
  return kv_is_there && request.num_finished == request.spec.num_choices &&
         request.merge.ended_by_workers();
}

}  // namespace

RouterRequest& RequestTable::Add(std::unique_ptr<RouterRequest> owned) {
  RouterRequest& record = *owned;
  record.notes.num_running = static_cast<uint32_t>(num_running());
  record.notes.num_waiting = static_cast<uint32_t>(waiting_->num_queued());
  record.metrics = state_->MetricsOf(record.spec.model->id);
  requests_.emplace(record.uid, std::move(owned));
  if (!record.spec.is_own()) record.metrics->requests_running->Add(1);
  waiting_->Enter(record);
  num_own_ += record.spec.is_own() ? 1 : 0;
  num_shadows_ += record.spec.is_shadow() ? 1 : 0;
  return record;
}

void RequestTable::Cancel(RequestUid uid, CancelCause cause) {
  RouterRequest* const request = Find(uid);
  if (request == nullptr) return;
  if (cause == CancelCause::kSlowClient) return EndBad(*request, ErrorCode::kSlowClient);
  // A client that waits no longer than its deadline leaves as it passes.
  const int64_t slack_us = std::min(kCancelSlackUs, request->spec.timeout_us / 4);
  const bool too_late = state_->now_us >= request->DeadlineUs() - slack_us;
  EndBad(*request, too_late ? request->PastDeadline() : PlainError(ErrorCode::kCancelled));
}

RouterRequest* RequestTable::Find(RequestUid uid) {
  const auto it = requests_.find(uid);
  return it == requests_.end() ? nullptr : it->second.get();
}

void RequestTable::EndGood(RouterRequest& request) {
  const RequestOrders orders = request.life.OnDone();
  BATON_CHECK(orders.tell_client, "request {} is done in a state without tokens", request.uid);
  GenerateResult result;
  result.num_prompt_tokens = static_cast<uint32_t>(request.spec.prompt.size());
  result.num_completion_tokens = NumAnswerTokens(request);
  result.timings = request.Timings();
  const RequestError* const refused = request.sink->own_failure();
  const int status = refused == nullptr ? 200 : HttpStatusOf(refused->code);
  if (!request.spec.is_own()) {
    request.metrics->CountRequest(status);
    if (!request.exact) request.metrics->inexact_answers_total->Add();
    for (const FinishReason reason : request.finished) {
      // A vector is no choice.
      if (request.spec.embeds) break;
      // The client of a prompt alone sees no token, so the one that was computed ends nothing.
      const bool is_cut = reason == FinishReason::kLength || request.spec.echoes_alone;
      request.metrics->choices_finished_total[is_cut ? 1 : 0]->Add();
    }
    // The times of first tokens and of stages are those of answers in tokens.
    if (request.spec.has_tokens()) {
      request.metrics->ObserveLifetime(request.lifetime, FinishOf(request));
    }
    waiting_->OnServed(request, state_->now_us);
    CountObjectives(request, std::nullopt);
  }
  BATON_LOG_DEBUG("request {} ({}) attempt {} is done: {} prompt tokens, {} tokens, {} us",
                  request.uid, request.spec.request_id, request.attempt(), result.num_prompt_tokens,
                  result.num_completion_tokens, request.lifetime.EndToEndUs());
  Remember(request, status, refused == nullptr ? "" : refused->Message());
  const std::shared_ptr<ResponseSink> sink = request.sink;
  Forget(request, /*waits=*/false);
  // Last: a client that has its answer finds the request in the metrics, and not running.
  sink->OnFinished(result);
}

void RequestTable::EndBad(RouterRequest& request, ErrorCode code) {
  EndBad(request, PlainError(code));
}

void RequestTable::EndBad(RouterRequest& request, const RequestError& error) {
  const bool waits = !request.IsPlaced();
  const HandoffRequestState before = request.life.state();
  const RequestOrders orders =
      error.code == ErrorCode::kCancelled ? request.life.OnCancelled() : request.life.OnFailed();
  BATON_CHECK(orders.tell_client, "request {} ends twice", request.uid);
  if (!request.spec.is_own()) {
    BATON_LOG_INFO("request {} ({}) attempt {} ends in {} with {} tokens delivered: {}",
                   request.uid, request.spec.request_id, request.attempt(), RouterStateName(before),
                   request.num_delivered, ErrorNameOf(error.code));
  }
  TellFailed(request, error, waits);
}

void RequestTable::TellFailed(RouterRequest& request, const RequestError& error, bool waits) {
  const RequestError* const own = request.sink->own_failure();
  const bool is_own = own != nullptr && error.code == ErrorCode::kCancelled;
  const ErrorCode told = is_own ? own->code : error.code;  // as the client sees it
  const bool tries_again = !request.spec.is_own() && request.sink->TriesAgain(error);
  if (!request.spec.is_own() && !tries_again) {
    request.metrics->CountRequest(HttpStatusOf(told));
    const bool had_token = NumAnswerTokens(request) > 0;
    if (had_token)
      request.metrics->ObserveLifetime(request.lifetime, FinishOf(told), state_->now_us);
    CountObjectives(request, told);
  }
  // Tries that no client is told of would push real refusals out of the traces.
  if (!tries_again)
    Remember(request, HttpStatusOf(told), is_own ? own->Message() : error.Message());
  const std::shared_ptr<ResponseSink> sink = request.sink;
  Forget(request, waits);
  sink->OnFailed(error);  // last, as in EndGood
}

void RequestTable::CountObjectives(const RouterRequest& request,
                                   std::optional<ErrorCode> code) const {
  if (!request.spec.has_tokens()) return;
  const ServiceObjective& objective = state_->config.objective;
  const bool has_token = request.num_delivered > 0;
  if (objective.ttft_us > 0 && has_token) {
    const int64_t first_us = request.lifetime.TimeToFirstTokenUs().value_or(0);
    request.metrics->CountObjective(Objective::kTtft, first_us <= objective.ttft_us);
  } else if (objective.ttft_us > 0 && code) {
    const int64_t age_us = state_->now_us - request.spec.received_us;
    const bool missed = MissedFirstToken(*code, age_us, objective.ttft_us);
    if (missed) request.metrics->CountObjective(Objective::kTtft, false);
  }
  if (objective.itl_us == 0) return;
  // Its client still waits for the next token.
  const bool broke_off =
      has_token && code && *code != ErrorCode::kDeadlineExceeded && HttpStatusOf(*code) >= 500;
  if (request.gaps.num_gaps == 0 && !broke_off) return;
  request.metrics->CountObjective(Objective::kItl, !broke_off && request.gaps.IsMet());
}

void RequestTable::Forget(RouterRequest& request, bool waits) {
  if (waits) waiting_->Leave(request);
  if (!request.spec.is_own()) request.metrics->requests_running->Add(-1);
  num_own_ -= request.spec.is_own() ? 1 : 0;
  num_shadows_ -= request.spec.is_shadow() ? 1 : 0;
  CancelKept(request);
  GiveUpMove(request);
  ReleaseHalf(request, request.prefill, !StopsByItself(request, request.prefill));
  ReleaseHalf(request, request.decode, !StopsByItself(request, request.decode));
  requests_.erase(request.uid);  // `request` is gone
  room_freed_ = true;
}

void RequestTable::ReleaseHalf(RouterRequest& request, PlacementHalf& half, bool cancel) {
  if (half.lease.value() == 0) return;
  if (RegisteredWorker* worker = state_->registry.Find(half.lease)) {
    worker->placed.num_blocks -= half.cost.num_blocks;
    if (half.shares) worker->placed.num_blocks -= worker->shared.Remove(request.links);
    worker->TakeFromBacklog(half.cost.num_tokens);
    worker->placed.num_prompts -= half.cost.num_prompts;
    worker->placed.num_sequences -= half.cost.num_sequences;
    worker->placed.num_streams -= half.cost.num_streams;
    --worker->num_requests;
    const auto link = worker->links.find(half.link_to);
    if (link != worker->links.end()) link->second.EndHandOff(half.link_bytes);
    if (cancel && half.live && worker->session_up) {
      worker->session->Cancel(request.uid, half.attempt);
    }
  }
  half = PlacementHalf{};
}

void RequestTable::CancelKept(RouterRequest& request) {
  const KeptSource kept = std::exchange(request.kept, KeptSource{});
  const RegisteredWorker* worker = state_->registry.Find(kept.lease);
  if (worker != nullptr && worker->session_up) worker->session->Cancel(request.uid, kept.attempt);
}

// The prompt is computed: it is no backlog of that worker any more.
void RequestTable::ReleaseBacklog(PlacementHalf& half) {
  if (RegisteredWorker* worker = state_->registry.Find(half.lease)) {
    worker->TakeFromBacklog(half.cost.num_tokens);
    worker->placed.num_prompts -= half.cost.num_prompts;
    half.cost.num_tokens = 0;
    half.cost.num_prompts = 0;
  }
}

void RequestTable::CountStreams(PlacementHalf& decode) {
  RegisteredWorker* const worker = state_->registry.Find(decode.lease);
  if (worker == nullptr || decode.cost.num_streams > 0) return;
  decode.cost.num_streams = decode.cost.num_sequences;
  worker->placed.num_streams += decode.cost.num_streams;
}

void RequestTable::ForgiveSilence(int64_t late_us) {
  for (auto& [uid, request] : requests_) {
    request->placed_us += late_us;
    request->moved_us += late_us;
    request->prompt_done_us += late_us;
    request->due_us += late_us;
    request->move.asked_us += late_us;
    request->heard_us += late_us;
    request->pause.Forgive(late_us);
  }
}

void RequestTable::EndShadows(LeaseId on) {
  if (num_shadows_ == 0) return;
  EndOwn([on](const RouterRequest& request) {
    return request.spec.is_shadow() && (on.value() == 0 || request.decode.Is(on));
  });
}

void RequestTable::EndOwn(const std::function<bool(const RouterRequest&)>& is_meant) {
  if (num_own_ == 0) return;
  std::vector<RequestUid> uids;
  for (const auto& [uid, request] : requests_) {
    if (request->spec.is_own() && is_meant(*request)) uids.push_back(uid);
  }
  for (const RequestUid uid : uids) Cancel(uid, CancelCause::kClientLeft);
}

void RequestTable::FailAll(ErrorCode code) {
  while (!requests_.empty()) EndBad(*requests_.begin()->second, code);
}

std::vector<RunningAnswer> RequestTable::RunningBeside(const RouterRequest& request) const {
  std::vector<RunningAnswer> answers;
  for (const auto& [uid, other] : requests_) {
    const bool counts = other->IsPlaced() && !other->spec.is_own();
    const bool is_of_model = other->spec.model->id == request.spec.model->id;
    if (counts && is_of_model) answers.push_back(other->Progress(state_->now_us));
  }
  return answers;
}

RequestError RequestTable::NoRoomError(const RouterRequest& request, ErrorCode code) {
  const auto running = [&] { return RunningBeside(request); };
  return waiting_->NoRoomError(request, code, running, state_->now_us);
}

std::optional<RequestError> RequestTable::WaitsInVain(const RouterRequest& request,
                                                      size_t num_before) {
  const auto running = [&] { return RunningBeside(request); };
  return waiting_->WaitsInVain(request, num_before, running, state_->now_us);
}

std::vector<RequestView> RequestTable::RequestViews(int64_t now_us) const {
  std::vector<RequestView> views;
  for (const auto& [uid, request] : requests_) {
    for (uint32_t choice = 0; choice < request->spec.num_choices; ++choice) {
      RequestView view;
      view.uid = uid;
      view.request_id = request->spec.request_id;
      view.choice = choice;
      view.attempt = request->attempt();
      view.state = RouterStateName(request->life.state());
      view.age_ms = (now_us - request->spec.received_us) / 1000;
      view.prefill_worker = request->prefill_worker_id;
      view.decode_worker = request->decode_worker_id;
      view.num_tokens = static_cast<uint32_t>(request->merge.tokens(choice).size());
      views.push_back(std::move(view));
    }
  }
  return views;
}

void RequestTable::GiveUpMove(RouterRequest& request) {
  if (!request.move.on()) return;
  ReleaseHalf(request, request.move.decode, /*cancel=*/true);
  request.move = AskedMove{};
  request.life.SkipAttempt();
}

std::shared_ptr<RequestTrace> RequestTable::TraceOf(const RouterRequest& request,
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
  trace->num_output_tokens = NumAnswerTokens(request);
  trace->timings = request.Timings();
  trace->lifetime = request.lifetime;
  trace->end_us = std::max(end_us, request.spec.received_us);
  trace->stages_us = request.lifetime.StagesUntilUs(trace->end_us);
  if (request.attempt() == 0)
    trace->queue_us = std::max<int64_t>(0, end_us - request.wait.begin_us);
  trace->notes = request.notes;
  return trace;
}

void RequestTable::Remember(const RouterRequest& request, int http_status, std::string error) {
  if (request.spec.is_own()) return;
  std::shared_ptr<RequestTrace> trace = TraceOf(request, state_->now_us);
  trace->http_status = http_status;
  trace->error = std::move(error);
  if (http_status == 200) {  // it ended with its last token, as the stages of the metrics do
    trace->stages_us = request.lifetime.StagesUs();
    trace->end_us = request.spec.received_us + request.lifetime.EndToEndUs();
  }
  if (request.span.valid()) {
    state_->config.spans->Add(
        SpansOfRequest(*trace, request.span, {request.spec, request.finished}));
  }
  const bool was_placed = request.lifetime.TimeOf(RequestEvent::kAdmitted).has_value();
  if (was_placed) return traces_.AddServed(std::move(trace));
  traces_.AddRefused(std::move(trace));
}

std::vector<std::shared_ptr<const RequestTrace>> RequestTable::Traces(int64_t now_us) const {
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
