// Idempotency keys: what a client sends in the header `Idempotency-Key` (IETF draft
// draft-ietf-httpapi-idempotency-key-header) or in the gRPC metadata of that name. Pure but for a
// hash seed of the process's life; any thread.
#ifndef BATON_API_IDEMPOTENCY_KEY_H_
#define BATON_API_IDEMPOTENCY_KEY_H_

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/build_request.h"
#include "src/api/json_value.h"
#include "src/router/request_error.h"

namespace baton::api {

inline constexpr std::string_view kIdempotencyKeyField = "Idempotency-Key";
inline constexpr std::string_view kIdempotencyKeyMetadata = "idempotency-key";
// Members of a body, JSON or protobuf, that a retry may have another value of: they say what the
// attempt is called and how long its client waits, not what is asked for.
inline constexpr std::array<std::string_view, 2> kFieldsOfAttempt = {"request_id", "timeout_ms"};

// The content of a request, as its transport brought it.
struct RequestBody {
  std::string_view form;   // how it is encoded and answered: "http", "grpc-unary", "grpc-stream"
  std::string_view bytes;  // one encoding for one content, without kFieldsOfAttempt
};

// The `bytes` of a JSON body: its values and the order of its members, not its blanks, escapes and
// forms of numbers.
std::string JsonContent(const JsonValue::Object& body);

// Gives `built` its key; `values` are all that the request has under `field`, and none changes
// nothing. The key's bytes are opaque, quotes included. False: `error` names the field.
bool SetIdempotencyKey(std::string_view field, const std::vector<std::string_view>& values,
                       const RequestBody& body, BuiltRequest* built, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_IDEMPOTENCY_KEY_H_
