// The checks that make a request's framing unambiguous before Beast parses it (RFC 9112). Pure
// functions; any thread. Internal to src/http.
#ifndef BATON_HTTP_HEADER_CHECK_H_
#define BATON_HTTP_HEADER_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/http/http_message.h"

namespace baton::http {

// Where the header of a message ends in the bytes received so far.
struct HeaderScan {
  enum class State : uint8_t { kNeedMore, kComplete, kRefused };
  State state = State::kNeedMore;
  size_t header_bytes = 0;  // with the empty line; kComplete only
  HttpRefusal refusal;      // kRefused only
};

// Looks for the end of the header in `data`, resuming at `*scanned` (0 at first), which is advanced
// so that a header arriving byte by byte costs linear time. Refuses a bare CR or LF, a control
// character, and folding as soon as they are seen; 431 when no end comes within `max_bytes`.
HeaderScan ScanHeader(std::string_view data, size_t max_bytes, size_t* scanned);

// The value of the first complete line `name` of a header that may be broken or cut off; nothing
// when there is none.
std::optional<std::string_view> RawField(std::string_view header, std::string_view name);

// The value of the first complete X-Request-Id line of a header that may be broken or cut off; ""
// when there is none. For the answer to a request that is refused before it is parsed.
std::string_view RawRequestId(std::string_view header);

// The path of the request line of such a header; "" when the line is not complete or not one.
std::string RawPath(std::string_view header);

// True if the request line is three words of which the last is some "HTTP/digit.digit": a request
// in a version we do not speak, as opposed to one that is malformed.
bool NamesHttpVersion(std::string_view header);

inline constexpr HttpRefusal kTwoLengths = {
    400, "Content-Length and Transfer-Encoding exclude each other"};

// How the body of a request is delimited, and what the connection does afterwards.
struct RequestFraming {
  bool chunked = false;
  uint64_t content_length = 0;
  bool keep_alive = true;
  bool expects_continue = false;
};

// Checks the fields of a parsed header that decide its meaning: exactly one Host, Content-Length,
// Transfer-Encoding, Expect, Connection. `minor_version` is 0 or 1 of HTTP/1.x.
std::optional<HttpRefusal> CheckFraming(const HttpHeaders& headers, int minor_version,
                                        RequestFraming* out);

// A request target in its parts.
struct TargetParts {
  std::string path;
  std::string query;
  std::string authority;  // host and perhaps port, of the absolute form alone
};

// Splits a request target: origin form ("/a?b"), absolute form ("http://host/a?b") and "*". Nothing
// when it is none of these.
std::optional<TargetParts> SplitTarget(std::string_view target);

}  // namespace baton::http

#endif  // BATON_HTTP_HEADER_CHECK_H_
