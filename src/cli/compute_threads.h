// The meaning of the flag --threads. Pure but for the count of processors; any thread.
#ifndef BATON_CLI_COMPUTE_THREADS_H_
#define BATON_CLI_COMPUTE_THREADS_H_

#include <algorithm>
#include <cstdint>

#include "src/cli/flags.h"
#include "src/device/device.h"
#include "src/device/thread_pool.h"

namespace baton::cli {

// The range of the flag where it means one process.
inline constexpr FlagSet::Range kThreadsRange = {0, device::ThreadPool::kMaxThreads};

// Threads of one process: as many as `wanted`, 0 = one per processor, and never more than a pool
// can have, of which a large machine has more.
inline uint32_t NumComputeThreads(int64_t wanted, uint32_t num_cpus = device::NumUsableCpus()) {
  const int64_t threads = wanted > 0 ? wanted : int64_t{num_cpus};
  return static_cast<uint32_t>(std::min<int64_t>(threads, device::ThreadPool::kMaxThreads));
}

}  // namespace baton::cli

#endif  // BATON_CLI_COMPUTE_THREADS_H_
