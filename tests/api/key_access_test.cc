// API keys over HTTP: the security table of every route, the shapes of refusals, limits, and what
// keeps tenants apart.
#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/api/key_ring.h"
#include "tests/api/http_api_rig.h"
#include "tests/api/key_file_rig.h"

namespace baton::api {
namespace {

using http::HttpHeaders;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Ne;
using testing::Not;

const std::string kBody = R"({"messages":[{"role":"user","content":"hello"}],"max_tokens":4})";

// A clock whose wall time an operator, or a time server, may set.
class SteppedClock final : public Clock {
 public:
  int64_t NowUs() const override { return steady_.NowUs(); }
  int64_t WallUnixMs() const override { return steady_.WallUnixMs() + step_ms_; }
  void AdvanceMs(int64_t delta_ms) { steady_.AdvanceMs(delta_ms); }
  void StepWallMs(int64_t delta_ms) { step_ms_ += delta_ms; }

 private:
  FakeClock steady_;
  std::atomic<int64_t> step_ms_{0};
};

// A server whose keys are "key-a" and "key-b", of the tenants a and b; `more`: a's limit.
class KeyAccessTest : public HttpApiTest {
 protected:
  void Serve(const std::string& more = "") {
    file_.Write(KeyEntry("a", "key-a", more) + KeyEntry("b", "key-b"));
    auto ring = KeyRing::Create(file_.path(), key_clock_);
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
    const ApiParts parts = {
        .submitter = &submitter_, .workers = &workers_, .answers = &answers_, .keys = ring_.get()};
    keyed_ = std::make_unique<HttpApi>(parts, [](router::Topology*) {});
  }
  std::shared_ptr<FakeResponder> Ask(const std::string& method, const std::string& path,
                                     HttpHeaders headers, const std::string& query = "") {
    http::HttpRequest request;
    request.method = method;
    request.path = path;
    request.query = query;
    request.headers = std::move(headers);
    if (method == "POST") request.headers.Add("Content-Type", "application/json");
    if (method == "POST") request.body = body_;
    request.peer_address = "192.0.2.1:4711";
    auto responder = std::make_shared<FakeResponder>();
    keyed_->Handle(std::move(request), responder);
    return responder;
  }
  std::shared_ptr<FakeResponder> AskWhole(const std::string& method, const std::string& path,
                                          HttpHeaders headers, const std::string& query = "") {
    auto responder = Ask(method, path, std::move(headers), query);
    EXPECT_TRUE(responder->Wait()) << method << " " << path;
    return responder;
  }
  static HttpHeaders Bearer(const std::string& key) { return {{"Authorization", "Bearer " + key}}; }
  static std::string PathOf(const ApiPath& row) {
    return std::string(row.path) + (row.last.empty() ? "" : "toy");
  }

