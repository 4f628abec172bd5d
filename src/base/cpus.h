// How many processors this process can keep busy: its affinity mask and the quotas of its control
// groups. Any thread.
#ifndef BATON_BASE_CPUS_H_
#define BATON_BASE_CPUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baton {

// Numbers of the processors of the affinity mask, ascending, however many the machine has; empty
// when the system does not tell.
std::vector<int> AffinityCpus();

// Whether processors have about the same speed, as /sys tells their capacity or their highest
// clock: the slowest has 0.85 of the fastest. True where it tells nothing. /sys lies under `root`.
bool AreAlike(const std::vector<int>& cpus, const std::string& root = "");

// Processors' worth of time that the control groups of this process allow, of version 1 and 2: the
// tightest of all ancestors that can be seen. Empty = no quota. /proc and /sys lie under `root`.
std::optional<double> CpuQuota(const std::string& root = "");

// The smaller of `num_cpus` and the quota rounded up, at least 1. Pure.
uint32_t CpusWithin(uint32_t num_cpus, std::optional<double> quota);

}  // namespace baton

#endif  // BATON_BASE_CPUS_H_
