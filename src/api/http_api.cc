#include "src/api/http_api.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fmt/format.h"

#include "src/api/chat_page.h"
#include "src/api/cluster_events.h"
#include "src/api/embeddings_surface.h"
#include "src/api/http_sinks.h"
#include "src/api/idempotency_key.h"
#include "src/api/json_writer.h"
#include "src/api/messages_surface.h"
#include "src/api/ollama_json.h"
#include "src/api/ollama_surface.h"
#include "src/api/openai_json.h"
#include "src/api/openai_surface.h"
#include "src/api/openapi_json.h"
#include "src/api/path_hints.h"
#include "src/api/prompt_fan_in.h"
#include "src/api/read_json.h"
#include "src/api/responses_surface.h"
#include "src/api/schema.h"
#include "src/api/tokenize_json.h"
#include "src/base/percent_text.h"
#include "src/base/random.h"
#include "src/base/version.h"
#include "src/http/http_server.h"

namespace baton::api {

using http::EqualsIgnoreCase;
using http::HttpClientGone;
using http::HttpErrorFormatter;
using http::HttpHandler;
using http::HttpHeaders;
using http::HttpRefusal;
using http::HttpRequest;
using http::HttpResponder;
using http::HttpResponse;
using http::kRequestIdField;
using http::TrimBlanks;
using router::CancelCause;
using router::ErrorCode;
using router::ErrorNameOf;
using router::FieldError;
using router::HttpStatusOf;
using router::ModelInfo;
using router::PlainError;
using router::RequestError;
using router::Topology;
using text::ChatPrompt;

namespace {

constexpr std::string_view kJsonType = "application/json";
// True for application/json and its +json relatives, whatever parameters follow, and when the
// client did not say.
bool IsJsonType(const HttpHeaders& headers) {
  const auto type = headers.Find("Content-Type");
  if (!type.has_value()) return true;
  const std::string_view media = TrimBlanks(type->substr(0, type->find(';')));
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

// "the Host field is missing" as a sentence of its own.
std::string SentenceOf(std::string_view message) {
  std::string sentence(message);
  if (sentence.empty()) return sentence;
  if (sentence.front() >= 'a' && sentence.front() <= 'z') sentence.front() -= 'a' - 'A';
  if (!sentence.ends_with('.')) sentence += '.';
  return sentence;
}

// The name of a request: the client's, or a new one.
std::string RequestIdFor(std::string_view given) {
  return IsUsableRequestId(given) ? std::string(given) : RandomRequestUid().ToHex();
}

// A name that was given and cannot be used: the answer has a new one, and says so.
bool IsUnusable(std::string_view given) { return !given.empty() && !IsUsableRequestId(given); }

// Ids of the client's span; none when there is not exactly one that is well formed.
SpanIds TraceOf(const HttpHeaders& headers) {
  constexpr std::string_view kName = "traceparent";
  if (headers.Count(kName) != 1) return {};
  return ParseTraceparent(*headers.Find(kName)).value_or(SpanIds{});
}

// The answer where a page would be.
RequestError NoPage() {
  RequestError error;
  error.code = ErrorCode::kPathNotFound;
  error.expected =
      "The page /ui is switched off (--ui off of this server); POST /v1/chat/completions answers.";
  return error;
}

// The value of the first field of `query` that begins with `name` ("model="); "" = there is none.
std::string QueryValue(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    if (field.starts_with(name)) return PercentDecoded(field.substr(name.size()));
    query.remove_prefix(std::min(field.size() + 1, query.size()));
  }
  return "";
}

}  // namespace

HttpApi::HttpApi(const ApiParts& parts, std::function<void(Topology*)> complete_topology)
    : parts_(parts),
      submitter_(parts.submitter),
      workers_(parts.workers),
      complete_topology_(std::move(complete_topology)),
      clock_(parts.keys == nullptr ? SystemClock() : parts.keys->clock()) {}

HttpHandler HttpApi::AsHandler() {
  return [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    Handle(std::move(request), std::move(responder));
  };
}

HttpErrorFormatter HttpApi::AsErrorFormatter() {
  return [submitter = submitter_](const HttpRefusal& refusal, std::string_view request_id) {
    const RequestError error = ServerError(refusal);
    submitter->CountAnswered(refusal.status);  // 417 and 505 have the error code of 501
    const Surface& surface = *SurfaceOf(refusal.path);
    std::vector<std::string> ignored;
    if (IsUnusable(request_id)) ignored.emplace_back(kRequestIdField);
    HttpResponse response =
        ErrorResponse(surface, error, AnswerHeaders(surface, RequestIdFor(request_id), ignored));
    response.status = refusal.status;
    return response;
  };
}

RequestError HttpApi::ServerError(const HttpRefusal& refusal) {
  RequestError error;
  switch (refusal.status) {
    case 403:
      error.code = refusal.code == ErrorNameOf(ErrorCode::kHostNotAllowed)
                       ? ErrorCode::kHostNotAllowed
                       : ErrorCode::kOriginNotAllowed;
      error.expected = refusal.message;
      break;
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
      error.expected =
          fmt::format("{} KiB and {} fields", http::HttpServerOptions{}.max_header_bytes >> 10,
                      http::HttpServerOptions{}.max_header_fields);
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
      error.expected = refusal.code == http::kTlsOnly
                           ? "This port speaks TLS: its address begins with https://."
                           : SentenceOf(refusal.message);
      break;
  }
  return error;
}

// A surface is one line here and one row in api_paths.h.
HttpApi::RouteForm HttpApi::FormOf(ApiRoute route) {
  switch (route) {
    case ApiRoute::kChat:
      return {&kChatSurface, &HttpApi::Generate};
    case ApiRoute::kCompletion:
      return {&kCompletionSurface, &HttpApi::Generate};
    case ApiRoute::kMessages:
      return {&kMessagesSurface, &HttpApi::Generate};
    case ApiRoute::kCountTokens:
      return {&kMessagesSurface, &HttpApi::PostText<&AnswerCountTokens>};
    case ApiRoute::kResponses:
      return {&kResponsesSurface, &HttpApi::Generate};
    case ApiRoute::kInputTokens:
      return {&kResponsesSurface, &HttpApi::PostText<&AnswerInputTokens>};
    case ApiRoute::kEmbeddings:
      return {&kEmbeddingsSurface, &HttpApi::Generate};
    case ApiRoute::kOllamaEmbed:
      return {&kOllamaEmbedSurface, &HttpApi::Generate};
    case ApiRoute::kOllamaEmbeddings:
      return {&kOllamaEmbeddingsSurface, &HttpApi::Generate};
    case ApiRoute::kOllamaChat:
      return {&kOllamaChatSurface, &HttpApi::PostOllamaChat};
    case ApiRoute::kOllamaGenerate:
      return {&kOllamaGenerateSurface, &HttpApi::PostOllamaGenerate};
    case ApiRoute::kOllamaShow:
      return {&kOllamaChatSurface, &HttpApi::PostOllamaShow};
    case ApiRoute::kOllamaTags:
    case ApiRoute::kOllamaPs:
    case ApiRoute::kOllamaVersion:
      return {&kOllamaChatSurface, nullptr};
    case ApiRoute::kTokenize:
      return {&kChatSurface, &HttpApi::PostText<&AnswerTokenize>};
    case ApiRoute::kDetokenize:
      return {&kChatSurface, &HttpApi::PostText<&AnswerDetokenize>};
    case ApiRoute::kApplyTemplate:
      return {&kChatSurface, &HttpApi::PostApplyTemplate};
    default:
      return {&kChatSurface, nullptr};
  }
}

const Surface* HttpApi::SurfaceOf(std::string_view path) {
  if (const ApiPath* known = FindApiPath(path)) return FormOf(known->route).surface;
  if (path.starts_with("/api/")) return &kOllamaChatSurface;
  if (path.starts_with("/v1/messages/")) return &kMessagesSurface;
  return &kChatSurface;
}

void HttpApi::Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  Exchange exchange{.request = std::move(request), .responder = std::move(responder)};
  exchange.arrival.now_us = clock_.NowUs();
  exchange.arrival.wall_unix_ms = clock_.WallUnixMs();
  const std::string_view id = exchange.request.headers.Find(kRequestIdField).value_or("");
  exchange.arrival.request_id = RequestIdFor(id);
  exchange.lost_its_id = IsUnusable(id);
  exchange.arrival.trace = TraceOf(exchange.request.headers);

