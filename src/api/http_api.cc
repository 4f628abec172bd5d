#include "src/api/http_api.h"

#include <array>
#include <string>
#include <utility>

#include "src/api/chat_page.h"
#include "src/api/echo_answer.h"
#include "src/api/http_sinks.h"
#include "src/api/idempotency_key.h"
#include "src/api/json_writer.h"
#include "src/api/openai_json.h"
#include "src/api/openapi_json.h"
#include "src/api/read_json.h"
#include "src/api/schema.h"
#include "src/api/tokenize_json.h"
#include "src/base/random.h"
#include "src/base/version.h"

namespace baton {
namespace {

constexpr std::string_view kJsonType = "application/json";
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::array<std::string_view, 7> kGetPaths = {
    "/health", "/v1/models", "/v1/topology", "/version", "/ui", "/tokenizer_info", "/openapi.json"};

// True for application/json and its +json relatives, whatever parameters follow, and when the
// client did not say.
bool IsJsonType(const HttpHeaders& headers) {
  const auto type = headers.Find("Content-Type");
  if (!type.has_value()) return true;
  std::string_view media = type->substr(0, type->find(';'));
  while (!media.empty() && (media.back() == ' ' || media.back() == '\t')) media.remove_suffix(1);
  if (EqualsIgnoreCase(media, kJsonType)) return true;
  constexpr std::string_view kSuffix = "+json";
  return media.size() > kSuffix.size() &&
         EqualsIgnoreCase(media.substr(media.size() - kSuffix.size()), kSuffix);
}

// True when the body is as the client wrote it: no compression, which nobody here would undo.
bool IsPlain(const HttpHeaders& headers) {
  const auto coding = headers.Find("Content-Encoding");
  return !coding.has_value() || EqualsIgnoreCase(*coding, "identity");
}

// The name of a request: the client's, or a new one.
std::string RequestIdFor(std::string_view given) {
  return IsUsableRequestId(given) ? std::string(given) : RandomRequestUid().ToHex();
}

// All values of a header field, in order of arrival.
std::vector<std::string_view> ValuesOf(const HttpHeaders& headers, std::string_view name) {
  std::vector<std::string_view> values;
  for (const auto& [field, value] : headers.fields()) {
    if (EqualsIgnoreCase(field, name)) values.push_back(value);
  }
  return values;
}

// Percent-decodes one path segment; a broken escape stays as it is, and so matches no model.
std::string DecodeSegment(std::string_view segment) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string decoded;
  for (size_t i = 0; i < segment.size(); ++i) {
    const bool escape = segment[i] == '%' && i + 2 < segment.size() && digit(segment[i + 1]) >= 0 &&
                        digit(segment[i + 2]) >= 0;
    if (escape) {
      decoded.push_back(static_cast<char>(digit(segment[i + 1]) * 16 + digit(segment[i + 2])));
      i += 2;
    } else {
      decoded.push_back(segment[i]);
    }
  }
  return decoded;
}

// Of the client's span; none when there is not exactly one that is well formed.
SpanIds TraceOf(const HttpHeaders& headers) {
  constexpr std::string_view kName = "traceparent";
  if (headers.Count(kName) != 1) return {};
  return ParseTraceparent(*headers.Find(kName)).value_or(SpanIds{});
}

}  // namespace

HttpApi::HttpApi(const ApiParts& parts, std::function<void(Topology*)> complete_topology)
    : submitter_(parts.submitter),
      workers_(parts.workers),
      splits_reasoning_(parts.splits_reasoning),
      complete_topology_(std::move(complete_topology)) {}

HttpHandler HttpApi::AsHandler() {
  return [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    Handle(std::move(request), std::move(responder));
  };
}

HttpErrorFormatter HttpApi::AsErrorFormatter() {
  return [submitter = submitter_](int status, std::string_view /*message*/,
                                  std::string_view request_id) {
    const RequestError error = ServerError(status);
    submitter->CountAnswered(status);  // 417 and 505 have the error code of 501
    HttpResponse response = ErrorResponse(error, AnswerHeaders(RequestIdFor(request_id), {}));
    response.status = status;
    return response;
  };
}

