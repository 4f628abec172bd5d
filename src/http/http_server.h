// HttpServer: a small HTTP/1.1 server on its own threads, shared by the public API and the admin
// port. It accepts only what has one meaning (RFC 9112). Anything else is refused and the
// connection closed: obsolete folding, missing or repeated Host, repeated or malformed
// Content-Length, Content-Length together with Transfer-Encoding, any transfer coding but
// `chunked`, bare line feeds and control characters.
//
// Invariants
//  1. Every buffer, count and wait has a limit in HttpServerOptions; reaching one is an HTTP error
//     or a close, never growth.
//  2. Requests of one connection are handled one after the other, in order, however they were
//     pipelined.
//  3. The handler runs on the server's threads; responders may be used from any thread and may
//     outlive the server (they then do nothing).
//
// Threads: num_threads threads named `thread_name`, each with its own event loop; a connection
// stays on one of them. Public calls: any thread, but Stop and the destructor not from a server
// thread.
#ifndef BATON_HTTP_HTTP_SERVER_H_
#define BATON_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/http/http_message.h"
#include "src/http/http_responder.h"
#include "src/http/site_rules.h"
#include "src/tls/tls_files.h"

namespace baton::http {

// How long a connection may keep a full server waiting before a newcomer has its place.
struct HttpPatience {
  // For the first byte of its first request, and for the client's close after its last answer.
  int64_t first_ms = 100;
  int64_t next_ms = 1'000;     // for the first byte of its next request
  int64_t request_ms = 5'000;  // for the next byte of a request
};

// Where to listen and the limits; constant after Start.
struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address or a name; "::" and "0.0.0.0" = all
  uint16_t port = 0;               // 0 = any free port
  int num_threads = 1;
  std::string thread_name = "http";  // listed in src/THREADS.md

  // One more takes the place of the one of its thread's that has kept the server waiting beyond its
  // patience for longest; where there is none it gets 503 and a close. See also
  // MaxConnectionsWithin.
  size_t max_connections = 1024;
  HttpPatience patience;
  size_t max_header_bytes = size_t{16} << 10;     // request line and fields; above: 431
  size_t max_header_fields = 100;                 // above: 431
  size_t max_body_bytes = limits::kMaxBodyBytes;  // above: 413
  // Bytes of all bodies together, each above its first 64 KiB (body_budget.h): 16 of the largest.
  // A request whose body does not fit gets 503.
  size_t max_bodies_bytes = size_t{128} << 20;
  size_t max_buffered_bytes = limits::kMaxUnsentBytes;  // unsent answer bytes of one connection
  int64_t handshake_timeout_ms = 10'000;  // from the connection to the end of its handshake: closed
  int64_t header_timeout_ms = 10'000;     // first byte of a request to the end of its header: 408
  int64_t body_timeout_ms = 60'000;       // end of header to end of body: 408
  // Between requests: closed silently. More than the 60 s of nginx and of cloud balancers, so that
  // they end their idle connections first: a request that meets our end is lost. `Keep-Alive:
  // timeout=` says so. 0 = no limit.
  int64_t idle_timeout_ms = 75'000;
  int64_t write_stall_timeout_ms = 30'000;  // no byte taken by the client: closed

  // With files it speaks TLS 1.2 and 1.3 alone; they may be replaced while it runs (tls_watch.h).
  // Clients need no certificate; one that is shown must be signed by the authority.
  tls::TlsFiles tls;
  SiteRules sites;                     // which names and web pages may reach it
  HttpErrorFormatter error_formatter;  // PlainTextError when empty
};

// Open files that HTTP leaves to the rest of the process: 64 connections of the admin port, 128
// that are being looked at or refused by two servers, 64 for logs and event loops, 256 for gRPC and
// workers. A process that has fewer than twice as many leaves half.
inline constexpr uint64_t kOtherOpenFiles = 512;
// The connections that a server takes of the `wanted` ones in a process that may have so many files
// open: a connection above that would be lost in accept(), and gRPC would stop listening for good.
size_t MaxConnectionsWithin(uint64_t open_files_limit, size_t wanted);

// A running server; see the file comment.
class HttpServer {
 public:
  // Binds, listens and starts the threads. Fails with a message that names the address when it
  // cannot be resolved or is in use (FailedPrecondition), or the files of TLS. Takes fewer
  // connections, and logs that, where the process may not have enough files open
  // (MaxConnectionsWithin).
  static StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                     HttpHandler handler);
  // Stops.
  virtual ~HttpServer() = default;

  // The bound port (the chosen one when 0 was asked for) and "host:port" of it.
  virtual uint16_t port() const = 0;
  virtual std::string address() const = 0;

  // Drain: closes the listening socket and lets every answer that begins from now on carry
  // `Connection: close`. Open connections stay for one more request, which their clients may be
  // sending right now. Idempotent.
  virtual void BeginDrain() = 0;
  // Open connections; 0 after a drain means that every answer has been delivered.
  virtual size_t num_connections() const = 0;
  // Requests that have been handed to the handler and are not answered completely.
  virtual size_t num_active_requests() const = 0;
  // The part of max_bodies_bytes that is taken now.
  virtual size_t num_body_bytes() const = 0;

  // Closes everything (OnClosed fires for unanswered requests) and joins the threads. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace baton::http

#endif  // BATON_HTTP_HTTP_SERVER_H_