  std::string_view method = exchange.request.method;
  if (method == "HEAD") method = "GET";
  const ApiPath* const known = FindApiPath(exchange.request.path);
  const RouteForm form = known == nullptr ? RouteForm{} : FormOf(known->route);
  exchange.surface = SurfaceOf(exchange.request.path);
  // The two APIs have one path for models; Anthropic's clients say who they are.
  const bool lists_models =
      known != nullptr && (known->route == ApiRoute::kModels || known->route == ApiRoute::kModel);
  if (lists_models && exchange.request.headers.Find(kAnthropicVersionField).has_value()) {
    exchange.surface = &kMessagesSurface;
  }
  if (!CheckKey(exchange, known)) return;
  if (known == nullptr || known->method != method) return RefusePath(exchange, known);
  if (form.post != nullptr) return HandlePost(std::move(exchange), form.post);
  HandleGet(exchange, known->route);
}

bool HttpApi::CheckKey(Exchange& exchange, const ApiPath* known) {
  if (parts_.keys == nullptr) return true;
  const bool is_open = known != nullptr && known->is_open;
  if (is_open && !HasKeyInQuery(exchange.request.query)) return true;
  RequestError error;
  exchange.tenant = TenantOfHttp(parts_.keys, exchange.request, known, &error);
  if (exchange.tenant == nullptr) {
    Refuse(exchange, error);
    return false;
  }
  exchange.arrival.tenant = exchange.tenant->name();
  return true;
}

