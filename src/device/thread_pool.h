// ThreadPool: the fork-join workers of one device's kernels.
//
// A pool of num_threads() threads is the calling thread plus num_threads() - 1 workers named
// "kernel-1", "kernel-2", ... The caller always works too, so a pool of one thread costs nothing
// and starts nothing.
//
// Invariants
//  1. One thread at a time calls Run (the owner: an engine thread); Run is not called from a task.
//  2. When Run returns every task has run exactly once and its writes are visible to the caller.
//  3. Tasks are claimed in ascending order by whoever is free. Which thread runs a task is not
//     fixed, so a result must never depend on the thread index; the index only selects scratch.
//  4. The caller waits only for tasks that a worker has claimed: a worker that the operating system
//     has not scheduled delays nobody.
//  5. An idle worker spins at most kSpinUs, then sleeps on a futex. Run allocates nothing and takes
//     no lock; its only system call is the wake-up of sleeping workers.
//  6. With a CoreShare a worker runs tasks and spins only while it has a seat there. It leaves
//     between two tasks when its core is wanted back, and others join between two tasks of the
//     caller when cores come. The tasks that are left are claimed by whoever stays (invariants 2
//     and 3 hold), the caller at the least.
#ifndef BATON_DEVICE_THREAD_POOL_H_
#define BATON_DEVICE_THREAD_POOL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "src/base/thread.h"
#include "src/device/aligned_buffer.h"

namespace baton::device {

class CoreShare;

// Half-open range [begin, end).
struct TaskRange {
  uint32_t begin;
  uint32_t end;
  uint32_t size() const { return end - begin; }
};

// Part `part` of [0, total) cut into `num_parts` contiguous parts whose sizes differ by at most
// one.
constexpr TaskRange PartOf(uint32_t total, uint32_t num_parts, uint32_t part) {
  return {static_cast<uint32_t>(uint64_t{total} * part / num_parts),
          static_cast<uint32_t>(uint64_t{total} * (part + 1) / num_parts)};
}

// Part `part` of `num_parts` of [0, total), cut in `rounds` (1 to 3) of as many parts each. Three
// rounds have 5, 2 and 1 eighths of the total, two rounds 5 and 3. `num_parts` is a multiple of
// `rounds`.
constexpr TaskRange ShrinkingPart(uint32_t total, uint32_t rounds, uint32_t num_parts,
                                  uint32_t part) {
  const uint32_t per_round = num_parts / rounds;
  const uint32_t round = part / per_round;
  const auto eighths = [&](uint32_t r) {
    const uint32_t ends[] = {0, 5, 7};
    return static_cast<uint32_t>(uint64_t{total} * (r == rounds ? 8 : ends[r]) / 8);
  };
  const uint32_t begin = eighths(round);
  const TaskRange range = PartOf(eighths(round + 1) - begin, per_round, part % per_round);
  return {begin + range.begin, begin + range.end};
}

// Fork-join workers; see the file comment.
class ThreadPool {
 public:
  static constexpr uint32_t kMaxThreads = 256;
  static constexpr uint32_t kMaxTasks = (1u << 20) - 1;
  // Long enough to bridge the gap between two operations of a decode step (< 10 us), short enough
  // that more processes than cores do not collapse.
  static constexpr int64_t kSpinUs = 20;
  // Working memory of one thread: holds the largest tile that any kernel unpacks.
  static constexpr size_t kScratchBytes = size_t{256} * 1024;

  // Options of a pool.
  struct Options {
    uint32_t num_threads = 1;  // 1..kMaxThreads, the caller included
    // The cores on which the workers may run, for pools whose owner brackets its work by BeginStep
    // and EndSteps; outlives the pool. Null: each thread may always run.
    CoreShare* cores = nullptr;
  };

