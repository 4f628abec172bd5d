// The server with TLS: what holds without it holds with it, and no handshake harms another client.
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/http/test_server.h"
#include "tests/http/tls_client.h"
#include "tests/tls/test_certs.h"

namespace baton::http {

namespace test = tls::test;
using tls::TlsFiles;

namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kGet = "GET /s HTTP/1.1\r\nHost: a\r\n\r\n";
constexpr std::string_view kLastGet = "GET /s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

class TlsServerTest : public ::testing::Test {
 protected:
  TlsServerTest() { ::signal(SIGPIPE, SIG_IGN); }  // of this test's clients

  void Start(HttpHandler handler, HttpServerOptions options = {}, int num_threads = 2) {
    options.tls = files_;
    server_ = StartTestServer(std::move(handler), std::move(options), num_threads);
  }
  uint16_t port() const { return server_->port(); }
  // One request over a connection of its own.
  std::string Ask(const TlsClientOptions& options = {}) {
    TlsClient client(port(), options);
    client.Send(kLastGet);
    return client.ReceiveAll();
  }

  test::TempFolder folder_;
  test::TestAuthority authority_;
  test::TestAuthority stranger_;
  const TlsFiles files_ = authority_.Issue(folder_, "server");
  std::unique_ptr<HttpServer> server_;
};

TEST_F(TlsServerTest, BothVersionsKeepTheirConnectionsAndEndThemWell) {
  Start(EchoHandler);
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClientOptions options;
    options.version = version;
    TlsClient client(port(), options);
    ASSERT_TRUE(client.connected()) << client.error();
    EXPECT_EQ(client.Protocol(), "http/1.1");
    // Two at once, of which the second comes in the record of the first.
    ASSERT_TRUE(client.Send(std::string(kGet) +
                            "POST /t HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"));
    EXPECT_THAT(client.ReceiveUntil("GET /s "), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(client.ReceiveUntil("POST /t hi"), HasSubstr("HTTP/1.1 200"));
    ASSERT_TRUE(client.Send(kLastGet));
    EXPECT_THAT(client.ReceiveAll(), EndsWith("GET /s "));
    EXPECT_TRUE(client.ended_well());
  }
  TlsClientOptions old;
  old.version = TLS1_1_VERSION;
  EXPECT_FALSE(TlsClient(port(), old).connected());
}

TEST_F(TlsServerTest, AClientWithoutTlsIsToldSo) {
  Start(EchoHandler);
  RawClient client(port());
  ASSERT_TRUE(client.Send(kGet));
  const std::string answer = client.ReceiveAll();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer, HasSubstr("https://"));
  // A connection that is neither TLS nor HTTP is closed, and the next client is served.
  RawClient noise(port());
  noise.Send("\x01\x02\x03");
  EXPECT_TRUE(noise.ServerClosed());
  EXPECT_THAT(Ask(), EndsWith("GET /s "));
}

TEST_F(TlsServerTest, WhoOffersHttp2AloneIsRefused) {
  Start(EchoHandler);
  TlsClientOptions options;
  options.alpn = "h2";
  const TlsClient client(port(), options);
  EXPECT_FALSE(client.connected());
}

TEST_F(TlsServerTest, ACertificateIsNotNeededAndABadOneIsRefused) {
  Start(EchoHandler);
  TlsClientOptions known;
  known.identity = authority_.Issue(folder_, "known");
  EXPECT_THAT(Ask(known), EndsWith("GET /s "));
  TlsClientOptions foreign;
  foreign.identity = stranger_.Issue(folder_, "foreign");
  EXPECT_EQ(Ask(foreign), "");
  EXPECT_THAT(Ask(), EndsWith("GET /s "));
}

// One event loop: whoever waits for a handshake there would hold up all others.
TEST_F(TlsServerTest, HandshakesThatStandStillHarmNobodyAndEnd) {
  HttpServerOptions options;
  options.handshake_timeout_ms = 300;
  Start(EchoHandler, options, /*num_threads=*/1);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(std::make_unique<RawClient>(port()));
    if (i % 2 == 0) silent.back()->Send("\x16\x03\x01\x02");  // a record's begin
  }
  EXPECT_THAT(Ask(), EndsWith("GET /s "));
  EXPECT_TRUE(Eventually([&] { return server_->num_connections() == 0; }));
  for (const auto& client : silent) EXPECT_TRUE(client->ServerClosed());
}

TEST_F(TlsServerTest, ASilentHandshakeMakesRoomInAFullServer) {
  HttpServerOptions options;
  options.max_connections = 1;
  options.patience.first_ms = 0;
  Start(EchoHandler, options, /*num_threads=*/1);
  RawClient silent(port());
  ASSERT_TRUE(Eventually([&] { return server_->num_connections() == 1; }));
  EXPECT_THAT(Ask(), EndsWith("GET /s "));
  EXPECT_TRUE(silent.ServerClosed());
}