void HttpApi::RefusePath(Exchange& exchange, const ApiPath* known) {
  const std::string& path = exchange.request.path;
  const bool is_known = known != nullptr;
  const bool is_post = is_known && known->method == "POST";
  RequestError error;
  error.code = is_known ? ErrorCode::kMethodNotAllowed : ErrorCode::kPathNotFound;
  error.expected = !is_known ? PathHint(path)
                   : is_post ? "Send POST with a JSON body and 'Content-Type: application/json'."
                             : "Send GET.";
  HttpResponse response = ErrorOf(exchange, error);
  // Clients that follow are served; for others the body says where.
  const std::string_view meant = PathMeant(exchange.request.method, path);
  if (!is_known && !meant.empty()) {
    response.status = 308;
    response.headers.Set("Location", meant);
  } else {
    submitter_->CountAnswered(response.status);
  }
  CountAnswered(exchange.tenant, response.status);
  if (is_known) response.headers.Set("Allow", is_post ? "POST" : "GET, HEAD");
  exchange.responder->Respond(std::move(response));
}

HttpHeaders HttpApi::HeadersOf(const Exchange& exchange, std::vector<std::string> ignored) {
  if (exchange.lost_its_id) {
    ignored.resize(std::min(ignored.size(), kMaxIgnoredNames - 1));
    ignored.emplace(ignored.begin(), kRequestIdField);
  }
  return AnswerHeaders(*exchange.surface, exchange.arrival.request_id, ignored);
}

void HttpApi::Send(Exchange& exchange, std::string body, std::string_view content_type) {
  HttpResponse response;
  response.headers = HeadersOf(exchange, exchange.ignored);
  response.headers.Set("Content-Type", content_type);
  AddRateFields(exchange.tenant, clock_, &response.headers);
  response.body = std::move(body);
  CountAnswered(exchange.tenant, response.status);
  exchange.responder->Respond(std::move(response));
}

void HttpApi::Refuse(Exchange& exchange, const RequestError& error) {
  submitter_->CountAnswered(HttpStatusOf(error.code));
  CountAnswered(exchange.tenant, HttpStatusOf(error.code));
  exchange.responder->Respond(ErrorOf(exchange, error));
}

