// SiteRules: which names and which web pages may reach a server. A browser sends what any page asks
// it to, also to addresses that only its own host reaches:
//
//  - A page whose name was bound anew to 127.0.0.1 counts as the server's own to its browser, which
//    then lets it read every answer. Such requests carry the page's name as Host. While a server
//    listens on a loopback address, no name but its own is right.
//  - Any page can send a POST with a plain body. Browsers name the page in Origin, which no script
//    can change. Programs send no Origin.
//
// Pure values; any thread.
#ifndef BATON_HTTP_SITE_RULES_H_
#define BATON_HTTP_SITE_RULES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/http/http_message.h"

namespace baton::http {

// A host as a client names it: in lower case, without a final dot, an IP address in its shortest
// form.
struct SiteHost {
  std::string name;
  std::optional<uint16_t> port;

  // "a.example", "A.example.:8443", "[::1]:80", "::1". Nothing for what is no host.
  static std::optional<SiteHost> Parse(std::string_view text);
  // localhost, 127.0.0.0/8 or ::1.
  bool IsLoopback() const;
  friend bool operator==(const SiteHost&, const SiteHost&) = default;
};

// A page's origin as browsers write it (RFC 6454, 6.1): scheme, host and port. The default port of
// http and https is left out.
struct SiteOrigin {
  std::string scheme;  // lower case
  SiteHost host;

  // "https://a.example:8443". Nothing for "null" and for what is no origin, a path included.
  static std::optional<SiteOrigin> Parse(std::string_view text);
  // A page of `own`, the Host of its request, may have this origin. A proxy may have ended TLS, so
  // the scheme does not count.
  bool IsOf(const SiteHost& own) const;
  friend bool operator==(const SiteOrigin&, const SiteOrigin&) = default;
};

// The requests that must come from a page of the server's own or one that is allowed.
enum class SiteCheck : uint8_t {
  kOff,         // none; nor is Host looked at
  kPosts,       // POST
  kAllMethods,  // whatever names an origin
};

// Hosts and origins that the operator allows beyond the server's own.
struct SiteRules {
  SiteCheck check = SiteCheck::kOff;
  std::vector<SiteHost> hosts;      // without a port: with any; 80 and 443: also without
  std::vector<SiteOrigin> origins;  // may send everything, and read the answers
};

// The values of --allowed-hosts and --cors-origins: elements with commas between them, "" = none.
// InvalidArgument names the element that is none.
StatusOr<std::vector<SiteHost>> ParseAllowedHosts(std::string_view list);
StatusOr<std::vector<SiteOrigin>> ParseCorsOrigins(std::string_view list);

// The verdict of the rules on one request.
struct SiteVerdict {
  std::optional<HttpRefusal> refusal;
  bool is_preflight = false;  // of an allowed origin: answered 204 without a handler
  HttpHeaders fields;         // for whatever answer the request gets
};

// `headers` have passed CheckFraming; `authority` is that of the request target. `own_host` is the
// name that the server was told to listen on.
struct SiteRequest {
  std::string_view method;
  std::string_view authority;
  const HttpHeaders* headers = nullptr;
  bool on_loopback = false;  // the server listens on a loopback address
  std::string_view own_host;
};
SiteVerdict JudgeSite(const SiteRules& rules, const SiteRequest& request);

}  // namespace baton::http

#endif  // BATON_HTTP_SITE_RULES_H_
