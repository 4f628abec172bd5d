// JSON bodies of Anthropic's Messages, from bytes to a request ready for the router, and the events
// of an answer to it.
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/api/build_request.h"
#include "src/api/json_value.h"
#include "src/api/messages_json.h"
#include "src/api/messages_read.h"
#include "src/text/utf8.h"
#include "tests/api/fake_submitter.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using namespace api;     // NOLINT(google-build-using-namespace)
using namespace router;  // NOLINT(google-build-using-namespace)
using text::ValidUtf8Prefix;

namespace {

bool IsJson(std::string_view text) { return nlohmann::json::accept(text.begin(), text.end()); }

void CheckError(const RequestError& error) {
  const int status = HttpStatusOf(error.code);
  BATON_CHECK(status >= 400 && status < 500, "HTTP {} for a bad body", status);
  const std::string json = MessagesErrorJson(error, "r");
  BATON_CHECK(IsJson(json), "an error that is no JSON: {}", json);
}

// Each call has its result, which is the promise that templates rely on.
void CheckTurns(const std::vector<text::ChatMessage>& turns) {
  size_t num_calls = 0;
  size_t num_results = 0;
  for (const text::ChatMessage& turn : turns) {
    if (turn.role == "tool") ++num_results;
    for (const auto& [name, member] : turn.members) {
      if (name == "tool_calls") num_calls += member.AsArray()->size();
    }
  }
  BATON_CHECK(!turns.empty() && num_calls == num_results, "{} calls and {} results", num_calls,
              num_results);
}

// Every event is `event: NAME`, one line of JSON and an empty line.
void CheckEvents(std::string_view events) {
  while (!events.empty()) {
    constexpr std::string_view kData = "\ndata: ";
    const size_t at = events.find(kData);
    const size_t end = events.find("\n\n");
    BATON_CHECK(events.starts_with("event: ") && at < end && end != std::string_view::npos,
                "an event without an end");
    const std::string_view json = events.substr(at + kData.size(), end - at - kData.size());
    BATON_CHECK(IsJson(json), "an event that is no JSON");
    events.remove_prefix(end + 2);
  }
}

// An answer of the bytes that asked for it, as thoughts, text and a call.
void CheckAnswer(AnswerPlan plan, const MessagesForm& form, std::string_view body) {
  const std::string_view text = body.substr(0, ValidUtf8Prefix(body));
  MessagesWriter writer(std::move(plan), form);
  const std::vector<ToolCallDelta> call = {{.index = 0, .id = "c", .name = std::string(text)},
                                           {.index = 0, .arguments = std::string(text)}};
  std::string events;
  writer.Begin(&events);
  writer.AddToken({}, {.reasoning = text, .content = text, .tool_calls = call}, &events);
  writer.AddToken({}, {.content = text}, &events);
  const GenerateResult result;
  writer.EndChoice(0, {.finish = scheduler::FinishReason::kStop, .stop_reason = std::string(text)},
                   &result, &events);
  writer.Finish(result, 0, &events);
  CheckEvents(events);
  BATON_CHECK(IsJson(ToolInputJson(std::string(text))), "the input of a call is no JSON");
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(messages_json) {
  using namespace baton;        // NOLINT: the whole target
  using namespace baton::api;   // NOLINT
  using namespace baton::fuzz;  // NOLINT
  static FakeSubmitter submitter;
  const std::string_view body = TextOf(input);
  JsonValue root;
  router::RequestError error;
  if (!ParseJson(body, &root, &error)) return CheckError(error);
  if (root.AsObject() == nullptr) return;
  ApiParams params;
  MessagesForm form;
  std::vector<std::string> ignored;
  if (!ReadMessages(root, &params, &form, &ignored, &error)) return CheckError(error);
  CheckTurns(params.messages);
  Arrival arrival;
  arrival.endpoint = Endpoint::kMessages;
  arrival.now_us = 1'000'000;
  arrival.wall_unix_ms = 1'700'000'000'000;
  BuiltRequest built;
  if (!BuildRequest(params, arrival, submitter, &built, &error)) return CheckError(error);
  BATON_CHECK(built.request.num_choices == 1, "{} choices", built.request.num_choices);
  CheckAnswer(built.plan, form, body);
}
