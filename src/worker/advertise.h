// A worker's word about itself to others: its name, and the addresses that it has bound, under the
// host that they reach it by (--advertise). Pure; any thread.
#ifndef BATON_WORKER_ADVERTISE_H_
#define BATON_WORKER_ADVERTISE_H_

#include <string>

#include "src/base/status.h"

namespace baton::worker {

// "" is no address: a listener that there is not stays "" in both.
std::string HostOf(const std::string& address);

// InvalidArgument unless `id` is 1 to 64 of [a-z0-9-].
Status CheckWorkerId(const std::string& id);
// InvalidArgument unless `advertise` is "", a host, or host:port; an IPv6 address needs brackets.
Status CheckAdvertise(const std::string& advertise);
// True for 0.0.0.0 and [::], with a port: each host reaches only itself by them.
bool IsEverywhere(const std::string& address);
// The address of the listener that `advertise` names: its port counts when it has one.
std::string AdvertisedAddress(const std::string& advertise, const std::string& bound);
// The address of another listener of the same host: only the host counts. Without `advertise` one
// that listens everywhere is reached at the host of `listen`, the worker's own address.
std::string AdvertisedOnHost(const std::string& advertise, const std::string& listen,
                             const std::string& bound);

}  // namespace baton::worker

#endif  // BATON_WORKER_ADVERTISE_H_
