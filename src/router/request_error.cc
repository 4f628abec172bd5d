#include "src/router/request_error.h"

#include <algorithm>

#include "fmt/format.h"

#include "src/base/limits.h"
#include "src/base/numbered_text.h"

namespace baton::router {
namespace {

// google.rpc.Code numbers; written out so that this file needs no gRPC header.
constexpr int kGrpcCancelled = 1;
constexpr int kGrpcInvalidArgument = 3;
constexpr int kGrpcDeadlineExceeded = 4;
constexpr int kGrpcNotFound = 5;
constexpr int kGrpcPermissionDenied = 7;
constexpr int kGrpcResourceExhausted = 8;
constexpr int kGrpcUnimplemented = 12;
constexpr int kGrpcInternal = 13;
constexpr int kGrpcUnavailable = 14;
constexpr int kGrpcUnauthenticated = 16;

constexpr std::string_view kInvalidRequest = "invalid_request_error";
constexpr std::string_view kAuthenticationError = "authentication_error";
constexpr std::string_view kPermissionError = "permission_error";
constexpr std::string_view kRateLimit = "rate_limit_error";
constexpr std::string_view kServerError = "server_error";
constexpr std::string_view kUnavailableError = "service_unavailable_error";
constexpr std::string_view kTimeoutError = "timeout_error";

// One line of the closed list. In `sentence`, {0} is the field and {1} what it must be.
struct ErrorRow {
  ErrorCode code;
  int http_status;
  int grpc_code;
  std::string_view type;
  std::string_view name;
  std::string_view sentence;
};

constexpr ErrorRow kRows[] = {
    {ErrorCode::kMalformedRequest, 400, kGrpcInvalidArgument, kInvalidRequest, "malformed_request",
     "The request is malformed. {1}"},
    {ErrorCode::kUnsupportedHttp, 501, kGrpcUnimplemented, kInvalidRequest, "unsupported_http",
     "The request asks for a part of HTTP that is not spoken here. HTTP/1.0 and HTTP/1.1, "
     "Transfer-Encoding chunked and Expect 100-continue are."},
    {ErrorCode::kInvalidJson, 400, kGrpcInvalidArgument, kInvalidRequest, "invalid_json",
     "The body is not a JSON object."},
    {ErrorCode::kInvalidUtf8, 400, kGrpcInvalidArgument, kInvalidRequest, "invalid_utf8",
     "The request holds text that is not valid UTF-8."},
    {ErrorCode::kDuplicateKey, 400, kGrpcInvalidArgument, kInvalidRequest, "duplicate_key",
     "The body has an object with the same key twice."},
    {ErrorCode::kTooDeep, 400, kGrpcInvalidArgument, kInvalidRequest, "too_deep",
     kNumberedText<"The body is nested deeper than {} levels or has more than {} values.",
                   limits::kMaxJsonDepth, limits::kMaxJsonValues>},
    {ErrorCode::kMissingField, 400, kGrpcInvalidArgument, kInvalidRequest,
     "missing_required_parameter", "'{0}' is required: {1}."},
    {ErrorCode::kInvalidType, 400, kGrpcInvalidArgument, kInvalidRequest, "invalid_type",
     "'{0}' has the wrong type: it must be {1}."},
    {ErrorCode::kInvalidValue, 400, kGrpcInvalidArgument, kInvalidRequest, "invalid_value",
     "'{0}' is out of range: it must be {1}."},
    {ErrorCode::kConflict, 400, kGrpcInvalidArgument, kInvalidRequest, "invalid_combination",
     "'{0}' does not fit the other fields: {1}."},
    {ErrorCode::kKeyReused, 400, kGrpcInvalidArgument, kInvalidRequest, "idempotency_key_reused",
     "'{0}' was given with another request before: it must be {1}."},
    {ErrorCode::kUnsupported, 400, kGrpcInvalidArgument, kInvalidRequest, "unsupported_parameter",
     "'{0}' is not supported by this server: it must be {1}."},
    {ErrorCode::kGrammarFailed, 400, kGrpcInvalidArgument, kInvalidRequest, "grammar_failed",
     "The answer cannot go on in the form that '{0}' asks for: {1}."},
    {ErrorCode::kContextLengthExceeded, 400, kGrpcInvalidArgument, kInvalidRequest,
     "context_length_exceeded", ""},
    {ErrorCode::kInvalidApiKey, 401, kGrpcUnauthenticated, kAuthenticationError, "invalid_api_key",
     "{1}"},
    {ErrorCode::kHostNotAllowed, 403, kGrpcPermissionDenied, kPermissionError, "host_not_allowed",
     "{1}"},
    {ErrorCode::kOriginNotAllowed, 403, kGrpcPermissionDenied, kPermissionError,
     "origin_not_allowed", "{1}"},
    {ErrorCode::kStreamOfAnotherTenant, 403, kGrpcPermissionDenied, kPermissionError,
     "stream_of_another_tenant",
     "The stream is another tenant's: resume it with a key of the tenant that asked for it."},
    {ErrorCode::kModelNotFound, 404, kGrpcNotFound, kInvalidRequest, "model_not_found",
     "'{0}' names no model that is served here; GET /v1/models lists them{1}."},
    {ErrorCode::kPathNotFound, 404, kGrpcUnimplemented, kInvalidRequest, "not_found",
     "There is nothing at this path. {1}"},
    {ErrorCode::kStreamNotFound, 404, kGrpcNotFound, kInvalidRequest, "stream_not_found",
     "There is no such stream here, or it is not kept any more; send the request again."},
    {ErrorCode::kMethodNotAllowed, 405, kGrpcUnimplemented, kInvalidRequest, "method_not_allowed",
     "This path does not answer this method. {1}"},
    {ErrorCode::kRequestTimeout, 408, kGrpcDeadlineExceeded, kTimeoutError, "request_timeout",
     "The request did not arrive in time."},
    {ErrorCode::kBodyTooLarge, 413, kGrpcInvalidArgument, kInvalidRequest, "body_too_large",
     kNumberedText<"The request is larger than {} MiB.", (limits::kMaxBodyBytes >> 20)>},
    {ErrorCode::kUnsupportedMediaType, 415, kGrpcInvalidArgument, kInvalidRequest,
     "unsupported_media_type",
     "The body must be JSON and say so: send the header 'Content-Type: application/json' (curl: -H "
     "'Content-Type: application/json'), and no Content-Encoding."},
    {ErrorCode::kRateLimited, 429, kGrpcResourceExhausted, kRateLimit, "rate_limit_exceeded",
     "The limit of this key's tenant is reached: {1}; try again later."},
    {ErrorCode::kQueueFull, 429, kGrpcResourceExhausted, kRateLimit, "queue_full",
     "Too many requests are waiting; try again later."},
    {ErrorCode::kQueueTimeout, 429, kGrpcResourceExhausted, kRateLimit, "queue_timeout",
     "No worker had room within the server's --queue-wait-ms; try again later."},
    {ErrorCode::kHeaderTooLarge, 431, kGrpcInvalidArgument, kInvalidRequest, "header_too_large",
     "The header is larger than the server accepts: it may have {1}."},
    {ErrorCode::kCancelled, 499, kGrpcCancelled, kInvalidRequest, "cancelled",
     "The request was cancelled by the client."},
    {ErrorCode::kSlowClient, 408, kGrpcResourceExhausted, kTimeoutError, "slow_client",
     "The client did not read the answer for too long."},
    {ErrorCode::kInternal, 500, kGrpcInternal, kServerError, "internal_error",
     "The server failed; the log has the request id."},
    {ErrorCode::kWorkerFailed, 500, kGrpcInternal, kServerError, "worker_failed",
     "A worker failed while it computed the answer."},
    {ErrorCode::kChainMismatch, 500, kGrpcInternal, kServerError, "chain_mismatch",
     "Two workers disagreed about the answer, so it was withheld."},
    {ErrorCode::kTooManyConnections, 503, kGrpcUnavailable, kUnavailableError,
     "too_many_connections", "Too many connections are open; try again later. {1}"},
    {ErrorCode::kNoWorkers, 503, kGrpcUnavailable, kUnavailableError, "no_workers",
     "No worker is ready; try again later."},
    {ErrorCode::kWorkerLost, 503, kGrpcUnavailable, kUnavailableError, "worker_lost",
     "A worker was lost while it computed the answer; try again."},
    {ErrorCode::kDraining, 503, kGrpcUnavailable, kUnavailableError, "draining",
     "The server is shutting down; try another one."},
    {ErrorCode::kDeadlineExceeded, 504, kGrpcDeadlineExceeded, kTimeoutError, "deadline_exceeded",
     "The request's deadline has passed."},
    {ErrorCode::kServerBusy, 503, kGrpcUnavailable, kUnavailableError, "server_busy",
     "The server has no thread for a schema or chat template now; try again later."},
};
static_assert(std::size(kRows) == kNumErrorCodes);

constexpr bool RowsAreInOrder() {
  for (int i = 0; i < kNumErrorCodes; ++i) {
    if (static_cast<int>(kRows[i].code) != i) return false;
  }
  return true;
}
static_assert(RowsAreInOrder(), "kRows is indexed by ErrorCode");

const ErrorRow& RowOf(ErrorCode code) { return kRows[static_cast<int>(code)]; }

// The body's text is at fault, wherever a field stands in it.
bool IsOfTheText(ErrorCode code) {
  return code == ErrorCode::kInvalidUtf8 || code == ErrorCode::kDuplicateKey ||
         code == ErrorCode::kTooDeep;
}

std::string InField(const std::string& param) {
  return param.empty() ? "" : fmt::format(" (at '{}')", param);
}

}  // namespace

std::string RequestError::Message() const {
  if (code == ErrorCode::kContextLengthExceeded) {
    if (!expected.empty()) return fmt::format("'{}' is too large: it must be {}.", param, expected);
    return fmt::format(
        "'{}' has {} tokens, but prompt and answer together fit {} tokens (max_model_len): the "
        "prompt must be at most {} tokens, which leaves one for the answer.",
        param, num_prompt_tokens, max_context, max_context > 0 ? max_context - 1 : 0);
  }
  if (code == ErrorCode::kInvalidJson && !expected.empty()) {
    return fmt::format("The body is not valid JSON at {}{}.", expected, InField(param));
  }
  if (code == ErrorCode::kQueueFull && !expected.empty()) {
    return fmt::format("A request that comes now would wait about {}; try again later.", expected);
  }
  if (code == ErrorCode::kQueueTimeout && !expected.empty()) {
    return fmt::format("No worker had room in time, and {}; try again later.", expected);
  }
  if (code == ErrorCode::kHeaderTooLarge && expected.empty()) {  // gRPC's
    return fmt::format("The metadata is larger than the server accepts: it may have {} KiB.",
                       limits::kMaxClientMetadataBytes >> 10);
  }
  if (never_started) return fmt::format("The request was not started: {}.", expected);
  if (code == ErrorCode::kDeadlineExceeded && !expected.empty()) {
    return fmt::format("The request took too long: {}.", expected);
  }
  const bool lists_models = code == ErrorCode::kModelNotFound && !expected.empty();
  std::string text = fmt::format(fmt::runtime(RowOf(code).sentence), param,
                                 lists_models ? ": " + expected : expected);
  if (text.ends_with(' ')) text.pop_back();  // of a sentence whose second half is not known
  if (IsOfTheText(code) && text.ends_with('.')) text.insert(text.size() - 1, InField(param));
  return text;
}

int HttpStatusOf(ErrorCode code) { return RowOf(code).http_status; }
int GrpcCodeOf(ErrorCode code) { return RowOf(code).grpc_code; }
std::string_view ErrorTypeOf(ErrorCode code) { return RowOf(code).type; }
std::string_view ErrorNameOf(ErrorCode code) { return RowOf(code).name; }

RequestError PlainError(ErrorCode code) {
  RequestError error;
  error.code = code;
  const int status = HttpStatusOf(code);
  if (status == 429 || status == 503) error.retry_after_s = limits::kMinRetryAfterS;
  return error;
}

RequestError DeadlineError(std::string_view field, int64_t timeout_us) {
  return FieldError(
      ErrorCode::kDeadlineExceeded, field,
      fmt::format("'{}' gave it {} ms from its arrival", field, (timeout_us + 999) / 1000));
}

RequestError NotStartedError(std::string_view field, int64_t left_us, int64_t answer_us) {
  RequestError error =
      FieldError(ErrorCode::kDeadlineExceeded, field,
                 fmt::format("'{}' leaves it {} ms, and its answer takes about {} ms", field,
                             std::max<int64_t>(left_us, 0) / 1000, answer_us / 1000));
  error.never_started = true;
  return error;
}

RequestError SilenceError(int64_t silence_us) {
  RequestError error = PlainError(ErrorCode::kDeadlineExceeded);
  error.expected = fmt::format(
      "no token came for {} s, the longest silence that this server allows (--request-timeout)",
      silence_us / 1'000'000);
  return error;
}

RequestError FieldError(ErrorCode code, std::string_view param, std::string_view expected) {
  RequestError error;
  error.code = code;
  error.param = param;
  error.expected = expected;
  return error;
}

RequestError ContextLengthError(std::string_view param, uint32_t num_prompt_tokens,
                                uint32_t max_context) {
  RequestError error;
  error.code = ErrorCode::kContextLengthExceeded;
  error.param = param;
  error.num_prompt_tokens = num_prompt_tokens;
  error.max_context = max_context;
  return error;
}

RequestError PoolLimitError(std::string_view param, uint32_t num_prompt_tokens,
                            uint32_t max_context, std::string_view expected) {
  RequestError error = ContextLengthError(param, num_prompt_tokens, max_context);
  error.expected = expected;
  return error;
}

}  // namespace baton::router
