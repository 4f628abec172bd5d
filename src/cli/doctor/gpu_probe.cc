#include "src/cli/doctor/gpu_probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "src/base/clock.h"
#include "src/base/folder_entries.h"
#include "src/base/signal_text.h"
#include "src/base/unique_fd.h"
#include "src/cli/doctor/proc_text.h"
#include "src/device/gpu_code.h"
#include "src/model/compute_device.h"

namespace baton::cli {

using device::BuildGpuCode;
using device::DeviceKind;
using model::CheckDeviceInBuild;

namespace {

// Opening eight GPUs without the persistence daemon takes a second and more.
constexpr int64_t kTimeoutMs = 2500;
// The parent waits so long for a killed child to be gone.
constexpr int64_t kKillUs = 200'000;
// NVML's nvmlGpuTopologyLevel_t.
constexpr int kNvmlLevels[] = {0, 10, 20, 30, 40, 50};
constexpr unsigned kMaxNvlinks = 18;  // NVML_NVLINK_MAX_LINKS

// A library that stays loaded until the process ends.
class Library {
 public:
  explicit Library(const char* name) : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) error_ = fmt::format("{} is not on the loader's path", name);
  }
  // Null, with error(), when the library or the function is missing.
  template <typename Function>
  Function* Find(const char* function) {
    void* const address = handle_ != nullptr ? dlsym(handle_, function) : nullptr;
    if (address == nullptr && error_.empty()) error_ = fmt::format("{} has no {}", name_, function);
    return reinterpret_cast<Function*>(address);
  }
  const std::string& error() const { return error_; }

 private:
  const std::string name_;
  void* const handle_;
  std::string error_;
};

// The driver's C interface: 0 is success everywhere.
void AskDriver(GpuFacts* facts) {
  Library cuda("libcuda.so.1");
  auto* const init = cuda.Find<int(unsigned)>("cuInit");
  auto* const version = cuda.Find<int(int*)>("cuDriverGetVersion");
  auto* const count = cuda.Find<int(int*)>("cuDeviceGetCount");
  auto* const get = cuda.Find<int(int*, int)>("cuDeviceGet");
  auto* const name = cuda.Find<int(char*, int, int)>("cuDeviceGetName");
  auto* const memory = cuda.Find<int(size_t*, int)>("cuDeviceTotalMem_v2");
  auto* const attribute = cuda.Find<int(int*, int, int)>("cuDeviceGetAttribute");
  facts->driver_error = cuda.error();
  if (!facts->driver_error.empty()) return;
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  constexpr int kMinor = 76;
  (void)version(&facts->cuda_version);
  if (const int error = init(0); error != 0) {
    facts->driver_error = fmt::format("cuInit answers error {}", error);
    return;
  }
  int num_gpus = 0;
  (void)count(&num_gpus);
  for (int i = 0; i < num_gpus; ++i) {
    int device = 0;
    char text[256] = {};
    size_t bytes = 0;
    GpuFact gpu;
    if (get(&device, i) != 0) continue;
    (void)name(text, sizeof(text) - 1, device);
    (void)memory(&bytes, device);
    (void)attribute(&gpu.major, kMajor, device);
    (void)attribute(&gpu.minor, kMinor, device);
    gpu.name = text;
    gpu.memory_bytes = bytes;
    facts->gpus.push_back(std::move(gpu));
  }
}

GpuPath PathOfLevel(int level) {
  const auto* const found = std::lower_bound(std::begin(kNvmlLevels), std::end(kNvmlLevels), level);
  const size_t index = static_cast<size_t>(found - std::begin(kNvmlLevels));
  return static_cast<GpuPath>(std::min(index, std::size(kNvmlLevels) - 1));
}

void AskNvml(GpuFacts* facts) {
  Library nvml("libnvidia-ml.so.1");
  auto* const init = nvml.Find<int()>("nvmlInit_v2");
  auto* const count = nvml.Find<int(unsigned*)>("nvmlDeviceGetCount_v2");
  auto* const get = nvml.Find<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
  auto* const common = nvml.Find<int(void*, void*, int*)>("nvmlDeviceGetTopologyCommonAncestor");
  auto* const link = nvml.Find<int(void*, unsigned, int*)>("nvmlDeviceGetNvLinkState");
  facts->nvml_error = nvml.error();
  if (!facts->nvml_error.empty()) return;
  unsigned num_gpus = 0;
  if (init() != 0 || count(&num_gpus) != 0) {
    facts->nvml_error = "NVML does not start";
    return;
  }
  std::vector<void*> handles(num_gpus);
  for (unsigned i = 0; i < num_gpus; ++i) {
    if (get(i, &handles[i]) != 0) continue;
    // NVML counts all GPUs, CUDA those that this process may use; they agree unless some are
    // hidden.
    for (unsigned n = 0; i < facts->gpus.size() && n < kMaxNvlinks; ++n) {
      int active = 0;
      if (link(handles[i], n, &active) == 0 && active != 0) ++facts->gpus[i].num_nvlinks;
    }
    for (unsigned j = 0; j < i; ++j) {
      int level = 0;
      if (handles[j] == nullptr || common(handles[j], handles[i], &level) != 0) continue;
      facts->pairs.push_back({static_cast<int>(j), static_cast<int>(i), PathOfLevel(level)});
    }
  }
}

