// A machine on which everything is in order, for tests that spoil one thing.
#ifndef BATON_TESTS_CLI_DOCTOR_GOOD_HOST_H_
#define BATON_TESTS_CLI_DOCTOR_GOOD_HOST_H_

#include "src/cli/doctor/host_facts.h"

namespace baton::cli {

// Two Hopper GPUs, 16 processors of one node, 64 GiB.
inline HostFacts GoodHost() {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  HostFacts facts;
  facts.cpu = {.model = "A processor",
               .num_usable = 16,
               .isa = "avx512",
               .next_isa_lacks = "",
               .quota_cpus = std::nullopt,
               .governors = {"performance"},
               .load_1m = 0.5,
               .steal_ratio = 0.0,
               .num_numa_nodes = 1,
               .numa_balancing = false,
               .read_gb_per_s = 100.0,
               .max_processes = 100000,
               .max_pids = std::nullopt};
  facts.memory.total_bytes = 64 * kGiB;
  facts.memory.available_bytes = 60 * kGiB;
  facts.memory.swap_bytes = 0;
  facts.memory.hugetlb_bytes = 0;
  facts.memory.transparent_huge_pages = "madvise";
  facts.memory.shmem_huge_pages = "advise";
  facts.memory.overcommit = 0;
  facts.memory.memlock_bytes = kUnlimited;
  facts.memory.dev_shm_bytes = 32 * kGiB;
  facts.memory.max_open_files = 65536;
  facts.system = {.kernel_release = "6.1.0-18-amd64",
                  .clock_source = "tsc",
                  .clock_synchronised = true,
                  .container = "",
                  .root_is_read_only = false,
                  .user_id = 1000,
                  .has_host_id = true};
  facts.network.ports = {{"--http", "127.0.0.1:8080", ""},
                         {"--grpc", "127.0.0.1:7070", ""},
                         {"--admin", "127.0.0.1:9090", ""}};
  facts.network.first_local_port = 32768;
  facts.network.last_local_port = 60999;
  facts.network.somaxconn = 4096;
  facts.network.max_send_buffer_bytes = 4 << 20;
  facts.network.max_receive_buffer_bytes = 4 << 20;
  facts.network.links = {{"shm", "", 10e9, 20}, {"tcp", "", 3e9, 30}};
  facts.store = {.models_folder = "/models",
                 .folder_writable = true,
                 .free_bytes = 100 * kGiB,
                 .models = {"a.gguf"},
                 .tls_given = true,
                 .tls_days_left = 300,
                 .secret_given = true};
  facts.gpu.build_has_cuda = true;
  facts.gpu.build_code = "90a-real";
  facts.gpu.num_device_nodes = 2;
  facts.gpu.cuda_version = 13000;
  facts.gpu.gpus = {{"NVIDIA H200", 141 * kGiB, 9, 0, 18}, {"NVIDIA H200", 141 * kGiB, 9, 0, 18}};
  facts.gpu.pairs = {{0, 1, GpuPath::kNode}};
  facts.gpu.nccl_version = 22809;
  return facts;
}

}  // namespace baton::cli

#endif  // BATON_TESTS_CLI_DOCTOR_GOOD_HOST_H_
