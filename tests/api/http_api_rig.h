// The HTTP API between a fake server and a fake router.
#ifndef BATON_TESTS_API_HTTP_API_RIG_H_
#define BATON_TESTS_API_HTTP_API_RIG_H_

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/answer_budget.h"
#include "src/api/http_api.h"
#include "src/api/json_value.h"
#include "src/api/tool_metrics.h"
#include "src/obs/metrics.h"
#include "src/text/chat_template.h"
#include "tests/api/fake_responder.h"
#include "tests/api/fake_submitter.h"
#include "tests/router/test_model.h"

namespace baton::api {

inline constexpr const char* kChatPath = "/v1/chat/completions";
inline constexpr const char* kCompletionPath = "/v1/completions";

// The toy model with another chat template.
inline std::shared_ptr<const router::ModelInfo> ModelWith(const std::string& chat_template) {
  auto info = std::make_shared<router::ModelInfo>(*router::TestModel());
  info->chat_template = std::make_shared<const text::ChatTemplate>(
      text::ChatTemplate::Create(chat_template, "", "<eos>").value());
  return info;
}

class HttpApiTest : public testing::Test {
 protected:
  explicit HttpApiTest(bool splits_reasoning = true, KeptStreams* streams = nullptr)
      : api_({.submitter = &submitter_,
              .workers = &workers_,
              .answers = &answers_,
              .splits_reasoning = splits_reasoning,
              .streams = streams,
              .tool_metrics = &tool_metrics_},
             [](router::Topology* topology) {
               router::ProcessView row;
               row.role = "router";
               row.worker_id = "router-0";
               row.http = "127.0.0.1:8080";
               topology->processes.insert(topology->processes.begin(), row);
             }) {}

  // A job may still be in an api after the answer came; servers are members of derived tests too.
  void TearDown() override { workers_.Stop(); }

  std::shared_ptr<FakeResponder> Send(const std::string& method, const std::string& path,
                                      const std::string& body = "",
                                      http::HttpHeaders headers = {}) {
    http::HttpRequest request;
    request.method = method;
    request.target = path;
    request.path = path;
    request.headers = std::move(headers);
    request.body = body;
    auto responder = std::make_shared<FakeResponder>();
    api_.Handle(std::move(request), responder);
    return responder;
  }
  std::shared_ptr<FakeResponder> Post(const std::string& path, const std::string& body) {
    auto responder = Send("POST", path, body, {{"Content-Type", "application/json"}});
    EXPECT_TRUE(responder->Wait());
    return responder;
  }
  // Answers every request with `text` in one choice.
  void AnswerWith(const std::string& text,
                  scheduler::FinishReason finish = scheduler::FinishReason::kStop) {
    submitter_.answer = [text, finish](const router::GenerateRequest& request,
                                       router::ResponseSink& sink) {
      for (uint32_t choice = 0; choice < request.num_choices; ++choice) {
        PlayText(sink, text, choice, finish, choice + 1 == request.num_choices);
      }
      sink.OnFinished(TestResult(static_cast<uint32_t>(request.prompt.size()),
                                 static_cast<uint32_t>(text.size()) * request.num_choices));
    };
  }

  // The value at a path of member names and array positions.
  static const JsonValue* At(const JsonValue& root, const std::vector<std::string>& path) {
    const JsonValue* value = &root;
    for (const std::string& step : path) {
      if (value == nullptr) return nullptr;
      if (const JsonValue::Array* array = value->AsArray()) {
        const size_t idx = std::stoul(step);
        value = idx < array->size() ? &(*array)[idx] : nullptr;
      } else {
        value = value->Find(step);
      }
    }
    return value;
  }
  static std::string Text(const FakeResponder& responder, const std::vector<std::string>& path) {
    JsonValue root;
    router::RequestError error;
    EXPECT_TRUE(ParseJson(responder.body, &root, &error)) << responder.body;
    const JsonValue* value = At(root, path);
    if (value == nullptr) return "<absent>";
    if (value->AsString() != nullptr) return *value->AsString();
    int64_t integer = 0;
    if (value->GetInteger(&integer)) return std::to_string(integer);
    return value->is_null() ? "null" : "<other>";
  }
  // The JSON of each event of a stream; checks the framing.
  static std::vector<std::string> Events(const std::string& body) {
    std::vector<std::string> events;
    size_t at = 0;
    while (at < body.size()) {
      EXPECT_EQ(body.substr(at, 6), "data: ");
      const size_t end = body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos);
      if (end == std::string::npos) break;
      events.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return events;
  }

  FakeSubmitter submitter_;
  obs::MetricsRegistry registry_;
  const ToolMetrics tool_metrics_{&registry_};
  AnswerBudget answers_;
  ApiWorkers workers_{2};
  HttpApi api_;
};

inline const std::string kHello = R"({"messages":[{"role":"user","content":"hello"}])";

}  // namespace baton::api

#endif  // BATON_TESTS_API_HTTP_API_RIG_H_
