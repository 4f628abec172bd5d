// The table of paths, and the answers to clients that ask the wrong way.
#include "src/api/path_hints.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/api_paths.h"
#include "src/api/openapi_json.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using http::HttpResponse;

namespace {

class PathHintsTest : public HttpApiTest {};

// Requests that newcomers send: each answer says what to send instead.
TEST_F(PathHintsTest, WrongPathsAndMethodsAreToldWhatToSend) {
  struct Case {
    const char* method;
    const char* path;
    int status;
    const char* words;
    const char* location = "";
  };
  const Case cases[] = {
      {"GET", "/", 302, "", "/ui"},
      {"POST", "/chat/completions", 308, "POST /v1/chat/completions", "/v1/chat/completions"},
      {"POST", "//v1/Chat/completions/", 308, "POST /v1/chat/completions", "/v1/chat/completions"},
      {"POST", "/completions", 308, "POST /v1/completions", "/v1/completions"},
      {"GET", "/v1/models/", 308, "GET /v1/models ", "/v1/models"},
      {"HEAD", "/models", 308, "GET /v1/models ", "/v1/models"},
      {"GET", "/tokenizer_info/", 308, "GET /tokenizer_info", "/tokenizer_info"},
      {"GET", "/OpenAPI.json/", 308, "GET /openapi.json", "/openapi.json"},
      {"POST", "/v1/tokenize", 404, "POST /tokenize"},
      {"POST", "/v1/v1/chat/completions", 404, "POST /v1/chat/completions"},
      {"POST", "/responses/input_tokens", 308, "", "/v1/responses/input_tokens"},
      {"GET", "/v1/responses/input_tokens", 405, "Send POST with a JSON body"},
      {"POST", "/v1/responses/compact", 404, "send a shorter one"},
      {"POST", "/v1/responses/resp_1/cancel", 404, "No response is stored"},
      {"GET", "/models/a", 404, "GET /v1/models/NAME"},
      {"POST", "/v1/chat/completion", 404, "POST /v1/chat/completions"},
      {"GET", "/chat/completions", 404, "POST /v1/chat/completions"},
      {"GET", "/metrics", 404, "The admin port has it"},
      {"GET", "/readyz/", 404, "The admin port has it"},
      {"GET", "/debug/requests", 404, "--admin"},
      {"GET", "/debugger", 404, "/ui"},
      {"GET", "/favicon.ico", 404, "POST /v1/chat/completions, POST /v1/completions"},
      {"GET", "/v1/chat/completions", 405, "Send POST with a JSON body"},
      {"POST", "/v1/models", 405, "Send GET."},
      {"POST", "/", 405, "Send GET."},
  };
  for (const Case& c : cases) {
    const auto responder = Send(c.method, c.path);
    EXPECT_EQ(responder->status, c.status) << c.path;
    EXPECT_NE(responder->body.find(c.words), std::string::npos) << c.path << responder->body;
    EXPECT_EQ(responder->Header("Location"), c.location) << c.path;
  }
  const auto form =
      Send("POST", kChatPath, "{}", {{"Content-Type", "application/x-www-form-urlencoded"}});
  EXPECT_EQ(form->status, 415);
  EXPECT_NE(form->body.find("'Content-Type: application/json'"), std::string::npos);
}

TEST_F(PathHintsTest, EveryHintLeadsToAPathThatAnswers) {
  for (const ApiPath& known : kApiPaths) {
    const bool is_prefix = !known.last.empty();
    const auto responder =
        Send(std::string(known.method), std::string(known.path) + (is_prefix ? "m" : ""), "{}");
    ASSERT_TRUE(responder->Wait());
    EXPECT_EQ(responder->body.find("There is nothing at this path"), std::string::npos)
        << known.path;
    EXPECT_NE(responder->status, 405) << known.path;
  }
}

TEST_F(PathHintsTest, EveryPathIsFoundAgainInOtherFormsAndIsDescribed) {
  const std::string description = OpenApiJson();
  for (const ApiPath& row : kApiPaths) {
    const bool is_prefix = !row.last.empty();
    const std::string path = std::string(row.path) + (is_prefix ? "m" : "");
    EXPECT_EQ(FindApiPath(path), &row) << path;
    if (!is_prefix) {
      EXPECT_EQ(PathMeant(row.method, path + "/"), row.path);
      EXPECT_EQ(PathMeant(row.method, "/" + path), row.path);
    }
    const std::string described =
        "\"" + std::string(row.path) + (is_prefix ? "{" + std::string(row.last) + "}" : "") + "\":";
    EXPECT_EQ(description.find(described) != std::string::npos, !row.summary.empty()) << path;
  }
  EXPECT_EQ(FindApiPath("/v1/models/"), nullptr);
  EXPECT_EQ(FindApiPath("/metrics"), nullptr);
}

TEST_F(PathHintsTest, ForeignSitesAreRefusedWithTheirCode) {
  for (const char* code : {"host_not_allowed", "origin_not_allowed"}) {
    const HttpResponse response = api_.AsErrorFormatter()({403, "Use the flag.", code}, "");
    EXPECT_EQ(response.status, 403);
    EXPECT_EQ(response.body, std::string(R"({"error":{"message":"Use the flag.",)") +
                                 R"("type":"permission_error","param":null,"code":")" + code +
                                 "\"}}");
  }
}

