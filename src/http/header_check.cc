#include "src/http/header_check.h"

#include <algorithm>
#include <charconv>

#include "src/base/trimmed_text.h"

namespace baton::http {
namespace {

constexpr char kTlsHandshakeByte = 0x16;  // the type of a TLS record (RFC 8446, 5.1)
constexpr HttpRefusal kBareLineBreak = {400, "the header has a bare CR or LF"};
constexpr HttpRefusal kControlCharacter = {400, "the header has a control character"};
constexpr HttpRefusal kTlsHandshake = {
    400,
    "this port speaks plain HTTP, and the bytes begin a TLS handshake: its address begins with "
    "http://"};
constexpr HttpRefusal kFolded = {400, "obsolete line folding is not accepted"};
constexpr HttpRefusal kHeaderTooLarge = {431, "the request header is too large"};

HeaderScan Refuse(HttpRefusal refusal) {
  HeaderScan scan;
  scan.state = HeaderScan::State::kRefused;
  scan.refusal = refusal;
  return scan;
}

// Host is `uri-host [":" port]`: letters, digits and the few marks of names and IP literals.
bool ValidHost(std::string_view host) {
  constexpr std::string_view kMarks = "-._~%!$&'()*+,;=:[]";
  return std::all_of(host.begin(), host.end(), [&](char c) {
    const bool alphanumeric =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return alphanumeric || kMarks.find(c) != std::string_view::npos;
  });
}

// True if `token` is an element of the comma-separated field `name`.
bool ListsToken(const HttpHeaders& headers, std::string_view name, std::string_view token) {
  for (const auto& [field, value] : headers.fields()) {
    if (!EqualsIgnoreCase(field, name)) continue;
    for (std::string_view rest = value; !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      if (EqualsIgnoreCase(TrimBlanks(rest.substr(0, comma)), token)) return true;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return false;
}

std::optional<HttpRefusal> CheckHost(const HttpHeaders& headers, int minor_version) {
  const size_t count = headers.Count("Host");
  if (count == 0 && minor_version >= 1) return HttpRefusal{400, "the Host field is missing"};
  if (count > 1) return HttpRefusal{400, "the Host field is repeated"};
  if (count == 1 && !ValidHost(*headers.Find("Host"))) {
    return HttpRefusal{400, "the Host field is not a host"};
  }
  return std::nullopt;
}

std::optional<HttpRefusal> CheckLength(const HttpHeaders& headers, int minor_version,
                                       RequestFraming* out) {
  const size_t num_lengths = headers.Count("Content-Length");
  const size_t num_codings = headers.Count("Transfer-Encoding");
  if (num_lengths > 0 && num_codings > 0) {
    return kTwoLengths;
  }
  if (num_lengths > 1) return HttpRefusal{400, "the Content-Length field is repeated"};
  if (num_lengths == 1) {
    const std::string_view text = *headers.Find("Content-Length");
    const char* end = text.data() + text.size();
    const auto [next, error] = std::from_chars(text.data(), end, out->content_length);
    if (text.empty() || error != std::errc() || next != end) {
      return HttpRefusal{400, "Content-Length is not a number of bytes"};
    }
  }
  if (num_codings == 0) return std::nullopt;
  if (minor_version == 0) return HttpRefusal{400, "HTTP/1.0 has no Transfer-Encoding"};
  if (num_codings > 1 || !EqualsIgnoreCase(*headers.Find("Transfer-Encoding"), "chunked")) {
    return HttpRefusal{501, "the only accepted Transfer-Encoding is chunked"};
  }
  out->chunked = true;
  return std::nullopt;
}

}  // namespace

HeaderScan ScanHeader(std::string_view data, size_t max_bytes, size_t* scanned) {
  // Empty lines before a request line are skipped (RFC 9112 section 2.2); they count as header.
  size_t i = *scanned;
  for (; i < data.size() && i < max_bytes; ++i) {
    const char c = data[i];
    const char before = i > 0 ? data[i - 1] : '\n';
    if ((c == '\n') != (before == '\r')) return Refuse(kBareLineBreak);
    if (c == '\n') {
      // "X CR LF CR LF" ends the header; CR LF before the request line is preceded by a line break
      // or by nothing.
      const bool empty_line = i >= 4 && data[i - 2] == '\n' && data[i - 4] != '\n';
      if (empty_line) {
        HeaderScan scan;
        scan.state = HeaderScan::State::kComplete;
        scan.header_bytes = i + 1;
        return scan;
      }
      continue;
    }
    if ((c == ' ' || c == '\t') && before == '\n') return Refuse(kFolded);
    if (i == 0 && c == kTlsHandshakeByte) return Refuse(kTlsHandshake);
    const bool control = (static_cast<unsigned char>(c) < 0x20 && c != '\r' && c != '\t');
    if (control || c == 0x7f) return Refuse(kControlCharacter);
  }
  *scanned = i;
  if (i >= max_bytes) return Refuse(kHeaderTooLarge);
  return {};
}

std::optional<std::string_view> RawField(std::string_view header, std::string_view name) {
  header.remove_prefix(std::min(header.find_first_not_of("\r\n"), header.size()));
  for (size_t end = header.find('\n'); end != std::string_view::npos; end = header.find('\n')) {
    std::string_view line = header.substr(0, end);
    if (line.empty() || line == "\r") return std::nullopt;  // the next request may follow
    header.remove_prefix(end + 1);
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    if (!EqualsIgnoreCase(line.substr(0, colon), name)) continue;
    return Trimmed(line.substr(colon + 1), " \t\r");
  }
  return std::nullopt;
}

std::string_view RawRequestId(std::string_view header) {
  return RawField(header, kRequestIdField).value_or("");
}

bool NamesHttpVersion(std::string_view header) {
  const std::string_view line = header.substr(0, header.find("\r\n"));
  if (std::count(line.begin(), line.end(), ' ') != 2) return false;
  const std::string_view version = line.substr(line.rfind(' ') + 1);
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return version.size() == 8 && version.starts_with("HTTP/") && digit(version[5]) &&
         version[6] == '.' && digit(version[7]);
}

std::optional<HttpRefusal> CheckFraming(const HttpHeaders& headers, int minor_version,
                                        RequestFraming* out) {
  *out = RequestFraming{};
  if (const auto refusal = CheckHost(headers, minor_version)) return refusal;
  if (const auto refusal = CheckLength(headers, minor_version, out)) return refusal;
  if (const auto expect = headers.Find("Expect")) {
    if (headers.Count("Expect") > 1 || !EqualsIgnoreCase(*expect, "100-continue")) {
      return HttpRefusal{417, "the only accepted Expect is 100-continue"};
    }
    out->expects_continue = minor_version >= 1;
  }
  const bool close = ListsToken(headers, "Connection", "close");
  const bool keep = ListsToken(headers, "Connection", "keep-alive");
  out->keep_alive = !close && (minor_version >= 1 || keep);
  return std::nullopt;
}

std::optional<TargetParts> SplitTarget(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  TargetParts parts;
  if (target.size() > kScheme.size() &&
      EqualsIgnoreCase(target.substr(0, kScheme.size()), kScheme)) {
    target.remove_prefix(kScheme.size());
    const size_t slash = target.find_first_of("/?");
    if (slash == 0) return std::nullopt;
    parts.authority = target.substr(0, slash);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
    if (target.front() == '?') {
      parts.path = "/";
      parts.query = target.substr(1);
      return parts;
    }
  }
  if (target != "*" && !target.starts_with('/')) return std::nullopt;
  const size_t question = target.find('?');
  parts.path = target.substr(0, question);
  parts.query = question == std::string_view::npos ? "" : target.substr(question + 1);
  return parts;
}

std::string RawPath(std::string_view header) {
  header.remove_prefix(std::min(header.find_first_not_of("\r\n"), header.size()));
  const size_t end = header.find_first_of("\r\n");
  if (end == std::string_view::npos) return "";
  const std::string_view line = header.substr(0, end);
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == last) return "";  // fewer than three words
  const auto parts = SplitTarget(line.substr(first + 1, last - first - 1));
  return parts.has_value() ? parts->path : "";
}

}  // namespace baton::http
