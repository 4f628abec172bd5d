#include "src/api/http_sinks.h"

#include <string_view>
#include <utility>

#include "src/api/openai_json.h"

namespace baton::api {

using http::HttpHeaders;
using http::HttpResponder;
using http::HttpResponse;
using http::HttpRoom;
using http::kRequestIdField;
using router::ErrorCode;
using router::GenerateResult;
using router::HttpStatusOf;
using router::RequestError;
using router::TokenOutput;
using scheduler::FinishReason;

namespace {

constexpr std::string_view kJsonType = "application/json";
// A comment, and an empty line: some clients read blocks between empty lines, not lines.
constexpr std::string_view kPing = ": ping\n\n";

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
  if (answer_.failure()) return OnFailed(*answer_.failure());
  workers_->Write(answer_.num_bytes(), [self = shared_from_this(), result] {
    self->headers_.Set("Content-Type", kJsonType);
    if (self->answer_.num_bytes() > kMaxTextBytes) {
      self->pieces_.emplace(self->plan_, self->answer_, result);
      if (self->responder_->StartStream(200, self->headers_)) self->WritePieces();
      return;
    }
    HttpResponse response;
    response.headers = std::move(self->headers_);
    response.body = AnswerJson(self->plan_, self->answer_, result);
    self->responder_->Respond(std::move(response));
  });
}

bool HttpWholeSink::FillBuffer() {
  constexpr size_t kPieceBytes = size_t{64} << 10;
  while (responder_->buffered_bytes() < kMaxBufferedBytes) {
    const std::string piece = pieces_->Next(kPieceBytes);
    if (piece.empty()) {
      responder_->Finish();
      return false;
    }
    if (!responder_->Write(piece)) return false;
  }
  return true;
}

bool HttpWholeSink::TryWriteLater() {
  return workers_->TryPost(0, [self = shared_from_this()](bool too_late) {
    if (too_late) return self->responder_->Abort();
    self->WritePieces();
  });
}

// A loop, because a call from a callback that fires at once would nest without end.
void HttpWholeSink::WritePieces() {
  while (FillBuffer()) {
    const HttpRoom room =
        responder_->NotifyBelow(kMaxBufferedBytes / 2, [self = shared_from_this()] {
          if (!self->TryWriteLater()) self->WritePieces();
        });
    if (room != HttpRoom::kNow) return;
    // Other requests have their turn between two buffers of a client that reads fast.
    if (TryWriteLater()) return;
  }
}

void HttpWholeSink::OnFailed(const RequestError& failed) {
  const RequestError& error = answer_.FailureOr(failed);
  if (error.code == ErrorCode::kCancelled) return responder_->Abort();  // nobody reads an answer
  responder_->Respond(ErrorResponse(error, std::move(headers_)));
}

HttpStreamSink::HttpStreamSink(AnswerPlan plan, HttpHeaders headers,
                               std::shared_ptr<HttpResponder> responder, int64_t ping_ms)
    : HttpSink(std::move(plan), std::move(headers), std::move(responder)),
      ping_ms_(ping_ms),
      texts_(plan_, plan_.num_all_choices()),
      opened_(plan_.num_all_choices(), false) {}

void HttpStreamSink::Start() {
  if (started_) return;
  started_ = true;
  headers_.Set("Content-Type", "text/event-stream");
  headers_.Set("Cache-Control", "no-cache");
  headers_.Set("X-Accel-Buffering", "no");  // nginx and its kin would collect events
  responder_->StartStream(200, headers_);
  if (ping_ms_ > 0) responder_->KeepAlive(std::string(kPing), ping_ms_);
}

void HttpStreamSink::OnToken(const TokenOutput& token) {
  Start();
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
      AppendEvent(FinishChunk(plan_, token.choice, end, {}), &events);
    }
  }
  responder_->Write(events);
}

void HttpStreamSink::OnPromptFinished(const GenerateResult& result) {
  if (!last_end_.has_value()) return;
  std::string events;
  AppendEvent(FinishChunk(plan_, last_end_->choice, last_end_->end, {.of_prompt = &result.timings}),
              &events);
  last_end_.reset();
  responder_->Write(events);
}

void HttpStreamSink::OnFinished(const GenerateResult& result) {
  std::string events;
  if (last_end_.has_value()) {
    ChunkTimings timings;
    if (!plan_.include_usage) timings.of_answer = &result.timings;
    const size_t prompt = last_end_->choice / plan_.num_choices;
    if (!result.prompts.empty()) timings.of_prompt = &result.prompts[prompt];
    AppendEvent(FinishChunk(plan_, last_end_->choice, last_end_->end, timings), &events);
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

}  // namespace baton::api
