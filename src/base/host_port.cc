#include "src/base/host_port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace baton {
namespace {

bool IsBracketed(std::string_view host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']';
}

// True for a printed ASCII character, but not for a space.
bool IsPrinted(unsigned char c) { return c > ' ' && c < 0x7F; }

// No host has these: they are parts of URLs and of lists.
constexpr std::string_view kForbiddenInHost = "/\\?#@,";

bool IsDecimal(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool IsIpv6(std::string_view host) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1;
}

// How to write what `text` was probably meant to be.
std::string RightForm(std::string_view text) {
  const size_t scheme = text.find("://");
  if (scheme != std::string_view::npos) {
    std::string_view rest = text.substr(scheme + 3);
    return fmt::format("write {} without a scheme or path", rest.substr(0, rest.find('/')));
  }
  if (IsDecimal(text)) return fmt::format("the host is missing, as in 127.0.0.1:{}", text);
  const size_t colon = std::min(text.rfind(':'), text.size());
  const std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(std::min(colon + 1, text.size()));
  if (host.empty()) {
    return fmt::format("the host is missing: 127.0.0.1:{0}, or 0.0.0.0:{0} for all addresses",
                       IsDecimal(port) ? port : "PORT");
  }
  if (host == "*" || host == "[*]") {
    return fmt::format("for all addresses write 0.0.0.0:{0}, or [::]:{0}",
                       IsDecimal(port) ? port : "PORT");
  }
  // An address may end like a port: the whole of it is looked at last.
  if (IsDecimal(port) && IsIpv6(host)) {
    return fmt::format("an IPv6 host goes into brackets: [{}]:{}", host, port);
  }
  if (IsIpv6(text)) return fmt::format("an IPv6 host goes into brackets: [{}]:PORT", text);
  if (colon == text.size() || text.ends_with(']')) {
    return fmt::format("the port is missing: {}:PORT", text);
  }
  if (host.find_first_of(kForbiddenInHost) != std::string_view::npos) {
    return fmt::format("the host '{}' has one of {}", host, kForbiddenInHost);
  }
  // One colon: the host may be good, and the port is not.
  if (IsBracketed(host) || host.find(':') == std::string_view::npos) {
    return IsDecimal(port) ? fmt::format("the port {} is too large", port)
                           : fmt::format("'{}' is no port", port);
  }
  return "an IPv6 host goes into brackets, [::1]:0";
}

}  // namespace

StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  HostPort address;
  if (colon != std::string_view::npos && colon > 0) {
    std::string_view host = text.substr(0, colon);
    const bool bracketed = IsBracketed(host);
    if (bracketed) host = host.substr(1, host.size() - 2);
    const bool plain = std::all_of(host.begin(), host.end(), IsPrinted) &&
                       host.find_first_of(bracketed ? "[]" : "[]:") == std::string_view::npos &&
                       host.find_first_of(kForbiddenInHost) == std::string_view::npos;
    const bool is_all = host == "*";  // getaddrinfo would take it for 0.0.0.0
    const char* begin = text.data() + colon + 1;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(begin, end, address.port);
    if (plain && !is_all && begin != end && parsed.ec == std::errc() && parsed.ptr == end) {
      address.host = host;
      return address;
    }
  }
  return InvalidArgument("'{}' is not HOST:PORT with a port from 0 to 65535; {}", text,
                         RightForm(text));
}

std::string BracketedHost(std::string_view host) {
  const bool bare_v6 = host.find(':') != std::string_view::npos && !host.starts_with('[');
  return bare_v6 ? fmt::format("[{}]", host) : std::string(host);
}

}  // namespace baton
