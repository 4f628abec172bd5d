#include "src/http/site_rules.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"

#include "src/base/ascii_text.h"

namespace baton::http {
namespace {

constexpr HttpRefusal kForeignHost = {
    403,
    "The Host field names none of this server's own names, which are localhost, 127.0.0.0/8 and "
    "[::1] while it listens on a loopback address. If this is a proxy that passes its own name on, "
    "start the server with --allowed-hosts NAME.",
    "host_not_allowed"};
constexpr HttpRefusal kForeignOrigin = {
    403,
    "The request comes from a web page of another origin than this server's (its Origin and Host "
    "fields differ). To allow that page, start the server with --cors-origins "
    "SCHEME://HOST[:PORT].",
    "origin_not_allowed"};

// Fields that a page may send even if its preflight does not name them.
constexpr std::string_view kAllowedFields =
    "Authorization, Content-Type, Accept, X-Api-Key, X-Request-Id, Idempotency-Key, Last-Event-ID, "
    "X-Baton-Resumable, traceparent";
constexpr std::string_view kAllowedMethods = "GET, HEAD, POST, OPTIONS";
constexpr std::string_view kExposedFields =
    "X-Request-Id, request-id, Retry-After, X-Baton-Ignored-Fields, X-Baton-Warnings, "
    "X-Baton-Stream, Allow, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    "x-ratelimit-reset-tokens";
// Seconds that a browser may remember a preflight: an origin that is no longer allowed is refused
// by the request itself.
constexpr std::string_view kPreflightMaxAge = "600";
constexpr int kMaxAskedFields = 64;    // of one preflight; clients of OpenAI's send some ten
constexpr size_t kMaxNameBytes = 253;  // of a host (RFC 1035)

// A field name (RFC 9110 section 5.1).
bool IsToken(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return absl::ascii_isalnum(c) || kMarks.find(c) != std::string_view::npos;
  });
}

// Letters, digits and the marks of names: browser extensions and service names have underscores.
bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes &&
         std::all_of(text.begin(), text.end(), IsNameByte);
}

// An IPv6 address in its shortest form; nothing when it is none.
std::optional<std::string> ShortestIpv6(std::string_view text) {
  in6_addr address{};
  if (::inet_pton(AF_INET6, std::string(text).c_str(), &address) != 1) return std::nullopt;
  char shortest[INET6_ADDRSTRLEN];
  ::inet_ntop(AF_INET6, &address, shortest, sizeof(shortest));
  return std::string(shortest);
}

std::optional<uint16_t> DefaultPort(std::string_view scheme) {
  if (scheme == "http") return 80;
  if (scheme == "https") return 443;
  return std::nullopt;
}

// Takes the first element off a list with commas, which is not empty.
std::string_view NextElement(std::string_view* list) {
  const size_t comma = std::min(list->find(','), list->size());
  const std::string_view element = TrimBlanks(list->substr(0, comma));
  list->remove_prefix(std::min(comma + 1, list->size()));
  return element;
}

// The elements of a flag's list with commas. InvalidArgument about the first that is no `wanted`.
template <typename T>
StatusOr<std::vector<T>> ParseList(std::string_view list, std::string_view flag,
                                   std::string_view wanted) {
  std::vector<T> all;
  while (!list.empty()) {
    const std::string_view element = NextElement(&list);
    std::optional<T> one = T::Parse(element);
    if (!one) return InvalidArgument("{}: '{}' is not {}", flag, element, wanted);
    all.push_back(*std::move(one));
  }
  return all;
}

// The host that an operator allowed. A client leaves the default port of its scheme out, and a
// proxy may have ended TLS: a Host without a port may mean 80 or 443.
bool IsAllowedHost(const SiteHost& allowed, const SiteHost& host) {
  if (allowed.name != host.name) return false;
  if (!allowed.port || allowed.port == host.port) return true;
  return !host.port && (allowed.port == 80 || allowed.port == 443);
}

