// Checks of `baton doctor` about kernel, clocks, sockets, links and files.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "fmt/format.h"

#include "src/base/host_port.h"
#include "src/base/size_text.h"
#include "src/cli/doctor/host_checks.h"

namespace baton::cli {
namespace {

// F_SEAL_FUTURE_WRITE, which KV pools are sealed with.
constexpr std::pair<int, int> kOldestKernel = {5, 1};
constexpr uint64_t kGoodBacklog = 1024;
// The transport asks for a buffer of the first size (socket_io.cc). One round trip of a LAN empties
// a buffer below the second size.
constexpr uint64_t kWantedBufferBytes = uint64_t{4} << 20;
constexpr uint64_t kSmallBufferBytes = uint64_t{1} << 20;
constexpr uint32_t kFewLocalPorts = 4096;
// The KV of 512 tokens of a small model (12 MB) crosses within a decode step of 12 ms.
constexpr double kSlowLinkBytesPerS = 1e9;
constexpr double kSlowRoundTripUs = 1000.0;
constexpr uint64_t kLittleDiskBytes = uint64_t{2} << 30;
constexpr int64_t kFewDays = 30;

// {6, 1} of "6.1.0-18-amd64"; {0, 0} for what has no such form.
std::pair<int, int> KernelVersion(const std::string& release) {
  char* end = nullptr;
  const long major = std::strtol(release.c_str(), &end, 10);
  if (end == release.c_str() || *end != '.') return {0, 0};
  return {static_cast<int>(major), static_cast<int>(std::strtol(end + 1, nullptr, 10))};
}

HostCheck CheckKernel(const SystemFacts& system) {
  HostCheck check{.id = "kernel", .why = "KV pools need memory files of Linux 5.1"};
  const std::pair<int, int> version = KernelVersion(system.kernel_release);
  if (version == std::pair{0, 0}) return AsNotApplicable(check, "not known");
  if (version >= kOldestKernel) return AsOk(check, system.kernel_release);
  return AsProblem(check, system.kernel_release, {"update the kernel to 5.1 or newer", ""});
}

HostCheck CheckClockSource(const SystemFacts& system) {
  HostCheck check{.id = "clock_source",
                  .why =
                      "the engine reads the clock several times a step, which is a system call "
                      "and a slow device with hpet or acpi_pm"};
  const std::string& source = system.clock_source;
  if (source.empty()) return AsNotApplicable(check, "not known");
  const bool slow = source == "hpet" || source == "acpi_pm" || source == "jiffies";
  if (!slow) return AsOk(check, source);
  return AsWarning(check, source,
                   {"use tsc, if the kernel still offers it (see its log for why it left)",
                    "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"});
}

HostCheck CheckClockSync(const SystemFacts& system) {
  HostCheck check{.id = "clock_sync",
                  .why = "logs and certificates go by the wall clock; Baton's own timers do not"};
  if (!system.clock_synchronised) return AsNotApplicable(check, "the kernel does not say");
  if (*system.clock_synchronised) return AsOk(check, "synchronised");
  return AsWarning(check, "not synchronised",
                   {"run chrony, systemd-timesyncd or the hypervisor's time service",
                    "timedatectl set-ntp true"});
}

HostCheck CheckContainer(const SystemFacts& system) {
  HostCheck check{.id = "container",
                  .why =
                      "limits of the container hold beside those of the host; Baton needs "
                      "neither root nor a writable root file system"};
  const std::string value = fmt::format(
      "{}, user {}, root file system {}", system.container.empty() ? "none seen" : system.container,
      system.user_id, system.root_is_read_only ? "read-only" : "writable");
  const bool is_root_in_container = !system.container.empty() && system.user_id == 0;
  if (!is_root_in_container) return AsOk(check, value);
  return AsWarning(check, value,
                   {"run it as another user: runAsNonRoot and readOnlyRootFilesystem of the pod's "
                    "securityContext",
                    ""});
}

HostCheck CheckHostId(const SystemFacts& system) {
  HostCheck check{.id = "host_id",
                  .why =
                      "workers use shared memory only with a peer of the same boot and network "
                      "namespace, as /proc shows them"};
  if (system.has_host_id) return AsOk(check, "known");
  return AsWarning(check, "not known: KV crosses by tcp",
                   {"mount /proc with /proc/sys/kernel/random/boot_id and /proc/self/ns", ""});
}

// "127.0.0.1:8080" -> "8080".
std::string PortOf(const std::string& address) { return address.substr(address.rfind(':') + 1); }

std::string_view PortCheckId(const std::string& flag) {
  if (flag == "--http") return "port_http";
  return flag == "--grpc" ? "port_grpc" : "port_admin";
}

HostCheck CheckPort(const PortFact& port) {
  HostCheck check{.id = PortCheckId(port.flag),
                  .why = "a router that cannot bind its address does not start"};
  if (port.error.empty()) return AsOk(check, fmt::format("{} is free", port.address));
  return AsProblem(check, port.error,
                   {fmt::format("give another {} HOST:PORT, or end what listens there (see: ss "
                                "-ltnp 'sport = :{}')",
                                port.flag, PortOf(port.address)),
                    ""});
}

HostCheck CheckLocalPorts(const NetworkFacts& network) {
  HostCheck check{.id = "local_ports",
                  .why =
                      "outgoing connections take ports of this range; a listening port inside it "
                      "may be taken when the server starts again"};
  if (!network.first_local_port || !network.last_local_port) {
    return AsNotApplicable(check, "not known");
  }
  const uint32_t first = *network.first_local_port;
  const uint32_t last = *network.last_local_port;
  const std::string value = fmt::format("{} to {}", first, last);
  const CheckFix fix = {"use the kernel's default range",
                        "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"};
  for (const PortFact& port : network.ports) {
    const StatusOr<HostPort> address = ParseHostPort(port.address);
    if (!address.ok() || address->port < first || address->port > last) continue;
    return AsWarning(check, fmt::format("{}, which holds {} {}", value, port.flag, port.address),
                     fix);
  }
  return last - first + 1 < kFewLocalPorts ? AsWarning(check, value, fix) : AsOk(check, value);
}

HostCheck CheckBacklog(const NetworkFacts& network) {
  HostCheck check{.id = "listen_backlog",
                  .why =
                      "clients that connect in the same moment wait in this queue; beyond it "
                      "they try again after a second"};
  if (!network.somaxconn) return AsNotApplicable(check, "not known");
  const std::string value = fmt::format("net.core.somaxconn={}", *network.somaxconn);
  if (*network.somaxconn >= kGoodBacklog) return AsOk(check, value);
  return AsWarning(check, value, {"raise it", "sysctl -w net.core.somaxconn=4096"});
}

HostCheck CheckBuffers(const NetworkFacts& network) {
  HostCheck check{.id = "socket_buffers",
                  .why =
                      "KV over tcp keeps up to 4 MiB under way; small buffers wait for round "
                      "trips instead"};
  if (!network.max_send_buffer_bytes || !network.max_receive_buffer_bytes) {
    return AsNotApplicable(check, "not known");
  }
  const uint64_t bytes =
      std::min(*network.max_send_buffer_bytes, *network.max_receive_buffer_bytes);
  const std::string value = fmt::format("at most {} (4 MiB wanted)", FormatSize(bytes));
  if (bytes >= kSmallBufferBytes) return AsOk(check, value);
  return AsWarning(
      check, value,
      {"raise them on hosts that exchange KV over a network",
       fmt::format("sysctl -w net.core.wmem_max={0} net.core.rmem_max={0}", kWantedBufferBytes)});
}

HostCheck CheckLink(const LinkFact& link) {
  const bool is_shm = link.transport == "shm";
  HostCheck check{.id = is_shm ? "link_shm" : "link_tcp",
                  .why = is_shm ? "how KV crosses between workers of this host, measured with the "
                                  "real transport"
                                : "how KV crosses between hosts, measured over loopback with the "
                                  "real transport"};
  if (!link.error.empty()) {
    return AsProblem(check, link.error,
                     {is_shm ? "allow abstract unix sockets and memory files between processes of "
                               "one user, or serve with --transport tcp"
                             : "allow connections over 127.0.0.1, or serve with --transport shm",
                      ""});
  }
  const std::string value =
      fmt::format("{:.2f} GB/s, round trip {:.0f} us", link.bytes_per_s * 1e-9, link.round_trip_us);
  if (link.bytes_per_s >= kSlowLinkBytesPerS && link.round_trip_us <= kSlowRoundTripUs) {
    return AsOk(check, value);
  }
  return AsWarning(check, value,
                   {"look for other load on this machine, and measure again when it is idle", ""});
}

HostCheck CheckModels(const StoreFacts& store) {
  HostCheck check{.id = "models", .why = "a worker opens its model before it serves"};
  if (!store.model.empty()) {
    if (store.model_error.empty()) {
      return AsOk(check, fmt::format("{}, {}", store.model, FormatSize(store.model_bytes)));
    }
    return AsProblem(check, store.model_error, {"name a model that is there, or fetch it", ""});
  }
  if (!store.models.empty()) {
    return AsOk(check,
                fmt::format("{}: {}", store.models_folder, absl::StrJoin(store.models, ", ")));
  }
  return AsWarning(check, fmt::format("none in {}", store.models_folder),
                   {"fetch one as the user that serves: baton pull smollm2:135m", ""});
}

HostCheck CheckDisk(const StoreFacts& store) {
  HostCheck check{.id = "disk",
                  .why =
                      "`baton pull` writes models here, and a download that finds no room fails "
                      "at its end"};
  if (!store.free_bytes) return AsNotApplicable(check, "not known");
  const std::string value =
      fmt::format("{} free for {}", FormatSize(*store.free_bytes), store.models_folder);
  if (!store.folder_writable) {
    return AsNotApplicable(
        check, fmt::format("{} cannot be written: nothing is pulled here", store.models_folder));
  }
  if (*store.free_bytes >= kLittleDiskBytes) return AsOk(check, value);
  return AsWarning(check, value, {"make room, or set BATON_HOME to a larger file system", ""});
}

HostCheck CheckTls(const StoreFacts& store) {
  HostCheck check{.id = "tls",
                  .why = "a process whose certificate is bad or over is refused by all others"};
  if (!store.tls_given) return AsNotApplicable(check, "no --tls-cert");
  if (!store.tls_error.empty()) {
    return AsProblem(check, store.tls_error,
                     {"replace the files; deploy/operations.md says how", ""});
  }
  if (!store.tls_days_left) return AsOk(check, "good");
  const std::string value = fmt::format("good, {} days left", *store.tls_days_left);
  if (*store.tls_days_left >= kFewDays) return AsOk(check, value);
  return AsWarning(check, value,
                   {"renew the certificate; files may be replaced while it runs", ""});
}

HostCheck CheckSecret(const StoreFacts& store) {
  HostCheck check{.id = "cluster_secret",
                  .why = "who knows it may connect to the KV ports of the cluster"};
  if (!store.secret_given) return AsNotApplicable(check, "no --cluster-secret-file");
  if (!store.secret_error.empty()) {
    return AsProblem(check, store.secret_error, {"write the same bytes on every host", ""});
  }
  if (!store.secret_is_public) return AsOk(check, "readable, and not by everybody");
  return AsWarning(check, "every user of this host can read it",
                   {"take the rights of others away: chmod o= FILE", ""});
}

}  // namespace

void CheckSystem(const HostFacts& facts, std::vector<HostCheck>* out) {
  out->push_back(CheckKernel(facts.system));
  out->push_back(CheckClockSource(facts.system));
  out->push_back(CheckClockSync(facts.system));
  out->push_back(CheckContainer(facts.system));
  out->push_back(CheckHostId(facts.system));
}

void CheckNetwork(const HostFacts& facts, std::vector<HostCheck>* out) {
  for (const PortFact& port : facts.network.ports) out->push_back(CheckPort(port));
  out->push_back(CheckLocalPorts(facts.network));
  out->push_back(CheckBacklog(facts.network));
  out->push_back(CheckBuffers(facts.network));
  for (const LinkFact& link : facts.network.links) out->push_back(CheckLink(link));
}

void CheckStore(const HostFacts& facts, std::vector<HostCheck>* out) {
  out->push_back(CheckModels(facts.store));
  out->push_back(CheckDisk(facts.store));
  out->push_back(CheckTls(facts.store));
  out->push_back(CheckSecret(facts.store));
}

}  // namespace baton::cli
