#include "src/device/core_budget.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "src/base/errno_text.h"
#include "src/base/memory_file.h"
#include "src/base/random.h"

namespace baton::device {
namespace {

constexpr int kRequiredSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The fields of /proc/PID/stat that matter here.
struct ProcessFacts {
  bool is_there = false;
  char state = '?';
  uint64_t start_ticks = 0;
};

// Field 22 counts from the state, which is field 3 and stands after the name in parentheses.
constexpr int kFieldsToStart = 19;

ProcessFacts FactsOf(pid_t pid) {
  ProcessFacts facts;
  char path[48];
  (void)std::snprintf(path, sizeof(path), "/proc/%d/stat", static_cast<int>(pid));
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) {
    facts.is_there = errno != ENOENT && errno != ESRCH;
    return facts;
  }
  char text[1024];
  const ssize_t size = ::read(file.get(), text, sizeof(text) - 1);
  if (size <= 0) {
    facts.is_there = errno != ESRCH;
    return facts;
  }
  facts.is_there = true;
  text[size] = '\0';
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] == '\0') return facts;
  at += 2;
  facts.state = *at;
  for (int i = 0; i < kFieldsToStart && at != nullptr; ++i) {
    at = std::strchr(at, ' ');
    if (at != nullptr) ++at;
  }
  if (at != nullptr) facts.start_ticks = std::strtoull(at, nullptr, 10);
  return facts;
}

StatusOr<CoreBudgetFile*> MapFile(int fd) {
  void* const memory =
      ::mmap(nullptr, sizeof(CoreBudgetFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return Unavailable("the core budget cannot be mapped: {}", ErrnoText(errno));
  }
  return static_cast<CoreBudgetFile*>(memory);
}

// Judges a descriptor before its memory is touched.
Status CheckDescriptor(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return FailedPrecondition("descriptor {} is no memory file", fd);
  if ((seals & kRequiredSeals) != kRequiredSeals) {
    return FailedPrecondition("the memory file has seals {:#x}, a core budget has {:#x}", seals,
                              kRequiredSeals);
  }
  struct stat info;
  if (::fstat(fd, &info) != 0) return FailedPrecondition("the memory file: {}", ErrnoText(errno));
  if (static_cast<uint64_t>(info.st_size) != sizeof(CoreBudgetFile)) {
    return FailedPrecondition("the memory file has {} bytes, a core budget has {}", info.st_size,
                              sizeof(CoreBudgetFile));
  }
  if (info.st_uid != ::geteuid()) {
    return FailedPrecondition("the memory file belongs to user {}, this process to user {}",
                              info.st_uid, ::geteuid());
  }
  return OkStatus();
}

Status CheckContents(const CoreBudgetFile& file) {
  if (file.magic != CoreBudgetFile::kMagic) {
    return FailedPrecondition("the memory file begins with {:#x}, a core budget with {:#x}",
                              file.magic, CoreBudgetFile::kMagic);
  }
  if (file.num_cores < 1 || file.num_cores > kMaxCores) {
    return FailedPrecondition("it has {} cores, outside [1, {}]", file.num_cores, kMaxCores);
  }
  if (file.num_members < 1 || file.num_members > kMaxCoreMembers) {
    return FailedPrecondition("it has {} members, outside [1, {}]", file.num_members,
                              kMaxCoreMembers);
  }
  for (uint32_t core = 0; core < file.num_cores; ++core) {
    if (file.cores[core].home < file.num_members) continue;
    return FailedPrecondition("core {} belongs to member {} of {}", core, file.cores[core].home,
                              file.num_members);
  }
  if (file.creator != ::getppid() && file.creator != ::getpid()) {
    return FailedPrecondition("it belongs to the server with pid {}, not to this worker's parent",
                              file.creator);
  }
  return OkStatus();
}

}  // namespace

HolderState ProcessState(pid_t pid, uint64_t start_ticks) {
  if (pid <= 0 || start_ticks == 0) return HolderState::kRuns;
  const ProcessFacts facts = FactsOf(pid);
  if (!facts.is_there) return HolderState::kGone;
  if (facts.start_ticks == 0) return HolderState::kRuns;  // it may not be read
  if (facts.start_ticks != start_ticks) return HolderState::kGone;
  if (facts.state == 'Z' || facts.state == 'X' || facts.state == 'x') return HolderState::kGone;
  if (facts.state == 'T' || facts.state == 't') return HolderState::kStopped;
  return HolderState::kRuns;
}

