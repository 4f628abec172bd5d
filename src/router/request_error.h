// RequestError: the closed list of ways in which a request can end badly, with the words, the HTTP
// status and the gRPC code of each. Pure values; any thread.
//
// Invariants
//  1. A message is made of fixed sentences, a field's name and range from the schema table, and
//     numbers: never of text that a client, a worker or a file sent. Two exceptions: why a chat
//     template refuses a conversation, as one line of at most 512 bytes without control characters;
//     and the names of the models that are served, which are public.
//  2. Every code has one HTTP status, and both APIs and `baton_requests_total{code}` use that one.
#ifndef BATON_ROUTER_REQUEST_ERROR_H_
#define BATON_ROUTER_REQUEST_ERROR_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::router {

// Why a request failed; request_error.cc has the table of statuses and sentences.
enum class ErrorCode : uint8_t {
  kMalformedRequest,
  kUnsupportedHttp,
  kInvalidJson,
  kInvalidUtf8,
  kDuplicateKey,
  kTooDeep,
  kMissingField,
  kInvalidType,
  kInvalidValue,
  kConflict,
  kKeyReused,
  kUnsupported,
  kGrammarFailed,
  kContextLengthExceeded,
  kInvalidApiKey,
  kHostNotAllowed,
  kOriginNotAllowed,
  kStreamOfAnotherTenant,
  kModelNotFound,
  kPathNotFound,
  kStreamNotFound,
  kMethodNotAllowed,
  kRequestTimeout,
  kBodyTooLarge,
  kUnsupportedMediaType,
  kRateLimited,
  kQueueFull,
  kQueueTimeout,
  kHeaderTooLarge,
  kCancelled,
  kSlowClient,
  kInternal,
  kWorkerFailed,
  kChainMismatch,
  kTooManyConnections,
  kNoWorkers,
  kWorkerLost,
  kDraining,
  kDeadlineExceeded,
  kServerBusy,
};
inline constexpr int kNumErrorCodes = static_cast<int>(ErrorCode::kServerBusy) + 1;

// One bad end of one request.
struct RequestError {
  ErrorCode code = ErrorCode::kInternal;
  std::string param;     // the field at fault, "" = none
  std::string expected;  // what it must be, from the schema table: "a number from 0 to 100";
                         // kInvalidJson: where and why the text is none; kDeadlineExceeded: which
                         // limit it was; a path or method that there is not: what to send instead;
                         // kInvalidApiKey: the whole sentence; kRateLimited: the tenant's limit;
                         // kQueueFull: how long it would wait, and why that is too long;
                         // kQueueTimeout: the limit, where it is not --queue-wait-ms;
                         // kModelNotFound: the models that there are
  uint32_t num_prompt_tokens = 0;  // with kContextLengthExceeded
  uint32_t max_context = 0;        // with kContextLengthExceeded, tokens of prompt and answer
  uint32_t retry_after_s = 0;      // 0 = the client gets no hint
  bool never_started = false;      // with kDeadlineExceeded: it could not have met its deadline

  // The sentence for the client.
  std::string Message() const;
};

// The HTTP status; 499 for a client that has gone.
int HttpStatusOf(ErrorCode code);
// The number of the google.rpc.Code.
int GrpcCodeOf(ErrorCode code);
// OpenAI's `type`: "invalid_request_error", "server_error" ...
std::string_view ErrorTypeOf(ErrorCode code);
// OpenAI's `code`: "context_length_exceeded", "queue_full" ...
std::string_view ErrorNameOf(ErrorCode code);

// Without details; 429 and 503 tell the client to come back after limits::kMinRetryAfterS.
RequestError PlainError(ErrorCode code);
// The total deadline, as the client gave it, has passed; `field` is its name for it.
RequestError DeadlineError(std::string_view field, int64_t timeout_us);
// The deadline would pass: the request was not started, because its answer takes `answer_us` or
// more, and `left_us` were left.
RequestError NotStartedError(std::string_view field, int64_t left_us, int64_t answer_us);
// The server ends what gives no token for so long.
RequestError SilenceError(int64_t silence_us);
// Makers for the cases with a field.
RequestError FieldError(ErrorCode code, std::string_view param, std::string_view expected);
RequestError ContextLengthError(std::string_view param, uint32_t num_prompt_tokens,
                                uint32_t max_context);
// As above for a limit that the model's context does not explain: `expected` says what fits, in
// the numbers of the cluster.
RequestError PoolLimitError(std::string_view param, uint32_t num_prompt_tokens,
                            uint32_t max_context, std::string_view expected);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ERROR_H_
