#include "src/cli/http_client.h"

#include <chrono>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "boost/asio/connect.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "boost/beast/ssl.hpp"

#include "src/base/host_port.h"

namespace baton::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using ErrorCode = boost::system::error_code;

constexpr size_t kReadBytes = size_t{64} * 1024;
// Answers that are kept in memory (no chunk callback) are JSON of our own API.
constexpr size_t kMaxKeptBodyBytes = size_t{64} * 1024 * 1024;
constexpr int64_t kAdminTimeoutMs = 3000;
constexpr std::chrono::milliseconds kCancelPeriod{50};

// One connection of either kind; every operation runs the io_context until it ends or time is out.
class Connection {
 public:
  Connection(const HttpUrl& url, const std::function<bool()>& is_cancelled)
      : url_(url), is_cancelled_(is_cancelled) {}

  Status Open(int64_t timeout_ms);

  template <class Start>
  ErrorCode Wait(int64_t timeout_ms, Start start) {
    std::optional<ErrorCode> result;
    start([&result](ErrorCode error, auto&&...) { result = error; });
    io_.restart();
    const bool cancelled = RunUntilCancelled(timeout_ms);
    if (result) return *result;
    Close();
    io_.run_for(std::chrono::milliseconds(100));  // lets the cancelled operation report
    return cancelled ? asio::error::operation_aborted : asio::error::timed_out;
  }

  template <class Message>
  ErrorCode Write(Message& message, int64_t timeout_ms) {
    return Wait(timeout_ms, [&](auto done) {
      if (tls_) {
        http::async_write(*tls_, message, done);
      } else {
        http::async_write(socket_, message, done);
      }
    });
  }

  template <class Parser>
  ErrorCode ReadHeader(Parser& parser, int64_t timeout_ms) {
    return Wait(timeout_ms, [&](auto done) {
      if (tls_) {
        http::async_read_header(*tls_, buffer_, parser, done);
      } else {
        http::async_read_header(socket_, buffer_, parser, done);
      }
    });
  }

  template <class Parser>
  ErrorCode ReadSome(Parser& parser, int64_t timeout_ms) {
    return Wait(timeout_ms, [&](auto done) {
      if (tls_) {
        http::async_read_some(*tls_, buffer_, parser, done);
      } else {
        http::async_read_some(socket_, buffer_, parser, done);
      }
    });
  }

  void Close() {
    ErrorCode ignored;
    socket_.close(ignored);
  }

 private:
  Status Handshake(int64_t timeout_ms);
  Status ConnectError(const ErrorCode& error, int64_t timeout_ms) const;

  // Runs what was started until it is done, the time is over or the caller cancels: true.
  bool RunUntilCancelled(int64_t timeout_ms) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    // Asked first: data that always comes within a period must not keep the question away.
    while (is_cancelled_ && std::chrono::steady_clock::now() < end) {
      if (is_cancelled_()) return true;
      io_.run_for(kCancelPeriod);
      if (io_.stopped()) return false;
    }
    if (!is_cancelled_) io_.run_until(end);
    return false;
  }

  HttpUrl url_;
  const std::function<bool()>& is_cancelled_;
  asio::io_context io_;
  asio::ip::tcp::socket socket_{io_};
  // With TLS alone: a context takes 2 ms to make, more than a whole call without it.
  std::optional<asio::ssl::context> tls_context_;
  std::unique_ptr<asio::ssl::stream<asio::ip::tcp::socket&>> tls_;
  beast::flat_buffer buffer_{size_t{1024} * 1024};
};

Status Connection::Open(int64_t timeout_ms) {
  asio::ip::tcp::resolver resolver(io_);
  ErrorCode error;
  const auto endpoints = resolver.resolve(url_.host, url_.port, error);
  if (error) {
    return NotFound("cannot resolve {}: {}", url_.host, error.message());
  }
  error = Wait(timeout_ms, [&](auto done) { asio::async_connect(socket_, endpoints, done); });
  if (error) return ConnectError(error, timeout_ms);
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  return url_.tls ? Handshake(timeout_ms) : OkStatus();
}

