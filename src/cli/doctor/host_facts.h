// Facts that `baton doctor` knows of the machine that it runs on, and the needs of a server there.
// Plain data: every verdict is a function of these facts (host_checks.h). So each verdict can be
// tested without such a machine. An empty std::optional, or a text that is "", is a fact that could
// not be read.
#ifndef BATON_CLI_DOCTOR_HOST_FACTS_H_
#define BATON_CLI_DOCTOR_HOST_FACTS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/doctor/gpu_facts.h"

namespace baton::cli {

// A resource limit that is none.
inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Processors and who else wants them.
struct CpuFacts {
  std::string model;
  uint32_t num_usable = 1;                // in the affinity mask
  std::string isa;                        // what --isa auto would use
  std::string next_isa_lacks;             // why not a better one; "" = it is the best
  std::optional<double> quota_cpus;       // of the cgroup; empty = no quota
  std::vector<std::string> governors;     // of the usable processors; empty = no frequency scaling
  std::optional<double> load_1m;          // load average of the last minute
  std::optional<double> steal_ratio;      // of the time since boot, taken by the hypervisor
  uint32_t num_numa_nodes = 1;            // that the usable processors belong to
  bool numa_balancing = false;            // the kernel moves pages between nodes
  std::optional<double> read_gb_per_s;    // measured with `num_usable` threads
  std::optional<uint64_t> max_processes;  // RLIMIT_NPROC
  std::optional<uint64_t> max_pids;       // of the cgroup; empty = no limit
};

// Memory and the kernel's rules for it.
struct MemoryFacts {
  std::optional<uint64_t> total_bytes;
  std::optional<uint64_t> available_bytes;
  std::optional<uint64_t> swap_bytes;
  std::optional<uint64_t> swap_used_bytes;
  std::optional<uint64_t> hugetlb_bytes;  // set aside at boot
  std::optional<uint64_t> cgroup_limit_bytes;
  std::optional<uint64_t> cgroup_used_bytes;
  std::string transparent_huge_pages;  // always, madvise, never
  std::string shmem_huge_pages;        // always, within_size, advise, never, deny, force
  std::optional<int> overcommit;       // vm.overcommit_memory
  std::optional<uint64_t> memlock_bytes;
  std::string memfd_error;                 // why no KV pool can be made; "" = one was
  std::optional<uint64_t> dev_shm_bytes;   // size of the file system at /dev/shm
  std::optional<uint64_t> max_open_files;  // hard limit: who serves takes all of it
};

// Kernel, clocks, and what this process is allowed.
struct SystemFacts {
  std::string kernel_release;  // "6.1.0-18-amd64"
  std::string clock_source;
  std::optional<bool> clock_synchronised;
  std::string container;  // "kubernetes", "docker", ...; "" = none was found
  bool root_is_read_only = false;
  uint32_t user_id = 0;
  bool has_host_id = true;  // boot and network namespace can be told (shm needs that)
};

// An address that a server would listen on.
struct PortFact {
  std::string flag;     // "--http"
  std::string address;  // "127.0.0.1:8080"
  std::string error;    // "" = free
};

// KV moved between two endpoints of this process.
struct LinkFact {
  std::string transport;  // "shm", "tcp"
  std::string error;      // "" = it works
  double bytes_per_s = 0;
  double round_trip_us = 0;  // of a small control message
};

// Sockets and their limits.
struct NetworkFacts {
  std::vector<PortFact> ports;
  std::optional<uint32_t> first_local_port;  // of outgoing connections
  std::optional<uint32_t> last_local_port;
  std::optional<uint64_t> somaxconn;
  std::optional<uint64_t> max_send_buffer_bytes;
  std::optional<uint64_t> max_receive_buffer_bytes;
  std::vector<LinkFact> links;
};

// Models and secrets on disk.
struct StoreFacts {
  std::string models_folder;
  bool folder_writable = false;  // or, where it is missing, could be made
  std::optional<uint64_t> free_bytes;
  std::vector<std::string> models;  // files and folders there
  std::string model;                // as given by --model; "" = not given
  std::string model_error;          // "" = it is there
  uint64_t model_bytes = 0;         // of all its files
  uint64_t sequence_bytes = 0;      // KV of its whole context, in bf16
  bool tls_given = false;
  std::string tls_error;  // "" = the files are good
  std::optional<int64_t> tls_days_left;
  bool secret_given = false;
  std::string secret_error;
  bool secret_is_public = false;  // others may read the file
};

// One machine, as one process of it sees it.
struct HostFacts {
  CpuFacts cpu;
  MemoryFacts memory;
  SystemFacts system;
  NetworkFacts network;
  StoreFacts store;
  GpuFacts gpu;
};

// The workers that would run there; the flags of `serve` and of the roles.
struct HostNeeds {
  uint32_t num_workers = 2;      // of this host (in this container)
  uint32_t threads = 0;          // of all workers; 0 = one per processor
  uint64_t kv_memory_bytes = 0;  // of each worker; 0 = the default
  std::string device = "auto";   // auto, cpu, cuda
};

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_HOST_FACTS_H_