  std::string body_ = kBody;  // of every POST
  TestKeyFile file_;
  SteppedClock key_clock_;
  std::unique_ptr<KeyRing> ring_;
  std::unique_ptr<HttpApi> keyed_;
};

// The routes that are open are named here too, so that a new one is not opened by mistake.
TEST_F(KeyAccessTest, EveryRouteHasItsRowOfTheSecurityTable) {
  Serve();
  AnswerWith("Hi");
  for (const ApiPath& row : kApiPaths) {
    const std::string method(row.method);
    const std::string path = PathOf(row);
    const bool is_open = path == "/" || path == "/ui" || path == "/health";
    EXPECT_EQ(row.is_open, is_open) << path;
    EXPECT_EQ(AskWhole(method, path, {})->status == 401, !is_open) << path;
    EXPECT_EQ(AskWhole(method, path, Bearer("key-c"))->status == 401, !is_open) << path;
    for (const char* const key : {"key-a", "key-b"}) {
      EXPECT_THAT(AskWhole(method, path, Bearer(key))->status, AllOf(Ne(401), Ne(403)))
          << path << " with " << key;
    }
    EXPECT_NE(AskWhole(method, path, {{"x-api-key", "key-a"}})->status, 401) << path;
    const auto in_url = AskWhole(method, path, Bearer("key-a"), "beta=true&api%5Fkey=key-a");
    EXPECT_EQ(in_url->status, 401) << path;
    EXPECT_THAT(in_url->body, HasSubstr("A key in the URL is refused")) << path;
    if (method != "GET") continue;
    EXPECT_EQ(AskWhole("HEAD", path, {})->status == 401, !is_open) << path;
  }
}

TEST_F(KeyAccessTest, ATenantMayStepBackButNotBeforeOthers) {
  Serve();
  AnswerWith("Hi");
  const auto ask = [&](int priority) {
    http::HttpRequest request;
    request.method = "POST";
    request.path = kChatPath;
    request.headers = Bearer("key-a");
    request.headers.Add("Content-Type", "application/json");
    request.body = kHello + R"(,"priority":)" + std::to_string(priority) + "}";
    auto responder = std::make_shared<FakeResponder>();
    keyed_->Handle(std::move(request), responder);
    EXPECT_TRUE(responder->Wait());
    return responder;
  };
  EXPECT_EQ(ask(5)->status, 200);
  EXPECT_EQ(submitter_.WaitSubmitted(0).request.priority, 5);
  const auto refused = ask(-1);
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(Text(*refused, {"error", "param"}), "priority");
  EXPECT_THAT(refused->body, HasSubstr("with an API key an integer from 0 to 1000"));
  const auto open = Post(kChatPath, kHello + R"(,"priority":-1000})");
  EXPECT_EQ(open->status, 200) << open->body;
  EXPECT_EQ(submitter_.WaitSubmitted(1).request.priority, -1000);
}

TEST_F(KeyAccessTest, WithoutAKeyNobodyLearnsWhichPathsThereAre) {
  Serve();
  for (const char* const path : {"/nothing", "/v1/chat/completions", "/v1/completion"}) {
    EXPECT_EQ(AskWhole("GET", path, {})->status, 401) << path;
    EXPECT_NE(AskWhole("GET", path, Bearer("key-a"))->status, 401) << path;
  }
  EXPECT_EQ(AskWhole("GET", "/nothing", Bearer("key-a"))->status, 404);
}

TEST_F(KeyAccessTest, RefusalsHaveTheFormOfTheirSurface) {
  Serve();
  const auto openai = AskWhole("POST", kChatPath, {});
  EXPECT_EQ(openai->Header("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(Text(*openai, {"error", "type"}), "authentication_error");
  EXPECT_EQ(Text(*openai, {"error", "code"}), "invalid_api_key");
  EXPECT_THAT(Text(*openai, {"error", "message"}), HasSubstr("No API key was given"));
  const auto anthropic = AskWhole("POST", "/v1/messages", {{"x-api-key", "sk-secret"}});
  EXPECT_EQ(anthropic->status, 401);
  EXPECT_EQ(Text(*anthropic, {"type"}), "error");
  EXPECT_EQ(Text(*anthropic, {"error", "type"}), "authentication_error");
  EXPECT_THAT(Text(*anthropic, {"error", "message"}), HasSubstr("is not known here"));
  EXPECT_THAT(anthropic->body, Not(HasSubstr("sk-secret")));
  const auto ollama = AskWhole("POST", "/api/chat", {});
  EXPECT_EQ(ollama->status, 401);
  EXPECT_THAT(Text(*ollama, {"error"}), HasSubstr("No API key was given"));
  EXPECT_THAT(submitter_.refused(), Contains(401));
  EXPECT_THAT(ring_->MetricsText(), HasSubstr("reason=\"missing\"} 2\n"));
  EXPECT_THAT(ring_->MetricsText(), HasSubstr("reason=\"unknown\"} 1\n"));
}

TEST_F(KeyAccessTest, MalformedFieldsAreNoKeys) {
  Serve();
  for (const char* const value : {"", "key-a", "Bearer", "Bearer ", "Basic key-a", "Bearerkey-a",
                                  "Bearer key-a, Bearer key-b"}) {
    EXPECT_EQ(AskWhole("GET", "/v1/models", {{"Authorization", value}})->status, 401) << value;
  }
  EXPECT_EQ(AskWhole("GET", "/v1/models",
                     {{"Authorization", "Bearer key-a"}, {"Authorization", "Bearer key-b"}})
                ->status,
            401);
  EXPECT_EQ(AskWhole("GET", "/v1/models", {{"x-api-key", "key-a"}, {"x-api-key", "key-a"}})->status,
            401);
  EXPECT_EQ(AskWhole("GET", "/v1/models", {{"authorization", "bearer  key-a "}})->status, 200);
  EXPECT_EQ(
      AskWhole("GET", "/v1/models", {{"Authorization", "Bearer wrong"}, {"x-api-key", "key-a"}})
          ->status,
      401)
      << "Authorization counts before x-api-key";
}

TEST_F(KeyAccessTest, RequestsOfAMinuteAreCountedPerTenant) {
  Serve("requests_per_minute: 2");
  AnswerWith("Hi");
  const auto first = AskWhole("POST", kChatPath, Bearer("key-a"));
  EXPECT_EQ(first->status, 200);
  EXPECT_EQ(first->Header("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(first->Header("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(first->Header("x-ratelimit-reset-requests"), "30.000s");
  EXPECT_EQ(first->Header("x-ratelimit-limit-tokens"), "") << "it has none";
  EXPECT_EQ(AskWhole("GET", "/v1/models", Bearer("key-a"))->status, 200) << "GET is not counted";
  EXPECT_NE(AskWhole("POST", "/apply-template", Bearer("key-a"))->status, 429) << "the second";
  const auto third = AskWhole("POST", kChatPath, Bearer("key-a"));
  EXPECT_EQ(third->status, 429);
  EXPECT_EQ(Text(*third, {"error", "type"}), "rate_limit_error");
  EXPECT_EQ(Text(*third, {"error", "code"}), "rate_limit_exceeded");
  EXPECT_THAT(third->body, HasSubstr("2 requests a minute"));
  EXPECT_EQ(third->Header("Retry-After"), "30");
  EXPECT_EQ(third->Header("x-ratelimit-remaining-requests"), "0");
  const auto messages = AskWhole("POST", "/v1/messages", Bearer("key-a"));
  EXPECT_EQ(messages->status, 429);
  EXPECT_EQ(Text(*messages, {"error", "type"}), "rate_limit_error");
  const auto ollama = AskWhole("POST", "/api/chat", Bearer("key-a"));
  EXPECT_EQ(ollama->status, 429);
  EXPECT_THAT(Text(*ollama, {"error"}), HasSubstr("2 requests a minute"));
  const auto responses = AskWhole("POST", "/v1/responses", Bearer("key-a"));
  EXPECT_EQ(responses->status, 429);
  EXPECT_EQ(Text(*responses, {"error", "code"}), "rate_limit_exceeded");
  for (const auto& refused : {messages, ollama, responses}) {
    EXPECT_EQ(refused->Header("Retry-After"), "30");
    EXPECT_EQ(refused->Header("x-ratelimit-limit-requests"), "2");
    EXPECT_EQ(refused->Header("x-ratelimit-remaining-requests"), "0");
    EXPECT_EQ(refused->Header("x-ratelimit-reset-requests"), "60.000s");
  }
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-b"))->status, 200) << "another tenant";
  key_clock_.AdvanceMs(30'001);
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 200);
}

TEST_F(KeyAccessTest, StepsOfTheWallClockGiveAndTakeNothing) {
  constexpr int64_t kDayMs = 86'400'000;
  Serve("requests_per_minute: 1");
  AnswerWith("Hi");
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 200);
  for (const int64_t step_ms : {kDayMs, -2 * kDayMs, -365 * kDayMs}) {
    key_clock_.StepWallMs(step_ms);
    const auto refused = AskWhole("POST", kChatPath, Bearer("key-a"));
    EXPECT_EQ(refused->status, 429);
    EXPECT_EQ(refused->Header("Retry-After"), "60");
  }
  key_clock_.AdvanceMs(60'001);
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 200);
  key_clock_.AdvanceMs(kDayMs);  // a suspended machine
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 200);
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 429) << "one minute's worth";
}

TEST_F(KeyAccessTest, AnswersAreCountedByTenantAndCode) {
  Serve("requests_per_minute: 2");
  AnswerWith("Hi");
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 200);
  EXPECT_EQ(AskWhole("GET", "/v1/models", Bearer("key-a"))->status, 200);
  EXPECT_EQ(AskWhole("GET", "/v1/nothing", Bearer("key-a"))->status, 404);
  submitter_.answer = [](const router::GenerateRequest&, router::ResponseSink& sink) {
    sink.OnFailed(router::PlainError(router::ErrorCode::kWorkerLost));
  };
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 503);
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 429);
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("nobody"))->status, 401);
  const std::map<int, uint64_t> wanted = {{200, 2}, {404, 1}, {429, 1}, {503, 1}};
  EXPECT_EQ(ring_->Find("key-a")->num_answered(), wanted);
  EXPECT_EQ(ring_->Find("key-b")->num_answered(), (std::map<int, uint64_t>{{200, 0}}));
}

