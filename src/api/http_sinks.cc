#include "src/api/http_sinks.h"

#include <limits>
#include <string_view>
#include <utility>

#include "src/api/ignored_names.h"

namespace baton::api {

using http::HttpHeaders;
using http::HttpResponse;
using http::HttpRoom;
using http::kRequestIdField;
using router::ErrorCode;
using router::GenerateResult;
using router::HttpStatusOf;
using router::PromptLogprobs;
using router::PromptProgress;
using router::RequestError;
using router::TokenOutput;
using scheduler::FinishReason;

namespace {

constexpr std::string_view kJsonType = "application/json";

void SetRequestId(const Surface& surface, const std::string& request_id, HttpHeaders* headers) {
  headers->Set(kRequestIdField, request_id);
  if (!surface.request_id_field.empty()) headers->Set(surface.request_id_field, request_id);
}

}  // namespace

HttpHeaders AnswerHeaders(const Surface& surface, const std::string& request_id,
                          const std::vector<std::string>& ignored) {
  HttpHeaders headers;
  SetRequestId(surface, request_id, &headers);
  const std::string names = IgnoredNamesText(ignored);
  if (!names.empty()) headers.Set("X-Baton-Ignored-Fields", names);
  return headers;
}

HttpResponse ErrorResponse(const Surface& surface, const RequestError& error, HttpHeaders headers) {
  HttpResponse response;
  response.status = HttpStatusOf(error.code);
  response.headers = std::move(headers);
  response.headers.Set("Content-Type", kJsonType);
  if (error.retry_after_s > 0) {
    response.headers.Set("Retry-After", std::to_string(error.retry_after_s));
  }
  if (response.status == 401)
    response.headers.Set("WWW-Authenticate", "Bearer");  // RFC 9110, 11.6.1
  response.body = surface.error_body(error, response.headers.Find(kRequestIdField).value_or(""));
  return response;
}

void HttpSink::OnAccepted(const router::AnswerName& name) {
  writer_->Rename(name);
  SetRequestId(surface_, name.request_id, &headers_);
}

void HttpWholeSink::OnFinished(const GenerateResult& result) {
  if (answer_.failure()) return OnFailed(*answer_.failure());
  workers_->Write(answer_.num_bytes(), [self = shared_from_this(), result] {
    self->headers_.Set("Content-Type", kJsonType);
    self->pieces_ = self->writer_->Whole(self->answer_, result);
    if (self->answer_.num_bytes() > kMaxTextBytes) {
      if (self->responder_->StartStream(200, self->headers_)) self->WritePieces();
      return;
    }
    HttpResponse response;
    response.headers = std::move(self->headers_);
    response.body = self->pieces_->Next(std::numeric_limits<size_t>::max());
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
  responder_->Respond(ErrorResponse(surface_, error, std::move(headers_)));
}

HttpStreamSink::HttpStreamSink(AnswerTarget target, const ApiParts& parts,
                               const std::string& stream)
    : HttpSink(std::move(target)),
      ping_ms_(parts.sse_ping_ms),
      submitter_(parts.submitter),
      texts_(plan(), plan().num_all_choices()),
      opened_(plan().num_all_choices(), false),
      prompt_logs_(plan(), parts.workers, [this](uint32_t prompt, const PromptLogprobs* log) {
        return writer_->PromptLog(prompt, log);
      }) {
  if (!stream.empty()) ids_.emplace(stream, plan().num_all_choices());
}

void HttpStreamSink::Start() {
  if (started_) return;
  started_ = true;
  headers_.Set("Content-Type", surface_.stream_type);
  headers_.Set("Cache-Control", "no-cache");
  headers_.Set("X-Accel-Buffering", "no");  // nginx and its kin would collect events
  if (ids_.has_value()) headers_.Set(kStreamField, ids_->stream());
  responder_->StartStream(200, headers_);
  std::string events;
  writer_->Begin(&events);
  Name(0, /*is_token=*/false, &events);
  if (!events.empty()) responder_->Write(events);
  for (const auto& [prompt, progress] : early_progress_) OnPromptProgress(prompt, progress);
  early_progress_.clear();
  if (ping_ms_ > 0 && !surface_.ping.empty()) {
    const bool is_comment = surface_.ping == kCommentPing;
    responder_->KeepAlive(
        std::string(is_comment && ids_.has_value() ? kCommentPingOfIds : surface_.ping), ping_ms_);
  }
}

// Its event has no id: a client that resumes is told of tokens, and an id counts the events before
// a token.
void HttpStreamSink::OnPromptProgress(uint32_t prompt, const PromptProgress& progress) {
  if (!started_) {
    early_progress_[prompt] = progress;
    return;
  }
  std::string events;
  writer_->AddProgress(prompt * plan().num_choices, progress, &events);
  if (!events.empty()) responder_->Write(events);
}

// A large event is waited for as for a slow client.
size_t HttpStreamSink::buffered_bytes() const {
  const size_t num_bytes = responder_->buffered_bytes();
  return prompt_logs_.is_building() ? num_bytes + router::kPauseBytes + 1 : num_bytes;
}

bool HttpStreamSink::OpenChoice(uint32_t choice, std::string* events) {
  opened_[choice] = true;
  const uint32_t prompt = choice / plan().num_choices;
  writer_->OpenChoice(choice, prompt_logs_.Of(prompt), events);
  Name(0, /*is_token=*/false, events);
  prompt_logs_.OnOpened(prompt);
  RequestError error;
  if (!IsOpeningTooLarge(plan(), events->size(), &error)) return true;
  failure_ = std::move(error);
  CancelItself(submitter_);
  return false;
}

void HttpStreamSink::OnToken(const TokenOutput& token) {
  if (failure_.has_value()) return;
  Start();
  std::string events;
  if (ids_.has_value()) ids_->GoTo(token.choice, token.index);
  if (!opened_[token.choice] && !OpenChoice(token.choice, &events)) return;
  const TokenText text = texts_.Push(token);
  const size_t begin = events.size();
  writer_->AddToken(token, text, &events);
  Name(begin, /*is_token=*/true, &events);
  const size_t end = events.size();
  if (token.finish != FinishReason::kNone) {
    ChoiceEnd choice_end = EndOf(plan(), token, text);
    if (token.is_last) {
      last_end_ = LastEnd{token.choice, std::move(choice_end)};
    } else {
      writer_->EndChoice(token.choice, choice_end, nullptr, &events);
      Name(end, /*is_token=*/false, &events);
    }
  }
  responder_->Write(events);
}

void HttpStreamSink::OnPromptFinished(const GenerateResult& result) {
  if (failure_.has_value()) return;
  if (!last_end_.has_value()) return;
  std::string events;
  writer_->EndPrompt(last_end_->choice, last_end_->end, result, &events);
  Name(0, /*is_token=*/false, &events);
  last_end_.reset();
  responder_->Write(events);
}

void HttpStreamSink::OnFinished(const GenerateResult& result) {
  if (failure_.has_value()) return OnFailed(*failure_);
  std::string events;
  if (last_end_.has_value()) {
    writer_->EndChoice(last_end_->choice, last_end_->end, &result, &events);
  }
  writer_->Finish(result, texts_.num_reasoning_tokens(), &events);
  Name(0, /*is_token=*/false, &events);
  responder_->Write(events);
  responder_->Finish();
}

void HttpStreamSink::OnFailed(const RequestError& failed) {
  const bool is_own = failed.code == ErrorCode::kCancelled && failure_.has_value();
  const RequestError& error = is_own ? *failure_ : failed;
  if (error.code == ErrorCode::kCancelled) return responder_->Abort();
  if (!started_) {
    responder_->Respond(ErrorResponse(surface_, error, std::move(headers_)));
    return;
  }
  std::string events;
  writer_->Fail(error, &events);
  Name(0, /*is_token=*/false, &events);
  responder_->Write(events);
  responder_->FinishAndClose();
}

}  // namespace baton::api