HttpResponse HttpApi::ErrorOf(const Exchange& exchange, const RequestError& error) const {
  HttpHeaders headers = HeadersOf(exchange);
  AddRateFields(exchange.tenant, clock_, &headers);
  return ErrorResponse(*exchange.surface, error, std::move(headers));
}

void HttpApi::HandleGet(Exchange& exchange, ApiRoute route) {
  switch (route) {
    case ApiRoute::kHealth:
      return GetHealth(exchange);
    case ApiRoute::kTopology:
      return GetTopology(exchange);
    case ApiRoute::kClusterEvents:
      return GetClusterEvents(exchange);
    case ApiRoute::kStream:
      return GetStream(exchange);
    case ApiRoute::kModels:
      return GetModels(exchange);
    case ApiRoute::kVersion:
      return GetVersion(exchange);
    case ApiRoute::kTokenizerInfo:
      return GetTokenizerInfo(exchange);
    case ApiRoute::kOllamaTags:
      return Send(exchange, OllamaTagsJson(submitter_->models()->served()), kJsonType);
    case ApiRoute::kOllamaPs:
      return Send(exchange, OllamaPsJson(submitter_->models()->served()), kJsonType);
    case ApiRoute::kOllamaVersion:
      return Send(exchange, OllamaVersionJson(), kJsonType);
    case ApiRoute::kOpenApi:
      return Send(exchange, OpenApiJson(), kJsonType);
    case ApiRoute::kChatPage:
      return GetChatPage(exchange);
    case ApiRoute::kRoot:
      return GetRoot(exchange);
    default:
      return GetModel(exchange,
                      std::string_view(exchange.request.path).substr(kModelPrefix.size()));
  }
}

void HttpApi::GetVersion(Exchange& exchange) {
  JsonWriter json;
  json.BeginObject().Key("version").String(kVersion).EndObject();
  Send(exchange, json.Take(), kJsonType);
}

// Ollama's clients ask with HEAD whether the server runs.
void HttpApi::GetRoot(Exchange& exchange) {
  if (!parts_.serves_ui) return Refuse(exchange, NoPage());
  HttpResponse response;
  response.status = exchange.request.method == "HEAD" ? 200 : 302;
  response.headers = HeadersOf(exchange);
  if (response.status == 302) response.headers.Set("Location", "/ui");
  exchange.responder->Respond(std::move(response));
}

void HttpApi::GetChatPage(Exchange& exchange) {
  if (!parts_.serves_ui) return Refuse(exchange, NoPage());
  HttpResponse response;
  response.headers = HeadersOf(exchange);
  response.headers.Set("Content-Type", "text/html; charset=utf-8");
  const std::string nonce = RandomRequestUid().ToHex();
  response.headers.Set("Content-Security-Policy", ChatPagePolicy(nonce));
  response.headers.Set("Cache-Control", "no-store");  // a nonce is for one answer
  response.headers.Set("Referrer-Policy", "no-referrer");
  response.headers.Set("X-Content-Type-Options", "nosniff");
  response.body = ChatPageWith(nonce);
  exchange.responder->Respond(std::move(response));
}

void HttpApi::GetClusterEvents(Exchange& exchange) {
  HttpHeaders headers = HeadersOf(exchange);
  if (exchange.request.method == "HEAD") return Send(exchange, "", "text/event-stream");
  if (parts_.events == nullptr) return Refuse(exchange, ApiStops());
  switch (parts_.events->Add(std::move(headers), exchange.responder)) {
    case ClusterEvents::Entry::kTaken:
      return CountAnswered(exchange.tenant, 200);
    case ClusterEvents::Entry::kStopped:
      return Refuse(exchange, ApiStops());
    case ClusterEvents::Entry::kFull:
      break;
  }
  RequestError error = PlainError(ErrorCode::kTooManyConnections);
  error.expected = fmt::format("{} viewers watch /v1/cluster/events, which is its limit.",
                               ClusterEvents::kMaxViewers);
  Refuse(exchange, error);
}

