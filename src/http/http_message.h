// Plain data of one HTTP/1.1 exchange. Values; any thread.
#ifndef BATON_HTTP_HTTP_MESSAGE_H_
#define BATON_HTTP_HTTP_MESSAGE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::http {

class BodyLease;

// Header fields in order of arrival; names compare without regard to case.
class HttpHeaders {
 public:
  using Field = std::pair<std::string, std::string>;

  HttpHeaders() = default;
  HttpHeaders(std::initializer_list<Field> fields) : fields_(fields) {}

  // Appends a field; an existing one of the same name stays.
  void Add(std::string_view name, std::string_view value);
  // Replaces all fields of this name by one.
  void Set(std::string_view name, std::string_view value);
  // The first value of this name, or nothing.
  std::optional<std::string_view> Find(std::string_view name) const;
  // All values of this name, in order of arrival; valid as long as the fields stay.
  std::vector<std::string_view> FindAll(std::string_view name) const;
  // How often this name occurs.
  size_t Count(std::string_view name) const;
  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

// A complete request that passed the server's checks: sizes are within the limits, framing is
// unambiguous, exactly one valid Host when the version asks for it.
struct HttpRequest {
  std::string method;  // as sent: "GET"
  std::string target;  // as sent: "/v1/models?x=1"
  std::string path;    // target up to '?', without scheme and host; not percent-decoded
  std::string query;   // after '?', without it; not percent-decoded
  HttpHeaders headers;
  std::string body;          // decoded from chunks when it was chunked
  std::string peer_address;  // "192.0.2.1:4711"
  // A large body's part of the server's budget, until the request is dropped; null for others.
  std::shared_ptr<const BodyLease> body_lease;
};

// A whole answer; Content-Length, Date and Connection are the server's to add.
struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string body;
};

// Why the server or a router answers a request itself: bad framing, limits, foreign sites, 404,
// 405.
struct HttpRefusal {
  int status = 400;
  std::string_view message;    // one English sentence without the client's text; static
  std::string_view code = {};  // its name for programs, "" where the status says it; static
  std::string_view path = {};  // that was asked for, "" where it was not read; for one call
};

// The code of the 400 to a request that came without TLS to a port that has it.
inline constexpr std::string_view kTlsOnly = "tls_only";

// Makes the answer to a refused request. `request_id` is what the client sent as X-Request-Id:
// unchecked, "" when there was none or it could not be read. Any thread.
using HttpErrorFormatter =
    std::function<HttpResponse(const HttpRefusal& refusal, std::string_view request_id)>;

// `{status} {reason}: {code}: {message}\n` as text/plain; the formatter when none is given.
HttpResponse PlainTextError(const HttpRefusal& refusal, std::string_view request_id);

// The request header that names a request for logs, and the answer header that repeats it.
inline constexpr std::string_view kRequestIdField = "X-Request-Id";

// The reason phrase of a status code, e.g. "Not Found"; "Unknown" when there is none.
std::string_view HttpReason(int status);

// True when both are equal without regard to ASCII case.
bool EqualsIgnoreCase(std::string_view a, std::string_view b);
// ASCII capitals in lower case; other bytes stay.
std::string LowerCase(std::string_view text);
// Without the spaces and tabs at both ends (OWS of RFC 9110, 5.6.3).
std::string_view TrimBlanks(std::string_view text);

}  // namespace baton::http

#endif  // BATON_HTTP_HTTP_MESSAGE_H_
