#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/clock.h"
#include "src/base/loop_turn.h"
#include "src/base/thread.h"
#include "tests/http/raw_client.h"
#include "tests/http/test_server.h"

namespace baton::http {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kGet = "GET /s HTTP/1.1\r\nHost: a\r\n\r\n";

class StreamTest : public ::testing::Test, protected KeepsResponder {
 protected:
  void Start(HttpServerOptions options = {}) {
    server_ = StartTestServer(Keep(), std::move(options));
  }
  // Begins a stream for a request of the client, which reads the header.
  std::shared_ptr<HttpResponder> OpenStream(RawClient& client) {
    client.Send(kGet);
    std::shared_ptr<HttpResponder> responder = TakeResponder();
    EXPECT_TRUE(responder->StartStream(200, {}));
    client.ReceiveUntil("\r\n\r\n");
    return responder;
  }

  std::unique_ptr<HttpServer> server_;
};

// Error answers are counted where they are made: one to nobody would be a fault that nobody had.
TEST_F(StreamTest, AClientThatHasGoneIsAnsweredNothing) {
  std::atomic<int> made{0};
  HttpServerOptions options;
  options.error_formatter = [&made](const HttpRefusal& refusal, std::string_view) {
    ++made;
    return HttpResponse{refusal.status, {}, ""};
  };
  Start(std::move(options));
  std::shared_ptr<HttpResponder> responder;
  {
    RawClient client(server_->port());
    client.Send(kGet);
    responder = TakeResponder();
  }
  ASSERT_TRUE(Eventually([this] { return closed_ == 1; }));
  responder.reset();
  EXPECT_TRUE(Eventually([this] { return server_->num_connections() == 0; }));
  EXPECT_EQ(made, 0);
}

TEST_F(StreamTest, ChunksArriveOneByOneAndTheConnectionGoesOn) {
  Start();
  RawClient client(server_->port());
  for (int round = 0; round < 2; ++round) {
    client.Send(kGet);
    const auto responder = TakeResponder();
    ASSERT_TRUE(responder->StartStream(200, {{"Content-Type", "text/event-stream"}}));
    EXPECT_THAT(client.ReceiveUntil("\r\n\r\n"), HasSubstr("Transfer-Encoding: chunked\r\n"));
    EXPECT_TRUE(responder->Write("data: 1\n\n"));
    EXPECT_EQ(client.ReceiveUntil("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
    EXPECT_TRUE(responder->Write(""));
    EXPECT_TRUE(responder->Write(std::string(20, 'x')));
    EXPECT_EQ(client.ReceiveUntil("x\r\n"), "14\r\n" + std::string(20, 'x') + "\r\n");
    EXPECT_TRUE(responder->Finish());
    EXPECT_FALSE(responder->Write("late"));
    EXPECT_EQ(client.ReceiveUntil("0\r\n\r\n"), "0\r\n\r\n");
  }
  EXPECT_EQ(closed_.load(), 0);
}

// The thread that writes a token sends it: nothing else has to wake.
TEST_F(StreamTest, ChunkNeedsNoTurnOfTheEventLoop) {
  std::atomic<bool> may_return{false};
  std::atomic<bool> is_held{false};
  server_ = StartTestServer(
      [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        if (request.path == "/hold") {
          is_held = true;
          EXPECT_TRUE(Eventually([&] { return may_return.load(); }));
        }
        std::lock_guard lock(mutex_);
        responder_ = std::move(responder);
      },
      {}, /*num_threads=*/1);
  RawClient client(server_->port());
  const auto responder = OpenStream(client);
  ASSERT_TRUE(Eventually([&] { return responder->buffered_bytes() == 0; }));
  RawClient holder(server_->port());
  holder.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return is_held.load(); }));
  EXPECT_TRUE(responder->Write("one"));
  EXPECT_TRUE(responder->Write("two"));
  EXPECT_EQ(client.ReceiveUntil("two\r\n"), "3\r\none\r\n3\r\ntwo\r\n");
  EXPECT_EQ(responder->buffered_bytes(), 0u);
  // A thread that has worked for long leaves the rest to the loop.
  LoopTurn::Begin(SystemClock().NowUs() - 1'000'000);
  EXPECT_TRUE(responder->Write("three"));
  EXPECT_GT(responder->buffered_bytes(), 0u);
  LoopTurn::Begin(0);
  may_return = true;
  EXPECT_EQ(client.ReceiveUntil("three\r\n"), "5\r\nthree\r\n");
  responder->Finish();
  EXPECT_EQ(client.ReceiveUntil("0\r\n\r\n"), "0\r\n\r\n");
}