void HttpApi::GetHealth(Exchange& exchange) {
  if (submitter_->ready()) return Send(exchange, "{\"status\":\"ok\"}", kJsonType);
  RequestError error;
  error.code = submitter_->draining() ? ErrorCode::kDraining : ErrorCode::kNoWorkers;
  error.retry_after_s = 1;
  // A probe is no request: it is not counted.
  exchange.responder->Respond(ErrorOf(exchange, error));
}

void HttpApi::GetModels(Exchange& exchange) {
  const bool is_anthropic = exchange.surface->endpoint == Endpoint::kMessages;
  const auto directory = submitter_->models();
  const auto& models = directory->served();
  Send(exchange, is_anthropic ? MessagesModelsJson(models) : ModelsJson(models), kJsonType);
}

void HttpApi::GetModel(Exchange& exchange, std::string_view id) {
  const std::string name = PercentDecoded(id);
  RequestError error;
  if (const auto model = ResolveModel(*submitter_, {name}, &error)) {
    const bool is_anthropic = exchange.surface->endpoint == Endpoint::kMessages;
    const auto& names = model->names;
    const bool is_name = std::find(names.begin(), names.end(), name) != names.end();
    const std::string_view shown = is_name ? name : model->name();
    return Send(exchange,
                is_anthropic ? MessagesModelJson(*model, shown) : ModelJson(*model, shown),
                kJsonType);
  }
  const bool waits = error.code == ErrorCode::kNoWorkers && !submitter_->models()->models().empty();
  if (waits) return Refuse(exchange, error);
  // Looking up what is not there is 404, also while nothing is.
  Refuse(exchange, UnknownModel());
}

RequestError HttpApi::UnknownModel() const {
  return FieldError(ErrorCode::kModelNotFound, "model", submitter_->models()->NameList());
}

