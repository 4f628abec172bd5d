// Every verdict of `baton doctor`, each from facts that differ from a good host in one thing.
#include "src/cli/doctor/host_checks.h"

#include <functional>
#include <set>
#include <string>

#include "gtest/gtest.h"

#include "tests/cli/doctor/good_host.h"

namespace baton::cli {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

const HostCheck& Find(const std::vector<HostCheck>& checks, std::string_view id) {
  for (const HostCheck& check : checks) {
    if (check.id == id) return check;
  }
  static const HostCheck kNone{.id = "missing", .why = ""};
  return kNone;
}

TEST(HostChecksTest, AGoodHostIsInOrderInEveryOfAtLeast25Checks) {
  const std::vector<HostCheck> checks = CheckHost(GoodHost(), {});
  EXPECT_GE(checks.size(), 25u);
  std::set<std::string_view> ids;
  for (const HostCheck& check : checks) {
    const bool good = check.verdict == Verdict::kOk || check.id == "numa_balancing";
    EXPECT_TRUE(good) << check.id << ": " << VerdictName(check.verdict) << ", " << check.value;
    EXPECT_FALSE(check.why.empty()) << check.id;
    EXPECT_FALSE(check.value.empty()) << check.id;
    EXPECT_TRUE(check.fix.text.empty()) << check.id;
    EXPECT_TRUE(ids.insert(check.id).second) << check.id << " twice";
  }
}

// A machine of which nothing can be read is no bad machine.
TEST(HostChecksTest, WhatIsNotKnownIsNeitherWarningNorProblem) {
  HostFacts facts;
  facts.cpu.isa = "avx2";
  facts.store.models = {"a.gguf"};
  for (const HostCheck& check : CheckHost(facts, {.num_workers = 1})) {
    const bool calm = check.verdict == Verdict::kOk || check.verdict == Verdict::kNotApplicable;
    EXPECT_TRUE(calm) << check.id << ": " << check.value;
  }
}

// A good one until a case spoils it.
struct Host {
  HostFacts facts = GoodHost();
  HostNeeds needs;
};

// One thing spoilt, and what the check of that id must say then.
struct Case {
  std::string_view id;
  Verdict verdict;
  std::string_view value;  // a part of it
  std::function<void(Host&)> spoil;
};

void ExpectVerdicts(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    Host host;
    c.spoil(host);
    const std::vector<HostCheck> checks = CheckHost(host.facts, host.needs);
    const HostCheck& check = Find(checks, c.id);
    EXPECT_EQ(VerdictName(check.verdict), VerdictName(c.verdict)) << c.id << ": " << check.value;
    EXPECT_NE(check.value.find(c.value), std::string::npos) << c.id << ": " << check.value;
    const bool is_bad = check.verdict == Verdict::kWarning || check.verdict == Verdict::kProblem;
    EXPECT_EQ(is_bad, !check.fix.text.empty()) << c.id;
  }
}