// The server's own refusals and unknown paths have the form that clients of the path read.
TEST_F(PathHintsTest, RefusalsHaveTheFormOfTheirPath) {
  const auto refused = [&](std::string_view path) {
    return api_.AsErrorFormatter()({413, "ignored", "", path}, "my-id");
  };
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"}) {
    const HttpResponse response = refused(path);
    EXPECT_EQ(response.status, 413);
    EXPECT_EQ(response.headers.Find("request-id"), "my-id");
    EXPECT_EQ(response.body.find(R"({"type":"error","error":{"type":"request_too_large",)"), 0u)
        << response.body;
  }
  for (const char* path : {"/api/chat", "/api/generate", "/api/nothing"}) {
    EXPECT_EQ(refused(path).body.find(R"({"error":")"), 0u) << refused(path).body;
  }
  for (const char* path : {"/v1/responses", "/v1/chat/completions", "/nothing", ""}) {
    EXPECT_EQ(refused(path).body.find(R"({"error":{"message":")"), 0u) << refused(path).body;
  }
  const auto unknown = Send("POST", "/v1/messages/batches", "{}");
  EXPECT_EQ(unknown->status, 404);
  EXPECT_EQ(unknown->body.find(R"({"type":"error","error":{"type":"not_found_error",)"), 0u)
      << unknown->body;
}

TEST_F(PathHintsTest, ServerErrorsSpeakTheSameLanguage) {
  const std::vector<std::pair<int, std::string>> errors = {
      {400, "malformed_request"},    {404, "not_found"},       {405, "method_not_allowed"},
      {408, "request_timeout"},      {413, "body_too_large"},  {417, "unsupported_http"},
      {431, "header_too_large"},     {500, "internal_error"},  {501, "unsupported_http"},
      {503, "too_many_connections"}, {505, "unsupported_http"}};
  for (const auto& [status, code] : errors) {
    HttpResponse response = api_.AsErrorFormatter()({status, "ignored"}, "my-id");
    EXPECT_EQ(response.headers.Find("X-Request-Id"), "my-id");
    EXPECT_FALSE(response.headers.Find("X-Baton-Ignored-Fields").has_value());
    response = api_.AsErrorFormatter()({status, "ignored"}, "bad\x01id");
    EXPECT_EQ(response.headers.Find("X-Request-Id").value_or("").size(), 32u) << "a new one";
    EXPECT_EQ(response.headers.Find("X-Baton-Ignored-Fields"), "X-Request-Id");
    EXPECT_EQ(response.status, status);
    EXPECT_EQ(response.body.find("{\"error\":{\"message\":\""), 0u);
    EXPECT_EQ(response.body.find("Ignored.") != std::string::npos, status == 400)
        << "a broken request is told what broke it: " << response.body;
    EXPECT_NE(response.body.find("\"code\":\"" + code + "\""), std::string::npos) << response.body;
  }
  EXPECT_EQ(submitter_.refused().size(), 2 * errors.size())
      << "baton_requests_total counts them too";
}

}  // namespace
}  // namespace baton::api
