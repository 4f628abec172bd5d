// HttpWire: the socket of a connection, plain or with TLS. Every call is made on the thread of its
// event loop; handlers keep it alive.
//
// Internal to src/http.
#ifndef BATON_HTTP_HTTP_WIRE_H_
#define BATON_HTTP_HTTP_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/any_invocable.h"
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "src/http/handshake_turns.h"
#include "src/tls/tls_socket.h"

namespace baton::http {

// A greeting is what a client said in its handshake, or instead of one.
enum class Greeting : uint8_t {
  kDone,     // requests follow
  kGoesOn,   // the handler will be called
  kIsPlain,  // it speaks HTTP without TLS, and so does this wire from now on
  kFailed,   // it was told why; what it still sends can be read, undeciphered
};

// See the file comment.
class HttpWire {
 public:
  using ErrorCode = boost::system::error_code;
  using Socket = boost::asio::ip::tcp::socket;
  using WaitHandler = absl::AnyInvocable<void(const ErrorCode&)>;
  using WriteHandler = absl::AnyInvocable<void(const ErrorCode&, size_t)>;

  // `tls` null: plain. `turns` outlives the wire.
  HttpWire(Socket socket, std::unique_ptr<tls::TlsSocket> tls, HandshakeTurns* turns);

  // "host:port" of the client.
  std::string PeerAddress() const;
  bool is_tls() const { return tls_ != nullptr; }
  // The number of the open socket. Without TLS other threads may send to it too.
  int descriptor() { return socket_.native_handle(); }

  // With TLS, before the first Read: waits for the client, then calls `step` in a turn of its own.
  void WaitForGreeting(WaitHandler step);
  // The step. kGoesOn: WaitForGreeting again.
  Greeting Greet();
  // Why a handshake failed.
  const std::string& failure() const { return failure_; }

  // Calls the handler when Read would find something, the end included.
  template <class Handler>
  void WaitReadable(Handler handler) {
    if (tls_ == nullptr || !tls_->has_unread()) {
      return socket_.async_wait(Socket::wait_read, std::move(handler));
    }
    boost::asio::post(socket_.get_executor(),
                      [handler = std::move(handler)]() mutable { handler(ErrorCode()); });
  }
  // would_block: nothing is there; eof: the client sends nothing more.
  size_t Read(std::span<char> out, ErrorCode* error);
  // A byte has come that was not read yet. A system call.
  bool HasUnread() const;

  // Writes some of `buffers`, which stay until the handler is called, once.
  template <class Handler>
  void Write(std::span<const boost::asio::const_buffer> buffers, Handler handler) {
    if (tls_ == nullptr) return socket_.async_write_some(buffers, std::move(handler));
    WriteTls(buffers, std::move(handler));
  }
  // Writes what the socket takes at once. Returns the number of bytes, 0 with TLS. After an error
  // it is 0 too: the next Write tells of it.
  size_t WritePlain(std::span<const boost::asio::const_buffer> buffers);
  // Writes what the socket takes at once, with TLS too.
  void WriteNow(std::string_view bytes);
  // Nothing more will be written.
  void EndWriting();
  void Close();

 private:
  void WriteTls(std::span<const boost::asio::const_buffer> buffers, WriteHandler handler);

  Socket socket_;
  std::unique_ptr<tls::TlsSocket> tls_;
  HandshakeTurns* const turns_;
  bool has_greeted_ = false;  // its first byte was looked at
  bool wants_write_ = false;  // the handshake waits for room
  std::string failure_;
};

}  // namespace baton::http

#endif  // BATON_HTTP_HTTP_WIRE_H_
