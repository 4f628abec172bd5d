#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "src/http/http_router.h"

namespace baton::http {
namespace {

// Keeps the whole answer of a handler that answers at once.
class RecordingResponder final : public HttpResponder {
 public:
  bool Respond(HttpResponse response) override {
    last = std::move(response);
    ++answers;
    return true;
  }
  bool StartStream(int, const HttpHeaders&) override { return false; }
  bool Write(std::string_view) override { return false; }
  bool Finish() override { return false; }
  bool FinishAndClose() override { return false; }
  void Abort() override {}
  void KeepAlive(std::string /*filler*/, int64_t /*silence_ms*/) override {}
  size_t buffered_bytes() const override { return 0; }
  HttpRoom NotifyBelow(size_t, absl::AnyInvocable<void()>) override { return HttpRoom::kNow; }
  void OnClosed(absl::AnyInvocable<void(HttpClientGone)>) override {}

  HttpResponse last;
  int answers = 0;
};

class HttpRouterTest : public ::testing::Test {
 protected:
  HttpRouterTest() {
    router_.Add("GET", "/models", Answer("models"));
    router_.Add("POST", "/chat", Answer("chat"));
    router_.Add("GET", "/both", Answer("get"));
    router_.Add("POST", "/both", Answer("post"));
  }

  static HttpHandler Answer(std::string body) {
    return [body](HttpRequest, std::shared_ptr<HttpResponder> responder) {
      responder->Respond({200, {}, body});
    };
  }

  HttpResponse Send(std::string method, std::string path) {
    HttpRequest request;
    request.method = std::move(method);
    request.path = std::move(path);
    auto responder = std::make_shared<RecordingResponder>();
    router_.Handle(std::move(request), responder);
    EXPECT_EQ(responder->answers, 1);
    return responder->last;
  }

  HttpRouter router_;
};

TEST_F(HttpRouterTest, ExactPathAndMethod) {
  EXPECT_EQ(Send("GET", "/models").body, "models");
  EXPECT_EQ(Send("HEAD", "/models").body, "models");
  EXPECT_EQ(Send("POST", "/both").body, "post");
  EXPECT_EQ(Send("GET", "/both").body, "get");
}

TEST_F(HttpRouterTest, UnknownPathIs404) {
  for (const char* path : {"/", "/models/", "/Models", "/modelsx", "/metrics", "*"}) {
    EXPECT_EQ(Send("GET", path).status, 404) << path;
  }
}

TEST_F(HttpRouterTest, WrongMethodIs405WithAllow) {
  const HttpResponse chat = Send("GET", "/chat");
  EXPECT_EQ(chat.status, 405);
  EXPECT_EQ(chat.headers.Find("allow"), "POST");
  EXPECT_EQ(Send("DELETE", "/both").headers.Find("Allow"), "GET, HEAD, POST");
  EXPECT_EQ(Send("HEAD", "/chat").status, 405);
}

TEST(HttpRouterFormatterTest, ErrorsUseTheFormatter) {
  HttpRouter router([](const HttpRefusal& refusal, std::string_view request_id) {
    return HttpResponse{
        refusal.status, {{"X-Request-Id", std::string(request_id)}}, std::string(refusal.message)};
  });
  auto responder = std::make_shared<RecordingResponder>();
  router.Handle(HttpRequest{.method = "GET", .path = "/x", .headers = {{"x-request-id", "id"}}},
                responder);
  EXPECT_EQ(responder->last.status, 404);
  EXPECT_EQ(responder->last.headers.Find("X-Request-Id"), "id");
  EXPECT_EQ(responder->last.body, "no such path");
}

}  // namespace
}  // namespace baton::http
