// Checks of `baton doctor` about memory.
#include <string>

#include "fmt/format.h"

#include "src/base/size_text.h"
#include "src/cli/doctor/host_checks.h"

namespace baton::cli {
namespace {

// NCCL's rings and proxies of one process with 8 GPUs.
constexpr uint64_t kNcclShmBytes = uint64_t{1} << 30;
// A stream is a descriptor at the router; 1024 are gone with a thousand clients.
constexpr uint64_t kGoodOpenFiles = 4096;
constexpr uint64_t kFewOpenFiles = 256;

CheckFix SmallerPool(const HostNeeds& needs) {
  return {fmt::format("give each of the {} workers a smaller --kv-memory, run fewer, or add memory",
                      needs.num_workers),
          ""};
}

HostCheck CheckHostMemory(const HostFacts& facts, const HostNeeds& needs) {
  HostCheck check{.id = "memory",
                  .why =
                      "KV pools and weights are taken at the start and stay; without room for "
                      "them the kernel ends a worker later, under load"};
  const MemoryFacts& memory = facts.memory;
  if (!memory.total_bytes || !memory.available_bytes) {
    return AsNotApplicable(check, "not known");
  }
  const uint64_t needed = NeededMemoryBytes(facts, needs);
  const std::string value =
      fmt::format("{} of {} available, {} workers need {}", FormatSize(*memory.available_bytes),
                  FormatSize(*memory.total_bytes), needs.num_workers, FormatSize(needed));
  if (needed > *memory.total_bytes) return AsProblem(check, value, SmallerPool(needs));
  if (needed > *memory.available_bytes) return AsWarning(check, value, SmallerPool(needs));
  return AsOk(check, value);
}

HostCheck CheckMemoryLimit(const HostFacts& facts, const HostNeeds& needs) {
  HostCheck check{.id = "memory_limit",
                  .why =
                      "KV pools count in the cgroup's memory; what goes beyond the limit is "
                      "killed, with all its streams"};
  if (!facts.memory.cgroup_limit_bytes) return AsOk(check, "no limit");
  const uint64_t needed = NeededMemoryBytes(facts, needs);
  const uint64_t limit = *facts.memory.cgroup_limit_bytes;
  const std::string value = fmt::format("limit {}, {} workers need {}", FormatSize(limit),
                                        needs.num_workers, FormatSize(needed));
  if (needed > limit) {
    return AsProblem(check, value,
                     {fmt::format("raise the memory limit to {}, or give a smaller --kv-memory",
                                  FormatSize(needed)),
                      ""});
  }
  if (needed + facts.memory.cgroup_used_bytes.value_or(0) > limit) {
    return AsWarning(
        check,
        fmt::format("{}, {} in use", value, FormatSize(facts.memory.cgroup_used_bytes.value_or(0))),
        {"others in this cgroup use memory too: raise the limit", ""});
  }
  return AsOk(check, value);
}

HostCheck CheckSwap(const MemoryFacts& memory) {
  HostCheck check{.id = "swap",
                  .why = "a page of weights or KV that was swapped out costs a step milliseconds"};
  if (!memory.swap_bytes) return AsNotApplicable(check, "not known");
  if (*memory.swap_bytes == 0) return AsOk(check, "none");
  return AsWarning(check,
                   fmt::format("{} of swap, {} in use", FormatSize(*memory.swap_bytes),
                               FormatSize(memory.swap_used_bytes.value_or(0))),
                   {"switch swap off on hosts that serve", "swapoff -a"});
}

HostCheck CheckTransparentPages(const MemoryFacts& memory) {
  HostCheck check{.id = "transparent_huge_pages",
                  .why =
                      "weights ask for 2 MiB pages by madvise; with 4 KiB pages every step walks "
                      "page tables all over"};
  const std::string& mode = memory.transparent_huge_pages;
  if (mode.empty()) return AsNotApplicable(check, "the kernel has none");
  if (mode != "never") return AsOk(check, mode);
  return AsWarning(
      check, mode,
      {"set it to madvise", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
}

HostCheck CheckShmemPages(const MemoryFacts& memory) {
  HostCheck check{.id = "shmem_huge_pages",
                  .why =
                      "KV pools are shared memory, which has a setting of its own: with huge "
                      "pages reading KV of long contexts misses the TLB less"};
  const std::string& mode = memory.shmem_huge_pages;
  if (mode.empty()) return AsNotApplicable(check, "the kernel has none");
  if (mode != "never" && mode != "deny") return AsOk(check, mode);
  return AsWarning(
      check, mode,
      {"set it to advise", "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"});
}

HostCheck CheckHugetlb(const MemoryFacts& memory) {
  HostCheck check{.id = "reserved_huge_pages",
                  .why =
                      "pages set aside at boot are of no use to Baton, which asks for "
                      "transparent ones, and are missing elsewhere"};
  if (!memory.hugetlb_bytes) return AsNotApplicable(check, "not known");
  if (*memory.hugetlb_bytes == 0) return AsOk(check, "none");
  return AsWarning(
      check, FormatSize(*memory.hugetlb_bytes),
      {"give them back unless another program uses them", "sysctl -w vm.nr_hugepages=0"});
}

HostCheck CheckOvercommit(const MemoryFacts& memory) {
  HostCheck check{.id = "overcommit",
                  .why =
                      "a pool is mapped whole before it is used; strict accounting (2) refuses "
                      "what has not been touched yet"};
  if (!memory.overcommit) return AsNotApplicable(check, "not known");
  const std::string value = fmt::format("vm.overcommit_memory={}", *memory.overcommit);
  if (*memory.overcommit != 2) return AsOk(check, value);
  return AsWarning(check, value, {"use the kernel's default", "sysctl -w vm.overcommit_memory=0"});
}

HostCheck CheckMemlock(const HostFacts& facts) {
  HostCheck check{.id = "memlock",
                  .why = "memory that a GPU or a network card reads by itself must be locked"};
  if (facts.gpu.num_device_nodes == 0) {
    return AsNotApplicable(check, "no GPU: nothing is locked");
  }
  if (!facts.memory.memlock_bytes) return AsNotApplicable(check, "not known");
  const uint64_t limit = *facts.memory.memlock_bytes;
  if (limit == kUnlimited) return AsOk(check, "unlimited");
  return AsWarning(check, FormatSize(limit),
                   {"set it to unlimited for this user: ulimit -l unlimited, LimitMEMLOCK=infinity "
                    "of a systemd unit",
                    ""});
}

HostCheck CheckMemfd(const MemoryFacts& memory) {
  HostCheck check{.id = "kv_pool",
                  .why = "a KV pool is a sealed memory file, which peers of the same host map"};
  if (memory.memfd_error.empty()) return AsOk(check, "made and sealed");
  return AsProblem(check, memory.memfd_error,
                   {"use a kernel of 5.1 or newer, and let the container's seccomp profile allow "
                    "memfd_create",
                    ""});
}

HostCheck CheckDevShm(const HostFacts& facts) {
  HostCheck check{.id = "dev_shm",
                  .why =
                      "NCCL keeps its buffers there; containers get 64 MiB by default (KV pools "
                      "are not limited by it)"};
  if (!facts.memory.dev_shm_bytes) return AsNotApplicable(check, "there is no /dev/shm");
  const std::string value = FormatSize(*facts.memory.dev_shm_bytes);
  if (facts.gpu.num_device_nodes < 2) {
    return AsNotApplicable(check, value + "; fewer than two GPUs");
  }
  if (*facts.memory.dev_shm_bytes >= kNcclShmBytes) return AsOk(check, value);
  return AsWarning(check, value,
                   {"mount a larger one: emptyDir with medium Memory in Kubernetes, --shm-size in "
                    "podman or docker",
                    "mount -o remount,size=8G /dev/shm"});
}

HostCheck CheckOpenFiles(const MemoryFacts& memory) {
  HostCheck check{.id = "open_files",
                  .why = "each client connection is a descriptor; without one it is refused"};
  if (!memory.max_open_files) return AsNotApplicable(check, "not known");
  const uint64_t limit = *memory.max_open_files;
  const std::string value = limit == kUnlimited ? "unlimited" : fmt::format("{}", limit);
  const CheckFix fix = {"raise it: ulimit -Hn 65536 as root, LimitNOFILE=65536 of a systemd unit",
                        ""};
  if (limit < kFewOpenFiles) return AsProblem(check, value, fix);
  if (limit < kGoodOpenFiles) return AsWarning(check, value, fix);
  return AsOk(check, value);
}

}  // namespace

void CheckMemory(const HostFacts& facts, const HostNeeds& needs, std::vector<HostCheck>* out) {
  out->push_back(CheckHostMemory(facts, needs));
  out->push_back(CheckMemoryLimit(facts, needs));
  out->push_back(CheckSwap(facts.memory));
  out->push_back(CheckTransparentPages(facts.memory));
  out->push_back(CheckShmemPages(facts.memory));
  out->push_back(CheckHugetlb(facts.memory));
  out->push_back(CheckOvercommit(facts.memory));
  out->push_back(CheckMemlock(facts));
  out->push_back(CheckMemfd(facts.memory));
  out->push_back(CheckDevShm(facts));
  out->push_back(CheckOpenFiles(facts.memory));
}

}  // namespace baton::cli
