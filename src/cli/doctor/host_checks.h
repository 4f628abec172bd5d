// The checks of `baton doctor`: functions from facts to verdicts. Pure; any thread.
#ifndef BATON_CLI_DOCTOR_HOST_CHECKS_H_
#define BATON_CLI_DOCTOR_HOST_CHECKS_H_

#include <cstdint>
#include <vector>

#include "src/cli/doctor/host_check.h"
#include "src/cli/doctor/host_facts.h"

namespace baton::cli {

// All checks, in the order in which they are shown; every id once.
std::vector<HostCheck> CheckHost(const HostFacts& facts, const HostNeeds& needs);

// Bytes that the workers of this host take: KV pools, weights, and what a worker needs besides.
uint64_t NeededMemoryBytes(const HostFacts& facts, const HostNeeds& needs);

// The groups of CheckHost; each appends its own.
void CheckProcessor(const HostFacts& facts, const HostNeeds& needs, std::vector<HostCheck>* out);
void CheckMemory(const HostFacts& facts, const HostNeeds& needs, std::vector<HostCheck>* out);
void CheckSystem(const HostFacts& facts, std::vector<HostCheck>* out);
void CheckNetwork(const HostFacts& facts, std::vector<HostCheck>* out);
void CheckStore(const HostFacts& facts, std::vector<HostCheck>* out);
void CheckGpus(const HostFacts& facts, const HostNeeds& needs, std::vector<HostCheck>* out);

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_HOST_CHECKS_H_
