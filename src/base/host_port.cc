#include "src/base/host_port.h"

#include <algorithm>
#include <charconv>

namespace baton {
namespace {

bool IsBracketed(std::string_view host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']';
}

// True for a printed ASCII character, but not for a space.
bool IsPrinted(unsigned char c) { return c > ' ' && c < 0x7F; }

}  // namespace

StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  HostPort address;
  if (colon != std::string_view::npos && colon > 0) {
    std::string_view host = text.substr(0, colon);
    const bool bracketed = IsBracketed(host);
    if (bracketed) host = host.substr(1, host.size() - 2);
    const bool plain = std::all_of(host.begin(), host.end(), IsPrinted) &&
                       host.find_first_of(bracketed ? "[]" : "[]:") == std::string_view::npos;
    const char* begin = text.data() + colon + 1;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(begin, end, address.port);
    if (plain && begin != end && parsed.ec == std::errc() && parsed.ptr == end) {
      address.host = host;
      return address;
    }
  }
  return InvalidArgument(
      "'{}' is not HOST:PORT with a port from 0 to 65535; an IPv6 host goes into brackets, [::1]:0",
      text);
}

std::string BracketedHost(std::string_view host) {
  const bool bare_v6 = host.find(':') != std::string_view::npos && !host.starts_with('[');
  return bare_v6 ? fmt::format("[{}]", host) : std::string(host);
}

}  // namespace baton
