#include "src/device/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "fmt/format.h"

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/device/core_share.h"

namespace baton::device {
namespace {

// ticket = [job : 24][num_tasks : 20][next_task : 20]. A worker that was suspended between reading
// and claiming may see the same word again after 2^24 jobs; the claim is then one on the live job,
// which is as good: nothing but the word itself was read before the claim.
constexpr uint32_t kTaskBits = 20;
constexpr uint64_t kTaskMask = (uint64_t{1} << kTaskBits) - 1;
static_assert(kTaskMask == ThreadPool::kMaxTasks);

uint32_t NextTask(uint64_t ticket) { return static_cast<uint32_t>(ticket & kTaskMask); }
uint32_t NumTasks(uint64_t ticket) {
  return static_cast<uint32_t>((ticket >> kTaskBits) & kTaskMask);
}
uint64_t JobOf(uint64_t ticket) { return ticket >> (2 * kTaskBits); }
uint64_t FirstTicketAfter(uint64_t ticket, uint32_t num_tasks) {
  const uint64_t job = JobOf(ticket) + 1;
  return (job << (2 * kTaskBits)) | (uint64_t{num_tasks} << kTaskBits);
}

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  static_assert(sizeof(*word) == sizeof(uint32_t));
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word, int num_waiters) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, num_waiters, nullptr, nullptr, 0);
}

// Asks for a line that is read and then written: one trip instead of two.
void FetchToWrite(const void* line) {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw (%0)" : : "r"(line));  // does nothing on processors without it
#else
  __builtin_prefetch(line, 1);
#endif
}

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Spins until done() or for kSpinUs; true when done. The clock (about 25 ns) is read every 16th
// time.
template <typename Done>
bool SpinUntil(const Done& done) {
  int64_t deadline_us = 0;
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      Pause();
    }
    const int64_t now_us = SystemClock().NowUs();
    if (deadline_us == 0) deadline_us = now_us + ThreadPool::kSpinUs;
    if (now_us >= deadline_us) return done();
  }
}

}  // namespace