TEST(HostChecksTest, Processors) {
  ExpectVerdicts({
      {"cpu_isa", Verdict::kOk, "avx2", [](Host& host) { host.facts.cpu.isa = "avx2"; }},
      {"cpu_isa", Verdict::kWarning, "lacks fma",
       [](Host& host) {
         host.facts.cpu.isa = "portable";
         host.facts.cpu.next_isa_lacks = "lacks fma";
       }},
      {"cpu_count", Verdict::kWarning, "16 processors for 17",
       [](Host& host) { host.needs.threads = 17; }},
      {"cpu_count", Verdict::kWarning, "17 workers",
       [](Host& host) { host.needs.num_workers = 17; }},
      {"cpu_quota", Verdict::kOk, "16.0", [](Host& host) { host.facts.cpu.quota_cpus = 16.0; }},
      {"cpu_quota", Verdict::kWarning, "3.5", [](Host& host) { host.facts.cpu.quota_cpus = 3.5; }},
      {"cpu_quota", Verdict::kOk, "3.5",
       [](Host& host) {
         host.facts.cpu.quota_cpus = 3.5;
         host.needs.threads = 3;
       }},
      {"cpu_governor", Verdict::kNotApplicable, "",
       [](Host& host) { host.facts.cpu.governors.clear(); }},
      {"cpu_governor", Verdict::kWarning, "powersave",
       [](Host& host) {
         host.facts.cpu.governors = {"performance", "powersave"};
       }},
      {"cpu_load", Verdict::kWarning, "9.00", [](Host& host) { host.facts.cpu.load_1m = 9.0; }},
      {"cpu_steal", Verdict::kWarning, "12.0 %",
       [](Host& host) { host.facts.cpu.steal_ratio = 0.12; }},
      {"numa_nodes", Verdict::kWarning, "2", [](Host& host) { host.facts.cpu.num_numa_nodes = 2; }},
      {"numa_balancing", Verdict::kOk, "off",
       [](Host& host) { host.facts.cpu.num_numa_nodes = 2; }},
      {"numa_balancing", Verdict::kWarning, "on",
       [](Host& host) {
         host.facts.cpu.num_numa_nodes = 2;
         host.facts.cpu.numa_balancing = true;
       }},
      {"memory_speed", Verdict::kWarning, "1.5",
       [](Host& host) { host.facts.cpu.read_gb_per_s = 1.5; }},
      {"task_limit", Verdict::kProblem, "100 tasks",
       [](Host& host) { host.facts.cpu.max_pids = 100; }},
      {"task_limit", Verdict::kProblem, "64 tasks",
       [](Host& host) { host.facts.cpu.max_processes = 64; }},
      {"task_limit", Verdict::kOk, "no limit",
       [](Host& host) {
         host.facts.cpu.max_processes = 64;
         host.facts.system.user_id = 0;
       }},
  });
}

TEST(HostChecksTest, Memory) {
  ExpectVerdicts({
      {"memory", Verdict::kProblem, "1 GiB",
       [](Host& host) { host.facts.memory.total_bytes = kGiB; }},
      {"memory", Verdict::kWarning, "2 GiB",
       [](Host& host) { host.facts.memory.available_bytes = 2 * kGiB; }},
      {"memory", Verdict::kProblem, "", [](Host& host) { host.needs.kv_memory_bytes = 40 * kGiB; }},
      {"memory", Verdict::kProblem, "",
       [](Host& host) { host.facts.store.model_bytes = 40 * kGiB; }},
      {"memory_limit", Verdict::kOk, "3 GiB",
       [](Host& host) { host.facts.memory.cgroup_limit_bytes = 3 * kGiB; }},
      {"memory_limit", Verdict::kProblem, "2 GiB",
       [](Host& host) { host.facts.memory.cgroup_limit_bytes = 2 * kGiB; }},
      {"memory_limit", Verdict::kOk, "2 GiB",
       [](Host& host) {
         host.facts.memory.cgroup_limit_bytes = 2 * kGiB;
         host.needs.num_workers = 1;
       }},
      {"memory_limit", Verdict::kWarning, "in use",
       [](Host& host) {
         host.facts.memory.cgroup_limit_bytes = 3 * kGiB;
         host.facts.memory.cgroup_used_bytes = kGiB;
       }},
      {"swap", Verdict::kWarning, "8 GiB of swap, 1 GiB in use",
       [](Host& host) {
         host.facts.memory.swap_bytes = 8 * kGiB;
         host.facts.memory.swap_used_bytes = kGiB;
       }},
      {"transparent_huge_pages", Verdict::kWarning, "never",
       [](Host& host) { host.facts.memory.transparent_huge_pages = "never"; }},
      {"shmem_huge_pages", Verdict::kWarning, "never",
       [](Host& host) { host.facts.memory.shmem_huge_pages = "never"; }},
      {"reserved_huge_pages", Verdict::kWarning, "512 MiB",
       [](Host& host) { host.facts.memory.hugetlb_bytes = 512 * kMiB; }},
      {"overcommit", Verdict::kOk, "=1", [](Host& host) { host.facts.memory.overcommit = 1; }},
      {"overcommit", Verdict::kWarning, "=2", [](Host& host) { host.facts.memory.overcommit = 2; }},
      {"memlock", Verdict::kWarning, "8 MiB",
       [](Host& host) { host.facts.memory.memlock_bytes = 8 * kMiB; }},
      {"memlock", Verdict::kNotApplicable, "no GPU",
       [](Host& host) {
         host.facts.memory.memlock_bytes = 8 * kMiB;
         host.facts.gpu = {};
       }},
      {"kv_pool", Verdict::kProblem, "memfd_create failed",
       [](Host& host) { host.facts.memory.memfd_error = "memfd_create failed: EPERM"; }},
      {"dev_shm", Verdict::kWarning, "64 MiB",
       [](Host& host) { host.facts.memory.dev_shm_bytes = 64 * kMiB; }},
      {"dev_shm", Verdict::kNotApplicable, "64 MiB",
       [](Host& host) {
         host.facts.memory.dev_shm_bytes = 64 * kMiB;
         host.facts.gpu = {};
       }},
      {"open_files", Verdict::kWarning, "1024",
       [](Host& host) { host.facts.memory.max_open_files = 1024; }},
      {"open_files", Verdict::kProblem, "64",
       [](Host& host) { host.facts.memory.max_open_files = 64; }},
      {"open_files", Verdict::kOk, "unlimited",
       [](Host& host) { host.facts.memory.max_open_files = kUnlimited; }},
  });
}

