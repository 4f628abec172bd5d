// The memory that all bodies of a server may take together, and that each way out gives it back.
#include "src/http/body_budget.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/http/http_server.h"
#include "tests/http/raw_client.h"
#include "tests/http/test_server.h"

namespace baton::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kBudget = 128 * 1024;
// One fits beside others of ordinary size, two do not.
constexpr size_t kLarge = kFreeBodyBytes + 100 * 1024;

std::string Head(size_t body_bytes) {
  return fmt::format("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body_bytes);
}

class BodyBudgetTest : public testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    options.max_bodies_bytes = kBudget;
    server_ = StartTestServer(
        [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          std::lock_guard lock(mutex_);
          if (!keeps_) return EchoHandler(std::move(request), std::move(responder));
          kept_.emplace_back(std::move(request), std::move(responder));
        },
        std::move(options));
  }
  void Keep(bool keeps) {
    std::lock_guard lock(mutex_);
    keeps_ = keeps;
  }
  size_t num_kept() {
    std::lock_guard lock(mutex_);
    return kept_.size();
  }
  // The first line's beginning of the answer to a body of so many bytes.
  std::string Post(size_t body_bytes) {
    RawClient client(server_->port());
    client.Send(Head(body_bytes) + std::string(body_bytes, 'x'));
    return client.ReceiveResponse().substr(0, 13);
  }
  bool IsSpent() { return Post(kLarge) == "HTTP/1.1 503 "; }
  bool IsGivenBack() {
    return Eventually([&] { return server_->num_body_bytes() == 0; }) &&
           Post(kLarge) == "HTTP/1.1 200 ";
  }
  // A client that has sent all but the last byte of a large body, which the server has read.
  std::unique_ptr<RawClient> SendMost() {
    auto client = std::make_unique<RawClient>(server_->port());
    client->Send(Head(kLarge) + std::string(kLarge - 1, 'x'));
    const size_t counted = kLarge - 1 - kFreeBodyBytes;
    EXPECT_TRUE(Eventually([&] { return server_->num_body_bytes() == counted; }));
    EXPECT_TRUE(IsSpent());
    return client;
  }

  std::mutex mutex_;  // guards what follows
  bool keeps_ = false;
  std::vector<std::pair<HttpRequest, std::shared_ptr<HttpResponder>>> kept_;
  std::unique_ptr<HttpServer> server_;  // its end comes first
};

TEST_F(BodyBudgetTest, ALargeBodyTooManyIsRefusedAndSmallOnesAreNot) {
  Start();
  const auto uploads = SendMost();
  RawClient refused(server_->port());
  refused.Send(Head(kLarge) + std::string(kLarge, 'x'));
  EXPECT_THAT(refused.ReceiveAll(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1"),
                                          HasSubstr("Connection: close")));
  EXPECT_EQ(Post(kFreeBodyBytes), "HTTP/1.1 200 ");
  uploads->Send("x");
  EXPECT_EQ(uploads->ReceiveResponse().substr(0, 13), "HTTP/1.1 200 ");
  EXPECT_TRUE(IsGivenBack());
}

TEST_F(BodyBudgetTest, AChunkedBodyCountsAsItArrives) {
  Start();
  const auto uploads = SendMost();
  RawClient refused(server_->port());
  refused.Send("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = fmt::format("{:x}\r\n{}\r\n", kLarge / 4, std::string(kLarge / 4, 'x'));
  for (int i = 0; i < 4; ++i) refused.Send(chunk);
  EXPECT_THAT(refused.ReceiveAll(), StartsWith("HTTP/1.1 503 "));
}

TEST_F(BodyBudgetTest, AClientThatLeavesGivesItBack) {
  Start();
  SendMost()->Close();
  EXPECT_TRUE(IsGivenBack());
  SendMost()->Reset();
  EXPECT_TRUE(IsGivenBack());
}

// Also while it still takes in what the client sends.
TEST_F(BodyBudgetTest, ATimeoutAndARefusalGiveItBack) {
  HttpServerOptions options;
  options.body_timeout_ms = 2'000;
  Start(options);
  const auto slow = SendMost();
  EXPECT_TRUE(IsGivenBack());
  EXPECT_THAT(slow->ReceiveAll(), StartsWith("HTTP/1.1 408 "));
  RawClient broken(server_->port());
  broken.Send("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  broken.Send(fmt::format("{:x}\r\n{}\r\nno size\r\n", kLarge, std::string(kLarge, 'x')));
  EXPECT_THAT(broken.ReceiveUntil("\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_TRUE(IsGivenBack());
}

TEST_F(BodyBudgetTest, ABodyCountsUntilItsRequestIsDropped) {
  Start();
  Keep(true);
  RawClient client(server_->port());
  client.Send(Head(kLarge) + std::string(kLarge, 'x'));
  ASSERT_TRUE(Eventually([&] { return num_kept() == 1; }));
  Keep(false);
  EXPECT_TRUE(IsSpent());
  client.Reset();
  ASSERT_TRUE(Eventually([&] { return server_->num_connections() == 0; }));
  EXPECT_TRUE(IsSpent()) << "the handler still has it";
  kept_.front().first = {};
  EXPECT_EQ(Post(kLarge), "HTTP/1.1 200 ");
}

TEST_F(BodyBudgetTest, ARequestMayOutliveTheServer) {
  Start();
  Keep(true);
  RawClient client(server_->port());
  client.Send(Head(kLarge) + std::string(kLarge, 'x'));
  ASSERT_TRUE(Eventually([&] { return num_kept() == 1; }));
  server_.reset();
  kept_.clear();
}

}  // namespace
}  // namespace baton::http