Status Connection::ConnectError(const ErrorCode& error, int64_t timeout_ms) const {
  if (error == asio::error::operation_aborted) return Cancelled("stopped by the caller");
  if (error == asio::error::timed_out) {
    return DeadlineExceeded("no connection to {}:{} within {} ms", url_.host, url_.port,
                            timeout_ms);
  }
  const std::string text =
      fmt::format("cannot connect to {}:{}: {}", url_.host, url_.port, error.message());
  if (error == asio::error::connection_refused) return Unavailable("{}", text);
  return NotFound("{}", text);
}

Status Connection::Handshake(int64_t timeout_ms) {
  tls_context_.emplace(asio::ssl::context::tls_client);
  tls_context_->set_default_verify_paths();
  tls_context_->set_verify_mode(asio::ssl::verify_peer);
  tls_ = std::make_unique<asio::ssl::stream<asio::ip::tcp::socket&>>(socket_, *tls_context_);
  SSL_set_tlsext_host_name(tls_->native_handle(), url_.host.c_str());
  tls_->set_verify_callback(asio::ssl::host_name_verification(url_.host));
  const ErrorCode error = Wait(
      timeout_ms, [&](auto done) { tls_->async_handshake(asio::ssl::stream_base::client, done); });
  if (error) {
    const bool is_trust = SSL_get_verify_result(tls_->native_handle()) != X509_V_OK;
    return DataLoss("TLS with {}:{} failed: {}{}", url_.host, url_.port, error.message(),
                    is_trust ? " (SSL_CERT_FILE=FILE in the environment names whom to trust)" : "");
  }
  return OkStatus();
}

Status StreamError(const HttpUrl& url, const ErrorCode& error, int64_t idle_ms) {
  if (error == asio::error::operation_aborted) return Cancelled("stopped by the caller");
  if (error == asio::error::timed_out) {
    return DeadlineExceeded("{} was silent for {} ms", url.ToString(), idle_ms);
  }
  return DataLoss("{} broke off: {}", url.ToString(), error.message());
}

http::request<http::string_body> BuildRequest(const HttpClientRequest& request) {
  http::request<http::string_body> message;
  message.method_string(request.method);
  message.target(request.url.target);
  message.version(11);
  const bool default_port = request.url.port == (request.url.tls ? "443" : "80");
  const std::string host = BracketedHost(request.url.host);
  message.set(http::field::host, default_port ? host : host + ":" + request.url.port);
  message.set(http::field::user_agent, "baton");
  message.set(http::field::connection, "close");
  for (const auto& [name, value] : request.headers) message.set(name, value);
  message.body() = request.body;
  message.prepare_payload();
  return message;
}

using BodyParser = http::response_parser<http::buffer_body>;

// Reads the body to its end, handing each piece to `on_chunk` or keeping it.
Status ReadBody(Connection& connection, BodyParser& parser, const HttpClientRequest& request,
                const HttpChunkCallback& on_chunk, std::string& kept) {
  std::string piece(kReadBytes, '\0');
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    parser.get().body().more = true;
    const ErrorCode error = connection.ReadSome(parser, request.idle_timeout_ms);
    const size_t size = piece.size() - parser.get().body().size;
    const std::string_view chunk(piece.data(), size);
    if (size > 0 && on_chunk && !on_chunk(chunk)) return Cancelled("stopped by the caller");
    if (!on_chunk) kept.append(chunk);
    if (kept.size() > kMaxKeptBodyBytes) {
      return ResourceExhausted("{} sent more than {} bytes", request.url.ToString(),
                               kMaxKeptBodyBytes);
    }
    if (error && error != http::error::need_buffer) {
      return StreamError(request.url, error, request.idle_timeout_ms);
    }
  }
  return OkStatus();
}

}  // namespace

std::string HttpUrl::ToString() const {
  return fmt::format("{}://{}:{}{}", tls ? "https" : "http", BracketedHost(host), port, target);
}

