#include "src/obs/admin_server.h"

#include <atomic>
#include <memory>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/http/raw_client.h"

namespace baton {
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
    client.Send(
        fmt::format("{} {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", method, path));
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

TEST_F(AdminServerTest, DebugIsJson) {
  EXPECT_THAT(Send("GET", "/debug/requests"), AllOf(HasSubstr("Content-Type: application/json\r\n"),
                                                    EndsWith("\r\n[{\"request_uid\":\"ab\"}]")));
  EXPECT_THAT(Send("GET", "/debug/blocks"), EndsWith("\r\n\r\n[]"));
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
}  // namespace baton
