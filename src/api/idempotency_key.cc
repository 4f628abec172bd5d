#include "src/api/idempotency_key.h"

#include <algorithm>
#include <memory>
#include <string>

#include "fmt/format.h"

#include "kvcache/hash_chain.h"
#include "src/base/random.h"
#include "src/base/xxh3.h"

namespace baton {
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
  return endpoint == Endpoint::kChat ? "chat" : "completion";
}

}  // namespace

bool SetIdempotencyKey(std::string_view field, const std::vector<std::string_view>& values,
                       const RequestBody& body, BuiltRequest* built, RequestError* error) {
  if (values.empty()) return true;
  if (values.size() > 1 || !IsUsableKey(values.front())) {
    *error = FieldError(
        ErrorCode::kInvalidValue, field,
        fmt::format("1 to {} printable ASCII characters, given once", kMaxIdempotencyKeyBytes));
    return false;
  }
  // An echo alone computes nothing: there is no generation to be one.
  if (built->request.sampling.max_tokens == 0) return true;
  auto key = std::make_shared<IdempotencyKey>();
  key->field = field;
  key->scope =
      fmt::format("{}\n{}\n{}", kDefaultTenant, EndpointName(built->plan.endpoint), values.front());
  Xxh3Stream hash(FingerprintSeed());
  hash.Update(body.form);
  hash.Update("\n");
  hash.Update(body.bytes);
  key->fingerprint = hash.Digest128();
  key->name = {built->plan.id, built->plan.request_id, built->plan.created_unix_s};
  built->request.key = std::move(key);
  return true;
}

}  // namespace baton
