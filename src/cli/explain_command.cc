// `baton explain CODE`: what an error code of the API means, and what to do.
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"

#include "src/base/nearest_name.h"
#include "src/base/print.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/router/request_error.h"

namespace baton::cli {

using router::ErrorCode;
using router::ErrorNameOf;
using router::ErrorTypeOf;
using router::GrpcCodeOf;
using router::HttpStatusOf;
using router::kNumErrorCodes;
using router::PlainError;

namespace {

// An explanation adds to the table of src/router when a code comes, and what mends it.
struct Explanation {
  ErrorCode code;
  std::string_view cause;
  std::string_view remedy;
};

constexpr std::array<Explanation, kNumErrorCodes> kExplanations = {{
    {ErrorCode::kMalformedRequest,
     "The bytes are no HTTP request, or break its rules; or they are no message of the gRPC "
     "method.",
     "Send HTTP/1.1. A client that speaks TLS or HTTP/2 to this port gets this too. Over gRPC send "
     "the message that inference.proto has for the method."},
    {ErrorCode::kUnsupportedHttp,
     "The request uses a transfer coding, an expectation or a version "
     "that is not spoken.",
     "Use HTTP/1.1 with Content-Length or Transfer-Encoding: chunked."},
    {ErrorCode::kInvalidJson, "The body cannot be read as one JSON object.",
     "Mend the place that the message names."},
    {ErrorCode::kInvalidUtf8, "A text of the request is not UTF-8.", "Encode all texts as UTF-8."},
    {ErrorCode::kDuplicateKey, "An object of the body has one key twice.",
     "Send each key once: which one counts would be a guess."},
    {ErrorCode::kTooDeep, "The body has more levels or values than the server reads.",
     "Send fewer or flatter values; a JSON schema is the usual cause."},
    {ErrorCode::kMissingField, "A field that the call needs is not there.",
     "Add the field of `param`."},
    {ErrorCode::kInvalidType, "A field has a value of another type.",
     "Give the field of `param` the type that the message names."},
    {ErrorCode::kInvalidValue, "A field has a value outside its range.",
     "Give the field of `param` a value within the range of the message."},
    {ErrorCode::kConflict, "Two fields of the request contradict each other.",
     "Change or leave out the field of `param`."},
    {ErrorCode::kKeyReused, "An Idempotency-Key came again with another request.",
     "Use a new key for each request; repeat a key only with the same bytes."},
    {ErrorCode::kUnsupported, "A field would change the answer and is not implemented.",
     "Leave out the field of `param`, or give the value that the message names."},
    {ErrorCode::kGrammarFailed, "No token of the model can go on in the form that was asked for.",
     "Loosen the schema or the grammar, or allow more tokens."},
    {ErrorCode::kContextLengthExceeded, "Prompt and answer do not fit the context or the KV pool.",
     "Shorten the prompt, or start the workers with more --max-context or --kv-memory."},
    {ErrorCode::kInvalidApiKey, "The server has --api-keys, and the request has no key of them.",
     "Send `Authorization: Bearer KEY` or `x-api-key: KEY`."},
    {ErrorCode::kHostNotAllowed, "The port listens on this machine only, and Host names another.",
     "Start the server with --allowed-hosts and the name that a proxy passes on."},
    {ErrorCode::kOriginNotAllowed, "A web page of another origin sent the request.",
     "Start the server with --cors-origins and the origin of the page."},
    {ErrorCode::kStreamOfAnotherTenant, "The stream was asked for with a key of another tenant.",
     "Send GET /v1/streams/STREAM with a key of the tenant that sent the request."},
    {ErrorCode::kModelNotFound, "`model` is none that is served here.",
     "Use a name of GET /v1/models, or --served-model-name at the start of the server."},
    {ErrorCode::kPathNotFound, "The path is none of this API.",
     "Compare with GET /openapi.json; a base URL ends with /v1 for OpenAI's clients."},
    {ErrorCode::kStreamNotFound,
     "No stream of this name is kept: it is too old or too long, nobody read it for too long, "
     "another router has it, or this one was started again.",
     "Send the request again, with X-Baton-Resumable: 1."},
    {ErrorCode::kMethodNotAllowed, "The path exists and takes another method.",
     "Use a method of the header Allow."},
    {ErrorCode::kRequestTimeout, "The client sent its request too slowly.",
     "Send it at once; look for a broken network or proxy."},
    {ErrorCode::kBodyTooLarge, "The body is larger than the server reads.",
     "Send a smaller request."},
    {ErrorCode::kUnsupportedMediaType, "Content-Type is not JSON, or the body is compressed.",
     "Send `Content-Type: application/json` and no Content-Encoding."},
    {ErrorCode::kRateLimited, "The tenant of the key has used up its limit.",
     "Wait for Retry-After, or raise the limit in the file of --api-keys."},
    {ErrorCode::kQueueFull,
     "So many requests wait that one more would not be served in time: within --queue-wait-ms, its "
     "own deadline, or the objective --slo ttft.",
     "Wait for Retry-After. Add workers where it happens often; `baton plan` counts them. "
     "`baton top` shows the objective and who meets it."},
    {ErrorCode::kQueueTimeout, "No worker had room within --queue-wait-ms, or --slo ttft.",
     "Wait for Retry-After. Add workers, or raise --queue-wait-ms or --slo ttft."},
    {ErrorCode::kHeaderTooLarge, "The header or the gRPC metadata is too large.",
     "Send fewer or shorter fields; cookies are the usual cause."},
    {ErrorCode::kCancelled, "The client closed the connection or cancelled the call.",
     "Nothing: the server stopped the work. Look at the client's time-out if nobody cancelled."},
    {ErrorCode::kSlowClient, "The client did not read its stream.", "Read each event as it comes."},
    {ErrorCode::kInternal, "A fault of the server.",
     "Look for the request id in the log, and report it."},
    {ErrorCode::kWorkerFailed, "The worker that computed the answer failed.",
     "Try again; the worker's log says what failed."},
    {ErrorCode::kChainMismatch, "Two workers disagreed about the tokens before a hand-off.",
     "Try again. Report it: `baton doctor --ledger` and the logs of both workers help."},
    {ErrorCode::kTooManyConnections, "The process has as many connections as it may.",
     "Close idle ones, or raise the limit of open files of the router."},
    {ErrorCode::kNoWorkers, "No worker of the model is connected and ready.",
     "Wait while models load; else look at `baton top` and at the logs of the workers."},
    {ErrorCode::kWorkerLost, "The worker went away, and the answer could not go on elsewhere.",
     "Try again; a second decode worker lets answers go on."},
    {ErrorCode::kDraining, "The server was told to stop and takes no new requests.",
     "Use another router, or wait until this one is back."},
    {ErrorCode::kDeadlineExceeded, "timeout_ms, grpc-timeout or --request-timeout has passed.",
     "Allow more time; `baton why` says what the request waited for."},
    {ErrorCode::kServerBusy,
     "Schemas, grammars or templates of earlier requests went past their time or memory, and still "
     "hold all threads that such work may have; or the system gives no more threads (ulimit -u, "
     "pids.max). The router's log has the reason.",
     "Wait for Retry-After. Where no later request is served, start the router again."},
}};

constexpr bool ExplanationsAreInOrder() {
  for (int i = 0; i < kNumErrorCodes; ++i) {
    if (static_cast<int>(kExplanations[i].code) != i) return false;
  }
  return true;
}
static_assert(ExplanationsAreInOrder(), "each code has its explanation, in the order of ErrorCode");

// Whether a client that sends the same request again may be served.
std::string_view AgainText(ErrorCode code) {
  const int status = HttpStatusOf(code);
  const bool helps = status == 408 || status == 429 || (status >= 500 && status != 501);
  if (!helps) return "no: the same request fails again";
  return PlainError(code).retry_after_s > 0 ? "yes, after the seconds of Retry-After" : "yes";
}

// The statuses of a code: its own, and those that HTTP has for a part that is not spoken.
std::string StatusesOf(ErrorCode code) {
  const std::string own = std::to_string(HttpStatusOf(code));
  if (code != ErrorCode::kUnsupportedHttp) return own;
  return own + " (417 for Expect, 505 for a version of HTTP)";
}

bool HasStatus(ErrorCode code, std::string_view status) {
  if (std::to_string(HttpStatusOf(code)) == status) return true;
  return code == ErrorCode::kUnsupportedHttp && (status == "417" || status == "505");
}

void PrintOne(const Explanation& row) {
  Print("{}: HTTP {}, gRPC {}, type {}\n", ErrorNameOf(row.code), StatusesOf(row.code),
        GrpcCodeOf(row.code), ErrorTypeOf(row.code));
  Print("  cause   {}\n  do      {}\n", row.cause, row.remedy);
  Print("  again   {}\n", AgainText(row.code));
}

}  // namespace

int RunExplain(const std::vector<std::string>& args) {
  FlagSet flags("explain",
                "Says what an error code of the API means and what to do. Without a code, lists "
                "them.");
  std::string wanted;
  flags.Add("CODE", wanted, "`code` of an error (queue_full), or an HTTP status (429)");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  bool is_found = false;
  std::vector<std::string_view> names;
  for (const Explanation& row : kExplanations) {
    const std::string_view name = ErrorNameOf(row.code);
    names.push_back(name);
    if (wanted.empty()) {
      Print("{:<28} {}  {}\n", name, HttpStatusOf(row.code), row.cause);
    } else if (name == wanted || HasStatus(row.code, wanted)) {
      PrintOne(row);
      is_found = true;
    }
  }
  if (wanted.empty() || is_found) return kExitOk;
  const std::string nearest = NearestName(wanted, std::span<const std::string_view>(names));
  return Fail("explain",
              InvalidArgument("CODE '{}' is no error code{}; `baton explain` lists them", wanted,
                              nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)),
              kExitUsage);
}

}  // namespace baton::cli
