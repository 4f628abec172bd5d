// Tests that the error of a failed call says who was called.
#include "src/cli/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/unique_fd.h"

namespace baton::cli {
namespace {

// A port of 127.0.0.1 that is bound; it listens once Listen was called.
struct Port {
  Port() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  }
  HttpClientRequest Request() const {
    HttpClientRequest request;
    request.url = {
        .host = "127.0.0.1", .port = std::to_string(ntohs(address.sin_port)), .target = "/"};
    request.connect_timeout_ms = 200;
    request.idle_timeout_ms = 200;
    return request;
  }
  UniqueFd fd;
  sockaddr_in address = {};
};

TEST(HttpClientTest, OnlyARefusedConnectionIsUnavailable) {
  const Port port;
  const Status refused = HttpCall(port.Request()).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused;

  HttpClientRequest nowhere = port.Request();
  nowhere.url.host = "no host";
  const Status unknown = HttpCall(nowhere).status();
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound) << unknown;
}

TEST(HttpClientTest, WhoDoesNotTakeConnectionsIsLateAndNotGone) {
  const Port port;
  ASSERT_EQ(::listen(port.fd.get(), 0), 0);
  // The kernel drops what comes beyond the backlog.
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ::connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&port.address),
              sizeof(port.address));
  }
  const Status late = HttpCall(port.Request()).status();
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late;
  EXPECT_NE(late.message().find("no connection"), std::string::npos) << late;
}

TEST(HttpClientTest, WhoTakesAConnectionAndSaysNothingIsLate) {
  const Port port;
  ASSERT_EQ(::listen(port.fd.get(), 8), 0);
  const Status silent = HttpCall(port.Request()).status();
  EXPECT_EQ(silent.code(), StatusCode::kDeadlineExceeded) << silent;
}

}  // namespace
}  // namespace baton::cli