TEST(HostChecksTest, SystemAndNetwork) {
  ExpectVerdicts({
      {"kernel", Verdict::kProblem, "4.18",
       [](Host& host) { host.facts.system.kernel_release = "4.18.0"; }},
      {"kernel", Verdict::kProblem, "5.0",
       [](Host& host) { host.facts.system.kernel_release = "5.0.21"; }},
      {"kernel", Verdict::kOk, "5.1",
       [](Host& host) { host.facts.system.kernel_release = "5.1.0"; }},
      {"kernel", Verdict::kNotApplicable, "",
       [](Host& host) { host.facts.system.kernel_release = "x"; }},
      {"clock_source", Verdict::kOk, "kvm-clock",
       [](Host& host) { host.facts.system.clock_source = "kvm-clock"; }},
      {"clock_source", Verdict::kWarning, "hpet",
       [](Host& host) { host.facts.system.clock_source = "hpet"; }},
      {"clock_sync", Verdict::kWarning, "not synchronised",
       [](Host& host) { host.facts.system.clock_synchronised = false; }},
      {"container", Verdict::kOk, "docker, user 1000, root file system read-only",
       [](Host& host) {
         host.facts.system.container = "docker";
         host.facts.system.root_is_read_only = true;
       }},
      {"container", Verdict::kWarning, "docker, user 0",
       [](Host& host) {
         host.facts.system.container = "docker";
         host.facts.system.user_id = 0;
       }},
      {"host_id", Verdict::kWarning, "tcp",
       [](Host& host) { host.facts.system.has_host_id = false; }},
      {"port_http", Verdict::kProblem, "in use",
       [](Host& host) { host.facts.network.ports[0].error = "Address already in use"; }},
      {"port_grpc", Verdict::kProblem, "in use",
       [](Host& host) { host.facts.network.ports[1].error = "Address already in use"; }},
      {"port_admin", Verdict::kProblem, "in use",
       [](Host& host) { host.facts.network.ports[2].error = "Address already in use"; }},
      {"local_ports", Verdict::kWarning, "--http 127.0.0.1:8080",
       [](Host& host) { host.facts.network.first_local_port = 1024; }},
      {"local_ports", Verdict::kWarning, "60000 to 60999",
       [](Host& host) { host.facts.network.first_local_port = 60000; }},
      {"listen_backlog", Verdict::kWarning, "=128",
       [](Host& host) { host.facts.network.somaxconn = 128; }},
      {"socket_buffers", Verdict::kWarning, "208 KiB",
       [](Host& host) { host.facts.network.max_send_buffer_bytes = 212992; }},
      {"link_shm", Verdict::kProblem, "do not meet",
       [](Host& host) { host.facts.network.links[0].error = "the endpoints do not meet"; }},
      {"link_shm", Verdict::kWarning, "0.50 GB/s",
       [](Host& host) { host.facts.network.links[0].bytes_per_s = 0.5e9; }},
      {"link_tcp", Verdict::kWarning, "5000 us",
       [](Host& host) { host.facts.network.links[1].round_trip_us = 5000; }},
      {"link_tcp", Verdict::kProblem, "refused",
       [](Host& host) { host.facts.network.links[1].error = "refused"; }},
  });
}

