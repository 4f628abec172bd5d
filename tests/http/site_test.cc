// Foreign names and foreign pages at a server on a loopback address.
#include <atomic>
#include <memory>
#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/http/raw_client.h"
#include "tests/http/test_server.h"

namespace baton::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kOrigin = "https://chat.example:8443";
constexpr const char* kAllowed = "Access-Control-Allow-Origin: https://chat.example:8443\r\n";

class SiteTest : public ::testing::Test {
 protected:
  void Start(const std::string& origins = "", const std::string& host = "127.0.0.1") {
    HttpServerOptions options;
    options.host = host;
    options.max_body_bytes = 100;
    options.sites.check = SiteCheck::kPosts;
    options.sites.origins = *ParseCorsOrigins(origins);
    server_ = StartTestServer(
        [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          ++num_handled_;
          if (request.path != "/stream") return EchoHandler(std::move(request), responder);
          responder->StartStream(200, {});
          responder->Write("data");
          responder->Finish();
        },
        options);
  }
  // The answer to one request; `fields` are whole lines.
  std::string Ask(const std::string& request_line, const std::string& fields,
                  const std::string& body = "") {
    RawClient client(server_->port());
    client.Send(fmt::format("{} HTTP/1.1\r\n{}Connection: close\r\nContent-Length: {}\r\n\r\n{}",
                            request_line, fields, body.size(), body));
    return client.ReceiveAll();
  }
  std::string Own() const { return fmt::format("Host: 127.0.0.1:{}\r\n", server_->port()); }

  std::atomic<int> num_handled_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(SiteTest, AReboundNameReachesNothing) {
  Start();
  for (const char* line : {"GET /", "POST /", "OPTIONS /", "GET http://evil.example/"}) {
    EXPECT_THAT(Ask(line, "Host: evil.example:8080\r\n"),
                AllOf(StartsWith("HTTP/1.1 403 Forbidden\r\n"), HasSubstr("host_not_allowed"),
                      HasSubstr("--allowed-hosts")))
        << line;
  }
  EXPECT_THAT(Ask("GET http://evil.example/", Own()), HasSubstr("host_not_allowed"));
  EXPECT_EQ(num_handled_, 0);
  EXPECT_THAT(Ask("POST /", Own(), "a"), HasSubstr("200 OK"));
  EXPECT_THAT(Ask("GET /", "Host: LOCALHOST.\r\n"), HasSubstr("200 OK"));
}

TEST_F(SiteTest, ForeignPagesAreRefusedBeforeTheirBodyIsRead) {
  Start();
  RawClient client(server_->port());
  client.Send("POST / HTTP/1.1\r\n" + Own() +
              "Origin: null\r\nContent-Length: 100\r\n\r\nthe rest never comes");
  EXPECT_THAT(client.ReceiveUntil("\n\n"), Not(HasSubstr("408")));
  EXPECT_THAT(Ask("POST /", Own() + "Origin: https://evil.example\r\n", "a"),
              AllOf(StartsWith("HTTP/1.1 403"), HasSubstr("origin_not_allowed"),
                    HasSubstr("--cors-origins"), Not(HasSubstr("Access-Control"))));
  EXPECT_EQ(num_handled_, 0);
  EXPECT_THAT(
      Ask("POST /", Own() + fmt::format("Origin: http://127.0.0.1:{}\r\n", server_->port())),
      HasSubstr("200 OK"));
}

TEST_F(SiteTest, AnIpv4LoopbackInItsIpv6FormIsOne) {
  HttpServerOptions options;
  options.host = "::ffff:127.0.0.1";
  options.sites.check = SiteCheck::kPosts;
  auto server = HttpServer::Start(options, EchoHandler);
  if (!server.ok()) GTEST_SKIP() << "no IPv6 here: " << server.status();
  server_ = *std::move(server);
  EXPECT_THAT(Ask("GET /", "Host: evil.example\r\n"), HasSubstr("host_not_allowed"));
  EXPECT_THAT(Ask("GET /", Own()), HasSubstr("200 OK"));
}

TEST_F(SiteTest, AllAddressesAreNoLoopback) {
  Start("", "0.0.0.0");
  EXPECT_THAT(Ask("POST /", "Host: any.example\r\n"), HasSubstr("200 OK"));
  EXPECT_THAT(Ask("POST /", "Host: any.example\r\nOrigin: https://evil.example\r\n"),
              HasSubstr("origin_not_allowed"));
  EXPECT_THAT(Ask("POST /", "Host: any.example\r\nOrigin: https://any.example\r\n"),
              HasSubstr("200 OK"));
}

TEST_F(SiteTest, AllowedPagesReadEveryKindOfAnswer) {
  Start(kOrigin);
  const std::string fields = Own() + "Origin: " + kOrigin + "\r\n";
  for (const char* line : {"POST /", "GET /", "POST /stream"}) {
    EXPECT_THAT(Ask(line, fields), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr(kAllowed),
                                         HasSubstr("Vary: Origin\r\n"),
                                         HasSubstr("Access-Control-Expose-Headers: X-Request-Id")))
        << line;
  }
  EXPECT_THAT(Ask("POST /", fields, std::string(101, 'x')),
              AllOf(StartsWith("HTTP/1.1 413"), HasSubstr(kAllowed)))
      << "what the server answers itself";
  const int num_handled = num_handled_;
  const std::string preflight =
      Ask("OPTIONS /", fields + "Access-Control-Request-Method: POST\r\n");
  EXPECT_THAT(preflight, AllOf(StartsWith("HTTP/1.1 204 No Content\r\n"), HasSubstr(kAllowed),
                               HasSubstr("Access-Control-Allow-Headers: Authorization")));
  EXPECT_EQ(num_handled_, num_handled) << "no handler has to know";
  EXPECT_THAT(Ask("POST /", Own() + "Origin: https://other.example\r\n"),
              AllOf(StartsWith("HTTP/1.1 403"), Not(HasSubstr("Access-Control"))));
  EXPECT_THAT(Ask("POST /", "Host: evil.example\r\nOrigin: " + std::string(kOrigin) + "\r\n"),
              HasSubstr("host_not_allowed"));
}

TEST_F(SiteTest, AConnectionGoesOnAfterAPreflight) {
  Start(kOrigin);
  RawClient client(server_->port());
  client.Send("OPTIONS / HTTP/1.1\r\n" + Own() + "Origin: " + kOrigin +
              "\r\nAccess-Control-Request-Method: POST\r\n\r\n");
  EXPECT_THAT(client.ReceiveUntil("\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 204"), Not(HasSubstr("Content-Length"))));
  client.Send("POST / HTTP/1.1\r\n" + Own() + "Content-Length: 1\r\n\r\na");
  EXPECT_THAT(client.ReceiveResponse(),
              AllOf(StartsWith("HTTP/1.1 200"), Not(HasSubstr(kAllowed))));
}

}  // namespace
}  // namespace baton::http
