#include "src/base/bind_fault.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/unique_fd.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(BindFaultTest, APortInUseIsCalledSo) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  const std::string port = std::to_string(ntohs(at.sin_port));
  EXPECT_THAT(BindFault("127.0.0.1:" + port), HasSubstr("port " + port + " is in use"));
}

TEST(BindFaultTest, OtherFaultsAreNotCalledSo) {
  // Kept for documentation: no host has these.
  EXPECT_THAT(BindFault("192.0.2.7:0"),
              AllOf(HasSubstr("this host has no address 192.0.2.7"), Not(HasSubstr("in use"))));
  EXPECT_THAT(
      BindFault("no-such-host.invalid:0"),
      AllOf(HasSubstr("no-such-host.invalid cannot be resolved"), Not(HasSubstr("in use"))));
  EXPECT_THAT(BindFault("nonsense"), HasSubstr("nonsense"));
  EXPECT_EQ(BindFault("127.0.0.1:0"), "the address cannot be bound");
}

}  // namespace
}  // namespace baton
