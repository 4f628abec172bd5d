#include "src/device/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <string>

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
uint64_t FirstTicketAfter(uint64_t ticket, uint32_t num_tasks) {
  const uint64_t job = (ticket >> (2 * kTaskBits)) + 1;
  return (job << (2 * kTaskBits)) | (uint64_t{num_tasks} << kTaskBits);
}

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  static_assert(sizeof(*word) == sizeof(uint32_t));
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word, int num_waiters) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, num_waiters, nullptr, nullptr, 0);
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
  ticket_.store(FirstTicketAfter(last, num_tasks), std::memory_order_release);
  epoch_.fetch_add(1);
  WakeWorkers(num_tasks - 1);
  (void)Work(0);
  WaitForDone(num_tasks);
}

// seq_cst on epoch_ and num_sleeping_: either this thread sees the sleeper, or the sleeper sees the
// new epoch (the futex compares it again). A vacant seat is seen in the same way, because a worker
// leaves its seat before it counts as sleeping.
void ThreadPool::WakeWorkers(uint32_t num_workers) {
  if (num_sleeping_.load() == 0) return;
  if (cores_ != nullptr) num_workers = std::min(num_workers, cores_->num_vacant());
  if (num_workers > 0) FutexWake(&epoch_, static_cast<int>(num_workers));
}

void ThreadPool::TakeNewCores(uint32_t num_left) {
  if (cores_->TakeNews() == 0 || num_left <= 1) return;
  epoch_.fetch_add(1);
  WakeWorkers(num_left - 1);
}

bool ThreadPool::Work(uint32_t thread_idx, std::optional<uint32_t> seat) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (NextTask(ticket) < NumTasks(ticket)) {
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    // The job cannot end before this task is counted, so its function and body are stable here.
    const uint32_t num_tasks = NumTasks(ticket);
    function_(body_, NextTask(ticket), thread_idx);
    // seq_cst on num_done_ and owner_sleeps_: as for epoch_ above.
    if (num_done_.fetch_add(1) + 1 == num_tasks && thread_idx != 0 && owner_sleeps_.load() != 0) {
      FutexWake(&num_done_, 1);
    }
    if (seat && !cores_->MayStay(*seat)) return false;
    ticket = ticket_.load(std::memory_order_acquire);
    if (thread_idx == 0 && cores_ != nullptr && cores_->HasNews()) {
      TakeNewCores(NumTasks(ticket) - NextTask(ticket));
    }
  }
  return true;
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

void ThreadPool::WaitForNews(uint32_t seen_epoch) {
  const auto news = [&] { return epoch_.load(std::memory_order_acquire) != seen_epoch; };
  if (!SpinUntil(news)) SleepUntilNews(seen_epoch);
}

bool ThreadPool::SpinOnSeat(uint32_t seat, uint32_t seen_epoch) {
  bool is_kept = true;
  const auto done = [&] {
    if (epoch_.load(std::memory_order_acquire) != seen_epoch) return true;
    is_kept = cores_->MayStay(seat);
    return !is_kept;
  };
  if (SpinUntil(done)) return is_kept;
  cores_->Leave(seat);
  return false;
}

void ThreadPool::SleepUntilNews(uint32_t seen_epoch) {
  num_sleeping_.fetch_add(1);
  while (epoch_.load() == seen_epoch) FutexWait(&epoch_, seen_epoch);
  num_sleeping_.fetch_sub(1);
}

void ThreadPool::SeatedWorkerLoop(uint32_t thread_idx) {
  CoreShare::Place place;
  std::optional<uint32_t> seat;
  while (!stop_.load()) {
    const uint32_t seen_epoch = epoch_.load();
    if (!seat) seat = cores_->TakeSeat(&place);
    if (seat && !(cores_->MayStay(*seat) && Work(thread_idx, seat))) seat.reset();
    if (stop_.load()) break;
    if (seat && !SpinOnSeat(*seat, seen_epoch)) seat.reset();
    if (!seat) SleepUntilNews(seen_epoch);
  }
  if (seat) cores_->Leave(*seat);
}

void ThreadPool::WorkerLoop(uint32_t thread_idx) {
  while (!stop_.load()) {
    const uint32_t seen_epoch = epoch_.load();
    (void)Work(thread_idx);
    if (stop_.load()) break;
    WaitForNews(seen_epoch);
  }
}

}  // namespace baton::device
