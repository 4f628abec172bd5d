#include <sys/socket.h>

#include <string>
#include <string_view>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/http/raw_client.h"
#include "tests/http/test_server.h"

namespace baton::http {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Bytes sent and the status they must be answered with before the connection is closed.
struct HostileCase {
  std::string_view bytes;
  int status;
};

constexpr std::string_view kGetEnd = " HTTP/1.1\r\nHost: a\r\n\r\n";

class HostileRequestTest : public ::testing::Test {
 protected:
  HostileRequestTest() {
    HttpServerOptions options;
    options.max_header_bytes = 2048;
    options.max_header_fields = 20;
    options.max_body_bytes = 1000;
    server_ = StartTestServer(EchoHandler, options);
  }

  std::string Exchange(std::string_view bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.ReceiveAll();
  }

  void ExpectStillServing() {
    RawClient client(server_->port());
    client.Send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_THAT(client.ReceiveResponse(), StartsWith("HTTP/1.1 200 "));
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HostileRequestTest, EachIsRefusedOnceAndTheConnectionClosed) {
  const HostileCase cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost a\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: a\n\n", 400},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
      {"GET / http/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"\x16\x03\x01\x02\x01\x01\xfc\x03\x03", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \vchunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
       "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\nabc", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
       "fffffffffffffffff\r\n",
       400},
      {"POST / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n", 417},
  };
  for (const HostileCase& c : cases) {
    const std::string response = Exchange(c.bytes);
    EXPECT_THAT(response, StartsWith(fmt::format("HTTP/1.1 {} ", c.status))) << c.bytes;
    EXPECT_THAT(response, HasSubstr("Connection: close\r\n")) << c.bytes;
    EXPECT_EQ(response.find("\r\nDate: "), response.rfind("\r\nDate: "))
        << "answered twice: " << c.bytes;
  }
  ExpectStillServing();
}

TEST_F(HostileRequestTest, LengthsThatExcludeEachOtherAreNamed) {
  constexpr std::string_view kLength = "Content-Length: 3\r\n";
  constexpr std::string_view kCoding = "Transfer-Encoding: chunked\r\n";
  for (const auto& [first, second] : {std::pair(kLength, kCoding), std::pair(kCoding, kLength)}) {
    RawClient client(server_->port());
    client.Send("POST / HTTP/1.1\r\nHost: a\r\n" + std::string(first) + std::string(second) +
                "\r\n");
    EXPECT_THAT(client.ReceiveResponse(),
                testing::HasSubstr("Content-Length and Transfer-Encoding exclude each other"));
  }
}

TEST_F(HostileRequestTest, EveryRefusalKnowsTheRequestIdThatTheClientSent) {
  HttpServerOptions options;
  options.max_header_bytes = 2048;
  options.max_body_bytes = 1000;
  options.header_timeout_ms = 200;
  options.body_timeout_ms = 200;
  options.error_formatter = [](const HttpRefusal& refusal, std::string_view request_id) {
    return HttpResponse{refusal.status, {}, fmt::format("[{}]{}", request_id, refusal.path)};
  };
  server_ = StartTestServer([](HttpRequest, std::shared_ptr<HttpResponder>) {}, options);
  const std::string id = "Host: a\r\nx-request-ID:  id-7 \r\n";
  struct Case {
    std::string bytes;
    int status;
  };
  const Case cases[] = {
      {"GET  / HTTP/1.1\r\n" + id + "\r\n", 400},
      {"GET / HTTP/1.1\r\n" + id + "X: 1\r\n folded\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\n" + id + "\r\n", 505},
      {"GET / HTTP/1.1\r\n" + id, 408},
      {"POST /v1 HTTP/1.1\r\n" + id + "Content-Length: 5\r\n\r\nab", 408},
      {"POST /v1 HTTP/1.1\r\n" + id + "Content-Length: 1001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\n" + id + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"POST /v1 HTTP/1.1\r\n" + id + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"GET / HTTP/1.1\r\n" + id + "X: " + std::string(5000, 'b'), 431},
      {"GET /v1 HTTP/1.1\r\n" + id + "Connection: close\r\n\r\n", 500},  // dropped
  };
  for (const Case& c : cases) {
    const std::string response = Exchange(c.bytes);
    EXPECT_THAT(response, StartsWith(fmt::format("HTTP/1.1 {} ", c.status))) << c.bytes;
    // The path is known once the header is whole.
    const bool knows_path = c.bytes.find(" /v1 ") != std::string::npos;
    EXPECT_THAT(response, HasSubstr(knows_path ? "[id-7]/v1" : "[id-7]")) << c.bytes;
  }
  // Neither one that is cut off nor that of an earlier request on this connection.
  EXPECT_THAT(Exchange("GET / HTTP/1.1\r\nX-Request-Id: id"), HasSubstr("[]"));
  RawClient client(server_->port());
  client.Send("GET / HTTP/1.1\r\n" + id + "\r\n");
  EXPECT_THAT(client.ReceiveResponse(), HasSubstr("[id-7]"));
  client.Send("GET /\r\n\r\n");
  EXPECT_THAT(client.ReceiveAll(), HasSubstr("[]"));
}

TEST_F(HostileRequestTest, ARefusalTakesNothingFromThePipelinedRequestBehindIt) {
  HttpServerOptions options;
  options.error_formatter = [](const HttpRefusal& refusal, std::string_view request_id) {
    return HttpResponse{refusal.status, {}, fmt::format("[{}][{}]", request_id, refusal.path)};
  };
  server_ = StartTestServer([](HttpRequest, std::shared_ptr<HttpResponder>) {}, options);
  const std::string next = "POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Request-Id: other\r\n\r\n";
  for (const std::string first :
       {"GARBAGE\r\nHost: x\r\n\r\n", "GET /\r\nHost: x\r\n\r\n",
        "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", "GARBAGE\r\nX: 1\r\n folded\r\n\r\n"}) {
    const std::string response = Exchange(first + next);
    EXPECT_THAT(response, StartsWith("HTTP/1.1 400 ")) << first;
    EXPECT_THAT(response, HasSubstr("[][]")) << first;
  }
}

TEST_F(HostileRequestTest, HeaderLimits) {
  const std::string long_target = "GET /" + std::string(3000, 'a') + std::string(kGetEnd);
  EXPECT_THAT(Exchange(long_target), StartsWith("HTTP/1.1 431 "));
  std::string many = "GET / HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 20; ++i) many += fmt::format("X{}: y\r\n", i);
  EXPECT_THAT(Exchange(many + "\r\n"), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Exchange(std::string(100'000, 'a')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Exchange(fmt::format("GET / HTTP/1.1\r\nHost: a\r\nX: {}", std::string(5000, 'b'))),
              StartsWith("HTTP/1.1 431 "));
  ExpectStillServing();
}

TEST_F(HostileRequestTest, TooLargeBodyInTransitStillGetsItsAnswer) {
  // The client sends everything before it reads: the answer must survive the close.
  RawClient client(server_->port());
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n");
  const std::string block(1 << 20, 'x');
  for (int i = 0; i < 19 && client.Send(block); ++i) {
  }
  EXPECT_THAT(client.ReceiveAll(), StartsWith("HTTP/1.1 413 "));
  ExpectStillServing();
}

TEST_F(HostileRequestTest, EndlessChunkExtensionsAreRefused) {
  RawClient client(server_->port());
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;x=");
  const std::string block(4096, 'y');
  for (int i = 0; i < 100 && client.Send(block); ++i) {
  }
  EXPECT_THAT(client.ReceiveAll(), StartsWith("HTTP/1.1 4"));
  ExpectStillServing();
}

// The requests in one piece, with all that follows: the meaning of a request must not depend on how
// its bytes were cut.
TEST_F(HostileRequestTest, ALongChunkExtensionIsRefusedHoweverItArrives) {
  HttpServerOptions options;
  options.max_header_bytes = 2048;
  const auto server = StartTestServer(EchoHandler, options);
  for (const size_t num_bytes : {1900, 2100}) {
    RawClient client(server->port());
    client.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;x=" +
                std::string(num_bytes, 'y') + "\r\nz\r\n0\r\n\r\n");
    EXPECT_THAT(client.ReceiveUntil("\r\n"), HasSubstr(num_bytes < 2048 ? " 200 " : " 400 "));
  }
}

TEST_F(HostileRequestTest, EmptyLinesAndAbsoluteFormAreAccepted) {
  RawClient client(server_->port());
  client.Send("\r\n\r\nGET http://a/abs?q HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReceiveResponse(), HasSubstr("GET /abs "));
}

TEST_F(HostileRequestTest, RandomBytesNeverStopTheServer) {
  uint64_t state = 88172645463325252ull;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  constexpr std::string_view kPieces[] = {"GET ",
                                          "/",
                                          " HTTP/1.1",
                                          "\r\n",
                                          "\r\n\r\n",
                                          "Host: a",
                                          "Content-Length: ",
                                          "5",
                                          "Transfer-Encoding: chunked",
                                          ":",
                                          "\n",
                                          "0\r\n\r\n",
                                          "Expect: 100-continue"};
  for (int round = 0; round < 200; ++round) {
    std::string bytes;
    const size_t num_pieces = next() % 20;
    for (size_t i = 0; i < num_pieces; ++i) {
      if (next() % 8 == 0) {
        bytes.push_back(static_cast<char>(next()));
      } else {
        bytes += kPieces[next() % std::size(kPieces)];
      }
    }
    RawClient client(server_->port());
    client.Send(bytes);
    client.CloseSending();
    EXPECT_TRUE(client.ServerClosed()) << "hangs on: " << bytes;
  }
  ExpectStillServing();
  EXPECT_TRUE(Eventually([&] { return server_->num_active_requests() == 0; }));
}

}  // namespace
}  // namespace baton::http
