// API keys through the whole router: gRPC metadata, reload, and a start without a usable file.
#include <string>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "tests/api/key_file_rig.h"
#include "tests/api/router_process_rig.h"

namespace baton::api {
namespace {

using GrpcKeysTest = RouterProcessTest;

std::string CodeOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find("baton-error-code");
  return it == trailers.end() ? "" : std::string(it->second.data(), it->second.size());
}

TEST_F(GrpcKeysTest, CallsNeedAKeyOfTheFileAsItIsNow) {
  const TestKeyFile file(KeyEntry("a", "old") + KeyEntry("b", "b", "requests_per_minute: 1"));
  process_->Stop();
  RouterConfig config = TestConfig();
  config.api_keys_file = file.path();
  StartProcess(config);
  JoinPair();  // workers register without a key of clients
  struct Case {
    const char* name;
    const char* value;
    grpc::StatusCode code;
    const char* error;
  };
  for (const Case& c :
       {Case{"other", "x", grpc::UNAUTHENTICATED, "invalid_api_key"},
        Case{"authorization", "Bearer no", grpc::UNAUTHENTICATED, "invalid_api_key"},
        Case{"authorization", "Bearer old", grpc::OK, ""}, Case{"x-api-key", "b", grpc::OK, ""},
        Case{"x-api-key", "b", grpc::RESOURCE_EXHAUSTED, "rate_limit_exceeded"}}) {
    grpc::ClientContext context;
    context.AddMetadata(c.name, c.value);
    v1::ChatCompletionResponse response;
    EXPECT_EQ(chat_->ChatCompletion(&context, Chat(2), &response).error_code(), c.code) << c.value;
    EXPECT_EQ(CodeOf(context), c.error);
    const bool is_limited = std::string_view(c.value) == "b";
    EXPECT_EQ(context.GetServerInitialMetadata().count("x-ratelimit-limit-requests"),
              is_limited ? 1u : 0u);
  }
  grpc::Status status;
  EXPECT_TRUE(Stream(Chat(2), &status).empty());
  EXPECT_EQ(status.error_code(), grpc::UNAUTHENTICATED);
  grpc::ClientContext tokenize;
  v1::TokenizeResponse tokens;
  EXPECT_EQ(models_->Tokenize(&tokenize, {}, &tokens).error_code(), grpc::UNAUTHENTICATED);
  grpc::ClientContext list;
  v1::ListModelsResponse listed;
  EXPECT_EQ(models_->ListModels(&list, {}, &listed).error_code(), grpc::UNAUTHENTICATED);
  EXPECT_EQ(listed.data_size(), 0);
  EXPECT_NE(HttpGet(process_->http_address(), "/v1/models").find("HTTP/1.1 401"),
            std::string::npos);
  EXPECT_NE(HttpGet(process_->http_address(), "/health").find("HTTP/1.1 200"), std::string::npos);
  EXPECT_TRUE(WaitMetric("limit=\"requests\"} 1\n"));

  file.Write(KeyEntry("a", "new"));
  bool is_taken = false;
  for (int i = 0; i < 200 && !is_taken; ++i) {
    std::this_thread::sleep_for(milliseconds(25));
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer new");
    is_taken = models_->ListModels(&context, {}, &listed).ok();
  }
  EXPECT_TRUE(is_taken) << "a changed file is read again";
  grpc::ClientContext old;
  old.AddMetadata("authorization", "Bearer old");
  EXPECT_EQ(models_->ListModels(&old, {}, &listed).error_code(), grpc::UNAUTHENTICATED);
}

// A key opens no door to a foreign page or name, and an allowed page still needs one.
TEST_F(GrpcKeysTest, SitesAreJudgedWithAndWithoutKeys) {
  const TestKeyFile file(KeyEntry("a", "good"));
  process_->Stop();
  RouterConfig config = TestConfig();
  config.api_keys_file = file.path();
  config.sites.origins = {*http::SiteOrigin::Parse("https://a.example")};
  StartProcess(config);
  const auto ask = [this](const std::string& line, const std::string& fields) {
    http::RawClient client(PortOf(process_->http_address()));
    client.Send(line + " HTTP/1.1\r\nConnection: close\r\n" + fields + "\r\n");
    return client.ReceiveAll();
  };
  const std::string chat = "POST /v1/chat/completions";
  const std::string local = "Host: localhost\r\nContent-Length: 0\r\n";
  const std::string key = "Authorization: Bearer good\r\n";
  const std::string friendly = "Origin: https://a.example\r\n";
  const std::string allows = "Access-Control-Allow-Origin: https://a.example";
  const std::string preflight =
      ask("OPTIONS /v1/chat/completions",
          "Host: localhost\r\n" + friendly + "Access-Control-Request-Method: POST\r\n");
  EXPECT_EQ(preflight.find("HTTP/1.1 204"), 0u) << preflight;
  const std::string keyless = ask(chat, local + friendly);
  EXPECT_EQ(keyless.find("HTTP/1.1 401"), 0u) << keyless;
  EXPECT_NE(keyless.find(allows), std::string::npos) << "the page may read why";
  const std::string known = ask(chat, local + friendly + key);
  EXPECT_EQ(known.find("HTTP/1.1 400"), 0u) << "its body is none: " << known;
  EXPECT_NE(known.find(allows), std::string::npos);
  const std::string foreign = ask(chat, local + key + "Origin: https://evil.example\r\n");
  EXPECT_EQ(foreign.find("HTTP/1.1 403"), 0u) << foreign;
  EXPECT_NE(foreign.find("origin_not_allowed"), std::string::npos);
  const std::string renamed = ask("GET /v1/models", "Host: evil.example\r\n" + key);
  EXPECT_EQ(renamed.find("HTTP/1.1 403"), 0u) << renamed;
  EXPECT_NE(renamed.find("host_not_allowed"), std::string::npos);
}

TEST_F(GrpcKeysTest, ARouterDoesNotStartWithoutItsKeys) {
  RouterConfig config = TestConfig();
  config.api_keys_file = "/nowhere/keys.yaml";
  const auto process = RouterProcess::Start(config);
  ASSERT_FALSE(process.ok());
  EXPECT_NE(process.status().message().find("--api-keys /nowhere/keys.yaml"), std::string::npos);
}

}  // namespace
}  // namespace baton::api
