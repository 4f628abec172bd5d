#include "src/cli/web_client.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"

#include "src/base/version.h"
#include "src/cli/http_client.h"
#include "src/cli/hub/baton_hub.h"

namespace baton::cli {
namespace {

constexpr uint64_t kConnectTimeoutS = 10;
constexpr uint64_t kSilenceTimeoutS = 60;
constexpr size_t kMaxTokenBytes = 4096;

// The variable's value; nothing when it is not set.
std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string Stripped(const std::string& text) {
  return std::string(absl::StripAsciiWhitespace(text));
}

// The URL as a message has it: what is signed or secret in it is left out.
std::string Shown(const std::string& url) {
  const std::string plain = url.substr(0, url.find_first_of("?#"));
  const size_t scheme_end = plain.find("://");
  const size_t host = scheme_end == std::string::npos ? 0 : scheme_end + 3;
  const size_t slash = std::min(plain.find('/', host), plain.size());
  const size_t at = plain.rfind('@', slash);
  if (at == std::string::npos || at < host) return plain;
  return plain.substr(0, host) + plain.substr(at + 1);
}

// One call's callbacks, and the error that one of them ended it with.
struct Running {
  const WebHeadCallback* on_head = nullptr;
  const WebBodyCallback* on_body = nullptr;
  bool follows = false;
  WebHead head;
  Status failure = OkStatus();
};

std::map<std::string, std::string> HeadersOf(std::string_view lines) {
  std::map<std::string, std::string> headers;
  const std::vector<std::string> split = absl::StrSplit(std::string(lines), '\n');
  for (const std::string& line : split) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    headers[absl::AsciiStrToLower(line.substr(0, colon))] = Stripped(line.substr(colon + 1));
  }
  return headers;
}

int OnHead(void* state, uint32_t status, const char* lines, size_t size, const char* redirect) {
  auto& running = *static_cast<Running*>(state);
  running.head.status = static_cast<int>(status);
  running.head.headers = HeadersOf(std::string_view(lines, size));
  running.head.redirect = redirect == nullptr ? "" : redirect;
  if (running.follows && redirect != nullptr) return 1;
  if (*running.on_head) running.failure = (*running.on_head)(running.head);
  return running.failure.ok() ? 1 : 0;
}

int OnBody(void* state, const uint8_t* data, size_t size) {
  auto& running = *static_cast<Running*>(state);
  if (*running.on_body) {
    running.failure =
        (*running.on_body)(std::string_view(reinterpret_cast<const char*>(data), size));
  }
  return running.failure.ok() ? 1 : 0;
}

Status StatusOf(int32_t code, const std::string& url, std::string_view reason) {
  const std::string text = fmt::format("{}: {}", Shown(url), reason);
  switch (code) {
    case BATON_HUB_NO_HOST:
      return NotFound("{}", text);
    case BATON_HUB_REFUSED:
      return Unavailable("{}", text);
    case BATON_HUB_LATE:
      return DeadlineExceeded("{}", text);
    case BATON_HUB_TLS:
      return PermissionDenied("{}", text);
    case BATON_HUB_BAD_REQUEST:
      return InvalidArgument("{}", text);
    case BATON_HUB_INTERNAL:
      return Internal("{}", text);
    default:
      return DataLoss("{}", text);
  }
}

// libcurl passes over a file of certificates that is not there; who named one wants it.
Status CheckCertificates(const std::optional<std::string>& file,
                         const std::optional<std::string>& dirs) {
  if (file && ::access(file->c_str(), R_OK) != 0) {
    return InvalidArgument("SSL_CERT_FILE names {}, which cannot be read", *file);
  }
  const std::vector<std::string> split = absl::StrSplit(dirs.value_or(""), ':', absl::SkipEmpty());
  for (const std::string& dir : split) {
    std::error_code error;
    if (!std::filesystem::is_directory(dir, error)) {
      return InvalidArgument("SSL_CERT_DIR names {}, which is no folder", dir);
    }
  }
  return OkStatus();
}

std::optional<std::string> NonEmpty(std::optional<std::string> text) {
  return text && text->empty() ? std::nullopt : std::move(text);
}

Status CallOnce(const WebRequest& request, Running& running) {
  const std::optional<std::string> ca_file = NonEmpty(Variable("SSL_CERT_FILE"));
  const std::optional<std::string> ca_dirs = NonEmpty(Variable("SSL_CERT_DIR"));
  BATON_RETURN_IF_ERROR(CheckCertificates(ca_file, ca_dirs));
  const std::string user_agent = fmt::format("baton/{}", kVersion);
  baton_hub_request call{};
  call.url = request.url.c_str();
  call.is_head = request.is_head ? 1 : 0;
  call.authorization = request.authorization.empty() ? nullptr : request.authorization.c_str();
  call.user_agent = user_agent.c_str();
  call.begin = request.begin;
  call.if_range = request.if_range.empty() ? nullptr : request.if_range.c_str();
  call.connect_timeout_s = kConnectTimeoutS;
  call.silence_timeout_s = kSilenceTimeoutS;
  call.ca_file = ca_file ? ca_file->c_str() : nullptr;
  call.ca_dirs = ca_dirs ? ca_dirs->c_str() : nullptr;
  std::optional<std::string> no_proxy = NonEmpty(Variable("no_proxy"));  // libcurl's order
  if (!no_proxy) no_proxy = NonEmpty(Variable("NO_PROXY"));
  if (no_proxy) no_proxy = NoProxyFor(*no_proxy, request.url);
  call.no_proxy = no_proxy ? no_proxy->c_str() : nullptr;
  call.state = &running;
  call.on_head = &OnHead;
  call.on_body = &OnBody;
  std::array<char, 512> reason{};
  const int32_t code = baton_hub_call(&call, reason.data(), reason.size());
  BATON_RETURN_IF_ERROR(running.failure);
  return code == BATON_HUB_OK ? OkStatus() : StatusOf(code, request.url, reason.data());
}

bool IsHttps(const std::string& url) { return absl::StartsWithIgnoreCase(url, "https://"); }

// Scheme in lower case, host and port of the URL, as it has them.
std::string OriginOf(const std::string& url) {
  const size_t scheme = std::min(url.find("://"), url.size());
  const size_t end = std::min(url.find_first_of("/?#", scheme + 3), url.size());
  return absl::AsciiStrToLower(url.substr(0, scheme)) + url.substr(scheme, end - scheme);
}

// The token as it may stand in a header. `origin` is what it was read from.
StatusOr<std::string> CheckedToken(const std::string& text, std::string_view origin) {
  const std::string token = Stripped(text);
  if (token.size() > kMaxTokenBytes) {
    return InvalidArgument("{} holds {} bytes; a token has at most {}", origin, token.size(),
                           kMaxTokenBytes);
  }
  for (size_t i = 0; i < token.size(); ++i) {
    const auto byte = static_cast<unsigned char>(token[i]);
    if (byte <= 0x20 || byte >= 0x7F) {
      return InvalidArgument(
          "{} holds byte {:#04x} at place {} of the token; a token has printable ASCII characters "
          "without blanks",
          origin, byte, i);
    }
  }
  return token;
}

}  // namespace

