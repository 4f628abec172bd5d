// Why an address cannot be listened on, for libraries that do not say. Any thread; a name is looked
// up, which may take seconds.
#ifndef BATON_BASE_BIND_FAULT_H_
#define BATON_BASE_BIND_FAULT_H_

#include <string>

namespace baton {

// Says in words why `address` (HOST:PORT, as in host_port.h) cannot be listened on: the port is
// in use, this host has no such address, the name cannot be resolved, or what else the system says.
// Tries it, and listens on nothing afterwards; "cannot be bound" when the trial finds no fault.
std::string BindFault(const std::string& address);

}  // namespace baton

#endif  // BATON_BASE_BIND_FAULT_H_
