// A TCP client that sends exactly the bytes it is given, for tests of the HTTP server. One thread.
#ifndef BATON_TESTS_HTTP_RAW_CLIENT_H_
#define BATON_TESTS_HTTP_RAW_CLIENT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/unique_fd.h"

namespace baton::http {

// One connection to 127.0.0.1:port. Every wait ends after ten seconds.
class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int rc = ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    connected_ = rc == 0;
  }

  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  // False when the server has closed before everything was taken.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  void CloseSending() { ::shutdown(fd_.get(), SHUT_WR); }
  void Close() { fd_.reset(); }
  // Closes with a reset instead of an orderly end.
  void Reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    fd_.reset();
  }

  // Everything received up to and with `end`; less when the server closed or ten seconds passed.
  std::string ReceiveUntil(std::string_view end) {
    size_t found = received_.find(end);
    while (found == std::string::npos) {
      const size_t from = received_.size() - std::min(received_.size(), end.size());
      if (!ReceiveSome()) break;
      found = received_.find(end, from);
    }
    const size_t size = found == std::string::npos ? received_.size() : found + end.size();
    std::string result = received_.substr(0, size);
    received_.erase(0, size);
    return result;
  }

  // Everything until the server closes.
  std::string ReceiveAll() {
    while (ReceiveSome()) {
    }
    return std::exchange(received_, {});
  }

  // One response whose length is given by Content-Length (0 without).
  std::string ReceiveResponse() {
    std::string head = ReceiveUntil("\r\n\r\n");
    const size_t field = head.find("Content-Length: ");
    const size_t length = field == std::string::npos ? 0 : std::stoul(head.substr(field + 16));
    while (received_.size() < length && ReceiveSome()) {
    }
    head += received_.substr(0, length);
    received_.erase(0, length);
    return head;
  }

  // True once the server has ended the connection and nothing is left to read.
  bool ServerClosed() {
    while (ReceiveSome()) {
    }
    return ended_;
  }

 private:
  bool ReceiveSome() {
    const int64_t deadline_us = SystemClock().NowUs() + 10'000'000;
    pollfd poll_fd{fd_.get(), POLLIN, 0};
    int ready = 0;
    do {
      const int64_t left_ms = (deadline_us - SystemClock().NowUs()) / 1000;
      ready = ::poll(&poll_fd, 1, static_cast<int>(std::max<int64_t>(0, left_ms)));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) return false;
    char bytes[16384];
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof(bytes), 0);
    ended_ = got <= 0;
    if (got > 0) received_.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }

  UniqueFd fd_;
  bool connected_ = false;
  bool ended_ = false;
  std::string received_;
};

}  // namespace baton::http

#endif  // BATON_TESTS_HTTP_RAW_CLIENT_H_
