// Streams that say nothing for a while, and connections that ask nothing.
#include <sys/resource.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/http/http_exchange.h"
#include "tests/http/raw_client.h"
#include "tests/http/test_server.h"

namespace baton::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kGet = "GET /s HTTP/1.1\r\nHost: a\r\n\r\n";
constexpr std::string_view kPingChunk = "8\r\n: ping\n\n\r\n";

// A server that opens a stream with a filler for each request, for the test to drive.
class SilentStreamTest : public ::testing::Test {
 protected:
  void Start(int64_t silence_ms, HttpServerOptions options = {}, int num_threads = 2) {
    server_ = StartTestServer(
        [this, silence_ms](HttpRequest, std::shared_ptr<HttpResponder> responder) {
          responder->StartStream(200, {});
          responder->KeepAlive(": ping\n\n", silence_ms);
          std::lock_guard lock(mutex_);
          responders_.push_back(std::move(responder));
        },
        std::move(options), num_threads);
  }
  std::shared_ptr<HttpResponder> Responder(size_t idx = 0) {
    EXPECT_TRUE(Eventually([&] { return num_responders() > idx; }));
    std::lock_guard lock(mutex_);
    return responders_.at(idx);
  }
  size_t num_responders() {
    std::lock_guard lock(mutex_);
    return responders_.size();
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpResponder>> responders_;  // guarded by mutex_
  std::unique_ptr<HttpServer> server_;
};

TEST_F(SilentStreamTest, AFillerComesBeforeTheFirstChunkAndBetweenChunks) {
  Start(/*silence_ms=*/80);
  RawClient client(server_->port());
  for (int round = 0; round < 2; ++round) {  // the second one on the same connection
    client.Send(kGet);
    client.ReceiveUntil("\r\n\r\n");
    EXPECT_EQ(client.ReceiveUntil("\n\n\r\n"), kPingChunk);
    EXPECT_EQ(client.ReceiveUntil("\n\n\r\n"), kPingChunk);
    const auto responder = Responder(round);
    // Not in an event that is whole only with its last byte: a Write is whole.
    EXPECT_TRUE(responder->Write("data: 1\n\n"));
    EXPECT_EQ(client.ReceiveUntil("1\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
    EXPECT_EQ(client.ReceiveUntil("\n\n\r\n"), kPingChunk);
    EXPECT_TRUE(responder->Finish());
    EXPECT_EQ(client.ReceiveUntil("0\r\n\r\n"), "0\r\n\r\n");
  }
}

TEST_F(SilentStreamTest, Http10GetsBareFillers) {
  Start(/*silence_ms=*/40);
  RawClient old(server_->port());
  old.Send("GET /s HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old.ReceiveUntil("\r\n\r\n"), Not(HasSubstr("chunked")));
  EXPECT_EQ(old.ReceiveUntil("\n\n"), ": ping\n\n");
}

constexpr int64_t kSilenceMs = 400;
constexpr int64_t kHourUs = 3'600'000'000;

// A stream with a filler, without a connection: the test takes its bytes, and says what time it is.
class LoneStream {
 public:
  explicit LoneStream(bool is_head = false)
      : exchange_({.head = is_head,
                   .max_buffered_bytes = size_t{1} << 20,
                   .fields = {},
                   .draining = [] { return false; }},
                  [] {}) {
    exchange_.StartStream(200, {});
    exchange_.KeepAlive(": ping\n\n", kSilenceMs);
    Take();
  }

  void Write(std::string_view chunk) { EXPECT_TRUE(exchange_.Write(chunk)); }
  // The client takes all that waits for it.
  std::string Take(std::string used = "") {
    HttpExchange::Output output = exchange_.Take(std::move(used));
    exchange_.Sent(output.text.size());
    return std::move(output.text);
  }
  size_t buffered_bytes() const { return exchange_.buffered_bytes(); }
  void Look(int64_t now_us) { exchange_.FillSilence(now_us); }

 private:
  HttpExchange exchange_;
};

TEST(LoneStreamTest, KeepsTheMemoryOfASmallText) {
  LoneStream stream;
  const std::string chunk(300, 'x');
  stream.Write(chunk);
  std::string first = stream.Take();
  const void* const memory = first.data();
  stream.Take(std::move(first));
  stream.Write(chunk);
  const std::string second = stream.Take();
  EXPECT_EQ(second, "12c\r\n" + chunk + "\r\n");
  EXPECT_EQ(second.data(), memory);
  // A large one is given back to the heap.
  std::string large(size_t{1} << 20, 'x');
  stream.Take(std::move(large));
  stream.Write("y");
  EXPECT_LT(stream.Take().capacity(), 100u);
}

TEST(LoneStreamTest, AStreamThatFlowsGetsNone) {
  LoneStream stream;
  for (int i = 0; i < 5; ++i) {
    const int64_t before_us = SystemClock().NowUs();
    stream.Write("x");
    EXPECT_EQ(stream.Take(), "1\r\nx\r\n");
    stream.Look(before_us + kSilenceMs * 1000 - 1);
    EXPECT_EQ(stream.Take(), "");
  }
  stream.Look(SystemClock().NowUs() + kSilenceMs * 1000);
  EXPECT_EQ(stream.Take(), kPingChunk);
}

// A client that takes nothing is not fed: what waits for it would grow, and hide its stall.
TEST(LoneStreamTest, AClientThatDoesNotReadGetsNone) {
  LoneStream stream;
  stream.Write("x");
  const size_t buffered = stream.buffered_bytes();
  ASSERT_GT(buffered, 0u);
  stream.Look(SystemClock().NowUs() + kHourUs);
  EXPECT_EQ(stream.buffered_bytes(), buffered);
  EXPECT_EQ(stream.Take(), "1\r\nx\r\n");
  stream.Look(SystemClock().NowUs() + kHourUs);
  EXPECT_EQ(stream.Take(), kPingChunk);
}

TEST(LoneStreamTest, HeadGetsNone) {
  LoneStream stream(/*is_head=*/true);
  stream.Look(SystemClock().NowUs() + kHourUs);
  EXPECT_EQ(stream.Take(), "");
}

// A client that is gone without a word is found by the fillers that it does not take.
TEST_F(SilentStreamTest, AClientThatResetsIsNoticedAndStopDoesNotWait) {
  Start(/*silence_ms=*/60'000);
  RawClient client(server_->port());
  client.Send(kGet);
  const auto responder = Responder();
  client.Reset();
  EXPECT_TRUE(Eventually([&] { return server_->num_connections() == 0; }));
  RawClient second(server_->port());
  second.Send(kGet);
  Responder(1);
  const int64_t begin_us = SystemClock().NowUs();
  server_->Stop();
  EXPECT_LT(SystemClock().NowUs() - begin_us, 900'000) << "the timer of the sweep";
}

TEST_F(SilentStreamTest, ConnectionsSayHowLongTheyLiveAndDo) {
  HttpServerOptions options;
  options.idle_timeout_ms = 1'000;
  server_ = StartTestServer(EchoHandler, options);
  RawClient client(server_->port());
  client.Send(kGet);
  EXPECT_THAT(client.ReceiveResponse(), HasSubstr("\r\nKeep-Alive: timeout=1\r\n"));
  client.Send(kGet);
  EXPECT_THAT(client.ReceiveResponse(), HasSubstr("200 OK"));
  EXPECT_TRUE(client.ServerClosed()) << "a second later";
  RawClient last(server_->port());
  last.Send("GET /s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(last.ReceiveAll(), AllOf(HasSubstr("200 OK"), Not(HasSubstr("Keep-Alive"))));
  EXPECT_EQ(HttpServerOptions{}.idle_timeout_ms, 75'000) << "nginx and balancers keep theirs 60 s";
}

// One sweep for all: the processor time of silent streams is that of their fillers.
TEST_F(SilentStreamTest, ManySilentStreamsCostLittle) {
  constexpr size_t kNumStreams = 300;
  Start(/*silence_ms=*/200, {}, /*num_threads=*/1);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < kNumStreams; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send(kGet);
  }
  Responder(kNumStreams - 1);
  const auto used_us = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * int64_t{1'000'000} +
           usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  };
  const int64_t before_us = used_us();
  for (int i = 0; i < 2; ++i) {
    for (const auto& client : clients) {
      ASSERT_THAT(client->ReceiveUntil(": ping\n\n"), HasSubstr("ping"));
    }
  }
  const int64_t per_stream_us = (used_us() - before_us) / static_cast<int64_t>(kNumStreams);
  // Two fillers each, some 20 us, and their reading here; a sanitizer takes ten times that.
  EXPECT_LT(per_stream_us, 2'000);
}

}  // namespace
}  // namespace baton::http
