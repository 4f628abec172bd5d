// HttpConnection: one accepted socket, from its first byte to its close. Everything here runs on
// the thread of its event loop.
//
//   kHandshake (with TLS alone) --done--> kHeader; --plain HTTP--> kHandling; --failed--> kLinger
//   kHeader --complete--> kBody --complete--> kHandling --answered--> kHeader ...
//      |  refusal             |                    |  Connection: close
//      +----------------------+--> kHandling       +--> kLinger --> kClosed
//
// While a request is handled the socket is still read, so that a client's departure is seen at
// once; early bytes of the next request wait in `buffer_` up to a limit, beyond which reading
// pauses.
//
// Internal to src/http.
#ifndef BATON_HTTP_HTTP_CONNECTION_H_
#define BATON_HTTP_HTTP_CONNECTION_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "src/http/body_budget.h"
#include "src/http/header_check.h"
#include "src/http/http_exchange.h"
#include "src/http/http_server.h"
#include "src/http/http_wire.h"
#include "src/http/stream_sweep.h"

namespace baton::http {

// State that all connections of a server share; outlives them.
struct HttpServerShared {
  HttpServerOptions options;           // constant
  HttpHandler handler;                 // constant
  std::shared_ptr<BodyBudget> bodies;  // constant; requests may outlive the server
  bool on_loopback = false;            // constant once it listens: the bound address is one
  std::atomic<bool> draining{false};
  std::atomic<size_t> num_connections{0};
  std::atomic<size_t> num_active_requests{0};
};

// See the file comment.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // On the thread that runs `io`, which is the wire's and that of `sweep`. `on_closed` is called
  // once, as the last thing.
  HttpConnection(const std::shared_ptr<boost::asio::io_context>& io, HttpWire wire,
                 StreamSweep* sweep, HttpServerShared* shared,
                 std::function<void(HttpConnection*)> on_closed);

  // Begins the handshake, if there is one, and then reading requests. `is_refused`: answers 503
  // without reading any, because the connection is one too many.
  void Start(bool is_refused);
  using TimePoint = std::chrono::steady_clock::time_point;
  // When the server's patience with it ends: the far future while it waits for nothing.
  TimePoint patience_ends() const { return patience_ends_; }
  // A byte has come that was not read yet. A system call.
  bool HasUnread() const { return wire_.HasUnread(); }
  // Closes it now.
  void Close(HttpClientGone how = HttpClientGone::kLeft);

 private:
  enum class State : uint8_t { kHandshake, kHeader, kBody, kHandling, kLinger, kClosed };
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // With TLS, before the first request.
  void AwaitGreeting();
  void OnGreeting();
  void BeginFirst();

  // Reading.
  void BeginRequest();
  void ContinueHeader();
  void ParseHeader(size_t header_bytes);
  std::optional<HttpRefusal> CheckHead(int minor_version);
  void BeginBody();
  void ContinueBody();
  bool LeaseBody();
  void Dispatch();
  void Refuse(HttpRefusal refusal);
  void Read();
  void OnReadable(ErrorCode error);
  void OnRead(const ErrorCode& error, size_t size);
  void OnPeerClosed(const ErrorCode& error);

  // Writing.
  std::shared_ptr<HttpExchange> MakeExchange(ExchangeTraits traits);
  void Flush();
  bool TellSent(size_t size);
  std::span<const boost::asio::const_buffer> Unsent();
  void WriteSome();
  void OnWritten(const ErrorCode& error, size_t size);
  void EndOutput();
  void StopSweep();
  void EndExchange(bool close);
  void Linger();

  void ArmReadTimer(int64_t timeout_ms);
  void SetPatience(int64_t patience_ms);
  void OnReadTimeout();

  // Weak: a pending operation of the loop holds the connection.
  const std::weak_ptr<boost::asio::io_context> io_;
  HttpWire wire_;
  boost::asio::steady_timer read_timer_;
  boost::asio::steady_timer write_timer_;
  StreamSweep* const sweep_;
  HttpServerShared* const shared_;
  std::function<void(HttpConnection*)> on_closed_;
  std::string peer_address_;

  State state_ = State::kHeader;
  bool is_refused_ = false;
  TimePoint patience_ends_ = TimePoint::max();
  bool reading_ = false;      // a read is outstanding
  bool peer_closed_ = false;  // no more bytes will come
  bool counts_as_active_ = false;
  uint64_t read_timer_serial_ = 0;  // a timeout with an older serial is stale
  std::array<char, size_t{16} * 1024> incoming_;
  std::string buffer_;                     // received, not yet parsed
  size_t scanned_ = 0;                     // of buffer_, by ScanHeader
  std::optional<Parser> parser_;           // has the body while it arrives
  std::shared_ptr<BodyLease> body_lease_;  // for parser_'s body; null while that is small
  HttpRequest request_;
  std::string request_id_;  // what the client sent as X-Request-Id, also where the header is broken
  RequestFraming framing_;
  ExchangeTraits traits_;
  SiteVerdict site_;

  std::shared_ptr<HttpExchange> exchange_;  // of the request being handled
  bool writing_ = false;
  bool is_swept_ = false;        // sweep_ has exchange_
  HttpExchange::Output output_;  // being sent
  size_t num_sent_ = 0;          // bytes of output_
  // The gathering write in progress refers to this array.
  std::array<boost::asio::const_buffer, 2> write_buffers_;
};

}  // namespace baton::http

#endif  // BATON_HTTP_HTTP_CONNECTION_H_
