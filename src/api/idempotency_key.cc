#include "src/api/idempotency_key.h"

#include <algorithm>
#include <memory>
#include <string>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/json_writer.h"
#include "src/base/limits.h"
#include "src/base/random.h"
#include "src/base/xxh3.h"

namespace baton::api {

using limits::kMaxIdempotencyKeyBytes;
using router::ErrorCode;
using router::GenerateRequest;
using router::IdempotencyKey;
using router::RequestError;
using router::TenantOfKey;

namespace {

// Unknown to clients, so that none can make two bodies of one fingerprint.
uint64_t FingerprintSeed() {
  static const uint64_t seed = RandomU64();
  return seed;
}

bool IsUsableKey(std::string_view key) {
  return !key.empty() && key.size() <= kMaxIdempotencyKeyBytes &&
         std::all_of(key.begin(), key.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string_view EndpointName(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat:
      return "chat";
    case Endpoint::kCompletion:
      return "completion";
    case Endpoint::kMessages:
      return "messages";
  }
  return {};
}

// As deep as limits::kMaxJsonDepth.
void Write(const JsonValue& value, JsonWriter* json) {
  int64_t integer = 0;
  uint64_t large = 0;
  double number = 0;
  if (value.GetInteger(&integer)) {
    json->Int(integer);
  } else if (value.GetUnsigned(&large)) {
    json->Uint(large);
  } else if (value.GetNumber(&number)) {
    json->Double(number);
  } else if (const bool* flag = value.AsBool()) {
    json->Bool(*flag);
  } else if (const std::string* text = value.AsString()) {
    json->String(*text);
  } else if (const JsonValue::Array* array = value.AsArray()) {
    json->BeginArray();
    for (const JsonValue& item : *array) Write(item, json);
    json->EndArray();
  } else if (const JsonValue::Object* object = value.AsObject()) {
    json->BeginObject();
    for (const auto& [name, member] : *object) {
      json->Key(name);
      Write(member, json);
    }
    json->EndObject();
  } else {
    json->Null();
  }
}

}  // namespace

std::string JsonContent(const JsonValue::Object& body) {
  JsonWriter json;
  json.BeginObject();
  for (const auto& [name, member] : body) {
    if (std::count(kFieldsOfAttempt.begin(), kFieldsOfAttempt.end(), name) > 0) continue;
    json.Key(name);
    Write(member, &json);
  }
  return json.EndObject().Take();
}

bool SetIdempotencyKey(std::string_view field, const std::vector<std::string_view>& values,
                       const RequestBody& body, BuiltRequest* built, RequestError* error) {
  if (values.empty()) return true;
  if (values.size() > 1 || !IsUsableKey(values.front())) {
    return Fail(
        error, ErrorCode::kInvalidValue, field,
        fmt::format("1 to {} printable ASCII characters, given once", kMaxIdempotencyKeyBytes));
  }
  if (built->plan.logs_prompt()) {
    return Fail(error, ErrorCode::kConflict, field,
                "an answer with the log-probabilities of its prompt is not remembered");
  }
  if (built->plan.embeds) {
    return Fail(error, ErrorCode::kConflict, field, "an answer of vectors is not remembered");
  }
  // An echo alone computes nothing: there is no generation to be one.
  if (built->request.sampling.max_tokens == 0) return true;
  auto key = std::make_shared<IdempotencyKey>();
  key->field = field;
  key->scope = fmt::format("{}\n{}\n{}", TenantOfKey(built->tenant, ""),
                           EndpointName(built->plan.endpoint), values.front());
  Xxh3Stream hash(FingerprintSeed());
  hash.Update(body.form);
  hash.Update("\n");
  hash.Update(body.bytes);
  key->fingerprint = hash.Digest128();
  key->timeout_us = built->timeout_us;
  key->name = {built->plan.id, built->plan.request_id, built->plan.created_unix_s};
  // One generation is told to all who ask for it, and its log has tokens alone.
  if (built->request.reports_progress) {
    built->request.reports_progress = false;
    for (GenerateRequest& other : built->others) other.reports_progress = false;
    built->unread.emplace_back("return_progress");
  }
  // Each prompt of several is a generation of its own. A line break is in no client's key.
  for (size_t i = 0; i < built->others.size(); ++i) {
    auto other = std::make_shared<IdempotencyKey>(*key);
    other->scope += fmt::format("\n{}", i + 1);
    built->others[i].key = std::move(other);
  }
  built->request.key = std::move(key);
  return true;
}

}  // namespace baton::api