TEST_F(KeyAccessTest, TheRouterKnowsWhoseKvItIs) {
  Serve("kv_share: 0.25");
  router::TenantKv* asked = nullptr;
  submitter_.answer = [&asked](const router::GenerateRequest& request, router::ResponseSink& sink) {
    asked = request.kv.get();
    router::RequestError error = router::PlainError(router::ErrorCode::kRateLimited);
    error.expected = "kv_share 0.25, 4 of 16 tokens of KV";
    sink.OnFailed(error);
  };
  const auto refused = AskWhole("POST", kChatPath, Bearer("key-a"));
  EXPECT_EQ(refused->status, 429);
  EXPECT_THAT(refused->body, HasSubstr("kv_share 0.25"));
  EXPECT_NE(refused->Header("Retry-After"), "");
  const auto tenant = ring_->Find("key-a");
  EXPECT_EQ(asked, tenant->kv().get());
  EXPECT_EQ(tenant->kv()->share(), 0.25);
  EXPECT_EQ(tenant->num_refused(TenantLimit::kKvShare), 1u);
  EXPECT_EQ(ring_->Find("key-b")->kv()->share(), 0) << "it has none";
}

TEST_F(KeyAccessTest, TokensOfPromptAndAnswerAreCounted) {
  Serve("tokens_per_minute: 20");
  AnswerWith("Hi");
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 200);  // 9 and 2
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 200);  // 9 of 9, and owes 2
  const auto third = AskWhole("POST", kChatPath, Bearer("key-a"));
  EXPECT_EQ(third->status, 429);
  EXPECT_THAT(third->body, HasSubstr("20 tokens a minute"));
  EXPECT_EQ(third->Header("Retry-After"), "9");
  EXPECT_EQ(third->Header("x-ratelimit-remaining-tokens"), "0");
  EXPECT_EQ(third->Header("x-ratelimit-reset-tokens"), "66.000s");
}

