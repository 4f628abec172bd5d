#include "src/cli/doctor/host_probe.h"

#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "fmt/format.h"

#include "kernels/cpu/machine_limits.h"
#include "kernels/ops.h"
#include "kvcache/kv_arena.h"
#include "kvcache/transport/kv_endpoint.h"
#include "kvcache/transport/socket_io.h"
#include "src/base/cpus.h"
#include "src/base/folder_entries.h"
#include "src/base/open_files.h"
#include "src/base/quoted_text.h"
#include "src/base/regular_file.h"
#include "src/cli/doctor/gpu_probe.h"
#include "src/cli/doctor/link_probe.h"
#include "src/cli/doctor/proc_text.h"
#include "src/cli/model_store.h"
#include "src/cli/worker_flags.h"
#include "src/model/hf_folder.h"
#include "src/model/model_report.h"
#include "src/tls/tls_identity.h"
#include "src/worker/pool_size.h"

namespace baton::cli {

using device::ThreadPool;
using kernels::Isa;
using kernels::kQuickLimits;
using kernels::MeasureLimits;
using kernels::Ops;
using kernels::OpsFor;
using kv::HostId;
using kv::KvArena;
using kv::KvDtype;
using kv::KvLayout;
using kv::ListenOn;
using kv::ResolveTcp;
using kv::SocketAddress;
using kv::TransportKind;
using model::CheckServable;
using model::GgufFile;
using model::KvLayoutOf;
using model::ModelConfig;
using model::OpenModelFile;
using model::ReadModelConfig;
using tls::TlsIdentity;
using worker::SequenceBytes;

namespace {

namespace fs = std::filesystem;

std::string ReadWord(const std::string& path) {
  std::string text = ReadSystemFile(path).value_or("");
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<uint64_t> ReadCount(const std::string& path) {
  const std::optional<std::string> text = ReadSystemFile(path);
  return text ? ParseCount(*text) : std::nullopt;
}

template <typename T>
void KeepSmaller(std::optional<T> other, std::optional<T>* value) {
  if (other && (!*value || *other < **value)) *value = other;
}

// ---- Processors.

std::set<int> UsableCpus() {
  const std::vector<int> cpus = AffinityCpus();
  return {cpus.begin(), cpus.end()};
}

void ProbeNuma(const std::string& root, CpuFacts* cpu) {
  const std::set<int> usable = UsableCpus();
  uint32_t num_nodes = 0;
  for (const auto& entry : FolderEntries(root + "/sys/devices/system/node")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node") || !ParseCount(name.substr(4))) continue;
    const std::set<int> cpus = ParseCpuList(ReadWord(entry.path().string() + "/cpulist"));
    const bool is_used =
        std::any_of(cpus.begin(), cpus.end(), [&usable](int one) { return usable.contains(one); });
    num_nodes += is_used ? 1 : 0;
  }
  cpu->num_numa_nodes = std::max(1u, num_nodes);
  cpu->numa_balancing = ReadCount(root + "/proc/sys/kernel/numa_balancing").value_or(0) != 0;
}

void ProbeCpuFiles(const std::string& root, CpuFacts* cpu) {
  std::istringstream lines(ReadSystemFile(root + "/proc/cpuinfo").value_or(""));
  for (std::string line; cpu->model.empty() && std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      cpu->model = line.substr(colon + 2);
    }
  }
  std::set<std::string> governors;
  for (const int one : UsableCpus()) {
    const std::string governor = ReadWord(
        fmt::format("{}/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", root, one));
    if (!governor.empty()) governors.insert(governor);
  }
  cpu->governors.assign(governors.begin(), governors.end());
  const std::string load = ReadWord(root + "/proc/loadavg");
  if (!load.empty()) cpu->load_1m = std::strtod(load.c_str(), nullptr);
  cpu->steal_ratio = ParseStealRatio(ReadSystemFile(root + "/proc/stat").value_or(""));
  ProbeNuma(root, cpu);
}

// The instruction set that --isa auto would take, and the reason why it takes none better.
void ProbeIsa(CpuFacts* cpu) {
  const std::pair<Isa, std::string_view> best_first[] = {{Isa::kAvx512, "avx512"},
                                                         {Isa::kAvx2, "avx2"}};
  for (const auto& [isa, name] : best_first) {
    const absl::StatusOr<const Ops*> ops = OpsFor(isa);
    if (ops.ok()) {
      cpu->isa = name;
      return;
    }
    cpu->next_isa_lacks = std::string(ops.status().message());
  }
  cpu->isa = "portable";
}

void MeasureMemory(CpuFacts* cpu) {
  const absl::StatusOr<const Ops*> ops = OpsFor(Isa::kAuto);
  if (!ops.ok()) return;
  ThreadPool pool(std::min(cpu->num_usable, ThreadPool::kMaxThreads));
  const double rate = MeasureLimits(pool, (*ops)->isa, kQuickLimits).read_gb_per_s;
  if (rate > 0) cpu->read_gb_per_s = rate;
}

// ---- Control groups: the limits of all ancestors that can be seen hold.

void ProbeCgroupV2(const std::string& mount, const std::string& path, HostFacts* facts) {
  for (const std::string& group : WithAncestors(path)) {
    const std::string folder = mount + group;
    const std::optional<uint64_t> limit = ReadCount(folder + "/memory.max");
    const bool is_tighter = limit && *limit < facts->memory.cgroup_limit_bytes.value_or(kUnlimited);
    if (is_tighter) {
      facts->memory.cgroup_limit_bytes = limit;
      facts->memory.cgroup_used_bytes = ReadCount(folder + "/memory.current");
    }
    KeepSmaller(ReadCount(folder + "/pids.max"), &facts->cpu.max_pids);
  }
}

void ProbeCgroupV1(const std::string& mount, const std::string& groups, HostFacts* facts) {
  for (const std::string& group : WithAncestors(CgroupPath(groups, "memory").value_or(""))) {
    const std::optional<uint64_t> limit =
        ReadCount(fmt::format("{}/memory{}/memory.limit_in_bytes", mount, group));
    // No limit is a number near 2^63 there.
    if (limit && *limit < (uint64_t{1} << 60)) {
      KeepSmaller(limit, &facts->memory.cgroup_limit_bytes);
    }
  }
  for (const std::string& group : WithAncestors(CgroupPath(groups, "pids").value_or(""))) {
    KeepSmaller(ReadCount(fmt::format("{}/pids{}/pids.max", mount, group)), &facts->cpu.max_pids);
  }
}

void ProbeCgroup(const std::string& root, HostFacts* facts) {
  const std::string groups = ReadSystemFile(root + "/proc/self/cgroup").value_or("");
  const std::string mount = root + "/sys/fs/cgroup";
  facts->cpu.quota_cpus = CpuQuota(root);
  if (const std::optional<std::string> path = CgroupPath(groups, "")) {
    ProbeCgroupV2(mount, *path, facts);
  }
  ProbeCgroupV1(mount, groups, facts);
}

// ---- Memory.

void ProbeMemoryFiles(const std::string& root, MemoryFacts* memory) {
  const std::string text = ReadSystemFile(root + "/proc/meminfo").value_or("");
  memory->total_bytes = MeminfoValue(text, "MemTotal");
  memory->available_bytes = MeminfoValue(text, "MemAvailable");
  memory->swap_bytes = MeminfoValue(text, "SwapTotal");
  if (const std::optional<uint64_t> free = MeminfoValue(text, "SwapFree");
      free && memory->swap_bytes) {
    memory->swap_used_bytes = *memory->swap_bytes - std::min(*memory->swap_bytes, *free);
  }
  const std::optional<uint64_t> num_pages = MeminfoValue(text, "HugePages_Total");
  const std::optional<uint64_t> page_bytes = MeminfoValue(text, "Hugepagesize");
  if (num_pages && page_bytes) memory->hugetlb_bytes = *num_pages * *page_bytes;
  const std::string pages = root + "/sys/kernel/mm/transparent_hugepage/";
  memory->transparent_huge_pages = ChosenWord(ReadWord(pages + "enabled"));
  memory->shmem_huge_pages = ChosenWord(ReadWord(pages + "shmem_enabled"));
  if (const auto mode = ReadCount(root + "/proc/sys/vm/overcommit_memory")) {
    memory->overcommit = static_cast<int>(*mode);
  }
}

std::optional<uint64_t> SoftLimit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return std::nullopt;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : uint64_t{limit.rlim_cur};
}

void ProbeOwnLimits(HostFacts* facts) {
  facts->cpu.max_processes = SoftLimit(RLIMIT_NPROC);
  facts->memory.memlock_bytes = SoftLimit(RLIMIT_MEMLOCK);
  facts->memory.max_open_files = MaxOpenFiles();
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    facts->memory.dev_shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
  }
  KvLayout layout;
  layout.num_layers = 1;
  layout.num_kv_heads = 1;
  layout.head_dim = 64;
  const auto arena = KvArena::Create(layout, 1);
  if (!arena.ok()) facts->memory.memfd_error = std::string(arena.status().message());
}