void HttpApi::GetTokenizerInfo(Exchange& exchange) {
  RequestError error;
  const auto model =
      ResolveModel(*submitter_, {.id = QueryValue(exchange.request.query, "model=")}, &error);
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
  RequestError over_limit;
  if (!TakeRequest(exchange.tenant, clock_, &over_limit)) return Refuse(exchange, over_limit);
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

// The fields as the surface's clients call them.
std::vector<std::string> NamedBy(const Surface& surface, std::vector<std::string> fields) {
  if (surface.name_field == nullptr) return fields;
  for (std::string& name : fields) name = surface.name_field(std::move(name));
  return fields;
}

// How the surface and the flags have answers.
void SetForm(const Surface& surface, const ApiParts& parts, Arrival* arrival) {
  arrival->endpoint = surface.endpoint;
  arrival->answer_id_prefix = surface.answer_id_prefix;
  arrival->may_have_tag = surface.may_have_tag;
  arrival->tells_progress = surface.tells_progress;
  arrival->splits_reasoning = parts.splits_reasoning;
  arrival->tool_style = parts.tool_style;
  arrival->tool_metrics = parts.tool_metrics;
}

void HttpApi::Generate(Exchange& exchange, const JsonValue& body) {
  const Surface& surface = *exchange.surface;
  SurfaceRequest asked;
  RequestError error;
  BuiltRequest built;
  SetForm(surface, parts_, &exchange.arrival);
  if (!surface.read({body, exchange.request.headers, stored_items_, exchange.arrival.tenant},
                    &asked, &error)) {
    // The reader of a body does not know the names of models, and a refused "" should list them.
    return Refuse(exchange, error.code == ErrorCode::kModelNotFound ? UnknownModel() : error);
  }
  // A refusal from here on carries the name that an answer would.
  const std::string& id = asked.params.request_id;
  if (IsUsableRequestId(id)) exchange.arrival.request_id = id;
  const auto keys = exchange.request.headers.FindAll(kIdempotencyKeyField);
  exchange.arrival.idempotency_keys.assign(keys.begin(), keys.end());
  if (!BuildRequest(asked.params, exchange.arrival, *submitter_, &built, &error)) {
    return Refuse(exchange, error);
  }
  if (!MakeResumable(exchange, built.plan.stream, &asked.ignored, &error)) {
    return Refuse(exchange, error);
  }
  const std::string content = keys.empty() ? "" : JsonContent(*body.AsObject());
  if (!SetIdempotencyKey(kIdempotencyKeyField, keys, {"http", content}, &built, &error)) {
    return Refuse(exchange, error);
  }
  AnswerRoom room;
  if (!ReserveAnswer(built, AnswerForm::kJson, parts_.answers, &room, &error)) {
    return Refuse(exchange, error);
  }
  TenantPlace place;
  if (!TenantPlace::Take(exchange.tenant, clock_, built.num_prompt_tokens(), &place, &error)) {
    return Refuse(exchange, error);
  }
  SetKv(exchange.tenant, &built);
  AddUnread(NamedBy(surface, std::move(built.unread)), &asked.ignored);
  HttpHeaders headers = HeadersOf(exchange, std::move(asked.ignored));
  if (!built.warnings.empty()) headers.Set("X-Baton-Warnings", built.warnings);
  AddRateFields(exchange.tenant, clock_, &headers);
  const bool streams = built.plan.stream;
  AnswerTarget target{surface, asked.make_writer(std::move(built.plan)), std::move(headers),
                      exchange.responder};
  const auto cancellation = std::make_shared<CallCancellation>();
  std::shared_ptr<AnswerSink> sink;
  if (streams) {
    auto stream = std::make_shared<HttpStreamSink>(std::move(target), parts_, exchange.stream);
    stream->Keep(std::move(room));
    stream->CancelBy(cancellation);
    sink = std::move(stream);
  } else {
    auto whole = std::make_shared<HttpWholeSink>(std::move(target), built.num_computed(), parts_);
    whole->Keep(std::move(room));
    whole->CancelBy(cancellation);
    sink = std::move(whole);
  }
  sink = Metered(std::move(place), built.request.has_tokens(), std::move(sink));
  if (!SubmitAnswer(submitter_, std::move(built.request), std::move(built.others), std::move(sink),
                    cancellation)) {
    return;
  }
  exchange.responder->OnClosed([submitter = submitter_, cancellation](HttpClientGone how) {
    const bool is_slow = how == HttpClientGone::kStalled;
    cancellation->OnCancel(submitter,
                           is_slow ? CancelCause::kSlowClient : CancelCause::kClientLeft);
  });
}

std::shared_ptr<const ModelInfo> HttpApi::ModelOf(Exchange& exchange, const JsonValue& body,
                                                  std::string_view field) {
  std::string_view id;
  RequestError error;
  const JsonValue* value = body.Find(field);
  const bool is_given = value != nullptr && !value->is_null();
  std::shared_ptr<const ModelInfo> model;
  if (is_given && value->AsString() == nullptr) {
    error = FieldError(ErrorCode::kInvalidType, field,
                       ExpectedOf(*FindParam(Endpoint::kChat, "model")));
  } else if (is_given && value->AsString()->empty()) {
    error = UnknownModel();
  } else {
    if (is_given) id = *value->AsString();
    model = ResolveModel(*submitter_, {id, exchange.surface->may_have_tag}, &error);
  }
  if (model != nullptr) return model;
  if (error.param == "model") error.param = field;
  Refuse(exchange, error);
  return nullptr;
}

template <HttpApi::TextHandler kHandler>
void HttpApi::PostText(Exchange& exchange, const JsonValue& body) {
  const auto model = ModelOf(exchange, body);
  if (model == nullptr) return;
  const StoredItems items = stored_items_.Of(exchange.arrival.tenant);
  TextAnswer answer;
  RequestError error;
  if (!kHandler({*model, body, exchange.arrival.wall_unix_ms, items}, &answer, &error)) {
    return Refuse(exchange, error);
  }
  exchange.ignored = std::move(answer.ignored);
  Send(exchange, std::move(answer.json), kJsonType);
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
  AddUnread(UnreadVariables(*model, params), &exchange.ignored);
  JsonWriter json;
  json.BeginObject().Key("prompt").String(prompt.text).EndObject();
  Send(exchange, json.Take(), kJsonType);
}

}  // namespace baton::api
