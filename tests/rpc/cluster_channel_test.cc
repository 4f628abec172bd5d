// How a channel of the cluster connects.
#include "src/rpc/cluster_channel.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "fmt/format.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"

#include "src/base/thread.h"
#include "src/base/unique_fd.h"

namespace baton::rpc {
namespace {

constexpr int kFirstBackoffMs = 100;
// Three round trips of a way of 70 ms, or a host whose processors are busy.
constexpr int kAnswerDelayMs = 2 * kFirstBackoffMs;

// A listener on a free port of 127.0.0.1.
UniqueFd Listen(uint16_t* port) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), raw, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), raw, &size), 0);
  *port = ntohs(address.sin_port);
  return listener;
}

// A router makes a new channel for each try of a session: the first try has to be long enough.
TEST(ClusterChannelTest, TheFirstTryWaitsForASlowAnswer) {
  uint16_t port = 0;
  const UniqueFd listener = Listen(&port);
  Thread server("server", [&listener] {
    const UniqueFd client(::accept(listener.get(), nullptr, nullptr));
    (void)::poll(nullptr, 0, kAnswerDelayMs);             // the delay that is tested
    const std::string settings("\0\0\0\4\0\0\0\0\0", 9);  // the first frame of a server
    (void)::send(client.get(), settings.data(), settings.size(), MSG_NOSIGNAL);
    char byte = 0;
    while (::recv(client.get(), &byte, 1, 0) > 0) {
    }
  });
  auto channel = grpc::CreateCustomChannel(fmt::format("127.0.0.1:{}", port),
                                           grpc::InsecureChannelCredentials(),
                                           ClusterChannelArguments(kFirstBackoffMs));
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
  grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
  while (state == GRPC_CHANNEL_IDLE || state == GRPC_CHANNEL_CONNECTING) {
    ASSERT_TRUE(channel->WaitForStateChange(state, deadline));
    state = channel->GetState(/*try_to_connect=*/false);
  }
  EXPECT_EQ(state, GRPC_CHANNEL_READY);
  channel.reset();
  server.Join();
}

}  // namespace
}  // namespace baton::rpc