// ---- Kernel and container.

std::string ContainerKind(const std::string& root) {
  std::error_code error;
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "kubernetes";
  if (fs::exists(root + "/run/.containerenv", error)) return "podman";
  if (fs::exists(root + "/.dockerenv", error)) return "docker";
  const std::string groups = ReadSystemFile(root + "/proc/1/cgroup").value_or("");
  for (const char* name : {"kubepods", "docker", "libpod", "lxc", "containerd"}) {
    if (groups.find(name) != std::string::npos) return name;
  }
  const char* const kind = std::getenv("container");  // systemd-nspawn, buildah
  return kind != nullptr ? kind : "";
}

void ProbeSystem(const std::string& root, SystemFacts* system) {
  system->clock_source =
      ReadWord(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  system->container = ContainerKind(root);
  utsname name{};
  if (uname(&name) == 0) system->kernel_release = name.release;
  timex clock{};
  if (const int state = adjtimex(&clock); state >= 0) {
    system->clock_synchronised = state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
  }
  struct statvfs at_root {};
  if (statvfs("/", &at_root) == 0) {
    system->root_is_read_only = (at_root.f_flag & ST_RDONLY) != 0;
  }
  system->user_id = geteuid();
  system->has_host_id = !HostId().empty();
}

// ---- Network.

void ProbeNetworkFiles(const std::string& root, NetworkFacts* network) {
  std::istringstream range(
      ReadSystemFile(root + "/proc/sys/net/ipv4/ip_local_port_range").value_or(""));
  uint32_t first = 0;
  uint32_t last = 0;
  if (range >> first >> last && first <= last) {
    network->first_local_port = first;
    network->last_local_port = last;
  }
  network->somaxconn = ReadCount(root + "/proc/sys/net/core/somaxconn");
  network->max_send_buffer_bytes = ReadCount(root + "/proc/sys/net/core/wmem_max");
  network->max_receive_buffer_bytes = ReadCount(root + "/proc/sys/net/core/rmem_max");
}

PortFact ProbePort(const std::string& flag, const std::string& address) {
  PortFact port{.flag = flag, .address = address, .error = ""};
  const StatusOr<std::vector<SocketAddress>> resolved = ResolveTcp(address);
  const Status status =
      resolved.ok() ? ListenOn(resolved->front(), address).status() : resolved.status();
  port.error = std::string(status.message());
  return port;
}

// ---- Files.

void ProbeFolder(StoreFacts* store) {
  store->models_folder = ModelsFolder();
  for (const auto& entry : FolderEntries(store->models_folder)) {
    store->models.push_back(entry.path().filename().string());
  }
  // The nearest folder of the path that exists: the models folder would be made there.
  std::error_code error;
  fs::path folder = fs::absolute(store->models_folder, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  store->folder_writable = access(folder.c_str(), W_OK) == 0;
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) == 0) {
    store->free_bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
  }
}