TEST_F(TlsServerTest, OneConnectionTooManyIsAnswered503) {
  HttpServerOptions options;
  options.max_connections = 1;
  options.patience.next_ms = 60'000;
  options.patience.first_ms = 60'000;
  Start(EchoHandler, options, /*num_threads=*/1);
  TlsClient first(port());
  ASSERT_TRUE(first.Send(kGet));
  ASSERT_THAT(first.ReceiveUntil("GET /s "), StartsWith("HTTP/1.1 200"));
  TlsClient second(port());
  EXPECT_THAT(second.ReceiveAll(), StartsWith("HTTP/1.1 503 "));
}

TEST_F(TlsServerTest, ALongAnswerArrivesWholeAtASlowReader) {
  constexpr size_t kBytes = size_t{3} << 20;
  std::string body(kBytes, ' ');
  for (size_t i = 0; i < kBytes; ++i) body[i] = static_cast<char>('a' + i % 23);
  Start([&body](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->Respond({200, {}, body});
  });
  TlsClient client(port());
  ASSERT_TRUE(client.Send(kLastGet));
  // The server's records stay in the kernel, and then wait for room, before the first is read.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  client.ReceiveUntil("\r\n\r\n");
  EXPECT_TRUE(client.ReceiveAll() == body);
  EXPECT_TRUE(client.ended_well());
}

class TlsStreamTest : public TlsServerTest, protected KeepsResponder {
 protected:
  void StartStreams(HttpServerOptions options = {}) { Start(Keep(), std::move(options)); }
};

TEST_F(TlsStreamTest, AClientThatLeavesOrEndsItsInputIsSeenAtOnce) {
  StartStreams();
  int num_left = 0;
  for (const int how : {0, 1, 2}) {
    TlsClient client(port());
    ASSERT_TRUE(client.Send(kGet));
    const auto responder = TakeResponder();
    responder->StartStream(200, {});
    responder->Write("data: 1\n\n");
    EXPECT_THAT(client.ReceiveUntil("data: 1\n\n"), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(closed_.load(), num_left);
    if (how == 0) client.raw().Reset();
    if (how == 1) client.raw().CloseSending();  // without TLS's own word
    if (how == 2) client.CloseSending();        // with it
    ++num_left;
    EXPECT_TRUE(Eventually([&] { return closed_.load() == num_left; })) << how;
  }
}

TEST_F(TlsStreamTest, PingsAndTokensArriveAsTheyAreWritten) {
  StartStreams();
  TlsClient client(port());
  ASSERT_TRUE(client.Send(kGet));
  const auto responder = TakeResponder();
  responder->StartStream(200, {});
  responder->KeepAlive(": ping\n\n", 40);
  EXPECT_THAT(client.ReceiveUntil(": ping\n\n"), StartsWith("HTTP/1.1 200"));
  for (int i = 0; i < 3; ++i) {
    responder->Write("data: x\n\n");
    EXPECT_THAT(client.ReceiveUntil("data: x\n\n"), EndsWith("data: x\n\n"));
  }
  responder->Finish();
  EXPECT_THAT(client.ReceiveUntil("0\r\n\r\n"), EndsWith("0\r\n\r\n"));
  ASSERT_TRUE(client.Send(kGet)) << "the connection is kept";
  TakeResponder()->Respond({204, {}, ""});
  EXPECT_THAT(client.ReceiveUntil("\r\n\r\n"), StartsWith("HTTP/1.1 204"));
  EXPECT_EQ(closed_.load(), 0);
}

TEST_F(TlsStreamTest, AClientThatReadsNothingIsStalled) {
  HttpServerOptions options;
  options.write_stall_timeout_ms = 200;
  StartStreams(options);
  TlsClient client(port());
  ASSERT_TRUE(client.Send(kGet));
  const auto responder = TakeResponder();
  responder->StartStream(200, {});
  const std::string piece(64 << 10, 'x');
  EXPECT_TRUE(Eventually([&] {
    if (responder->buffered_bytes() < (size_t{1} << 20)) responder->Write(piece);
    return closed_.load() == 1;
  }));
  EXPECT_EQ(how_closed_.load(), HttpClientGone::kStalled);
}

TEST_F(TlsServerTest, ReplacedFilesCountFromTheNextConnectionOn) {
  Start(EchoHandler);
  TlsClient before(port());
  ASSERT_TRUE(before.connected());
  const std::string first = before.ServerSerial();
  // A key that is not the certificate's changes nothing.
  const TlsFiles next = authority_.Issue(folder_, "next");
  test::ReplaceText(files_.key, test::TextOf(next.key));
  std::this_thread::sleep_for(std::chrono::milliseconds(1'100));
  EXPECT_EQ(TlsClient(port()).ServerSerial(), first);
  test::ReplaceText(files_.cert, test::TextOf(next.cert));
  EXPECT_TRUE(Eventually([&] {
    const TlsClient after(port());
    return after.connected() && after.ServerSerial() != first;
  }));
  ASSERT_TRUE(before.Send(kLastGet)) << "a connection that stands goes on";
  EXPECT_THAT(before.ReceiveAll(), EndsWith("GET /s "));
}

TEST_F(TlsServerTest, FilesThatDoNotFitStopTheStart) {
  HttpServerOptions options;
  options.tls = files_;
  options.tls.key = authority_.Issue(folder_, "other").key;
  const auto server = HttpServer::Start(options, EchoHandler);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("is not the key of --tls-cert"));
}

}  // namespace
}  // namespace baton::http
