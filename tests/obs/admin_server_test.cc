#include "src/obs/admin_server.h"

#include <atomic>
#include <memory>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/http/raw_client.h"

namespace baton::obs {

using http::ParseCorsOrigins;
using http::RawClient;
using http::SiteRules;

namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class AdminServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    registry_.AddCounter({"c_total", "C."});
    AdminProviders providers;
    providers.ready = [this] {
      return ready_.load() ? OkStatus() : Unavailable("no decode worker is registered");
    };
    providers.requests_json = [] { return R"([{"request_uid":"ab"}])"; };
    auto admin = AdminServer::Start("127.0.0.1", 0, &registry_, std::move(providers));
    ASSERT_TRUE(admin.ok()) << admin.status();
    admin_ = *std::move(admin);
  }

  std::string Send(std::string_view method, std::string_view path) {
    RawClient client(admin_->port());
    client.Send(fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                            method, path));
    return client.ReceiveAll();
  }

  std::atomic<bool> ready_{false};
  MetricsRegistry registry_;
  std::unique_ptr<AdminServer> admin_;
};

TEST_F(AdminServerTest, ProbesFollowTheirProviders) {
  EXPECT_THAT(Send("GET", "/livez"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\nok\n")));
  EXPECT_THAT(Send("GET", "/startupz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Send("GET", "/readyz"),
              AllOf(StartsWith("HTTP/1.1 503 "), EndsWith("no decode worker is registered\n")));
  ready_ = true;
  EXPECT_THAT(Send("GET", "/readyz"), StartsWith("HTTP/1.1 200 "));
}

// An empty table and a loop that does not answer must not look alike.
TEST_F(AdminServerTest, FailedLookIsNotAnEmptyTable) {
  AdminProviders providers;
  providers.blocks_json = []() -> StatusOr<std::string> {
    return Unavailable("the loop did not answer");
  };
  auto admin = AdminServer::Start("127.0.0.1", 0, &registry_, std::move(providers));
  ASSERT_TRUE(admin.ok()) << admin.status();
  admin_ = *std::move(admin);
  EXPECT_THAT(Send("GET", "/debug/blocks"),
              AllOf(StartsWith("HTTP/1.1 503 "), EndsWith("the loop did not answer\n")));
  EXPECT_THAT(Send("GET", "/debug/requests"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminServerTest, MetricsAreTextFormat004) {
  EXPECT_THAT(Send("GET", "/metrics"),
              AllOf(HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                    EndsWith("# TYPE c_total counter\nc_total 0\n")));
}

TEST_F(AdminServerTest, TracesAreThereOnlyWhereSomebodyRemembers) {
  EXPECT_THAT(Send("GET", "/debug/trace"), StartsWith("HTTP/1.1 404 "));
  AdminProviders providers;
  providers.trace_json = [] { return R"({"steps":[]})"; };
  auto admin = AdminServer::Start("127.0.0.1", 0, &registry_, std::move(providers));
  ASSERT_TRUE(admin.ok()) << admin.status();
  admin_ = *std::move(admin);
  EXPECT_THAT(Send("GET", "/debug/trace"), EndsWith("\r\n\r\n{\"steps\":[]}"));
}

TEST_F(AdminServerTest, DebugIsJson) {
  EXPECT_THAT(Send("GET", "/debug/requests"), AllOf(HasSubstr("Content-Type: application/json\r\n"),
                                                    EndsWith("\r\n[{\"request_uid\":\"ab\"}]")));
  EXPECT_THAT(Send("GET", "/debug/blocks"), EndsWith("\r\n\r\n[]"));
}

TEST_F(AdminServerTest, DrainAndTopologyAreThereOnlyWhereTheyAreProvided) {
  EXPECT_THAT(Send("POST", "/drain?worker=decode-0"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Send("GET", "/v1/topology"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(AdminServerTest, DrainPassesOnWhomAndHowLong) {
  std::string asked;
  AdminProviders providers;
  providers.topology_json = [] { return R"({"processes":[]})"; };
  providers.drain = [&asked](std::string_view worker, uint32_t timeout_s) -> StatusOr<std::string> {
    if (worker == "decode-9") return NotFound("no worker 'decode-9'");
    if (worker == "decode-8") return Unavailable("the loop did not answer");
    asked = fmt::format("{} {}", worker, timeout_s);
    return R"({"incarnation":"ab"})";
  };
  auto admin = AdminServer::Start("127.0.0.1", 0, &registry_, std::move(providers));
  ASSERT_TRUE(admin.ok()) << admin.status();
  admin_ = *std::move(admin);
  EXPECT_THAT(Send("GET", "/v1/topology"), EndsWith("\r\n\r\n{\"processes\":[]}"));
  EXPECT_THAT(Send("POST", "/drain?worker=decode-0&timeout_s=7"),
              AllOf(StartsWith("HTTP/1.1 202 "), EndsWith("\r\n\r\n{\"incarnation\":\"ab\"}")));
  EXPECT_EQ(asked, "decode-0 7");
  EXPECT_THAT(Send("POST", "/drain?worker=decode-1"), StartsWith("HTTP/1.1 202 "));
  EXPECT_EQ(asked, "decode-1 0");
  EXPECT_THAT(Send("POST", "/drain?worker=decode-9"),
              AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("no worker 'decode-9'\n")));
  EXPECT_THAT(Send("POST", "/drain?worker=decode-8"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Send("GET", "/drain?worker=decode-0"), StartsWith("HTTP/1.1 405 "));
}

TEST_F(AdminServerTest, DrainRefusesWhatItDoesNotUnderstandAndWebPages) {
  int num_asked = 0;
  AdminProviders providers;
  providers.drain = [&num_asked](std::string_view, uint32_t) -> StatusOr<std::string> {
    ++num_asked;
    return "{}";
  };
  auto admin = AdminServer::Start("127.0.0.1", 0, &registry_, std::move(providers));
  ASSERT_TRUE(admin.ok()) << admin.status();
  admin_ = *std::move(admin);
  for (const std::string_view query :
       {"", "?", "?worker=", "?worker", "?name=decode-0", "?worker=a&worker=b",
        "?worker=a&timeout_s=x", "?worker=a&timeout_s=-1", "?worker=a&timeout_s=86401",
        "?worker=a&timeout_s=1&timeout_s=2", "?worker=a&other=1"}) {
    EXPECT_THAT(Send("POST", fmt::format("/drain{}", query)), StartsWith("HTTP/1.1 400 ")) << query;
  }
  RawClient page(admin_->port());
  page.Send(
      "POST /drain?worker=a HTTP/1.1\r\nHost: localhost\r\nOrigin: http://b\r\nConnection: "
      "close\r\n\r\n");
  EXPECT_THAT(page.ReceiveAll(), StartsWith("HTTP/1.1 403 "));
  EXPECT_EQ(num_asked, 0);
}

TEST_F(AdminServerTest, OwnAndAllowedPagesMayDrain) {
  AdminProviders providers;
  providers.drain = [](std::string_view, uint32_t) -> StatusOr<std::string> { return "{}"; };
  SiteRules sites;
  sites.origins = *ParseCorsOrigins("https://ops.example");
  auto admin = AdminServer::Start("127.0.0.1", 0, &registry_, providers, sites);
  ASSERT_TRUE(admin.ok()) << admin.status();
  admin_ = *std::move(admin);
  const auto drain_from = [&](const std::string& origin) {
    RawClient page(admin_->port());
    page.Send(
        fmt::format("POST /drain?worker=a HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nOrigin: {}\r\n"
                    "Connection: close\r\n\r\n",
                    admin_->port(), origin));
    return page.ReceiveAll();
  };
  EXPECT_THAT(drain_from("https://ops.example"), StartsWith("HTTP/1.1 202 "));
  EXPECT_THAT(drain_from(fmt::format("http://127.0.0.1:{}", admin_->port())),
              StartsWith("HTTP/1.1 202 "));
  EXPECT_THAT(drain_from("https://evil.example"), StartsWith("HTTP/1.1 403 "));
}

TEST_F(AdminServerTest, EverythingElseIsRefused) {
  for (const std::string_view path : {"/", "/debug", "/metrics/", "/v1/models", "/livez2"}) {
    EXPECT_THAT(Send("GET", path), StartsWith("HTTP/1.1 404 ")) << path;
  }
  EXPECT_THAT(Send("POST", "/metrics"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")));
  EXPECT_THAT(Send("HEAD", "/livez"), StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace baton::obs
