// A small blocking HTTP/1.1 client for the command line: the chat client and the load client talk
// to a router with it. Servers in the world are called by web_client.h. One thread at a time per
// call; nothing is kept between calls.
#ifndef BATON_CLI_HTTP_CLIENT_H_
#define BATON_CLI_HTTP_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::cli {

// The parts of "http(s)://host[:port]/path?query".
struct HttpUrl {
  bool tls = false;
  std::string host;
  std::string port;    // decimal, defaulted by scheme
  std::string target;  // begins with '/'

  std::string ToString() const;
};

// InvalidArgument naming the text when it is no http or https URL.
StatusOr<HttpUrl> ParseHttpUrl(std::string_view text);

// A server as people write it, for every command that talks to one: HOST:PORT or a URL.
StatusOr<HttpUrl> ParseServer(std::string_view text);

// The part of an API's address that stands before "/v1/...": the path of `url` without a closing
// "/". A closing "/v1", which many tools want there, is left out too.
std::string BasePathOf(const HttpUrl& url);

// One request.
struct HttpClientRequest {
  std::string method = "GET";
  HttpUrl url;
  std::map<std::string, std::string> headers;
  std::string body;
  // Longest wait for the connection, and for each piece of the answer.
  int64_t connect_timeout_ms = 2000;
  int64_t idle_timeout_ms = 60000;
  // Asked some 20 times a second while the call waits; true ends it with Cancelled. Absent = never.
  std::function<bool()> is_cancelled;
};

// Status line and headers of an answer; header names in lower case.
struct HttpClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers;
  std::string body;  // filled only when no chunk callback was given
};

// Called with the header once, before the first chunk; a failure status ends the call with it.
using HttpHeaderCallback = std::function<Status(const HttpClientResponse&)>;
// Called with each piece of the body as it arrives; false ends the call with Cancelled.
using HttpChunkCallback = std::function<bool(std::string_view)>;

// Sends the request and reads the whole answer. Any HTTP status is OK here; Unavailable = refused,
// so nobody listens there; NotFound = the host cannot be found or reached; DeadlineExceeded = no
// connection within its timeout, or silence for the idle timeout; DataLoss = the connection broke
// before the end of the body. Messages have host, port and reason. Redirects are answers; they are
// not followed.
StatusOr<HttpClientResponse> HttpCall(const HttpClientRequest& request,
                                      const HttpHeaderCallback& on_header = nullptr,
                                      const HttpChunkCallback& on_chunk = nullptr);

// One call to the admin port at `address` ("host:port") of one of our processes, which answers at
// once or not at all. Errors and statuses as HttpCall's.
StatusOr<HttpClientResponse> CallAdmin(const std::string& method, const std::string& address,
                                       const std::string& target);

}  // namespace baton::cli

#endif  // BATON_CLI_HTTP_CLIENT_H_