// A host that the server answers to while it listens on a loopback address.
bool IsOwnHost(const SiteRules& rules, const SiteRequest& request, const SiteHost& host) {
  if (host.IsLoopback()) return true;
  const std::optional<SiteHost> bound = SiteHost::Parse(request.own_host);
  if (bound && bound->name == host.name) return true;
  return std::any_of(rules.hosts.begin(), rules.hosts.end(),
                     [&](const SiteHost& allowed) { return IsAllowedHost(allowed, host); });
}

// The names that the request gives its server; nothing: one of them is no host.
std::optional<std::vector<SiteHost>> HostsOf(const SiteRequest& request) {
  std::vector<std::string_view> texts = request.headers->FindAll("Host");
  // The authority is what counts (RFC 9112, 3.2.2): last.
  if (!request.authority.empty()) texts.push_back(request.authority);
  std::vector<SiteHost> hosts;
  for (const std::string_view text : texts) {
    std::optional<SiteHost> host = SiteHost::Parse(text);
    if (!host) return std::nullopt;
    hosts.push_back(*std::move(host));
  }
  return hosts;
}

// The names of a preflight's fields after those that are always allowed. The work is linear in the
// lists, and ends at kMaxAskedFields names.
std::string AskedFields(const HttpHeaders& headers) {
  std::string fields(kAllowedFields);
  std::unordered_set<std::string> known;
  for (std::string_view list = kAllowedFields; !list.empty();) {
    known.insert(LowerCase(NextElement(&list)));
  }
  int num_asked = 0;
  for (std::string_view list : headers.FindAll("Access-Control-Request-Headers")) {
    while (!list.empty() && num_asked < kMaxAskedFields) {
      const std::string_view name = NextElement(&list);
      if (!IsToken(name) || !known.insert(LowerCase(name)).second) continue;
      fields.append(", ").append(name);
      ++num_asked;
    }
  }
  return fields;
}

bool IsPreflight(const SiteRequest& request) {
  return request.method == "OPTIONS" && request.headers->Count("Access-Control-Request-Method") > 0;
}

void AddCorsFields(const SiteRequest& request, std::string_view origin, SiteVerdict& verdict) {
  verdict.fields.Add("Access-Control-Allow-Origin", origin);
  verdict.is_preflight = IsPreflight(request);
  if (!verdict.is_preflight) {
    verdict.fields.Add("Access-Control-Expose-Headers", kExposedFields);
    return;
  }
  verdict.fields.Add("Access-Control-Allow-Methods", kAllowedMethods);
  verdict.fields.Add("Access-Control-Allow-Headers", AskedFields(*request.headers));
  verdict.fields.Add("Access-Control-Max-Age", kPreflightMaxAge);
  // A public page that asks a server of its user's own network (Private Network Access).
  const auto local = request.headers->Find("Access-Control-Request-Private-Network");
  if (local && *local == "true") verdict.fields.Add("Access-Control-Allow-Private-Network", "true");
}

}  // namespace

std::optional<SiteHost> SiteHost::Parse(std::string_view text) {
  SiteHost host;
  std::string_view name = text;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    name = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    name = text.substr(0, text.find(':'));
    port = text.substr(name.size());
  }
  if (!port.empty()) {
    uint16_t number = 0;
    const char* const end = port.data() + port.size();
    const auto [next, error] = std::from_chars(port.data() + 1, end, number);
    const bool is_bare = port == ":";  // as if there were none (RFC 3986, 3.2.3)
    if (port.front() != ':' || (!is_bare && (error != std::errc() || next != end))) {
      return std::nullopt;
    }
    if (!is_bare) host.port = number;
  }
  if (name.find(':') != std::string_view::npos) {
    const std::optional<std::string> address = ShortestIpv6(name);
    if (!address) return std::nullopt;
    host.name = *address;
    return host;
  }
  if (text.starts_with('[')) return std::nullopt;
  if (name.size() > 1 && name.ends_with('.')) name.remove_suffix(1);
  if (!IsName(name)) return std::nullopt;
  host.name = LowerCase(name);
  return host;
}