RequestError HttpApi::ServerError(int status) {
  RequestError error;
  switch (status) {
    case 404:
      error.code = ErrorCode::kPathNotFound;
      break;
    case 405:
      error.code = ErrorCode::kMethodNotAllowed;
      break;
    case 408:
      error.code = ErrorCode::kRequestTimeout;
      break;
    case 413:
      error.code = ErrorCode::kBodyTooLarge;
      break;
    case 431:
      error.code = ErrorCode::kHeaderTooLarge;
      break;
    case 417:
    case 501:
    case 505:
      error.code = ErrorCode::kUnsupportedHttp;
      break;
    case 500:
      error.code = ErrorCode::kInternal;
      break;
    case 503:
      error.code = ErrorCode::kTooManyConnections;
      break;
    default:
      error.code = ErrorCode::kMalformedRequest;
      break;
  }
  return error;
}

bool HttpApi::IsGetPath(std::string_view path) {
  for (const std::string_view known : kGetPaths) {
    if (path == known) return true;
  }
  return path.size() > kModelPrefix.size() && path.substr(0, kModelPrefix.size()) == kModelPrefix;
}

HttpApi::PostHandler HttpApi::FindPostHandler(std::string_view path) {
  if (path == "/v1/chat/completions") return &HttpApi::PostChat;
  if (path == "/v1/completions") return &HttpApi::PostCompletion;
  if (path == "/tokenize") return &HttpApi::PostTokenize;
  if (path == "/detokenize") return &HttpApi::PostDetokenize;
  if (path == "/apply-template") return &HttpApi::PostApplyTemplate;
  return nullptr;
}

void HttpApi::Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  Exchange exchange{std::move(request), std::move(responder), {}, {}};
  exchange.arrival.now_us = clock_.NowUs();
  exchange.arrival.wall_unix_ms = clock_.WallUnixMs();
  exchange.arrival.request_id =
      RequestIdFor(exchange.request.headers.Find(kRequestIdField).value_or(""));
  exchange.arrival.trace = TraceOf(exchange.request.headers);

  const std::string& path = exchange.request.path;
  const std::string& method = exchange.request.method;
  const PostHandler post = FindPostHandler(path);
  const bool is_get = method == "GET" || method == "HEAD";
  if (post != nullptr && method == "POST") return HandlePost(std::move(exchange), post);
  if (IsGetPath(path) && is_get) return HandleGet(exchange);
  const bool is_known = post != nullptr || IsGetPath(path);
  RequestError error;
  error.code = is_known ? ErrorCode::kMethodNotAllowed : ErrorCode::kPathNotFound;
  submitter_->CountAnswered(HttpStatusOf(error.code));
  HttpResponse response = ErrorResponse(error, AnswerHeaders(exchange.arrival.request_id, {}));
  if (is_known) response.headers.Set("Allow", post != nullptr ? "POST" : "GET, HEAD");
  exchange.responder->Respond(std::move(response));
}

void HttpApi::Send(Exchange& exchange, std::string body, std::string_view content_type) {
  HttpResponse response;
  response.headers = AnswerHeaders(exchange.arrival.request_id, exchange.ignored);
  response.headers.Set("Content-Type", content_type);
  response.body = std::move(body);
  exchange.responder->Respond(std::move(response));
}

void HttpApi::Refuse(Exchange& exchange, const RequestError& error) {
  submitter_->CountAnswered(HttpStatusOf(error.code));
  exchange.responder->Respond(ErrorResponse(error, AnswerHeaders(exchange.arrival.request_id, {})));
}

