// CoreBudget: the compute threads that the workers of one host may run together, in memory that
// their processes share. `serve` creates it and hands its descriptor to each worker; a worker
// attaches and moves cores through its CoreShare. src/device/NOTES.md has the states of a core.
//
// The memory is a sealed memfd: it has no name that a later server could find, its size cannot
// change under a mapping, and it ends with the last process of its server.
//
// Invariants
//  1. Every state is one that core_word.h describes, also after a kill -9 at any instruction.
//  2. No function waits, but for CoreShare's wait for a first core.
//
// Any thread, any process.
#ifndef BATON_DEVICE_CORE_BUDGET_H_
#define BATON_DEVICE_CORE_BUDGET_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/status.h"
#include "src/base/unique_fd.h"
#include "src/device/core_word.h"

namespace baton::device {

// Most cores of a budget: the largest value of --threads.
inline constexpr uint32_t kMaxCores = 1024;

// The memory of a budget. Words that different members write stand on lines of their own.
struct CoreBudgetFile {
  static constexpr uint64_t kMagic = 0x33455243'4e544142;  // "BATNCRE3"

  // A member's place. All but `life` is written by the process that is the member now.
  struct alignas(64) Member {
    std::atomic<uint32_t> life;         // raised by the creator when the process has ended
    std::atomic<int32_t> pid;           // 0 = no process yet
    std::atomic<uint64_t> start_ticks;  // of that pid, as /proc tells; 0 = not known
    std::atomic<uint64_t> lent_us;      // its cores' time that other members computed on
  };
  // A core's place.
  struct alignas(64) Core {
    std::atomic<CoreWord> word;
    uint32_t home;  // constant
    int32_t cpu;    // constant; see CoreBudget::cpu
  };

  uint64_t magic;
  uint64_t id;  // random, not 0
  uint32_t num_cores;
  uint32_t num_members;
  int32_t creator;  // pid of `serve`
  // Raised by whatever may let a member take or give back a core; members that wait sleep on it.
  alignas(64) std::atomic<uint32_t> changes;
  std::atomic<uint32_t> num_waiting;
  Member members[kMaxCoreMembers];
  Core cores[kMaxCores];
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A process's state as far as its cores are concerned.
enum class HolderState : uint8_t {
  kRuns = 0,     // or nothing is known
  kStopped = 1,  // by a signal or a debugger
  kGone = 2,     // ended, also when nobody has reaped it yet
};

// The state of process `pid`, if it began at `start_ticks`; about 15 us. Reads /proc.
HolderState ProcessState(pid_t pid, uint64_t start_ticks);
// When a process began, in ticks since the system started; 0 = not known.
uint64_t ProcessStartTicks(pid_t pid);

// See the file comment.
class CoreBudget {
 public:
  // One member for each entry of `home_counts`, with so many cores of its own, all free. `cpus`:
  // the processor of each core, or empty = threads are not kept on processors.
  // InvalidArgument for counts outside the limits, else as CreateMemoryFile.
  static StatusOr<std::unique_ptr<CoreBudget>> Create(std::span<const uint32_t> home_counts,
                                                      std::span<const int> cpus = {});
  // The budget behind a descriptor that this process was handed; the descriptor stays the caller's.
  // FailedPrecondition that names what is wrong with it: no budget, another size, user or server.
  static StatusOr<std::unique_ptr<CoreBudget>> Open(int fd);
  ~CoreBudget();
  CoreBudget(const CoreBudget&) = delete;
  CoreBudget& operator=(const CoreBudget&) = delete;

  // The descriptor of a budget that was created here; -1 for one that was opened.
  int fd() const { return fd_.get(); }
  // Its name, equal in all of its processes; another budget has another one. Not 0.
  uint64_t id() const { return id_; }
  uint32_t num_cores() const { return num_cores_; }
  uint32_t num_members() const { return num_members_; }
  // The member that a core belongs to by the split; read once, when the memory was checked.
  uint32_t home(uint32_t core) const { return homes_[core]; }
  // The processor on which the core's holder computes; -1 = the operating system chooses.
  int cpu(uint32_t core) const { return file_->cores[core].cpu; }
  std::atomic<CoreWord>& word(uint32_t core) const { return file_->cores[core].word; }
  CoreBudgetFile::Member& member(uint32_t member) const { return file_->members[member]; }

  // The creator's answer to the end of a member's process: its cores are free at once, and its next
  // process has another life. Only after the process was reaped.
  void Vacate(uint32_t member);
  // Frees what the life `dead` holds. Whoever finds it dead may call this.
  void Bury(const MemberLife& dead);

  // ---- The bell that all members share.
  uint32_t changes() const { return file_->changes.load(std::memory_order_acquire); }
  // Tells all members to look again; wakes those that wait.
  void Ring();
  // Sleeps until the bell has rung since `seen`, at most `timeout_us`. The caller took `seen` after
  // BeginWait and before it looked at the cores.
  void Wait(uint32_t seen, int64_t timeout_us) const;
  void BeginWait() { file_->num_waiting.fetch_add(1); }
  void EndWait() { file_->num_waiting.fetch_sub(1); }

 private:
  CoreBudget(CoreBudgetFile* file, UniqueFd fd);

  CoreBudgetFile* const file_;
  const UniqueFd fd_;
  // Constant, so that a word that somebody else spoils cannot make this process leave its tables.
  const uint64_t id_;
  const uint32_t num_cores_;
  const uint32_t num_members_;
  uint32_t homes_[kMaxCores] = {};
};

}  // namespace baton::device

#endif  // BATON_DEVICE_CORE_BUDGET_H_