bool SiteHost::IsLoopback() const {
  if (name == "localhost" || name == "::1") return true;
  constexpr std::string_view kMapped = "::ffff:";
  const std::string ipv4 = name.starts_with(kMapped) ? name.substr(kMapped.size()) : name;
  in_addr address{};
  return ::inet_pton(AF_INET, ipv4.c_str(), &address) == 1 &&
         (ntohl(address.s_addr) >> 24) == IN_LOOPBACKNET;
}

std::optional<SiteOrigin> SiteOrigin::Parse(std::string_view text) {
  const size_t mark = text.find("://");
  if (mark == std::string_view::npos || mark == 0) return std::nullopt;
  const std::string_view scheme = text.substr(0, mark);
  const bool is_scheme = std::all_of(scheme.begin(), scheme.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.';
  });
  std::optional<SiteHost> host = SiteHost::Parse(text.substr(mark + 3));
  if (!is_scheme || !host) return std::nullopt;
  SiteOrigin origin{LowerCase(scheme), *std::move(host)};
  if (origin.host.port == DefaultPort(origin.scheme)) origin.host.port.reset();
  return origin;
}

bool SiteOrigin::IsOf(const SiteHost& own) const {
  if (host.name != own.name) return false;
  const std::optional<uint16_t> default_port = DefaultPort(scheme);
  const std::optional<uint16_t> port = host.port ? host.port : default_port;
  return port == (own.port ? own.port : default_port);
}

StatusOr<std::vector<SiteHost>> ParseAllowedHosts(std::string_view list) {
  return ParseList<SiteHost>(list, "--allowed-hosts",
                             "HOST or HOST:PORT, as in chat.example,10.0.0.7:8080 (there are no "
                             "wildcards: name each host)");
}

StatusOr<std::vector<SiteOrigin>> ParseCorsOrigins(std::string_view list) {
  return ParseList<SiteOrigin>(list, "--cors-origins",
                               "SCHEME://HOST or SCHEME://HOST:PORT, as in "
                               "https://chat.example,http://127.0.0.1:3000 (no path, no wildcard: "
                               "name each origin)");
}

SiteVerdict JudgeSite(const SiteRules& rules, const SiteRequest& request) {
  SiteVerdict verdict;
  if (rules.check == SiteCheck::kOff) return verdict;
  const std::optional<std::vector<SiteHost>> hosts = HostsOf(request);
  const bool is_own = hosts && std::all_of(hosts->begin(), hosts->end(), [&](const SiteHost& host) {
                        return IsOwnHost(rules, request, host);
                      });
  if (request.on_loopback && !is_own) {
    verdict.refusal = kForeignHost;
    return verdict;
  }
  // A cache must not give one origin's answer to another.
  if (!rules.origins.empty()) verdict.fields.Add("Vary", "Origin");
  const std::vector<std::string_view> origins = request.headers->FindAll("Origin");
  if (origins.empty()) return verdict;
  const std::optional<SiteOrigin> origin =
      origins.size() == 1 ? SiteOrigin::Parse(origins.front()) : std::nullopt;
  const bool is_allowed = origin && std::find(rules.origins.begin(), rules.origins.end(),
                                              *origin) != rules.origins.end();
  if (is_allowed) {
    AddCorsFields(request, origins.front(), verdict);
    return verdict;
  }
  const bool is_of_host = origin && hosts && !hosts->empty() && origin->IsOf(hosts->back());
  // A preflight asks whether a page may send more than it could by itself, and carries no key.
  const bool is_checked =
      rules.check == SiteCheck::kAllMethods || request.method == "POST" || IsPreflight(request);
  if (is_checked && !is_of_host) verdict.refusal = kForeignOrigin;
  return verdict;
}

}  // namespace baton::http
