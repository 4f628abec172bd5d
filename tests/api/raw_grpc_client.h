// A gRPC client made of HTTP/2 frames (RFC 9113), for what no library's client does: one whose
// window is closed, so that the server may send it nothing of an answer. One call; one thread.
#ifndef BATON_TESTS_API_RAW_GRPC_CLIENT_H_
#define BATON_TESTS_API_RAW_GRPC_CLIENT_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/http/raw_client.h"

namespace baton::api {

// See the file comment. Every wait ends after ten seconds.
class RawGrpcClient {
 public:
  explicit RawGrpcClient(uint16_t port) : client_(port) {
    const timeval wait{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(client_.fd(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    client_.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    const std::string window_of_zero("\0\4\0\0\0\0", 6);  // SETTINGS_INITIAL_WINDOW_SIZE
    Send(kSettings, 0, 0, window_of_zero);
  }

  // Begins the call, e.g. of "/baton.v1.ChatService/ChatCompletion".
  // `timeout`: grpc-timeout, "" = none.
  void Call(std::string_view path, std::string_view message, std::string_view timeout = "") {
    Begin(path, timeout);
    Send(kData, kEndStream, 1,
         std::string(1, '\0') + BigEndian(message.size(), 4) + std::string(message));
  }

  // Begins the call and sends the first bytes of a message of `size` bytes, which is never whole.
  void CallInPart(std::string_view path, size_t size, std::string_view first) {
    Begin(path, "");
    std::string bytes = std::string(1, '\0') + BigEndian(size, 4) + std::string(first);
    constexpr size_t kMaxFrameBytes = 16384;
    for (size_t at = 0; at < bytes.size(); at += kMaxFrameBytes) {
      Send(kData, 0, 1, std::string_view(bytes).substr(at, kMaxFrameBytes));
    }
  }
  // Whether the server has ended the call or the connection, by what has arrived.
  bool HasEnded() {
    pollfd readable{.fd = client_.fd(), .events = POLLIN, .revents = 0};
    while (!call_ended_ && ::poll(&readable, 1, 0) > 0) {
      if (!ReceiveFrame()) return true;
    }
    return call_ended_;
  }

  // From here on the server may send so much more of the answer.
  void OpenWindow(uint32_t num_bytes) { Send(kWindowUpdate, 0, 1, BigEndian(num_bytes, 4)); }

  // Reads until the server has ended the call, or its connection: false.
  bool WaitEnd() {
    while (!call_ended_) {
      if (!ReceiveFrame()) return false;
    }
    return true;
  }
  // Reads until the server has sent so many pings that ask for an answer; false: it has ended the
  // connection.
  bool WaitPings(int num_pings) {
    while (num_pings_ < num_pings) {
      if (!ReceiveFrame()) return false;
    }
    return true;
  }
  // True once the server has ended the connection.
  bool WaitClosed() {
    while (ReceiveFrame()) {
    }
    return closed_;
  }
  // Resets the call.
  void Cancel() { Send(kReset, 0, 1, BigEndian(8, 4)); }
  void Ping() { Send(kPing, 0, 0, "12345678"); }
  // As a host that has vanished.
  void AnswerNoPings() { answers_pings_ = false; }
  // The end was a reset: no status came.
  bool was_reset() const { return was_reset_; }
  // Bytes of messages, their heads of 5 bytes included.
  size_t num_data_bytes() const { return num_data_bytes_; }

 private:
  static constexpr uint8_t kData = 0;
  static constexpr uint8_t kHeaders = 1;
  static constexpr uint8_t kReset = 3;
  static constexpr uint8_t kSettings = 4;
  static constexpr uint8_t kPing = 6;
  static constexpr uint8_t kWindowUpdate = 8;
  static constexpr uint8_t kAck = 1;
  static constexpr uint8_t kEndStream = 1;
  static constexpr uint8_t kEndHeaders = 4;

  static std::string BigEndian(size_t value, int num_bytes) {
    std::string bytes;
    for (int i = num_bytes - 1; i >= 0; --i) bytes.push_back(static_cast<char>(value >> (8 * i)));
    return bytes;
  }
  // A literal that is not indexed, with a name of its own (RFC 7541 section 6.2.2).
  static void AddField(std::string_view name, std::string_view value, std::string* block) {
    block->push_back('\0');
    for (const std::string_view text : {name, value}) {
      block->push_back(static_cast<char>(text.size()));
      block->append(text);
    }
  }
  void Begin(std::string_view path, std::string_view timeout) {
    std::string block;
    AddField(":method", "POST", &block);
    AddField(":scheme", "http", &block);
    AddField(":path", path, &block);
    AddField(":authority", "x", &block);
    AddField("content-type", "application/grpc", &block);
    AddField("te", "trailers", &block);
    if (!timeout.empty()) AddField("grpc-timeout", timeout, &block);
    Send(kHeaders, kEndHeaders, 1, block);
  }
  void Send(uint8_t type, uint8_t flags, uint32_t stream, std::string_view body) {
    std::string frame = BigEndian(body.size(), 3);
    frame.push_back(static_cast<char>(type));
    frame.push_back(static_cast<char>(flags));
    frame += BigEndian(stream, 4);
    frame += body;
    client_.Send(frame);
  }
  bool ReceiveFrame() {
    std::string head;
    std::string body;
    if (!Receive(9, &head)) return false;
    const auto byte = [&head](size_t i) { return static_cast<uint8_t>(head[i]); };
    if (!Receive((byte(0) << 16) + (byte(1) << 8) + byte(2), &body)) return false;
    const uint8_t type = byte(3);
    const uint8_t flags = byte(4);
    if (type == kPing && (flags & kAck) == 0) {
      ++num_pings_;
      if (answers_pings_) Send(kPing, kAck, 0, body);
    }
    if (byte(8) != 1) return true;
    if (type == kData) num_data_bytes_ += body.size();
    if (type == kReset) was_reset_ = true;
    if (was_reset_ || (type == kHeaders && (flags & kEndStream) != 0)) call_ended_ = true;
    return true;
  }
  bool Receive(size_t size, std::string* bytes) {
    bytes->resize(size);
    if (size == 0) return true;
    const ssize_t received = ::recv(client_.fd(), bytes->data(), size, MSG_WAITALL);
    closed_ = received >= 0 ? received < static_cast<ssize_t>(size) : errno == ECONNRESET;
    return received == static_cast<ssize_t>(size);
  }

  http::RawClient client_;
  bool answers_pings_ = true;
  int num_pings_ = 0;
  bool call_ended_ = false;
  bool closed_ = false;
  size_t num_data_bytes_ = 0;
  bool was_reset_ = false;
};

}  // namespace baton::api

#endif  // BATON_TESTS_API_RAW_GRPC_CLIENT_H_
