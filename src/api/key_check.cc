#include "src/api/key_check.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "fmt/format.h"
#include "grpcpp/grpcpp.h"

#include "src/api/build_request.h"
#include "src/base/percent_text.h"

namespace baton::api {

using http::EqualsIgnoreCase;
using http::HttpHeaders;
using http::HttpRequest;
using http::LowerCase;
using http::TrimBlanks;
using router::AnswerName;
using router::ErrorCode;
using router::GenerateRequest;
using router::GenerateResult;
using router::RequestError;
using router::TokenOutput;

namespace {

constexpr std::string_view kHowTo =
    "send one of this server's keys in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'";

// The key of a value of Authorization; nothing: it is no "Bearer KEY".
std::optional<std::string_view> BearerKey(std::string_view value) {
  constexpr std::string_view kScheme = "bearer";
  if (value.size() <= kScheme.size() || value[kScheme.size()] != ' ') return std::nullopt;
  if (!EqualsIgnoreCase(value.substr(0, kScheme.size()), kScheme)) return std::nullopt;
  const std::string_view key = TrimBlanks(value.substr(kScheme.size()));
  if (key.empty()) return std::nullopt;
  return key;
}

// A client's fields that may hold its key.
struct KeyFields {
  std::vector<std::string_view> authorization;
  std::vector<std::string_view> api_key;
};

struct Finding {
  Tenant tenant;  // null: `fault` and `sentence` say why
  KeyFault fault = KeyFault::kMissing;
  std::string sentence;
};

Finding FindTenant(const KeyRing& keys, const KeyFields& fields) {
  std::optional<std::string_view> key;
  if (fields.authorization.size() > 1 || fields.api_key.size() > 1) {
    return {nullptr, KeyFault::kMissing, fmt::format("The key is given twice: {}.", kHowTo)};
  }
  if (!fields.authorization.empty()) {
    key = BearerKey(fields.authorization.front());
    if (!key) {
      return {nullptr, KeyFault::kMissing,
              fmt::format("The Authorization field is not 'Bearer KEY': {}.", kHowTo)};
    }
  } else if (!fields.api_key.empty() && !TrimBlanks(fields.api_key.front()).empty()) {
    key = TrimBlanks(fields.api_key.front());
  }
  if (!key) return {nullptr, KeyFault::kMissing, fmt::format("No API key was given: {}.", kHowTo)};
  Finding found;
  found.tenant = keys.Find(*key);
  found.fault = KeyFault::kUnknown;
  found.sentence = fmt::format("The API key is not known here: {}.", kHowTo);
  return found;
}

RequestError KeyError(std::string sentence) {
  RequestError error;
  error.code = ErrorCode::kInvalidApiKey;
  error.expected = std::move(sentence);
  return error;
}

// Counts what an answer takes on its way to the client's sink.
class MeteredSink final : public AnswerSink {
 public:
  MeteredSink(TenantPlace place, bool has_tokens, std::shared_ptr<AnswerSink> sink)
      : tenant_(place.tenant()),
        has_tokens_(has_tokens),
        place_(std::move(place)),
        sink_(std::move(sink)) {}
  ~MeteredSink() override {
    place_.End(num_tokens_);
    Count(HttpStatusOf(ErrorCode::kCancelled));  // of what nobody answered
  }

  void OnAccepted(const AnswerName& name) override { sink_->OnAccepted(name); }
  void OnTaken() override { sink_->OnTaken(); }
  void OnPromptFinished(const GenerateResult& result) override { sink_->OnPromptFinished(result); }
  void OnLoggedPrompt(uint32_t prompt,
                      std::shared_ptr<const router::PromptLogprobs> logprobs) override {
    sink_->OnLoggedPrompt(prompt, std::move(logprobs));
  }
  void OnPromptProgress(uint32_t prompt, const router::PromptProgress& progress) override {
    sink_->OnPromptProgress(prompt, progress);
  }
  void OnEmbeddedPrompt(uint32_t prompt, std::vector<float> embedding) override {
    sink_->OnEmbeddedPrompt(prompt, std::move(embedding));
  }
  void OnToken(const TokenOutput& token) override {
    if (has_tokens_) ++num_tokens_;
    sink_->OnToken(token);
  }
  // The place is free before the client knows that its answer is whole: its next request finds it.
  void OnFinished(const GenerateResult& result) override {
    place_.End(result.num_completion_tokens);
    const RequestError* const own = sink_->own_failure();
    Count(own == nullptr ? 200 : HttpStatusOf(own->code));
    sink_->OnFinished(result);
  }
  void OnFailed(const RequestError& error) override {
    place_.End(num_tokens_);
    Count(HttpStatusOf(error.code));
    // Its other limits were looked at before it had a place.
    if (error.code == ErrorCode::kRateLimited) tenant_->CountKvRefusal();
    sink_->OnFailed(error);
  }
  size_t buffered_bytes() const override { return sink_->buffered_bytes(); }
  const RequestError* own_failure() const override { return sink_->own_failure(); }

 private:
  // Only the first call counts.
  void Count(int http_status) {
    if (!std::exchange(is_counted_, true)) tenant_->CountAnswered(http_status);
  }

