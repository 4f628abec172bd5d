// /openapi.json against the table of paths, and what it says of priority against what is done.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/api_paths.h"
#include "src/http/http_message.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using router::ErrorCode;
using router::GenerateRequest;
using router::PlainError;
using router::ResponseSink;

namespace {

using OpenApiTest = HttpApiTest;

std::string DescribedPath(const ApiPath& row) {
  std::string path(row.path);
  if (!row.last.empty()) path += "{" + std::string(row.last) + "}";
  return path;
}

// Paths for people: the page.
bool IsPage(const ApiPath& row) {
  return row.route == ApiRoute::kChatPage || row.route == ApiRoute::kRoot;
}

TEST_F(OpenApiTest, ListsExactlyTheRoutesOfTheTable) {
  const auto responder = Send("GET", "/openapi.json");
  JsonValue root;
  router::RequestError error;
  ASSERT_TRUE(ParseJson(responder->body, &root, &error));
  std::set<std::string> listed;
  for (const auto& [path, methods] : *At(root, {"paths"})->AsObject()) {
    for (const auto& [method, what] : *methods.AsObject()) listed.insert(method + " " + path);
  }
  std::set<std::string> served;
  std::set<ApiRoute> routes;
  for (const ApiPath& row : kApiPaths) {
    routes.insert(row.route);
    EXPECT_EQ(row.summary.empty(), IsPage(row)) << row.path;
    if (!IsPage(row)) served.insert(http::LowerCase(row.method) + " " + DescribedPath(row));
  }
  EXPECT_EQ(listed, served);
  EXPECT_EQ(routes.size(), static_cast<size_t>(ApiRoute::kRoot) + 1) << "a route without a row";
}

TEST_F(OpenApiTest, EachBodyIsDescribedByItsFields) {
  const auto responder = Send("GET", "/openapi.json");
  for (const ApiPath& row : kApiPaths) {
    if (row.method != "POST") continue;
    EXPECT_NE(row.schema, "") << row.path;
    EXPECT_EQ(Text(*responder, {"paths", DescribedPath(row), "post", "requestBody", "content",
                                "application/json", "schema", "$ref"}),
              "#/components/schemas/" + std::string(row.schema));
    EXPECT_NE(Text(*responder, {"components", "schemas", std::string(row.schema), "properties",
                                "model", "description"}),
              "<absent>")
        << row.schema;
  }
}

// A body that each path which generates takes, without its closing brace.
const std::vector<std::pair<std::string, std::string>>& Bodies() {
  static const std::vector<std::pair<std::string, std::string>> bodies = [] {
    const std::string hello = R"({"messages":[{"role":"user","content":"hello"}])";
    return std::vector<std::pair<std::string, std::string>>{
        {"/v1/chat/completions", hello},
        {"/v1/completions", R"({"prompt":"hello")"},
        {"/v1/messages", hello + R"(,"max_tokens":1)"},
        {"/v1/responses", R"({"input":"hello")"},
        {"/v1/embeddings", R"({"input":"hello")"},
        {"/api/chat", hello + R"(,"stream":false)"},
        {"/api/generate", R"({"prompt":"hello","stream":false)"},
        {"/api/embed", R"({"input":"hello")"},
        {"/api/embeddings", R"({"prompt":"hello")"},
    };
  }();
  return bodies;
}

TEST_F(OpenApiTest, PriorityIsListedWhereItIsHonouredAndNowhereElse) {
  auto model = std::make_shared<router::ModelInfo>(*router::TestModel());
  model->embedding_size = 3;
  submitter_.served = {model};
  std::vector<int32_t> seen;
  submitter_.answer = [&seen](const GenerateRequest& request, ResponseSink& sink) {
    seen.push_back(request.priority);
    sink.OnFailed(PlainError(ErrorCode::kNoWorkers));
  };
  const auto document = Send("GET", "/openapi.json");
  for (const auto& [path, body] : Bodies()) {
    const std::string schema(FindApiPath(path)->schema);
    const std::vector<std::string> place = {"components", "schemas",  schema,
                                            "properties", "priority", "description"};
    const bool is_listed = Text(*document, place) != "<absent>";
    seen.clear();
    const auto responder = Post(path, body + R"(,"priority":-7})");
    const bool is_honoured = seen == std::vector<int32_t>{-7};
    EXPECT_EQ(is_listed, is_honoured) << path << responder->body;
    if (is_listed) {
      EXPECT_EQ(Post(path, body + R"(,"priority":1001})")->status, 400) << path;
      continue;
    }
    const bool is_named =
        responder->status == 400 ||
        responder->Header("X-Baton-Ignored-Fields").find("priority") != std::string::npos;
    EXPECT_TRUE(is_named) << path << responder->status << responder->body;
  }
}

}  // namespace
}  // namespace baton::api