std::string WebHead::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

StatusOr<WebHead> WebCall(const WebRequest& request, const WebHeadCallback& on_head,
                          const WebBodyCallback& on_body) {
  WebRequest current = request;
  std::vector<std::string> urls;
  for (;; --current.max_redirects) {
    urls.push_back(current.url);
    Running running;
    running.on_head = &on_head;
    running.on_body = &on_body;
    running.follows = request.max_redirects > 0;
    running.head.url = current.url;
    BATON_RETURN_IF_ERROR(CallOnce(current, running));
    const std::string next = running.head.redirect;
    if (next.empty() || !running.follows) return running.head;
    if (current.max_redirects <= 0) return TooManyRedirects(urls, next);
    const bool is_plain_http = absl::StartsWithIgnoreCase(next, "http://");
    if (!IsHttps(next) && !is_plain_http) {
      return InvalidArgument("{} redirects to {}, which is no http or https URL",
                             Shown(current.url), Shown(next));
    }
    if (IsHttps(current.url) && is_plain_http) {
      return PermissionDenied("{} redirects to plain http", Shown(current.url));
    }
    if (!IsSameOrigin(current.url, next)) current.authorization.clear();
    current.url = next;
  }
}

Status TooManyRedirects(const std::vector<std::string>& urls, const std::string& next) {
  const bool is_circle = std::find(urls.begin(), urls.end(), next) != urls.end();
  return Unavailable(
      "{}: the hub redirects {}: {} redirects were followed and the next came, to {}; see whether "
      "HF_ENDPOINT or a proxy is wrong",
      Shown(urls.front()), is_circle ? "in a circle" : "too often", urls.size() - 1, Shown(next));
}