void ProbeModel(const std::string& model, StoreFacts* store) {
  store->model = model;
  if (model.empty()) return;
  const StatusOr<ModelFile> file = ResolveModel(model);
  if (!file.ok()) {
    store->model_error = std::string(file.status().message());
    return;
  }
  // As `inspect`, without its look at the tokenizer and at every weight.
  const StatusOr<std::unique_ptr<GgufFile>> opened = OpenModelFile(file->path);
  const Status servable = opened.ok() ? CheckServable(**opened) : opened.status();
  if (opened.ok()) store->model_bytes = (*opened)->file_bytes();
  if (!servable.ok()) {
    store->model_error =
        fmt::format("{}: {}", QuotedForMessage(file->path), std::string(servable.message()));
    return;
  }
  const ModelConfig config = ReadModelConfig(**opened).value();
  const KvLayout layout = KvLayoutOf(config, KvDtype::kBf16, KvLayout().block_size);
  store->sequence_bytes = SequenceBytes(layout, config.context_length);
}

// Whole days until the first certificate of the file is over.
std::optional<int64_t> CertificateDaysLeft(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             &std::fclose);
  if (file == nullptr) return std::nullopt;
  const std::unique_ptr<X509, void (*)(X509*)> cert(
      PEM_read_X509(file.get(), nullptr, nullptr, nullptr), &X509_free);
  int days = 0;
  int seconds = 0;
  if (cert == nullptr ||
      ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(cert.get())) != 1) {
    return std::nullopt;
  }
  return days;
}

void ProbeSecrets(const ProbePlan& plan, StoreFacts* store) {
  store->tls_given = !plan.tls.empty();
  if (store->tls_given) {
    store->tls_error = std::string(TlsIdentity::Load(plan.tls).status().message());
    store->tls_days_left = CertificateDaysLeft(plan.tls.cert);
  }
  store->secret_given = !plan.secret_file.empty();
  if (!store->secret_given) return;
  store->secret_error = std::string(ReadClusterSecret(plan.secret_file).status().message());
  struct stat status {};
  store->secret_is_public =
      stat(plan.secret_file.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0;
}

}  // namespace

void ProbeProcFiles(const std::string& root, HostFacts* facts) {
  ProbeCpuFiles(root, &facts->cpu);
  ProbeMemoryFiles(root, &facts->memory);
  ProbeCgroup(root, facts);
  ProbeNetworkFiles(root, &facts->network);
}

HostFacts ProbeHost(const ProbePlan& plan) {
  HostFacts facts;
  ProbeGpus(&facts.gpu);  // first: it forks
  facts.cpu.num_usable = static_cast<uint32_t>(std::max<size_t>(1, AffinityCpus().size()));
  ProbeIsa(&facts.cpu);
  ProbeProcFiles(plan.root, &facts);
  ProbeOwnLimits(&facts);
  ProbeSystem(plan.root, &facts.system);
  for (const auto& [flag, address] : plan.ports) {
    facts.network.ports.push_back(ProbePort(flag, address));
  }
  ProbeFolder(&facts.store);
  ProbeModel(plan.model, &facts.store);
  ProbeSecrets(plan, &facts.store);
  MeasureMemory(&facts.cpu);
  facts.network.links = {MeasureLink(TransportKind::kShm), MeasureLink(TransportKind::kTcp)};
  return facts;
}

}  // namespace baton::cli