void AskNccl(GpuFacts* facts) {
  Library nccl("libnccl.so.2");
  auto* const version = nccl.Find<int(int*)>("ncclGetVersion");
  facts->nccl_error = nccl.error();
  if (version != nullptr) (void)version(&facts->nccl_version);
}

std::string AskAll() {
  GpuFacts facts;
  AskDriver(&facts);
  AskNvml(&facts);
  AskNccl(&facts);
  return WriteGpuReport(facts);
}

// The child: what libraries print would stand between the lines of the report.
[[noreturn]] void RunChild(const std::function<std::string()>& body, int pipe_fd) {
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null_fd >= 0) {
    (void)dup2(null_fd, STDOUT_FILENO);
    (void)dup2(null_fd, STDERR_FILENO);
  }
  const std::string text = body();
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = write(pipe_fd, text.data() + sent, text.size() - sent);
    if (count <= 0 && errno != EINTR) _exit(1);
    sent += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  _exit(0);
}

// Everything until the end of the pipe; false when `deadline_us` passed first.
bool ReadUntil(int fd, int64_t deadline_us, std::string* text) {
  for (;;) {
    const int64_t left_us = deadline_us - SystemClock().NowUs();
    if (left_us <= 0) return false;
    pollfd ready = {.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, static_cast<int>(left_us / 1000) + 1) <= 0) continue;
    char piece[4096];
    const ssize_t count = read(fd, piece, sizeof(piece));
    if (count == 0) return true;
    if (count > 0) text->append(piece, static_cast<size_t>(count));
    if (count < 0 && errno != EINTR) return true;
  }
}

}  // namespace

StatusOr<std::string> RunApart(const std::function<std::string()>& body, int64_t timeout_ms) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return Unavailable("no pipe: error {}", errno);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = fork();
  if (child < 0) return Unavailable("no child process: error {}", errno);
  if (child == 0) RunChild(body, writer.get());
  writer = UniqueFd();
  std::string text;
  const bool in_time = ReadUntil(reader.get(), SystemClock().NowUs() + timeout_ms * 1000, &text);
  if (!in_time) {
    (void)kill(child, SIGKILL);
    // Inside a driver that does not return it dies only when the driver lets it, perhaps never.
    const int64_t gone_by_us = SystemClock().NowUs() + kKillUs;
    while (waitpid(child, nullptr, WNOHANG) == 0 && SystemClock().NowUs() < gone_by_us) {
      (void)poll(nullptr, 0, /*timeout=*/1);
    }
    return DeadlineExceeded("no answer within {} ms", timeout_ms);
  }
  int state = 0;
  while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(state)) return Unavailable("it died of {}", SignalText(WTERMSIG(state)));
  if (WEXITSTATUS(state) != 0) return Unavailable("it ended with {}", WEXITSTATUS(state));
  return text;
}

void ProbeGpus(GpuFacts* facts) {
  facts->build_has_cuda = CheckDeviceInBuild(DeviceKind::kCuda).ok();
  facts->build_code = BuildGpuCode();
  // A program without an interpreter is linked statically: its dlopen needs the very C library that
  // it was built with, and crashes with another.
  facts->program_is_static = getauxval(AT_BASE) == 0;
  for (const auto& entry : FolderEntries("/dev")) {
    const std::string name = entry.path().filename().string();
    const bool is_gpu = name.starts_with("nvidia") && ParseCount(name.substr(6)).has_value();
    facts->num_device_nodes += is_gpu ? 1 : 0;
  }
  if (facts->program_is_static) return;
  const StatusOr<std::string> report = RunApart(&AskAll, kTimeoutMs);
  const Status status = report.ok() ? ReadGpuReport(*report, facts) : report.status();
  if (status.ok()) return;
  const std::string why(status.message());
  facts->driver_error = "the driver was asked: " + why;
  facts->nvml_error = facts->driver_error;
  facts->nccl_error = facts->driver_error;
}

}  // namespace baton::cli