bool IsSameOrigin(std::string_view one, std::string_view other) {
  const StatusOr<HttpUrl> a = ParseHttpUrl(OriginOf(std::string(one)));
  const StatusOr<HttpUrl> b = ParseHttpUrl(OriginOf(std::string(other)));
  return a.ok() && b.ok() && a->tls == b->tls && a->port == b->port &&
         absl::EqualsIgnoreCase(a->host, b->host);
}

std::string NoProxyFor(std::string_view list, std::string_view url) {
  const StatusOr<HttpUrl> origin = ParseHttpUrl(OriginOf(std::string(url)));
  const std::vector<std::string> entries =
      absl::StrSplit(std::string(list), absl::ByAnyChar(", \t"), absl::SkipEmpty());
  std::vector<std::string> hosts;
  for (const std::string& entry : entries) {
    const size_t bracket = entry.starts_with('[') ? entry.find(']') : std::string::npos;
    const size_t colon = bracket == std::string::npos ? entry.find(':') : bracket + 1;
    const bool is_bare_ipv6 = bracket == std::string::npos && colon != entry.rfind(':');
    uint32_t port = 0;
    const bool has_port = !is_bare_ipv6 && colon < entry.size() && entry[colon] == ':' &&
                          absl::SimpleAtoi(entry.substr(colon + 1), &port);
    if (has_port && origin.ok() && origin->port != std::to_string(port)) continue;
    std::string host = has_port ? entry.substr(0, colon) : entry;
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    hosts.push_back(std::move(host));
  }
  return absl::StrJoin(hosts, ",");
}

std::string UrlPart(std::string_view path) {
  std::string part;
  for (const char c : path) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    part += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return part;
}

StatusOr<std::string> HubToken() {
  if (const std::optional<std::string> token = Variable("HF_TOKEN")) {
    return CheckedToken(*token, "HF_TOKEN");
  }
  std::optional<std::string> path = NonEmpty(Variable("HF_TOKEN_PATH"));
  if (!path) {
    const std::optional<std::string> home = NonEmpty(Variable("HF_HOME"));
    const std::optional<std::string> user = NonEmpty(Variable("HOME"));
    if (!home && !user) return std::string();
    path = home ? *home + "/token" : *user + "/.cache/huggingface/token";
  }
  std::ifstream file(*path, std::ios::binary);
  if (!file) return std::string();
  std::string text(kMaxTokenBytes + 64, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return CheckedToken(text, *path);
}

StatusOr<std::string> HubEndpoint() {
  std::string base = Stripped(Variable("HF_ENDPOINT").value_or(""));
  if (base.empty()) base = "https://huggingface.co";
  while (base.ends_with('/')) base.pop_back();
  const Status url = ParseHttpUrl(base).status();
  if (!url.ok()) return WithPrefix(url, "HF_ENDPOINT");
  return base;
}

}  // namespace baton::cli