ThreadPool::ThreadPool(const Options& options)
    : num_threads_(options.num_threads),
      cores_(options.cores),
      scratch_(AlignedBuffer::AllocateOrDie(size_t{options.num_threads} * kScratchBytes)) {
  BATON_CHECK(num_threads_ >= 1 && num_threads_ <= kMaxThreads, "num_threads {} outside [1, {}]",
              num_threads_, kMaxThreads);
  workers_.reserve(num_threads_ - 1);
  for (uint32_t i = 1; i < num_threads_; ++i) {
    workers_.emplace_back(fmt::format("kernel-{}", i),
                          [this, i] { cores_ == nullptr ? WorkerLoop(i) : SeatedWorkerLoop(i); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1);
  FutexWake(&epoch_, INT_MAX);
  for (Thread& worker : workers_) worker.Join();
}

void ThreadPool::RunShared(uint32_t num_tasks, TaskFunction function, void* body) {
  BATON_CHECK(num_tasks <= kMaxTasks, "{} tasks, at most {}", num_tasks, kMaxTasks);
  const uint64_t last = ticket_.load(std::memory_order_relaxed);
  BATON_DCHECK(NextTask(last) == NumTasks(last), "Run called while a job is live");
  function_ = function;
  body_ = body;
  num_done_.store(0, std::memory_order_relaxed);
  if (cores_ != nullptr && cores_->HasNews()) (void)cores_->TakeNews();
  ticket_.store(FirstTicketAfter(last, num_tasks));
  WakeWorkers(num_tasks - 1);
  (void)Work(0);
  WaitForDone(num_tasks);
}

// seq_cst on ticket_ and num_sleeping_: either this thread sees the sleeper, or the sleeper sees
// the new job. A vacant seat is seen in the same way, because a worker leaves its seat before it
// counts as sleeping. Raising the epoch costs a trip of its line, so it is done for sleepers only.
void ThreadPool::WakeWorkers(uint32_t num_workers) {
  if (num_sleeping_.load() == 0) return;
  if (cores_ != nullptr) num_workers = std::min(num_workers, cores_->num_vacant());
  if (num_workers == 0) return;
  epoch_.fetch_add(1);
  FutexWake(&epoch_, static_cast<int>(num_workers));
}

void ThreadPool::TakeNewCores(uint32_t num_left) {
  if (cores_->TakeNews() == 0 || num_left <= 1) return;
  // Not of a job, so a worker that has found no seat and does not count as sleeping yet sees it by
  // the epoch.
  epoch_.fetch_add(1);
  WakeWorkers(num_left - 1);
}

bool ThreadPool::Work(uint32_t thread_idx, std::optional<uint32_t> seat) {
  uint32_t num_run = 0;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (NextTask(ticket) < NumTasks(ticket)) {
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    // The job cannot end before this task is counted, so its function and body are stable here,
    // and so is the job until all tasks that this thread has run are counted.
    function_(body_, NextTask(ticket), thread_idx);
    ++num_run;
    if (seat && !cores_->MayStay(*seat)) {
      CountDone(num_run, NumTasks(ticket), thread_idx);
      return false;
    }
    FetchToWrite(&ticket_);
    ticket = ticket_.load(std::memory_order_acquire);
    if (thread_idx == 0 && cores_ != nullptr && cores_->HasNews()) {
      TakeNewCores(NumTasks(ticket) - NextTask(ticket));
    }
  }
  if (num_run > 0) CountDone(num_run, NumTasks(ticket), thread_idx);
  return true;
}

// seq_cst on num_done_ and owner_sleeps_: as for ticket_ above.
void ThreadPool::CountDone(uint32_t num_run, uint32_t num_tasks, uint32_t thread_idx) {
  if (num_done_.fetch_add(num_run) + num_run == num_tasks && thread_idx != 0 &&
      owner_sleeps_.load() != 0) {
    FutexWake(&num_done_, 1);
  }
}

void ThreadPool::WaitForDone(uint32_t num_tasks) {
  const auto done = [&] { return num_done_.load(std::memory_order_acquire) == num_tasks; };
  if (SpinUntil(done)) return;
  owner_sleeps_.store(1);
  for (uint32_t count = num_done_.load(); count != num_tasks; count = num_done_.load()) {
    FutexWait(&num_done_, count);
  }
  owner_sleeps_.store(0);
}

ThreadPool::Seen ThreadPool::SeenNow() const { return {JobOf(ticket_.load()), epoch_.load()}; }

bool ThreadPool::HasNews(const Seen& seen) const {
  return JobOf(ticket_.load()) != seen.job || epoch_.load() != seen.epoch;
}

void ThreadPool::WaitForNews(const Seen& seen) {
  if (!SpinUntil([&] { return HasNews(seen); })) SleepUntilNews(seen);
}

bool ThreadPool::SpinOnSeat(uint32_t seat, const Seen& seen) {
  bool is_kept = true;
  const auto done = [&] {
    if (HasNews(seen)) return true;
    is_kept = cores_->MayStay(seat);
    return !is_kept;
  };
  if (SpinUntil(done)) return is_kept;
  cores_->Leave(seat);
  return false;
}

void ThreadPool::SleepUntilNews(const Seen& seen) {
  num_sleeping_.fetch_add(1);
  while (!HasNews(seen)) FutexWait(&epoch_, seen.epoch);
  num_sleeping_.fetch_sub(1);
}

void ThreadPool::SeatedWorkerLoop(uint32_t thread_idx) {
  CoreShare::Place place;
  std::optional<uint32_t> seat;
  while (!stop_.load()) {
    const Seen seen = SeenNow();
    if (!seat) seat = cores_->TakeSeat(&place);
    if (seat && !(cores_->MayStay(*seat) && Work(thread_idx, seat))) seat.reset();
    if (stop_.load()) break;
    if (seat && !SpinOnSeat(*seat, seen)) seat.reset();
    if (!seat) SleepUntilNews(seen);
  }
  if (seat) cores_->Leave(*seat);
}

void ThreadPool::WorkerLoop(uint32_t thread_idx) {
  while (!stop_.load()) {
    const Seen seen = SeenNow();
    (void)Work(thread_idx);
    if (stop_.load()) break;
    WaitForNews(seen);
  }
}

}  // namespace baton::device
