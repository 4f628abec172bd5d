// Checks of `baton doctor` about processors.
#include <algorithm>
#include <string>

#include "absl/strings/str_join.h"
#include "fmt/format.h"

#include "src/cli/doctor/host_checks.h"

namespace baton::cli {
namespace {

// A worker starts its compute threads, ten of its own and those of gRPC.
constexpr uint64_t kThreadsBesides = 64;
constexpr double kHighSteal = 0.05;
// A DDR4 channel reads 20 GB/s; far less means a machine that others use.
constexpr double kSlowReadGbPerS = 5.0;

uint32_t WantedThreads(const HostFacts& facts, const HostNeeds& needs) {
  return needs.threads > 0 ? needs.threads : facts.cpu.num_usable;
}

HostCheck CheckIsa(const CpuFacts& cpu) {
  HostCheck check{.id = "cpu_isa",
                  .why =
                      "the forward pass runs on AVX-512 or AVX2; the portable code is several "
                      "times slower and its workers are paired only with each other"};
  const std::string value =
      fmt::format("{} ({})", cpu.isa, cpu.model.empty() ? "processor not named" : cpu.model);
  if (cpu.isa == "avx512" || cpu.isa == "avx2") return AsOk(check, value);
  return AsWarning(check, fmt::format("{}: {}", value, cpu.next_isa_lacks),
                   {"run on a processor with AVX2, or let the virtual machine show the host's "
                    "features (cpu model host-passthrough)",
                    ""});
}

HostCheck CheckThreads(const HostFacts& facts, const HostNeeds& needs) {
  HostCheck check{.id = "cpu_count",
                  .why =
                      "more compute threads than processors take turns, and each step waits for "
                      "the slowest"};
  const uint32_t threads = WantedThreads(facts, needs);
  const std::string value =
      fmt::format("{} processors for {} compute threads", facts.cpu.num_usable, threads);
  if (threads > facts.cpu.num_usable) {
    return AsWarning(check, value, {fmt::format("give --threads {}", facts.cpu.num_usable), ""});
  }
  if (facts.cpu.num_usable < needs.num_workers) {
    return AsWarning(check, fmt::format("{}, {} workers", value, needs.num_workers),
                     {"give the host a processor for each worker, or run fewer workers", ""});
  }
  return AsOk(check, value);
}

HostCheck CheckQuota(const HostFacts& facts, const HostNeeds& needs) {
  HostCheck check{.id = "cpu_quota",
                  .why =
                      "a cgroup that has used its quota stops for the rest of 100 ms: every "
                      "stream on it stalls"};
  const uint32_t threads = WantedThreads(facts, needs);
  if (!facts.cpu.quota_cpus) return AsOk(check, "no quota");
  const double quota = *facts.cpu.quota_cpus;
  const std::string value = fmt::format("{:.1f} processors for {} threads", quota, threads);
  if (quota >= threads) return AsOk(check, value);
  return AsWarning(check, value,
                   {fmt::format("raise the cpu limit to {} or drop it, or give --threads {}",
                                threads, std::max<uint32_t>(1, static_cast<uint32_t>(quota))),
                    ""});
}

HostCheck CheckGovernor(const CpuFacts& cpu) {
  HostCheck check{.id = "cpu_governor",
                  .why =
                      "a decode step lasts milliseconds; a processor that slows down between "
                      "steps is slow in the next one"};
  if (cpu.governors.empty()) return AsNotApplicable(check, "no frequency scaling to be seen");
  const std::string value = absl::StrJoin(cpu.governors, ", ");
  const bool good = std::all_of(cpu.governors.begin(), cpu.governors.end(),
                                [](const std::string& name) { return name == "performance"; });
  if (good) return AsOk(check, value);
  return AsWarning(check, value,
                   {"select the governor performance",
                    "for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do\n"
                    "  echo performance > \"$f\"\ndone"});
}

HostCheck CheckLoad(const CpuFacts& cpu) {
  HostCheck check{.id = "cpu_load",
                  .why = "other work on the same processors shows as stalls of streams"};
  if (!cpu.load_1m) return AsNotApplicable(check, "the load average is not known");
  const std::string value = fmt::format("load {:.2f} of {}", *cpu.load_1m, cpu.num_usable);
  if (*cpu.load_1m <= 0.5 * cpu.num_usable) return AsOk(check, value);
  return AsWarning(check, value, {"see `top` for who it is; give Baton processors of its own", ""});
}

HostCheck CheckSteal(const CpuFacts& cpu) {
  HostCheck check{.id = "cpu_steal",
                  .why = "time that the hypervisor gave to other machines is missing from steps"};
  if (!cpu.steal_ratio) return AsNotApplicable(check, "not known");
  const std::string value = fmt::format("{:.1f} % since boot", 100.0 * *cpu.steal_ratio);
  if (*cpu.steal_ratio <= kHighSteal) return AsOk(check, value);
  return AsWarning(check, value, {"use a machine whose processors are not shared", ""});
}

HostCheck CheckNuma(const CpuFacts& cpu) {
  HostCheck check{.id = "numa_nodes",
                  .why =
                      "weights on another node are read more slowly, and a step is as slow as "
                      "its slowest thread"};
  if (cpu.num_numa_nodes <= 1) return AsOk(check, "1 node");
  return AsWarning(check, fmt::format("{} nodes", cpu.num_numa_nodes),
                   {"start each worker on one node: numactl --cpunodebind=N --membind=N baton ..., "
                    "in Kubernetes topologyManagerPolicy single-numa-node",
                    ""});
}

HostCheck CheckNumaBalancing(const CpuFacts& cpu) {
  HostCheck check{.id = "numa_balancing",
                  .why =
                      "to find who uses a page the kernel unmaps it now and then: faults in the "
                      "middle of steps"};
  if (cpu.num_numa_nodes <= 1) return AsNotApplicable(check, "1 node");
  if (!cpu.numa_balancing) return AsOk(check, "off");
  return AsWarning(
      check, "on",
      {"switch it off where workers are bound to nodes", "sysctl -w kernel.numa_balancing=0"});
}

HostCheck CheckReadSpeed(const CpuFacts& cpu) {
  HostCheck check{.id = "memory_speed",
                  .why =
                      "decoding reads all weights for every step: tokens a second of one stream "
                      "are at most this by the bytes of the weights"};
  if (!cpu.read_gb_per_s) return AsNotApplicable(check, "not measured");
  const std::string value =
      fmt::format("{:.1f} GB/s read by {} threads", *cpu.read_gb_per_s, cpu.num_usable);
  if (*cpu.read_gb_per_s >= kSlowReadGbPerS) return AsOk(check, value);
  return AsWarning(check, value, {"look for other load on this machine, and measure again", ""});
}

HostCheck CheckTasks(const HostFacts& facts, const HostNeeds& needs) {
  HostCheck check{.id = "task_limit",
                  .why = "threads count as tasks; a worker that cannot start one does not start"};
  // Root has no limit of processes, whatever the number says.
  uint64_t limit =
      facts.system.user_id == 0 ? kUnlimited : facts.cpu.max_processes.value_or(kUnlimited);
  limit = std::min(limit, facts.cpu.max_pids.value_or(kUnlimited));
  const uint64_t wanted = WantedThreads(facts, needs) + (needs.num_workers + 1) * kThreadsBesides;
  if (limit == kUnlimited) return AsOk(check, "no limit");
  const std::string value = fmt::format("{} tasks, about {} wanted", limit, wanted);
  if (limit >= wanted) return AsOk(check, value);
  return AsProblem(check, value,
                   {"raise pids.max of the container (podman --pids-limit, kubelet podPidsLimit) "
                    "or `ulimit -u`",
                    ""});
}

}  // namespace

void CheckProcessor(const HostFacts& facts, const HostNeeds& needs, std::vector<HostCheck>* out) {
  out->push_back(CheckIsa(facts.cpu));
  out->push_back(CheckThreads(facts, needs));
  out->push_back(CheckQuota(facts, needs));
  out->push_back(CheckGovernor(facts.cpu));
  out->push_back(CheckLoad(facts.cpu));
  out->push_back(CheckSteal(facts.cpu));
  out->push_back(CheckNuma(facts.cpu));
  out->push_back(CheckNumaBalancing(facts.cpu));
  out->push_back(CheckReadSpeed(facts.cpu));
  out->push_back(CheckTasks(facts, needs));
}

}  // namespace baton::cli