  explicit ThreadPool(uint32_t num_threads) : ThreadPool(Options{.num_threads = num_threads}) {}
  explicit ThreadPool(const Options& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t num_threads() const { return num_threads_; }

  // Calls task(task_idx, thread_idx) for task_idx in [0, num_tasks), num_tasks <= kMaxTasks;
  // thread_idx < num_threads(). Tasks do not throw.
  template <typename Task>
  void Run(uint32_t num_tasks, Task&& task) {
    if (num_threads_ == 1 || num_tasks <= 1) {
      for (uint32_t i = 0; i < num_tasks; ++i) task(i, uint32_t{0});
      return;
    }
    using Body = std::remove_reference_t<Task>;
    RunShared(
        num_tasks,
        [](void* body, uint32_t task_idx, uint32_t thread_idx) {
          (*static_cast<Body*>(body))(task_idx, thread_idx);
        },
        const_cast<void*>(static_cast<const void*>(&task)));
  }

  // Cuts [0, total) into at most `max_parts` contiguous ranges of at least `min_size` elements and
  // calls body(TaskRange, thread_idx) for each. Work of less than 2 * min_size stays on the caller.
  template <typename Body>
  void RunRanges(uint32_t total, uint32_t min_size, uint32_t max_parts, Body&& body) {
    if (total == 0) return;
    uint32_t parts = min_size > 1 ? total / min_size : total;
    if (parts > max_parts) parts = max_parts;
    if (parts < 1 || num_threads_ == 1) parts = 1;
    Run(parts,
        [&](uint32_t part, uint32_t thread_idx) { body(PartOf(total, parts, part), thread_idx); });
  }

  // Cuts [0, total) into contiguous ranges that get shorter, in up to three rounds of one range a
  // thread. The rounds have five, two and one eighth of the total. So few claims balance threads
  // that start at different times; a claim costs a wait for a distant core. There are as many
  // rounds as a thread's even share holds min_size. If there are several ranges, none is shorter
  // than three eighths of min_size. If one would be longer than max_size >= min_size, the ranges
  // are even instead, because a core that is wanted back waits for the end of a range.
  template <typename Body>
  void RunShrinking(uint32_t total, uint32_t min_size, uint32_t max_size, Body&& body) {
    if (total == 0) return;
    if (num_threads_ == 1) return body(TaskRange{0, total}, uint32_t{0});
    if (uint64_t{total} * 5 > uint64_t{max_size} * 8 * num_threads_) {
      return RunRanges(total, min_size, (total + max_size - 1) / max_size, body);
    }
    const uint32_t rounds =
        std::clamp<uint32_t>(total / std::max<uint32_t>(1, min_size * num_threads_), 1, 3);
    const uint32_t parts =
        rounds > 1 ? rounds * num_threads_
                   : std::clamp<uint32_t>(total / std::max<uint32_t>(1, min_size), 1, num_threads_);
    Run(parts, [&](uint32_t part, uint32_t thread_idx) {
      const TaskRange range = ShrinkingPart(total, rounds, parts, part);
      if (range.size() > 0) body(range, thread_idx);
    });
  }

  // Working memory of one thread [kScratchBytes], 64-byte aligned, contents undefined. A task may
  // use the scratch of its own thread_idx only; outside Run the caller may use any.
  std::span<std::byte> scratch(uint32_t thread_idx) {
    return {scratch_.data() + size_t{thread_idx} * kScratchBytes, kScratchBytes};
  }

 private:
  using TaskFunction = void (*)(void* body, uint32_t task_idx, uint32_t thread_idx);

  // The job and the epoch that a worker knew before it looked for work.
  struct Seen {
    uint64_t job;
    uint32_t epoch;
  };

  void RunShared(uint32_t num_tasks, TaskFunction function, void* body);
  void WorkerLoop(uint32_t thread_idx);
  void SeatedWorkerLoop(uint32_t thread_idx);
  // Claims and runs tasks until none is left, or until `seat` (a core of cores_) was given back:
  // then false.
  bool Work(uint32_t thread_idx, std::optional<uint32_t> seat = std::nullopt);
  // Counts tasks that a thread has run, all that it claimed of the job.
  void CountDone(uint32_t num_run, uint32_t num_tasks, uint32_t thread_idx);
  // The caller takes and gives back cores between two tasks, of which `num_left` are unclaimed.
  void TakeNewCores(uint32_t num_left);
  void WakeWorkers(uint32_t num_workers);
  Seen SeenNow() const;
  // There is a later job or epoch.
  bool HasNews(const Seen& seen) const;
  void WaitForNews(const Seen& seen);
  // Spins on `seat`, then leaves it; true when there was news first and the seat is kept.
  bool SpinOnSeat(uint32_t seat, const Seen& seen);
  void SleepUntilNews(const Seen& seen);
  void WaitForDone(uint32_t num_tasks);

  // Constant after construction.
  const uint32_t num_threads_;
  CoreShare* const cores_;
  AlignedBuffer scratch_;

  // Job number, number of tasks and next task in one word (see thread_pool.cc), so that a claim
  // that succeeds is a claim on the live job. Workers spin on it.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  // Written by the owner before it publishes a ticket, read by whoever claimed one: on the line
  // that a claim has brought.
  TaskFunction function_ = nullptr;
  void* body_ = nullptr;
  // Tasks of the live job that are counted as finished; the owner may sleep on it.
  alignas(64) std::atomic<uint32_t> num_done_{0};
  std::atomic<uint32_t> owner_sleeps_{0};
  // Raised to wake workers: for a job, when cores have come, and at the end. They sleep on it.
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<uint32_t> num_sleeping_{0};
  std::atomic<bool> stop_{false};

  std::vector<Thread> workers_;
};

}  // namespace baton::device

#endif  // BATON_DEVICE_THREAD_POOL_H_
