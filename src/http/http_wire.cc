#include "src/http/http_wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>

#include "fmt/format.h"

namespace baton::http {

namespace asio = boost::asio;
using tls::TlsIo;
using tls::TlsSocket;

namespace {
// Bytes that wait in the kernel until the client has room for them.
constexpr int kMaxUnsentInKernel = 64 * 1024;
// The first byte of a TLS connection: a record of the handshake.
constexpr char kHandshakeRecord = 0x16;
}  // namespace

HttpWire::HttpWire(Socket socket, std::unique_ptr<TlsSocket> tls, HandshakeTurns* turns)
    : socket_(std::move(socket)), tls_(std::move(tls)), turns_(turns) {
  ErrorCode ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  // Without it the kernel buffers megabytes for a client that reads nothing, and who writes takes
  // that for progress. Bytes in flight do not count, so that a far client has its full rate.
  ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMaxUnsentInKernel,
               sizeof(kMaxUnsentInKernel));
}

std::string HttpWire::PeerAddress() const {
  ErrorCode error;
  const auto endpoint = socket_.remote_endpoint(error);
  if (error) return "unknown";
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", host, endpoint.port())
                                    : fmt::format("{}:{}", host, endpoint.port());
}

void HttpWire::WaitForGreeting(WaitHandler step) {
  socket_.async_wait(wants_write_ ? Socket::wait_write : Socket::wait_read,
                     [this, step = std::move(step)](const ErrorCode& error) mutable {
                       turns_->Add([step = std::move(step), error]() mutable { step(error); });
                     });
}

Greeting HttpWire::Greet() {
  if (!has_greeted_) {
    char first = 0;
    const ssize_t got = ::recv(socket_.native_handle(), &first, 1, MSG_PEEK);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Greeting::kGoesOn;
    has_greeted_ = true;
    const bool is_word = (first >= 'A' && first <= 'Z') || (first >= 'a' && first <= 'z');
    if (got == 1 && is_word) {
      tls_.reset();
      return Greeting::kIsPlain;
    }
    if (got != 1 || first != kHandshakeRecord) {
      failure_ = "its first byte is none of TLS";
      tls_.reset();
      return Greeting::kFailed;
    }
  }
  const TlsIo outcome = tls_->Handshake();
  wants_write_ = outcome == TlsIo::kWantsWrite;
  if (outcome == TlsIo::kDone) return Greeting::kDone;
  if (outcome != TlsIo::kFailed) return Greeting::kGoesOn;
  failure_ = tls_->failure();
  tls_.reset();
  return Greeting::kFailed;
}

size_t HttpWire::Read(std::span<char> out, ErrorCode* error) {
  *error = ErrorCode();
  if (tls_ == nullptr) return socket_.read_some(asio::buffer(out.data(), out.size()), *error);
  size_t num_read = 0;
  switch (tls_->Read(out.data(), out.size(), &num_read)) {
    case TlsIo::kDone:
      return num_read;
    case TlsIo::kEnd:
      *error = asio::error::eof;
      return 0;
    case TlsIo::kWantsRead:
    case TlsIo::kWantsWrite:  // an answer to a change of keys; the next write sends it
      *error = asio::error::would_block;
      return 0;
    case TlsIo::kFailed:
      break;
  }
  *error = asio::error::connection_reset;
  return 0;
}

bool HttpWire::HasUnread() const {
  ErrorCode ignored;
  return socket_.available(ignored) > 0 || (tls_ != nullptr && tls_->has_unread());
}

void HttpWire::WriteTls(std::span<const asio::const_buffer> buffers, WriteHandler handler) {
  if (!socket_.is_open()) return handler(asio::error::operation_aborted, 0);
  // Short pieces share a record: each costs its receiver 22 bytes and a decryption.
  std::array<char, TlsSocket::kRecordBytes> record;
  const size_t size = asio::buffer_copy(asio::buffer(record), buffers);
  size_t num_written = 0;
  const TlsIo outcome = tls_->Write({record.data(), size}, &num_written);
  if (outcome == TlsIo::kWantsWrite) {
    socket_.async_wait(Socket::wait_write, [this, buffers, handler = std::move(handler)](
                                               const ErrorCode& error) mutable {
      if (error) return handler(error, 0);
      WriteTls(buffers, std::move(handler));
    });
    return;
  }
  const ErrorCode error =
      outcome == TlsIo::kDone ? ErrorCode() : ErrorCode(asio::error::connection_reset);
  // Not from here: the handler writes the next record, and so on to the end of a long answer.
  asio::post(socket_.get_executor(), [handler = std::move(handler), error, num_written]() mutable {
    handler(error, num_written);
  });
}

size_t HttpWire::WritePlain(std::span<const asio::const_buffer> buffers) {
  ErrorCode ignored;
  return tls_ == nullptr ? socket_.write_some(buffers, ignored) : 0;
}

void HttpWire::WriteNow(std::string_view bytes) {
  ErrorCode ignored;
  size_t num_written = 0;
  if (tls_ != nullptr) {
    tls_->Write(bytes, &num_written);
  } else {
    socket_.write_some(asio::buffer(bytes), ignored);
  }
}

void HttpWire::EndWriting() {
  if (tls_ != nullptr) tls_->SendEnd();
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
}

void HttpWire::Close() {
  ErrorCode ignored;
  socket_.close(ignored);
}

}  // namespace baton::http