void HttpApi::HandleGet(Exchange& exchange) {
  const std::string_view path = exchange.request.path;
  if (path == "/health") return GetHealth(exchange);
  if (path == "/v1/topology") return GetTopology(exchange);
  if (path == "/v1/models") return Send(exchange, ModelsJson(submitter_->Models()), kJsonType);
  if (path == "/version") {
    JsonWriter json;
    json.BeginObject().Key("version").String(kVersion).EndObject();
    return Send(exchange, json.Take(), kJsonType);
  }
  if (path == "/tokenizer_info") return GetTokenizerInfo(exchange);
  if (path == "/openapi.json") return Send(exchange, OpenApiJson(), kJsonType);
  if (path == "/ui") {
    return Send(exchange, std::string(kChatPage), "text/html; charset=utf-8");
  }
  GetModel(exchange, path.substr(kModelPrefix.size()));
}

void HttpApi::GetHealth(Exchange& exchange) {
  if (submitter_->ready()) return Send(exchange, "{\"status\":\"ok\"}", kJsonType);
  RequestError error;
  error.code = submitter_->draining() ? ErrorCode::kDraining : ErrorCode::kNoWorkers;
  error.retry_after_s = 1;
  // A probe is no request: it is not counted.
  exchange.responder->Respond(ErrorResponse(error, AnswerHeaders(exchange.arrival.request_id, {})));
}

void HttpApi::GetModel(Exchange& exchange, std::string_view id) {
  const std::string name = DecodeSegment(id);
  RequestError error;
  if (const auto model = ResolveModel(*submitter_, name, &error)) {
    return Send(exchange, ModelJson(*model, name), kJsonType);
  }
  // Looking up what is not there is 404, also while nothing is.
  Refuse(exchange, FieldError(ErrorCode::kModelNotFound, "model", ""));
}

void HttpApi::GetTokenizerInfo(Exchange& exchange) {
  RequestError error;
  const auto model = ResolveModel(*submitter_, "", &error);
  if (model == nullptr) return Refuse(exchange, error);
  Send(exchange, TokenizerInfoJson(*model), kJsonType);
}

void HttpApi::GetTopology(Exchange& exchange) {
  submitter_->GetTopology([this, exchange](const Topology& topology) mutable {
    auto complete = std::make_shared<Topology>(topology);
    complete_topology_(complete.get());
    // The text of a large cluster takes longer than the router's loop may.
    const bool posted = workers_->TryPost(0, [this, exchange, complete](bool too_late) mutable {
      if (too_late) return Refuse(exchange, ApiStops());
      Send(exchange, TopologyJson(*complete), kJsonType);
    });
    if (!posted) Refuse(exchange, workers_->Refusal());
  });
}

void HttpApi::HandlePost(Exchange exchange, PostHandler handler) {
  if (!IsJsonType(exchange.request.headers) || !IsPlain(exchange.request.headers)) {
    return Refuse(exchange, RequestError{ErrorCode::kUnsupportedMediaType});
  }
  auto shared = std::make_shared<Exchange>(std::move(exchange));
  const size_t num_bytes = shared->request.body.size();
  const bool posted = workers_->TryPost(num_bytes, [this, shared, handler](bool too_late) {
    if (too_late) return Refuse(*shared, ApiStops());
    JsonValue body;
    RequestError error;
    if (!ParseJson(shared->request.body, &body, &error)) return Refuse(*shared, error);
    if (body.AsObject() == nullptr) return Refuse(*shared, RequestError{ErrorCode::kInvalidJson});
    (this->*handler)(*shared, body);
  });
  if (posted) return;
  Refuse(*shared, workers_->Refusal());
}

void HttpApi::PostChat(Exchange& exchange, const JsonValue& body) {
  Generate(exchange, body, Endpoint::kChat);
}

void HttpApi::PostCompletion(Exchange& exchange, const JsonValue& body) {
  Generate(exchange, body, Endpoint::kCompletion);
}