// Some are sent by the producer, some by the event loop, and one in two parts.
TEST_F(StreamTest, ChunksKeepTheirOrderWhenAClientIsSlow) {
  Start();
  RawClient client(server_->port());
  const auto responder = OpenStream(client);
  std::string expected;
  std::string received;
  int num_read = 0;
  const auto read_to = [&](int number) {
    if (number < num_read) return;
    received += client.ReceiveUntil(std::to_string(1'000'000 + number));
    num_read = number + 1;
  };
  for (int i = 0; i < 60'000; ++i) {
    const std::string text = std::to_string(1'000'000 + i) + std::string(i % 100, '.');
    ASSERT_TRUE(responder->Write(text));
    expected += text;
    // It reads now and then, and only a part.
    if (i % 1000 == 999) read_to(i / 2);
    if (responder->buffered_bytes() > 400'000) read_to(i);
  }
  responder->Finish();
  received += client.ReceiveUntil("\r\n0\r\n\r\n");
  std::string body;
  for (size_t at = 0; at < received.size();) {
    const size_t line = received.find("\r\n", at);
    const size_t size = std::stoul(received.substr(at, line - at), nullptr, 16);
    body += received.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  EXPECT_EQ(body, expected);
}

TEST_F(StreamTest, Http10GetsBareBytesAndAClose) {
  Start();
  RawClient client(server_->port());
  client.Send("GET /s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto responder = TakeResponder();
  responder->StartStream(200, {});
  responder->Write("a");
  responder->Write("b");
  responder->Finish();
  EXPECT_THAT(client.ReceiveAll(), AllOf(EndsWith("\r\n\r\nab"), HasSubstr("Connection: close"),
                                         Not(HasSubstr("chunk"))));
}

TEST_F(StreamTest, FinishAndCloseSendsEverythingAndThenCloses) {
  Start();
  RawClient client(server_->port());
  client.Send(kGet);
  const auto responder = TakeResponder();
  responder->StartStream(200, {});
  EXPECT_THAT(client.ReceiveUntil("\r\n\r\n"), Not(HasSubstr("Connection: close")));
  const std::string large(200'000, 'e');  // more than one write of the kernel
  EXPECT_TRUE(responder->Write(large));
  EXPECT_TRUE(responder->FinishAndClose());
  EXPECT_FALSE(responder->Write("late"));
  client.Send(kGet);  // the next one is not answered
  EXPECT_EQ(client.ReceiveAll(), "30d40\r\n" + large + "\r\n0\r\n\r\n");
  EXPECT_TRUE(client.ServerClosed());
  // The server's side is free although the client has not closed its own.
  EXPECT_TRUE(Eventually([&] { return server_->num_connections() == 0; }));
  EXPECT_EQ(closed_.load(), 0) << "the answer was complete";
}

TEST_F(StreamTest, AbortClosesWithoutTheFinalChunk) {
  Start();
  RawClient client(server_->port());
  const auto responder = OpenStream(client);
  responder->Write("part");
  client.ReceiveUntil("part\r\n");
  responder->Abort();
  EXPECT_EQ(client.ReceiveAll(), "");
  EXPECT_FALSE(responder->Write("more"));
  EXPECT_FALSE(responder->Finish());
}

TEST_F(StreamTest, DroppedStreamIsAborted) {
  Start();
  RawClient client(server_->port());
  auto responder = OpenStream(client);
  responder->Write("part");
  client.ReceiveUntil("part\r\n");
  responder.reset();
  EXPECT_THAT(client.ReceiveAll(), Not(HasSubstr("0\r\n\r\n")));
}

TEST_F(StreamTest, DepartureIsSeenAtOnceWhileNothingIsWritten) {
  for (const bool reset : {false, true}) {
    Start();
    closed_ = 0;
    RawClient client(server_->port());
    client.Send(kGet);
    const auto responder = TakeResponder();
    if (reset) {
      client.Reset();
    } else {
      client.Close();
    }
    EXPECT_TRUE(Eventually([&] { return closed_.load() == 1; }));
    EXPECT_FALSE(responder->StartStream(200, {}));
    EXPECT_FALSE(responder->Write("x"));
  }
}

// A client that ends its input and still reads cannot be told from one that closes.
TEST_F(StreamTest, AHalfCloseBeforeTheAnswerIsADeparture) {
  for (const bool streams : {false, true}) {
    Start();
    closed_ = 0;
    RawClient client(server_->port());
    client.Send(kGet);
    auto responder = TakeResponder();
    if (streams) {
      responder->StartStream(200, {});
      client.ReceiveUntil("\r\n\r\n");
    }
    client.CloseSending();
    EXPECT_TRUE(Eventually([&] { return closed_.load() == 1; })) << streams;
    EXPECT_FALSE(responder->Write("x"));
    responder.reset();
    EXPECT_EQ(client.ReceiveAll(), "");
    EXPECT_TRUE(client.ServerClosed()) << streams;
  }
}

TEST_F(StreamTest, DepartureInMidStreamIsSeenAtOnce) {
  Start();
  RawClient client(server_->port());
  const auto responder = OpenStream(client);
  client.Close();
  EXPECT_TRUE(Eventually([&] { return closed_.load() == 1; }));
  EXPECT_FALSE(responder->Write("x"));
  EXPECT_TRUE(Eventually([&] { return server_->num_connections() == 0; }));
  EXPECT_EQ(closed_.load(), 1);
}

TEST_F(StreamTest, SlowReaderPausesTheProducerAndLosesNothing) {
  Start();
  RawClient client(server_->port());
  client.Send(kGet);
  const auto responder = TakeResponder();
  responder->StartStream(200, {});
  const std::string chunk(60'000, 'y');
  size_t written = 0;
  // 40 MiB: more than the socket buffers hold, so that the producer has to pause.
  size_t pauses = 0;
  Thread producer("test-producer", [&] {
    while (written < 40u << 20) {
      if (responder->buffered_bytes() > 256 * 1024) {
        ++pauses;
        std::atomic<bool> below{false};
        const HttpRoom room = responder->NotifyBelow(64 * 1024, [&] { below = true; });
        if (room == HttpRoom::kLater && !Eventually([&] { return below.load(); })) return;
      }
      if (!responder->Write(chunk)) return;
      written += chunk.size();
    }
    responder->Finish();
  });
  client.ReceiveUntil("\r\n\r\n");
  const std::string body = client.ReceiveUntil("\r\n0\r\n\r\n");
  producer.Join();
  EXPECT_GT(pauses, 0u);
  EXPECT_EQ(static_cast<size_t>(std::count(body.begin(), body.end(), 'y')), written);
  EXPECT_THAT(body.substr(body.size() - 10), EndsWith("\r\n0\r\n\r\n"));
}

TEST_F(StreamTest, WriteBeyondTheLimitAborts) {
  HttpServerOptions options;
  options.max_buffered_bytes = 1 << 20;
  Start(options);
  RawClient client(server_->port());
  client.Send(kGet);
  const auto responder = TakeResponder();
  responder->StartStream(200, {});
  const std::string chunk(1 << 18, 'z');
  size_t accepted = 0;
  while (accepted < (1u << 30) && responder->Write(chunk)) accepted += chunk.size();
  EXPECT_LT(accepted, 1u << 30) << "the limit never showed";
  EXPECT_TRUE(Eventually([&] { return closed_.load() == 1; }));
  EXPECT_THAT(client.ReceiveAll(), Not(HasSubstr("\r\n0\r\n\r\n")));
}

TEST_F(StreamTest, AbortDoesNotWaitForAStalledReader) {
  HttpServerOptions options;
  options.max_buffered_bytes = 64 << 20;
  Start(options);
  RawClient client(server_->port());
  client.Send(kGet);
  const auto responder = TakeResponder();
  responder->StartStream(200, {});
  ASSERT_TRUE(responder->Write(std::string(32 << 20, 'z')));
  ASSERT_TRUE(Eventually([&] { return responder->buffered_bytes() < 32u << 20; }));
  responder->Abort();
  EXPECT_TRUE(Eventually([&] { return server_->num_connections() == 0; }));
}

TEST_F(StreamTest, StalledReaderIsClosed) {
  HttpServerOptions options;
  options.write_stall_timeout_ms = 100;
  options.max_buffered_bytes = 64 << 20;
  Start(options);
  RawClient client(server_->port());
  client.Send(kGet);
  const auto responder = TakeResponder();
  responder->StartStream(200, {});
  ASSERT_TRUE(responder->Write(std::string(32 << 20, 'z')));
  EXPECT_TRUE(Eventually([&] { return closed_.load() == 1; }));
  EXPECT_EQ(how_closed_.load(), HttpClientGone::kStalled);
  EXPECT_FALSE(responder->Write("x"));
  EXPECT_GT(responder->buffered_bytes(), 16u << 20) << "a close is no room for a paused producer";
}

// Pieces as small as a stream's tokens: the kernel would take megabytes of them for a client that
// reads nothing, and a generation would go on for it meanwhile.
TEST_F(StreamTest, TheKernelDoesNotHideAStalledReader) {
  HttpServerOptions options;
  options.write_stall_timeout_ms = 100;
  Start(options);
  RawClient client(server_->port());
  const auto responder = OpenStream(client);
  const std::string piece(4096, 'z');
  size_t written = 0;
  while (written < 1u << 20 && responder->Write(piece)) {
    written += piece.size();
    if (responder->buffered_bytes() > 64 * 1024) break;
    Eventually([&] { return responder->buffered_bytes() == 0 || closed_.load() == 1; });
  }
  EXPECT_LT(written, 1u << 20) << "the kernel took it all";
  EXPECT_TRUE(Eventually([&] { return closed_.load() == 1; }));
}

TEST_F(StreamTest, HeadOfAStreamSendsNoBody) {
  Start();
  RawClient client(server_->port());
  client.Send("HEAD /s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const auto responder = TakeResponder();
  EXPECT_TRUE(responder->StartStream(200, {}));
  EXPECT_TRUE(responder->Write("body"));
  EXPECT_TRUE(responder->Finish());
  EXPECT_THAT(client.ReceiveAll(), AllOf(EndsWith("\r\n\r\n"), Not(HasSubstr("body"))));
}

TEST_F(StreamTest, CallbackThatOwnsTheResponderDoesNotDeadlock) {
  Start();
  RawClient client(server_->port());
  client.Send(kGet);
  auto responder = TakeResponder();
  HttpResponder* raw = responder.get();
  raw->OnClosed([owned = std::move(responder)](HttpClientGone) {});
  EXPECT_TRUE(raw->Respond({200, {}, "ok"}));  // destroys the callback, and with it the responder
  EXPECT_THAT(client.ReceiveResponse(), EndsWith("ok"));
}

}  // namespace
}  // namespace baton::http
