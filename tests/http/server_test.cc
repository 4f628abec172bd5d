#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/open_files.h"
#include "src/base/thread.h"
#include "src/http/http_server.h"
#include "tests/http/raw_client.h"
#include "tests/http/test_server.h"

namespace baton::http {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Post(std::string_view path, std::string_view body, std::string_view fields = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: a\r\n{}Content-Length: {}\r\n\r\n{}", path, fields,
                     body.size(), body);
}

TEST(HttpServerTest, AnswersAndKeepsTheConnection) {
  const auto server = StartTestServer(EchoHandler);
  RawClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    client.Send(Post("/echo?q", fmt::format("body {}", i)));
    const std::string response = client.ReceiveResponse();
    EXPECT_THAT(response, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(response, HasSubstr("\r\nDate: "));
    EXPECT_THAT(response, Not(HasSubstr("Connection:")));
    EXPECT_THAT(response, EndsWith(fmt::format("\r\n\r\nPOST /echo body {}", i)));
  }
  EXPECT_EQ(server->num_connections(), 1u);
}

TEST(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  // Answers from another thread, the first request last, to tempt the server out of order.
  std::mutex mutex;
  std::vector<std::pair<std::string, std::shared_ptr<HttpResponder>>> waiting;
  const auto server =
      StartTestServer([&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
        std::lock_guard lock(mutex);
        waiting.emplace_back(request.path + request.body, std::move(responder));
      });
  RawClient client(server->port());
  std::string all;
  for (int i = 0; i < 5; ++i) all += Post(fmt::format("/{}", i), std::string(i, 'x'));
  client.Send(all);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Eventually([&] {
      std::lock_guard lock(mutex);
      return !waiting.empty();
    }));
    std::lock_guard lock(mutex);
    ASSERT_EQ(waiting.size(), 1u) << "the next request must wait for this answer";
    ASSERT_EQ(waiting[0].first, fmt::format("/{}", i) + std::string(i, 'x'));
    waiting[0].second->Respond({200, {}, waiting[0].first});
    waiting.clear();
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(client.ReceiveResponse(), EndsWith(fmt::format("/{}", i) + std::string(i, 'x')));
  }
}

TEST(HttpServerTest, RequestsArriveByteByByte) {
  const auto server = StartTestServer(EchoHandler);
  RawClient client(server->port());
  const std::string request =
      "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: x\r\n\r\n";
  for (const char c : request) ASSERT_TRUE(client.Send(std::string_view(&c, 1)));
  EXPECT_THAT(client.ReceiveResponse(), EndsWith("POST /a abcde"));
  client.Send(request);
  EXPECT_THAT(client.ReceiveResponse(), EndsWith("POST /a abcde"));
}

TEST(HttpServerTest, HeadHasLengthButNoBody) {
  const auto server = StartTestServer(EchoHandler);
  RawClient client(server->port());
  client.Send("HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string response = client.ReceiveAll();
  EXPECT_THAT(response, AllOf(HasSubstr("Content-Length: 8\r\n"), EndsWith("\r\n\r\n")));
}

TEST(HttpServerTest, Http10ClosesUnlessAsked) {
  const auto server = StartTestServer(EchoHandler);
  RawClient closing(server->port());
  closing.Send("GET /x HTTP/1.0\r\n\r\n");
  EXPECT_THAT(closing.ReceiveAll(), AllOf(HasSubstr("Connection: close"), EndsWith("GET /x ")));
  RawClient keeping(server->port());
  for (int i = 0; i < 2; ++i) {
    keeping.Send("GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_THAT(keeping.ReceiveResponse(), HasSubstr("Connection: keep-alive"));
  }
}

TEST(HttpServerTest, ContinueIsSentOnlyForABodyThatFits) {
  HttpServerOptions options;
  options.max_body_bytes = 100;
  const auto server = StartTestServer(EchoHandler, options);
  RawClient client(server->port());
  client.Send("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.ReceiveUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("abc");
  EXPECT_THAT(client.ReceiveResponse(), EndsWith("POST /x abc"));
  client.Send("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n");
  EXPECT_THAT(client.ReceiveAll(), StartsWith("HTTP/1.1 413 "));
}

TEST(HttpServerTest, HalfClosedClientStillGetsItsAnswer) {
  const auto server = StartTestServer(EchoHandler);
  RawClient client(server->port());
  client.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
  client.CloseSending();
  EXPECT_THAT(client.ReceiveAll(), EndsWith("GET /x "));
}

TEST(HttpServerTest, DroppedResponderAnswers500) {
  const auto server = StartTestServer([](HttpRequest, std::shared_ptr<HttpResponder>) {});
  RawClient client(server->port());
  client.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReceiveResponse(), StartsWith("HTTP/1.1 500 "));
  client.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReceiveResponse(), StartsWith("HTTP/1.1 500 "));
}

TEST(HttpServerTest, ThrowingHandlerAnswers500) {
  const auto server = StartTestServer([](HttpRequest request, std::shared_ptr<HttpResponder>) {
    throw std::runtime_error("no " + request.path);
  });
  RawClient client(server->port());
  client.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReceiveResponse(), StartsWith("HTTP/1.1 500 "));
}

