#include "src/cli/doctor/host_checks.h"

#include <algorithm>

#include "src/worker/pool_size.h"

namespace baton::cli {

using worker::kDefaultKvBytes;

namespace {

// Memory that a worker takes besides weights and pool: twice the 81 MiB of benchmarks/RESULTS.md.
constexpr uint64_t kWorkerExtraBytes = uint64_t{160} << 20;

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  constexpr std::string_view kNames[kNumVerdicts] = {"ok", "warning", "problem", "not applicable"};
  return kNames[static_cast<size_t>(verdict)];
}

uint64_t NeededMemoryBytes(const HostFacts& facts, const HostNeeds& needs) {
  const uint64_t pool_bytes = needs.kv_memory_bytes > 0
                                  ? needs.kv_memory_bytes
                                  : std::max(kDefaultKvBytes, facts.store.sequence_bytes);
  return needs.num_workers * (pool_bytes + facts.store.model_bytes + kWorkerExtraBytes);
}

std::vector<HostCheck> CheckHost(const HostFacts& facts, const HostNeeds& needs) {
  std::vector<HostCheck> checks;
  CheckProcessor(facts, needs, &checks);
  CheckMemory(facts, needs, &checks);
  CheckSystem(facts, &checks);
  CheckNetwork(facts, &checks);
  CheckStore(facts, &checks);
  CheckGpus(facts, needs, &checks);
  return checks;
}

}  // namespace baton::cli
