#include "src/worker/advertise.h"

#include "src/base/host_port.h"
#include "src/base/limits.h"
#include "src/base/worker_id.h"

namespace baton::worker {

using limits::kMaxWorkerIdBytes;

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
  if (IsWorkerId(id)) return OkStatus();
  return InvalidArgument("--worker-id '{}' is not 1 to {} of [a-z0-9-]", id, kMaxWorkerIdBytes);
}

Status CheckAdvertise(const std::string& advertise) {
  if (advertise.empty()) return OkStatus();
  const bool has_port = PortColon(advertise) != std::string::npos;
  const StatusOr<HostPort> address = ParseHostPort(has_port ? advertise : advertise + ":1");
  if (address.ok() && address->port > 0) return OkStatus();
  return InvalidArgument(
      "--advertise '{}' is not HOST or HOST:PORT; an IPv6 address goes into brackets, [::1]",
      advertise);
}

bool IsEverywhere(const std::string& address) {
  const std::string host = HostOf(address);
  return host == "0.0.0.0" || host == "[::]";
}

std::string AdvertisedAddress(const std::string& advertise, const std::string& bound) {
  if (advertise.empty() || bound.empty()) return bound;
  if (PortColon(advertise) != std::string::npos) return advertise;
  return advertise + ":" + PortOf(bound);
}

std::string AdvertisedOnHost(const std::string& advertise, const std::string& listen,
                             const std::string& bound) {
  if (bound.empty()) return bound;
  if (!advertise.empty()) return HostOrAll(advertise) + ":" + PortOf(bound);
  return IsEverywhere(bound) ? HostOf(listen) + ":" + PortOf(bound) : bound;
}

}  // namespace baton::worker
