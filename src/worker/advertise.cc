#include "src/worker/advertise.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"

#include "kvcache/transport/transport_types.h"

namespace baton {
namespace {

// Where the port's colon is, npos = there is none. Colons within brackets belong to the host.
size_t PortColon(const std::string& address) {
  const size_t bracket = address.rfind(']');
  return address.find(':', bracket == std::string::npos ? 0 : bracket);
}

std::string HostOrAll(const std::string& address) { return address.substr(0, PortColon(address)); }

std::string PortOf(const std::string& address) { return address.substr(address.rfind(':') + 1); }

}  // namespace

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

Status CheckWorkerId(const std::string& id) {
  const bool valid = !id.empty() && id.size() <= kMaxWorkerIdBytes &&
                     std::all_of(id.begin(), id.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
                     });
  if (!valid) return InvalidArgument("--worker-id '{}' is not 1 to 64 of [a-z0-9-]", id);
  return OkStatus();
}

Status CheckAdvertise(const std::string& advertise) {
  if (advertise.empty()) return OkStatus();
  const std::string host = HostOrAll(advertise);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const auto is_printed = [](unsigned char c) { return c > ' ' && c < 0x7F; };
  bool valid = !host.empty() && std::all_of(host.begin(), host.end(), is_printed) &&
               (bracketed || host.find_first_of("[]") == std::string::npos);
  if (host.size() < advertise.size()) {
    uint32_t port = 0;
    valid = valid && absl::SimpleAtoi(advertise.substr(host.size() + 1), &port) && port > 0 &&
            port <= 65535;
  }
  if (valid) return OkStatus();
  return InvalidArgument(
      "--advertise '{}' is not HOST or HOST:PORT; an IPv6 address goes into brackets, [::1]",
      advertise);
}

std::string AdvertisedAddress(const std::string& advertise, const std::string& bound) {
  if (advertise.empty() || bound.empty()) return bound;
  if (PortColon(advertise) != std::string::npos) return advertise;
  return advertise + ":" + PortOf(bound);
}

std::string AdvertisedOnHost(const std::string& advertise, const std::string& bound) {
  if (advertise.empty() || bound.empty()) return bound;
  return HostOrAll(advertise) + ":" + PortOf(bound);
}

}  // namespace baton