TEST(HttpServerTest, SecondAnswerIsRefused) {
  std::atomic<int> accepted{0};
  const auto server = StartTestServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    accepted += responder->Respond({200, {}, "first"}) ? 1 : 0;
    accepted += responder->Respond({200, {}, "second"}) ? 1 : 0;
    accepted += responder->StartStream(200, {}) ? 1 : 0;
    accepted += responder->Write("x") ? 1 : 0;
    accepted += responder->Finish() ? 1 : 0;
    responder->Abort();
  });
  RawClient client(server->port());
  client.Send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.ReceiveAll(), EndsWith("\r\n\r\nfirst"));
  EXPECT_EQ(accepted.load(), 1);
}

TEST(HttpServerTest, HeaderValuesCannotStartNewFields) {
  const auto server = StartTestServer([](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->Respond({200, {{"X-Id", "a\r\nSet-Cookie: b"}, {"Content-Length", "9"}}, "ok"});
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string response = client.ReceiveAll();
  EXPECT_THAT(response, HasSubstr("X-Id: a  Set-Cookie: b\r\n"));
  EXPECT_THAT(response, AllOf(HasSubstr("Content-Length: 2\r\n"), Not(HasSubstr("Length: 9"))));
}

constexpr HttpPatience kEndless = {
    .first_ms = 3'600'000, .next_ms = 3'600'000, .request_ms = 3'600'000};

// The client has a place: connections of two event loops may be counted in another order than they
// came, until they are served.
void ExpectServed(RawClient& client) {
  client.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReceiveResponse(), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServerTest, OneConnectionTooManyGets503) {
  HttpServerOptions options;
  options.max_connections = 2;
  options.patience = kEndless;
  const auto server = StartTestServer(EchoHandler, options);
  RawClient first(server->port());
  RawClient second(server->port());
  ASSERT_TRUE(Eventually([&] { return server->num_connections() == 2; }));
  ExpectServed(first);
  ExpectServed(second);
  RawClient third(server->port());
  EXPECT_THAT(third.ReceiveAll(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: ")));
  first.Close();
  third.Close();
  ASSERT_TRUE(Eventually([&] { return server->num_connections() == 1; }));
  RawClient fourth(server->port());
  ExpectServed(fourth);
}

// The idle one that gives way is the one that has waited for longest; a request in work never does.
TEST(HttpServerTest, OneConnectionTooManyTakesTheLongestIdleOnesPlace) {
  HttpServerOptions options;
  options.max_connections = 3;
  options.patience = {.first_ms = 0, .next_ms = 0, .request_ms = 3'600'000};
  const auto server = StartTestServer(EchoHandler, options, /*num_threads=*/1);
  RawClient in_work(server->port());
  in_work.Send("POST /w HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1");
  ASSERT_TRUE(Eventually([&] { return server->num_connections() == 1; }));
  RawClient older(server->port());
  ASSERT_TRUE(Eventually([&] { return server->num_connections() == 2; }));
  RawClient younger(server->port());
  younger.Send("GET /y HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(younger.ReceiveResponse(), StartsWith("HTTP/1.1 200 "));
  RawClient newcomer(server->port());
  newcomer.Send("GET /n HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(newcomer.ReceiveResponse(), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(older.ReceiveAll(), "");
  younger.Send("GET /y HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(younger.ReceiveResponse(), StartsWith("HTTP/1.1 200 "));
  in_work.Send("2");
  EXPECT_THAT(in_work.ReceiveResponse(), HasSubstr("POST /w 12"));
}

// So does a request that does not go on.
TEST(HttpServerTest, AHalfRequestGivesWayToo) {
  HttpServerOptions options;
  options.max_connections = 2;
  options.patience.request_ms = 0;
  const auto server = StartTestServer(EchoHandler, options, /*num_threads=*/1);
  RawClient header(server->port());
  header.Send("GET / HT");
  RawClient body(server->port());
  body.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1");
  ASSERT_TRUE(Eventually([&] { return server->num_connections() == 2; }));
  std::vector<std::unique_ptr<RawClient>> newcomers;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Eventually([&] {
      newcomers.push_back(std::make_unique<RawClient>(server->port()));
      newcomers.back()->Send("GET /n HTTP/1.1\r\nHost: a\r\n\r\n");
      return newcomers.back()->ReceiveResponse().starts_with("HTTP/1.1 200 ");
    }));
  }
  EXPECT_EQ(header.ReceiveAll() + body.ReceiveAll(), "");
}

// And an answered connection whose client does not close its end.
TEST(HttpServerTest, AnAnsweredConnectionGivesWayToo) {
  HttpServerOptions options;
  options.max_connections = 2;
  options.patience = {.first_ms = 0, .next_ms = 3'600'000, .request_ms = 3'600'000};
  const auto server = StartTestServer(EchoHandler, options, /*num_threads=*/1);
  RawClient good(server->port());
  good.Send("GET /g HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(good.ReceiveAll(), StartsWith("HTTP/1.1 200 "));
  RawClient bad(server->port());
  bad.Send("nonsense\r\n\r\n");
  EXPECT_THAT(bad.ReceiveAll(), StartsWith("HTTP/1.1 400 "));
  for (int i = 0; i < 2; ++i) {
    RawClient newcomer(server->port());
    newcomer.Send("GET /n HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_THAT(newcomer.ReceiveResponse(), StartsWith("HTTP/1.1 200 "));
  }
}

TEST(HttpServerTest, ConnectionsLeaveOpenFilesToTheRest) {
  struct Case {
    uint64_t open_files_limit;
    size_t wanted;
    size_t expected;
  };
  for (const Case& c : {Case{kNoOpenFilesLimit, 1024, 1024}, Case{1536, 1024, 1024},
                        Case{1535, 1024, 1023}, Case{1024, 1024, 512}, Case{1024, 64, 64},
                        Case{64, 1024, 32}, Case{1, 1024, 1}, Case{0, 1024, 0}}) {
    EXPECT_EQ(MaxConnectionsWithin(c.open_files_limit, c.wanted), c.expected) << c.open_files_limit;
  }
}

// Half of 64; the clients' own ends are opened under the old limit.
TEST(HttpServerTest, FewOpenFilesAreFewConnections) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  HttpServerOptions options;
  options.patience = kEndless;
  const auto server = StartTestServer(EchoHandler, options);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < 32; ++i) clients.push_back(std::make_unique<RawClient>(server->port()));
  ASSERT_TRUE(Eventually([&] { return server->num_connections() == 32; }));
  for (const auto& client : clients) ExpectServed(*client);
  RawClient one_more(server->port());
  EXPECT_THAT(one_more.ReceiveAll(), StartsWith("HTTP/1.1 503 "));
}

TEST(HttpServerTest, TimeoutsCloseOrAnswer408) {
  HttpServerOptions options;
  options.idle_timeout_ms = 50;
  options.header_timeout_ms = 50;
  options.body_timeout_ms = 50;
  const auto server = StartTestServer(EchoHandler, options);
  RawClient idle(server->port());
  EXPECT_EQ(idle.ReceiveAll(), "");
  RawClient slow_header(server->port());
  slow_header.Send("GET / HT");
  EXPECT_THAT(slow_header.ReceiveAll(), StartsWith("HTTP/1.1 408 "));
  RawClient slow_body(server->port());
  slow_body.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_THAT(slow_body.ReceiveAll(), StartsWith("HTTP/1.1 408 "));
}

// Whoever holds an open connection may be sending a request while the drain begins.
TEST(HttpServerTest, DrainTakesNoConnectionAndOneMoreRequestOfEachOpenOne) {
  std::mutex mutex;
  std::shared_ptr<HttpResponder> held;
  const auto server = StartTestServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    std::lock_guard lock(mutex);
    held = std::move(responder);
  });
  RawClient running(server->port());
  RawClient idle(server->port());
  running.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(Eventually(
      [&] { return server->num_active_requests() == 1 && server->num_connections() == 2; }));
  server->BeginDrain();
  server->BeginDrain();
  EXPECT_TRUE(Eventually([&] { return !RawClient(server->port()).connected(); }));
  {
    std::lock_guard lock(mutex);
    EXPECT_TRUE(held->Respond({200, {}, "late"}));
  }
  EXPECT_THAT(running.ReceiveAll(), AllOf(HasSubstr("Connection: close"), EndsWith("late")));
  running.Close();
  idle.Send("GET /y HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return server->num_active_requests() == 1; }));
  {
    std::lock_guard lock(mutex);
    EXPECT_TRUE(held->Respond({200, {}, "too"}));
  }
  EXPECT_THAT(idle.ReceiveAll(), AllOf(HasSubstr("Connection: close"), EndsWith("too")));
  idle.Close();
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
  EXPECT_EQ(server->num_active_requests(), 0u);
}

TEST(HttpServerTest, PortInUseIsAnAnswerThatNamesIt) {
  const auto server = StartTestServer(EchoHandler);
  HttpServerOptions options;
  options.port = server->port();
  const auto second = HttpServer::Start(options, EchoHandler);
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(fmt::format("127.0.0.1:{}", server->port())));
  options.host = "no such host";
  EXPECT_EQ(HttpServer::Start(options, EchoHandler).status().code(), StatusCode::kInvalidArgument);
}

TEST(HttpServerTest, ResponderMayOutliveTheServer) {
  std::mutex mutex;
  std::shared_ptr<HttpResponder> held;
  std::atomic<int> closed{0};
  auto server = StartTestServer([&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->OnClosed([&](HttpClientGone) { ++closed; });
    std::lock_guard lock(mutex);
    held = std::move(responder);
  });
  RawClient client(server->port());
  client.Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex);
    return held != nullptr;
  }));
  server.reset();
  EXPECT_EQ(closed.load(), 1);
  EXPECT_FALSE(held->Respond({200, {}, "late"}));
  EXPECT_FALSE(held->StartStream(200, {}));
  held->OnClosed([&](HttpClientGone) { ++closed; });
  EXPECT_EQ(closed.load(), 2) << "a late registration hears of it at once";
  held.reset();
}

TEST(HttpServerTest, ManyClientsAtOnce) {
  const auto server = StartTestServer(EchoHandler);
  std::atomic<int> good{0};
  std::vector<Thread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back("test-client", [&, t] {
      RawClient client(server->port());
      for (int i = 0; i < 50; ++i) {
        const std::string body = fmt::format("{}-{}", t, i);
        client.Send(Post("/p", body));
        if (client.ReceiveResponse().ends_with("POST /p " + body)) ++good;
      }
    });
  }
  clients.clear();
  EXPECT_EQ(good.load(), 400);
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
}

}  // namespace
}  // namespace baton::http