uint64_t ProcessStartTicks(pid_t pid) { return FactsOf(pid).start_ticks; }

CoreBudget::CoreBudget(CoreBudgetFile* file, UniqueFd fd)
    : file_(file),
      fd_(std::move(fd)),
      id_(file->id),
      num_cores_(file->num_cores),
      num_members_(file->num_members) {
  for (uint32_t core = 0; core < num_cores_; ++core) homes_[core] = file->cores[core].home;
}

CoreBudget::~CoreBudget() { (void)::munmap(file_, sizeof(CoreBudgetFile)); }

StatusOr<std::unique_ptr<CoreBudget>> CoreBudget::Create(std::span<const uint32_t> home_counts,
                                                         std::span<const int> cpus) {
  if (home_counts.empty() || home_counts.size() > kMaxCoreMembers) {
    return InvalidArgument("a core budget of {} workers, outside [1, {}]", home_counts.size(),
                           kMaxCoreMembers);
  }
  uint64_t total = 0;
  for (const uint32_t count : home_counts) total += count;
  if (total < 1 || total > kMaxCores) {
    return InvalidArgument("a core budget of {} cores, outside [1, {}]", total, kMaxCores);
  }
  if (!cpus.empty() && cpus.size() != total) {
    return InvalidArgument("a core budget of {} cores on {} processors", total, cpus.size());
  }
  BATON_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemoryFile("baton-cores", sizeof(CoreBudgetFile)));
  BATON_RETURN_IF_ERROR(AllocateMemoryFile(fd.get(), 0, sizeof(CoreBudgetFile)));
  BATON_ASSIGN_OR_RETURN(CoreBudgetFile* const mapped, MapFile(fd.get()));
  auto* const file = new (mapped) CoreBudgetFile{};
  file->id = RandomIncarnation().value();
  file->num_cores = static_cast<uint32_t>(total);
  file->num_members = static_cast<uint32_t>(home_counts.size());
  file->creator = ::getpid();
  uint32_t core = 0;
  for (uint32_t member = 0; member < file->num_members; ++member) {
    file->members[member].life.store(1);
    for (uint32_t i = 0; i < home_counts[member]; ++i, ++core) {
      file->cores[core].home = member;
      file->cores[core].cpu = cpus.empty() ? -1 : cpus[core];
    }
  }
  file->magic = CoreBudgetFile::kMagic;
  std::unique_ptr<CoreBudget> budget(new CoreBudget(file, std::move(fd)));
  if (::fcntl(budget->fd(), F_ADD_SEALS, kRequiredSeals) != 0) {
    return Unavailable("sealing the core budget: {}", ErrnoText(errno));
  }
  return budget;
}

StatusOr<std::unique_ptr<CoreBudget>> CoreBudget::Open(int fd) {
  BATON_RETURN_IF_ERROR(CheckDescriptor(fd));
  BATON_ASSIGN_OR_RETURN(CoreBudgetFile* const file, MapFile(fd));
  const Status status = CheckContents(*file);
  if (!status.ok()) {
    (void)::munmap(file, sizeof(CoreBudgetFile));
    return status;
  }
  return std::unique_ptr<CoreBudget>(new CoreBudget(file, UniqueFd()));
}

void CoreBudget::Vacate(uint32_t index) {
  CoreBudgetFile::Member& gone = member(index);
  gone.pid.store(0);
  const MemberLife dead = {index, gone.life.fetch_add(1) & kCoreLifeMask};
  Bury(dead);
}

void CoreBudget::Bury(const MemberLife& dead) {
  for (uint32_t core = 0; core < num_cores_; ++core) {
    const bool is_home = home(core) == dead.member;
    (void)MoveCore(word(core), [&](CoreWord seen) { return AfterDeath(seen, dead, is_home); });
  }
  Ring();
}

// seq_cst on `changes` and `num_waiting`: either this thread sees the one that waits, or that one
// sees the new count (the futex compares it again).
void CoreBudget::Ring() {
  file_->changes.fetch_add(1);
  if (file_->num_waiting.load() == 0) return;
  ::syscall(SYS_futex, &file_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void CoreBudget::Wait(uint32_t seen, int64_t timeout_us) const {
  const timespec timeout = {.tv_sec = timeout_us / 1'000'000,
                            .tv_nsec = timeout_us % 1'000'000 * 1000};
  ::syscall(SYS_futex, &file_->changes, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace baton::device
