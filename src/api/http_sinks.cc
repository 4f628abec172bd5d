#include "src/api/http_sinks.h"

#include <string_view>
#include <utility>

#include "src/api/openai_json.h"

namespace baton {
namespace {

constexpr std::string_view kJsonType = "application/json";

void AppendEvent(std::string_view json, std::string* out) {
  out->append("data: ").append(json).append("\n\n");
}

}  // namespace

HttpHeaders AnswerHeaders(const std::string& request_id, const std::vector<std::string>& ignored) {
  HttpHeaders headers;
  headers.Set(kRequestIdField, request_id);
  std::string names;
  for (const std::string& name : ignored) names += (names.empty() ? "" : ", ") + name;
  if (!names.empty()) headers.Set("X-Baton-Ignored-Fields", names);
  return headers;
}

HttpResponse ErrorResponse(const RequestError& error, HttpHeaders headers) {
  HttpResponse response;
  response.status = HttpStatusOf(error.code);
  response.headers = std::move(headers);
  response.headers.Set("Content-Type", kJsonType);
  if (error.retry_after_s > 0) {
    response.headers.Set("Retry-After", std::to_string(error.retry_after_s));
  }
  response.body = ErrorJson(error);
  return response;
}

void HttpWholeSink::OnFinished(const GenerateResult& result) {
  workers_->Write(answer_.num_bytes(), [self = shared_from_this(), result] {
    HttpResponse response;
    response.headers = std::move(self->headers_);
    response.headers.Set("Content-Type", kJsonType);
    response.body = AnswerJson(self->plan_, self->answer_, result);
    self->responder_->Respond(std::move(response));
  });
}

void HttpWholeSink::OnFailed(const RequestError& error) {
  if (error.code == ErrorCode::kCancelled) return responder_->Abort();  // nobody reads an answer
  responder_->Respond(ErrorResponse(error, std::move(headers_)));
}

HttpStreamSink::HttpStreamSink(AnswerPlan plan, HttpHeaders headers,
                               std::shared_ptr<HttpResponder> responder)
    : HttpSink(std::move(plan), std::move(headers), std::move(responder)),
      texts_(plan_, plan_.num_choices),
      opened_(plan_.num_choices, false) {}

void HttpStreamSink::OnToken(const TokenOutput& token) {
  if (!started_) {
    started_ = true;
    headers_.Set("Content-Type", "text/event-stream");
    headers_.Set("Cache-Control", "no-cache");
    responder_->StartStream(200, headers_);
  }
  std::string events;
  if (!opened_[token.choice]) {
    opened_[token.choice] = true;
    const bool opens = plan_.endpoint == Endpoint::kChat || plan_.echo;
    if (opens) AppendEvent(OpeningChunk(plan_, token.choice), &events);
  }
  if (!plan_.echo_alone) AppendEvent(TokenChunk(plan_, token, texts_.Push(token)), &events);
  if (token.finish != FinishReason::kNone) {
    ChoiceEnd end{token.finish, StopReasonOf(plan_, token), plan_.echo_alone ? 0 : token.index + 1};
    if (token.is_last) {
      last_end_ = LastEnd{token.choice, std::move(end)};
    } else {
      AppendEvent(FinishChunk(plan_, token.choice, end, nullptr), &events);
    }
  }
  responder_->Write(events);
}

void HttpStreamSink::OnFinished(const GenerateResult& result) {
  std::string events;
  if (last_end_.has_value()) {
    AppendEvent(FinishChunk(plan_, last_end_->choice, last_end_->end,
                            plan_.include_usage ? nullptr : &result),
                &events);
  }
  if (plan_.include_usage) {
    AppendEvent(UsageChunk(plan_, result, texts_.num_reasoning_tokens()), &events);
  }
  AppendEvent("[DONE]", &events);
  responder_->Write(events);
  responder_->Finish();
}

void HttpStreamSink::OnFailed(const RequestError& error) {
  if (error.code == ErrorCode::kCancelled) return responder_->Abort();
  if (!started_) {
    responder_->Respond(ErrorResponse(error, std::move(headers_)));
    return;
  }
  // The status is out; the event says what happened, and the missing [DONE] that the answer is not
  // whole.
  std::string events;
  AppendEvent(ErrorJson(error), &events);
  responder_->Write(events);
  responder_->FinishAndClose();
}

}  // namespace baton