  const Tenant tenant_;
  const bool has_tokens_;
  bool is_counted_ = false;
  TenantPlace place_;
  const std::shared_ptr<AnswerSink> sink_;
  uint64_t num_tokens_ = 0;
};

}  // namespace

bool HasKeyInQuery(std::string_view query) {
  constexpr std::string_view kNames[] = {"key",          "api_key", "api-key",  "apikey",
                                         "access_token", "token",   "x-api-key"};
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view field = query.substr(0, end);
    const std::string name = LowerCase(PercentDecoded(field.substr(0, field.find('='))));
    if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames)) return true;
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return false;
}

Tenant TenantOfHttp(KeyRing* keys, const HttpRequest& request, const ApiPath* known,
                    RequestError* error) {
  Finding found;
  if (HasKeyInQuery(request.query)) {
    found = {nullptr, KeyFault::kInUrl,
             fmt::format("A key in the URL is refused, because URLs are logged on their way: {}.",
                         kHowTo)};
  } else {
    found = FindTenant(
        *keys, {request.headers.FindAll("Authorization"), request.headers.FindAll("x-api-key")});
  }
  if (found.tenant != nullptr) return found.tenant;
  const std::string what = known == nullptr ? std::string("a path that there is not")
                                            : fmt::format("{} {}", known->method, known->path);
  keys->Refused(found.fault, what, request.peer_address);
  *error = KeyError(std::move(found.sentence));
  return nullptr;
}

Tenant TenantOfGrpc(KeyRing* keys, const grpc::CallbackServerContext& context,
                    std::string_view method, RequestError* error) {
  const auto values = [&context](const char* name) {
    std::vector<std::string_view> all;
    const auto [first, last] = context.client_metadata().equal_range(name);
    for (auto it = first; it != last; ++it) all.emplace_back(it->second.data(), it->second.size());
    return all;
  };
  Finding found = FindTenant(*keys, {values("authorization"), values("x-api-key")});
  if (found.tenant != nullptr) return found.tenant;
  keys->Refused(found.fault, fmt::format("gRPC {}", method), context.peer());
  *error = KeyError(std::move(found.sentence));
  return nullptr;
}

RequestError QuotaError(const TenantVerdict& verdict) {
  RequestError error;
  error.code = ErrorCode::kRateLimited;
  error.expected = verdict.limit == TenantLimit::kConcurrency
                       ? fmt::format("concurrency {}", verdict.allowed)
                       : fmt::format("{} {} a minute", verdict.allowed, NameOf(verdict.limit));
  error.retry_after_s = verdict.retry_after_s;
  return error;
}

bool TakeRequest(const Tenant& tenant, const Clock& clock, RequestError* error) {
  if (tenant == nullptr) return true;
  const TenantVerdict verdict = tenant->TakeRequest(clock.NowUs());
  if (!verdict.ok()) *error = QuotaError(verdict);
  return verdict.ok();
}

void AddRateFields(const Tenant& tenant, const Clock& clock, HttpHeaders* headers) {
  if (tenant == nullptr) return;
  for (const auto& [name, value] : tenant->Fields(clock.NowUs())) headers->Set(name, value);
}

void AddRateFields(const Tenant& tenant, const Clock& clock, grpc::CallbackServerContext* context) {
  if (tenant == nullptr) return;
  for (const auto& [name, value] : tenant->Fields(clock.NowUs())) {
    context->AddInitialMetadata(name, value);
  }
}

void SetKv(const Tenant& tenant, BuiltRequest* built) {
  if (tenant == nullptr) return;
  built->request.kv = tenant->kv();
  for (GenerateRequest& other : built->others) other.kv = tenant->kv();
}

void CountAnswered(const Tenant& tenant, int http_status) {
  if (tenant != nullptr) tenant->CountAnswered(http_status);
}

bool TenantPlace::Take(const Tenant& tenant, const Clock& clock, uint64_t num_prompt_tokens,
                       TenantPlace* place, RequestError* error) {
  if (tenant == nullptr) return true;
  const TenantVerdict verdict = tenant->Begin(num_prompt_tokens, clock.NowUs());
  if (!verdict.ok()) {
    *error = QuotaError(verdict);
    return false;
  }
  place->End(0);
  place->tenant_ = tenant;
  place->clock_ = &clock;
  return true;
}

TenantPlace& TenantPlace::operator=(TenantPlace&& other) noexcept {
  if (this == &other) return *this;
  End(0);
  tenant_ = std::move(other.tenant_);
  clock_ = other.clock_;
  return *this;
}

void TenantPlace::End(uint64_t num_answer_tokens) {
  if (tenant_ == nullptr) return;
  tenant_->End(num_answer_tokens, clock_->NowUs());
  tenant_.reset();
}

std::shared_ptr<AnswerSink> Metered(TenantPlace place, bool has_tokens,
                                    std::shared_ptr<AnswerSink> sink) {
  if (!place.is_taken()) return sink;
  return std::make_shared<MeteredSink>(std::move(place), has_tokens, std::move(sink));
}

}  // namespace baton::api
