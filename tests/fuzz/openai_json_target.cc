// JSON bodies of the OpenAI endpoints, from bytes to a request ready for the router, which a worker
// must not refuse. The first byte says which endpoint.
#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/api/build_request.h"
#include "src/api/json_value.h"
#include "src/api/openai_json.h"
#include "src/api/read_json.h"
#include "src/router/worker_codec.h"
#include "src/text/utf8.h"
#include "src/worker/request_codec.h"
#include "src/worker/session_service.h"
#include "tests/api/fake_submitter.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using engine::RequestSpec;
using namespace api;     // NOLINT(google-build-using-namespace)
using namespace router;  // NOLINT(google-build-using-namespace)
using text::ChatPrompt;
using text::ValidUtf8Prefix;
using worker::RequestSpecFromProto;
using worker::SessionLimits;

namespace {

bool IsJson(std::string_view text) { return nlohmann::json::accept(text.begin(), text.end()); }

// An error is the client's, says why, and is itself JSON.
void CheckError(const RequestError& error) {
  const int status = HttpStatusOf(error.code);
  BATON_CHECK(status >= 400 && status < 500, "HTTP {} for a bad body", status);
  BATON_CHECK(!error.Message().empty(), "code {} without a message", static_cast<int>(error.code));
  BATON_CHECK(IsJson(ErrorJson(error)), "an error that is no JSON: {}", ErrorJson(error));
}

// Our parser takes nothing that another parser refuses.
void CheckAgainstOther(std::string_view text, bool parsed) {
  BATON_CHECK(!parsed || IsJson(text), "{} bytes are JSON only to us", text.size());
}

// They stand in a header.
void CheckIgnored(const std::vector<std::string>& ignored) {
  BATON_CHECK(ignored.size() <= 16, "{} names", ignored.size());
  for (const std::string& name : ignored) {
    BATON_CHECK(name.size() <= 128, "a name of {} bytes", name.size());
    for (const char c : name) {
      const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0;
      BATON_CHECK(is_word || std::string_view("_.-?[]").find(c) != std::string_view::npos,
                  "character {} in a header", static_cast<int>(c));
    }
  }
}

// The request in the form in which a worker gets it.
void CheckWorkerTakes(const GenerateRequest& request) {
  PlacementSpec spec;
  spec.uid = {1, 1};
  spec.num_choices = request.num_choices;
  spec.deadline_ms = 1000;
  spec.prompt = &request.prompt;
  spec.sampling = &request.sampling;
  v1::RouterMessage message;
  EncodeStartDecode(spec, nullptr, &message);
  RequestSpec decoded;
  const SessionLimits limits{.incarnation = Incarnation(1),
                             .vocab_size = request.model->vocab_size,
                             .max_context = request.model->max_context};
  const Status status = RequestSpecFromProto(message, limits, &decoded);
  BATON_CHECK(status.ok(), "the API takes what a worker refuses: {}", status.ToString());
}

void CheckRequest(const BuiltRequest& built) {
  const GenerateRequest& request = built.request;
  const uint32_t max_context = request.model->max_context;
  BATON_CHECK(!request.prompt.empty() && request.prompt.size() < max_context, "{} tokens",
              request.prompt.size());
  for (const TokenId token : request.prompt) {
    BATON_CHECK(request.model->tokenizer->IsValid(token), "token {}", token);
  }
  BATON_CHECK(request.num_choices >= 1 && request.num_choices <= 128 &&
                  built.plan.num_choices <= request.num_choices,
              "{} of {} choices", built.plan.num_choices, request.num_choices);
  BATON_CHECK(built.plan.echo_alone || request.sampling.max_tokens >= 1, "no token is asked for");
  BATON_CHECK(request.prompt.size() + request.sampling.max_tokens <= max_context,
              "{} + {} tokens in a context of {}", request.prompt.size(),
              request.sampling.max_tokens, max_context);
  BATON_CHECK(request.sampling.min_tokens <= request.sampling.max_tokens);
  BATON_CHECK(request.timeout_us >= 0, "a deadline of {} us", request.timeout_us);
  BATON_CHECK(IsUsableRequestId(built.plan.request_id), "an unusable request id");
  std::set<TokenId> biased;
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    BATON_CHECK(biased.insert(token).second, "two biases for token {}", token);
  }
  // max_tokens 0 with echo is answered by the router's front alone.
  if (!built.plan.echo_alone) CheckWorkerTakes(request);
}