TEST(HostChecksTest, Files) {
  ExpectVerdicts({
      {"models", Verdict::kWarning, "/models", [](Host& host) { host.facts.store.models.clear(); }},
      {"models", Verdict::kOk, "m.gguf, 1 GiB",
       [](Host& host) {
         host.facts.store.model = "m.gguf";
         host.facts.store.model_bytes = kGiB;
       }},
      {"models", Verdict::kProblem, "no file",
       [](Host& host) {
         host.facts.store.model = "m";
         host.facts.store.model_error = "no file 'm'";
       }},
      {"disk", Verdict::kWarning, "1 GiB", [](Host& host) { host.facts.store.free_bytes = kGiB; }},
      {"disk", Verdict::kNotApplicable, "cannot be written",
       [](Host& host) {
         host.facts.store.folder_writable = false;
         host.facts.store.free_bytes = 0;
       }},
      {"tls", Verdict::kNotApplicable, "", [](Host& host) { host.facts.store.tls_given = false; }},
      {"tls", Verdict::kProblem, "not valid",
       [](Host& host) { host.facts.store.tls_error = "the certificate is not valid now"; }},
      {"tls", Verdict::kWarning, "5 days", [](Host& host) { host.facts.store.tls_days_left = 5; }},
      {"cluster_secret", Verdict::kNotApplicable, "",
       [](Host& host) { host.facts.store.secret_given = false; }},
      {"cluster_secret", Verdict::kProblem, "is empty",
       [](Host& host) { host.facts.store.secret_error = "it is empty"; }},
      {"cluster_secret", Verdict::kWarning, "every user",
       [](Host& host) { host.facts.store.secret_is_public = true; }},
  });
}