void HttpApi::Generate(Exchange& exchange, const JsonValue& body, Endpoint endpoint) {
  ApiParams params;
  std::vector<std::string> ignored;
  RequestError error;
  BuiltRequest built;
  exchange.arrival.endpoint = endpoint;
  exchange.arrival.splits_reasoning = splits_reasoning_;
  if (!ReadJsonParams(body, endpoint, &params, &ignored, &error)) return Refuse(exchange, error);
  // What is refused from here on carries the name that an answer would.
  if (IsUsableRequestId(params.request_id)) exchange.arrival.request_id = params.request_id;
  if (!BuildRequest(params, exchange.arrival, *submitter_, &built, &error)) {
    return Refuse(exchange, error);
  }
  const auto keys = ValuesOf(exchange.request.headers, kIdempotencyKeyField);
  const std::string content = keys.empty() ? "" : JsonContent(*body.AsObject());
  if (!SetIdempotencyKey(kIdempotencyKeyField, keys, {"http", content}, &built, &error)) {
    return Refuse(exchange, error);
  }
  HttpHeaders headers = AnswerHeaders(built.plan.request_id, ignored);
  std::shared_ptr<ResponseSink> sink;
  if (built.plan.stream) {
    sink = std::make_shared<HttpStreamSink>(std::move(built.plan), std::move(headers),
                                            exchange.responder);
  } else {
    sink = std::make_shared<HttpWholeSink>(std::move(built.plan), built.request.num_choices,
                                           std::move(headers), exchange.responder, workers_);
  }
  const auto uid = SubmitOrEcho(submitter_, std::move(built.request), std::move(sink));
  if (!uid.has_value()) return;
  exchange.responder->OnClosed([submitter = submitter_, uid = *uid](HttpClientGone how) {
    const bool is_slow = how == HttpClientGone::kStalled;
    submitter->Cancel(uid, is_slow ? CancelCause::kSlowClient : CancelCause::kClientLeft);
  });
}

std::shared_ptr<const ModelInfo> HttpApi::ModelOf(Exchange& exchange, const JsonValue& body) {
  std::string_view id;
  RequestError error;
  const JsonValue* value = body.Find("model");
  const bool is_given = value != nullptr && !value->is_null();
  if (is_given && value->AsString() == nullptr) {
    Refuse(exchange, FieldError(ErrorCode::kInvalidType, "model",
                                ExpectedOf(*FindParam(Endpoint::kChat, "model"))));
    return nullptr;
  }
  if (is_given && value->AsString()->empty()) {
    Refuse(exchange, FieldError(ErrorCode::kModelNotFound, "model", ""));
    return nullptr;
  }
  if (is_given) id = *value->AsString();
  auto model = ResolveModel(*submitter_, id, &error);
  if (model == nullptr) Refuse(exchange, error);
  return model;
}

void HttpApi::PostText(Exchange& exchange, const JsonValue& body, TextHandler handler) {
  const auto model = ModelOf(exchange, body);
  if (model == nullptr) return;
  TextAnswer answer;
  RequestError error;
  if (!handler({*model, body, exchange.arrival.wall_unix_ms}, &answer, &error)) {
    return Refuse(exchange, error);
  }
  exchange.ignored = std::move(answer.ignored);
  Send(exchange, std::move(answer.json), kJsonType);
}

void HttpApi::PostTokenize(Exchange& exchange, const JsonValue& body) {
  PostText(exchange, body, &AnswerTokenize);
}

void HttpApi::PostDetokenize(Exchange& exchange, const JsonValue& body) {
  PostText(exchange, body, &AnswerDetokenize);
}

void HttpApi::PostApplyTemplate(Exchange& exchange, const JsonValue& body) {
  const auto model = ModelOf(exchange, body);
  if (model == nullptr) return;
  exchange.ignored = IgnoredJsonFields(
      body, {"model", "messages", "documents", "reasoning_effort", "chat_template_kwargs",
             "add_generation_prompt", "continue_final_message", "tools"});
  ApiParams params;
  ChatPrompt prompt;
  RequestError error;
  if (!ReadJsonTemplateParams(body, &params, &error) ||
      !RenderMessages(*model, params, exchange.arrival.wall_unix_ms, &prompt, &error)) {
    return Refuse(exchange, error);
  }
  JsonWriter json;
  json.BeginObject().Key("prompt").String(prompt.text).EndObject();
  Send(exchange, json.Take(), kJsonType);
}

}  // namespace baton