void CheckGenerate(std::string_view body, Endpoint endpoint) {
  static FakeSubmitter submitter;
  JsonValue root;
  RequestError error;
  const bool parsed = ParseJson(body, &root, &error);
  // The other parser refuses numbers that no double holds; ours leaves them to the field's reader.
  if (!parsed || !HasHugeNumber(root)) CheckAgainstOther(body, parsed);
  if (!parsed) return CheckError(error);
  ApiParams params;
  std::vector<std::string> ignored;
  const bool read = ReadJsonParams(root, endpoint, &params, &ignored, &error);
  CheckIgnored(ignored);
  if (!read) return CheckError(error);
  Arrival arrival;
  arrival.endpoint = endpoint;
  arrival.now_us = 1'000'000;
  arrival.wall_unix_ms = 1'700'000'000'000;
  BuiltRequest built;
  if (!BuildRequest(params, arrival, submitter, &built, &error)) return CheckError(error);
  CheckRequest(built);
  const PromptLogJson log = PromptLogOf(built.plan, 0, nullptr);
  BATON_CHECK(IsJson(OpeningChunk(built.plan, 0, log)), "the first chunk is no JSON");
}

void CheckMessages(std::string_view body) {
  JsonValue root;
  RequestError error;
  ApiParams params;
  if (!ParseJson(body, &root, &error)) return CheckError(error);
  if (!ReadJsonMessages(root, &params, &error)) return CheckError(error);
  ChatPrompt prompt;
  if (!RenderMessages(*TestModel(), params, 1'700'000'000'000, &prompt, &error)) {
    return CheckError(error);
  }
  const std::vector<TokenId>& tokens = prompt.tokens;
  const bool is_whole = ValidUtf8Prefix(prompt.text) == prompt.text.size();
  BATON_CHECK(!tokens.empty() && is_whole, "a broken prompt");
  // Whatever the contents spell: the template's own control tokens and no others.
  const auto num_special =
      static_cast<size_t>(std::count_if(tokens.begin(), tokens.end(), [](TokenId id) {
        return TestModel()->tokenizer->IsSpecial(id);
      }));
  BATON_CHECK(num_special == params.messages.size() + 1, "{} control tokens in {} messages",
              num_special, params.messages.size());
}

void CheckTokens(std::string_view body) {
  JsonValue root;
  RequestError error;
  std::vector<int64_t> ids;
  std::string text;
  if (!ParseJson(body, &root, &error)) return CheckError(error);
  if (!ReadJsonTokens(root, "tokens", &ids, &error)) return CheckError(error);
  if (!DetokenizeIds(*TestModel(), ids, "tokens", &text, &error)) return CheckError(error);
  BATON_CHECK(ValidUtf8Prefix(text) == text.size(), "broken UTF-8 of {} tokens", ids.size());
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(openai_json) {
  using namespace baton;        // NOLINT: the whole target
  using namespace baton::api;   // NOLINT
  using namespace baton::fuzz;  // NOLINT
  ByteSource source(input);
  switch (source.Below(4)) {
    case 0:
      return CheckGenerate(TextOf(source.rest()), Endpoint::kChat);
    case 1:
      return CheckGenerate(TextOf(source.rest()), Endpoint::kCompletion);
    case 2:
      return CheckMessages(TextOf(source.rest()));
    default:
      return CheckTokens(TextOf(source.rest()));
  }
}