TEST(HostChecksTest, Gpus) {
  ExpectVerdicts({
      {"gpu_driver", Verdict::kOk, "CUDA 13.0", [](Host&) {}},
      {"gpu_driver", Verdict::kNotApplicable, "", [](Host& host) { host.facts.gpu = {}; }},
      {"gpu_driver", Verdict::kProblem, "no CUDA",
       [](Host& host) {
         host.facts.gpu = {};
         host.needs.device = "cuda";
       }},
      {"gpu_driver", Verdict::kWarning, "libcuda",
       [](Host& host) { host.facts.gpu.driver_error = "libcuda.so.1 is not there"; }},
      {"gpu_driver", Verdict::kProblem, "libcuda",
       [](Host& host) {
         host.facts.gpu.driver_error = "libcuda.so.1 is not there";
         host.needs.device = "cuda";
       }},
      {"gpu_driver", Verdict::kWarning, "CUDA 12.4, older than 13.0: the GPU cannot be used",
       [](Host& host) { host.facts.gpu.cuda_version = 12040; }},
      {"gpu_driver", Verdict::kProblem, "CUDA 12.4, older than 13.0: the GPU cannot be used",
       [](Host& host) {
         host.facts.gpu.cuda_version = 12040;
         host.needs.device = "cuda";
       }},
      {"gpu_driver", Verdict::kNotApplicable, "static",
       [](Host& host) { host.facts.gpu.program_is_static = true; }},
      {"gpus", Verdict::kOk, "2 x NVIDIA H200, 141 GiB, sm_90", [](Host&) {}},
      {"gpus", Verdict::kNotApplicable, "2 device nodes",
       [](Host& host) { host.facts.gpu.gpus.clear(); }},
      {"gpus", Verdict::kProblem, "",
       [](Host& host) {
         host.facts.gpu.gpus.clear();
         host.needs.device = "cuda";
       }},
      {"gpus", Verdict::kWarning, "sm_75",
       [](Host& host) {
         host.facts.gpu.gpus = {{"Tesla T4", kGiB, 7, 5, 0}};
       }},
      {"gpus", Verdict::kWarning, "this build is for 90a-real",
       [](Host& host) { host.facts.gpu.gpus[1].major = 8; }},
      {"gpus", Verdict::kOk, "sm_89",
       [](Host& host) {
         host.facts.gpu.build_code = "80-real, 90a-real, 90-virtual";
         host.facts.gpu.gpus = {{"NVIDIA L40S", kGiB, 8, 9, 0}, {"NVIDIA B200", kGiB, 10, 0, 18}};
       }},
      {"gpus", Verdict::kWarning, "no CUDA",
       [](Host& host) { host.facts.gpu.build_has_cuda = false; }},
      {"nccl", Verdict::kOk, "2.28.9", [](Host&) {}},
      {"nccl", Verdict::kWarning, "libnccl",
       [](Host& host) { host.facts.gpu.nccl_error = "libnccl.so.2 is not there"; }},
      {"nccl", Verdict::kNotApplicable, "", [](Host& host) { host.facts.gpu = {}; }},
      {"gpu_topology", Verdict::kOk, "18 NVLinks each; PCIe: one NUMA node", [](Host&) {}},
      {"gpu_topology", Verdict::kWarning, "0 NVLinks each; PCIe: several NUMA nodes",
       [](Host& host) {
         host.facts.gpu.gpus[0].num_nvlinks = 0;
         host.facts.gpu.pairs[0].path = GpuPath::kSystem;
       }},
      {"gpu_topology", Verdict::kNotApplicable, "NVML",
       [](Host& host) { host.facts.gpu.nvml_error = "NVML does not start"; }},
      {"gpu_topology", Verdict::kNotApplicable, "fewer",
       [](Host& host) { host.facts.gpu.gpus.pop_back(); }},
  });
}

// The default pool is 1 GiB a worker (interface of --kv-memory), weights are held by each.
TEST(HostChecksTest, EachWorkerNeedsItsPoolAndItsWeights) {
  HostFacts facts;
  const uint64_t bare = NeededMemoryBytes(facts, {.num_workers = 1});
  EXPECT_GE(bare, kGiB);
  facts.store.model_bytes = 100 * kMiB;
  EXPECT_EQ(NeededMemoryBytes(facts, {.num_workers = 1}), bare + 100 * kMiB);
  EXPECT_EQ(NeededMemoryBytes(facts, {.num_workers = 3}), 3 * (bare + 100 * kMiB));
  EXPECT_EQ(NeededMemoryBytes(facts, {.num_workers = 1, .kv_memory_bytes = 3 * kGiB}),
            bare + 100 * kMiB + 2 * kGiB);
  facts.store.sequence_bytes = 5 * kGiB;
  EXPECT_EQ(NeededMemoryBytes(facts, {.num_workers = 1}), bare + 100 * kMiB + 4 * kGiB)
      << "a pool holds one sequence at least";
  EXPECT_EQ(NeededMemoryBytes(facts, {.num_workers = 1, .kv_memory_bytes = 3 * kGiB}),
            bare + 100 * kMiB + 2 * kGiB);
}

}  // namespace
}  // namespace baton::cli
