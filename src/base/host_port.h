// An address as people write it. Pure; any thread.
#ifndef BATON_BASE_HOST_PORT_H_
#define BATON_BASE_HOST_PORT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton {

// A host, a name or a number without the brackets of IPv6, and a TCP port.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};

// "127.0.0.1:8080", "node-3:0", "[::1]:80": a host of printed ASCII without spaces and without
// / \ ? # @ and commas, a colon, and a decimal port from 0 to 65535. InvalidArgument for anything
// else, with the text; an IPv6 host needs its brackets.
StatusOr<HostPort> ParseHostPort(std::string_view text);

// The host as it stands before a port: with brackets when it is an IPv6 address without them.
std::string BracketedHost(std::string_view host);

}  // namespace baton

#endif  // BATON_BASE_HOST_PORT_H_