// The answer of `echo` with max_tokens 0 has no token, though one is computed.
TEST_F(KeyAccessTest, APromptAloneTakesItsOwnTokens) {
  Serve("tokens_per_minute: 20");
  body_ = R"({"prompt":"ab","echo":true,"logprobs":0,"max_tokens":0})";
  submitter_.answer = [](const router::GenerateRequest&, router::ResponseSink& sink) {
    PlayText(sink, "x", 0, scheduler::FinishReason::kLength);
    sink.OnFailed(router::PlainError(router::ErrorCode::kWorkerLost));
  };
  EXPECT_EQ(AskWhole("POST", kCompletionPath, Bearer("key-a"))->status, 503);
  EXPECT_THAT(ring_->Find("key-a")->Fields(key_clock_.NowUs()),
              Contains(testing::Pair("x-ratelimit-remaining-tokens", "18")));
}

TEST_F(KeyAccessTest, APlaceIsFreeOnceItsAnswerEnds) {
  Serve("concurrency: 1");
  const auto running = Ask("POST", kChatPath, Bearer("key-a"));
  const auto submitted = submitter_.WaitSubmitted();
  const auto second = AskWhole("POST", kChatPath, Bearer("key-a"));
  EXPECT_EQ(second->status, 429);
  EXPECT_THAT(second->body, HasSubstr("concurrency 1"));
  EXPECT_EQ(second->Header("Retry-After"), "1");
  PlayText(*submitted.sink, "Hi");
  submitted.sink->OnFinished(TestResult(9, 2));
  EXPECT_TRUE(running->Wait());
  AnswerWith("Hi");
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 200);
  submitter_.answer = [](const router::GenerateRequest&, router::ResponseSink& sink) {
    sink.OnFailed(router::PlainError(router::ErrorCode::kWorkerLost));
  };
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 503);
  EXPECT_EQ(AskWhole("POST", kChatPath, Bearer("key-a"))->status, 503) << "not 429";
}

TEST_F(KeyAccessTest, TenantsShareNeitherCachesNorIdempotencyKeys) {
  Serve();
  AnswerWith("Hi");
  for (const char* const key : {"key-a", "key-b"}) {
    HttpHeaders headers = Bearer(key);
    headers.Add("Idempotency-Key", "same");
    EXPECT_EQ(AskWhole("POST", kChatPath, headers)->status, 200);
  }
  const auto a = submitter_.WaitSubmitted(0).request;
  const auto b = submitter_.WaitSubmitted(1).request;
  EXPECT_EQ(a.tenant, "tenant a");
  EXPECT_EQ(b.tenant, "tenant b");
  ASSERT_NE(a.key, nullptr);
  EXPECT_NE(a.key->scope, b.key->scope);
}

TEST(TenantOfKeyTest, TenantsAndSaltsAreApart) {
  EXPECT_EQ(router::TenantOfKey("", ""), "default");
  EXPECT_EQ(router::TenantOfKey("", "s"), router::TenantOfSalt("s"));
  EXPECT_NE(router::TenantOfKey("default", ""), router::TenantOfKey("", ""));
  EXPECT_NE(router::TenantOfKey("a", "s"), router::TenantOfKey("b", "s"));
  EXPECT_NE(router::TenantOfKey("a", "s"), router::TenantOfKey("a", ""));
  EXPECT_NE(router::TenantOfKey("a", "s"), router::TenantOfKey("", "s"));
}

}  // namespace
}  // namespace baton::api
