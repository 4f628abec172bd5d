// HttpApi's part for streams that can be resumed: X-Baton-Resumable and GET /v1/streams/STREAM.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/api/event_ids.h"
#include "src/api/http_api.h"
#include "src/api/http_sinks.h"
#include "src/api/json_fields.h"
#include "src/api/kept_streams.h"
#include "src/api/key_check.h"

namespace baton::api {

using http::EqualsIgnoreCase;
using http::HttpHeaders;
using http::HttpResponse;
using router::ErrorCode;
using router::FieldError;
using router::PlainError;
using router::RequestError;

namespace {

constexpr std::string_view kResumableField = "X-Baton-Resumable";
constexpr std::string_view kLastEventField = "Last-Event-ID";

// False: `error`. A repeated field has no value.
bool ReadSwitch(const HttpHeaders& headers, std::string_view field, bool* on, RequestError* error) {
  const std::vector<std::string_view> values = headers.FindAll(field);
  if (values.empty()) return true;
  const std::string_view value = values.size() == 1 ? values.front() : "";
  *on = value == "1" || EqualsIgnoreCase(value, "true");
  if (*on || value == "0" || EqualsIgnoreCase(value, "false")) return true;
  return Fail(error, ErrorCode::kInvalidValue, field, "1 (or true) or 0 (or false), once");
}

// False: `error`. "" = the client has no event yet, whether it sends the field or not.
bool ReadLastEvent(const HttpHeaders& headers, std::string_view stream, std::string_view* id,
                   RequestError* error) {
  const std::vector<std::string_view> values = headers.FindAll(kLastEventField);
  if (values.empty()) return true;
  *id = values.size() == 1 ? values.front() : ".";
  if (id->empty()) return true;
  if (IsEventId(*id) && StreamOfEventId(*id) == stream) return true;
  return Fail(error, ErrorCode::kInvalidValue, kLastEventField,
              "STREAM.CHOICE.TOKEN_INDEX, the id of an event of the stream in the path");
}

}  // namespace

bool HttpApi::MakeResumable(Exchange& exchange, bool streams, std::vector<std::string>* ignored,
                            RequestError* error) const {
  bool is_wanted = false;
  if (!ReadSwitch(exchange.request.headers, kResumableField, &is_wanted, error)) return false;
  if (!is_wanted) return true;
  if (!streams) {
    ignored->emplace_back(kResumableField);
    return true;
  }
  if (parts_.streams == nullptr || exchange.surface->stream_type != "text/event-stream") {
    return Fail(error, ErrorCode::kUnsupported, kResumableField,
                "absent or 0: only streams of server-sent events can be resumed");
  }
  auto stream = parts_.streams->Make(exchange.arrival.tenant, std::move(exchange.responder));
  exchange.stream = stream->name();
  exchange.responder = std::move(stream);
  return true;
}

void HttpApi::GetStream(Exchange& exchange) {
  const std::string name = exchange.request.path.substr(kStreamPrefix.size());
  const auto stream = parts_.streams == nullptr ? nullptr : parts_.streams->Find(name);
  if (stream == nullptr) return Refuse(exchange, PlainError(ErrorCode::kStreamNotFound));
  if (stream->tenant() != exchange.arrival.tenant) {
    return Refuse(exchange, PlainError(ErrorCode::kStreamOfAnotherTenant));
  }
  std::string_view last_event_id;
  RequestError error;
  if (!ReadLastEvent(exchange.request.headers, name, &last_event_id, &error)) {
    return Refuse(exchange, error);
  }
  // A look at the header takes the stream from nobody.
  if (exchange.request.method == "HEAD") return Send(exchange, "", stream->content_type());
  HttpHeaders headers = HeadersOf(exchange);
  AddRateFields(exchange.tenant, clock_, &headers);
  headers.Set("Cache-Control", "no-cache");
  headers.Set("X-Accel-Buffering", "no");  // nginx and its kin would collect events
  headers.Set(kStreamField, name);
  switch (stream->Attach(exchange.responder, headers, last_event_id)) {
    case ResumableStream::Entry::kTaken:
      parts_.streams->CountResumed();
      return CountAnswered(exchange.tenant, 200);
    case ResumableStream::Entry::kNothingLeft: {
      // It tells an EventSource to stop reconnecting.
      parts_.streams->CountResumed();
      CountAnswered(exchange.tenant, 204);
      HttpResponse response{204, std::move(headers), ""};
      exchange.responder->Respond(std::move(response));
      return;
    }
    case ResumableStream::Entry::kNoSuchEvent:
      return Refuse(exchange, FieldError(ErrorCode::kInvalidValue, kLastEventField,
                                         "the id of an event that the stream has had"));
    case ResumableStream::Entry::kGone:
      return Refuse(exchange, PlainError(ErrorCode::kStreamNotFound));
  }
}

}  // namespace baton::api