StatusOr<HttpUrl> ParseHttpUrl(std::string_view text) {
  const std::string original(text);
  HttpUrl url;
  if (text.starts_with("https://")) {
    url.tls = true;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  } else {
    return InvalidArgument("'{}' is no URL: it must begin with http:// or https://", original);
  }
  const size_t slash = text.find('/');
  std::string_view authority = text.substr(0, slash);
  url.target = slash == std::string_view::npos ? "/" : std::string(text.substr(slash));
  url.port = url.tls ? "443" : "80";
  const size_t colon = authority.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos;
  if (has_port) {
    url.port = std::string(authority.substr(colon + 1));
    authority = authority.substr(0, colon);
    uint32_t port = 0;
    if (!absl::SimpleAtoi(url.port, &port) || port == 0 || port > 65535) {
      return InvalidArgument("'{}': port {} is outside [1, 65535]", original, url.port);
    }
  }
  if (authority.starts_with("[") && authority.ends_with("]")) {
    authority = authority.substr(1, authority.size() - 2);
  }
  if (authority.empty()) return InvalidArgument("'{}' has no host", original);
  url.host = std::string(authority);
  return url;
}

StatusOr<HttpUrl> ParseServer(std::string_view text) {
  if (text.find("://") != std::string_view::npos) return ParseHttpUrl(text);
  const size_t path = text.find('/');
  const StatusOr<HostPort> address = ParseHostPort(text.substr(0, path));
  if (!address.ok() || address->port == 0) {
    return InvalidArgument(
        "'{}' is no server; write HOST:PORT or a URL, such as 127.0.0.1:8080 or "
        "http://127.0.0.1:8080",
        text);
  }
  return ParseHttpUrl(fmt::format("http://{}", text));
}

std::string BasePathOf(const HttpUrl& url) {
  std::string path = url.target;
  while (path.ends_with('/')) path.pop_back();
  if (path.ends_with("/v1")) path.resize(path.size() - 3);
  return path;
}

StatusOr<HttpClientResponse> HttpCall(const HttpClientRequest& request,
                                      const HttpHeaderCallback& on_header,
                                      const HttpChunkCallback& on_chunk) {
  std::optional<Connection> made;
  try {
    made.emplace(request.url, request.is_cancelled);
  } catch (const std::exception& error) {  // no open file is left, for example
    return ResourceExhausted("no connection to {}:{} can be made: {}", request.url.host,
                             request.url.port, error.what());
  }
  Connection& connection = *made;
  BATON_RETURN_IF_ERROR(connection.Open(request.connect_timeout_ms));
  auto message = BuildRequest(request);
  if (ErrorCode error = connection.Write(message, request.idle_timeout_ms)) {
    return StreamError(request.url, error, request.idle_timeout_ms);
  }
  BodyParser parser;
  parser.body_limit(boost::none);
  if (request.method == "HEAD") parser.skip(true);
  if (ErrorCode error = connection.ReadHeader(parser, request.idle_timeout_ms)) {
    return StreamError(request.url, error, request.idle_timeout_ms);
  }
  HttpClientResponse response;
  response.status = parser.get().result_int();
  for (const auto& field : parser.get()) {
    response.headers[absl::AsciiStrToLower(std::string(field.name_string()))] =
        std::string(field.value());
  }
  if (on_header) BATON_RETURN_IF_ERROR(on_header(response));
  BATON_RETURN_IF_ERROR(ReadBody(connection, parser, request, on_chunk, response.body));
  return response;
}

StatusOr<HttpClientResponse> CallAdmin(const std::string& method, const std::string& address,
                                       const std::string& target) {
  HttpClientRequest request;
  request.method = method;
  BATON_ASSIGN_OR_RETURN(request.url, ParseHttpUrl("http://" + address + target));
  request.connect_timeout_ms = kAdminTimeoutMs;
  request.idle_timeout_ms = kAdminTimeoutMs;
  return HttpCall(request);
}

}  // namespace baton::cli
