#include "src/worker/worker_drain.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace baton::worker {
namespace {

// Two heartbeats: after them no router places a request here any more.
constexpr int64_t kAnnounceUs = 500'000;
constexpr int64_t kPollUs = 5'000;
// The order to fail is taken after the step that runs. A step is planned to 100 ms. On a machine
// that has too much to do it takes many times as long, and still leaves nothing behind.
constexpr int64_t kStepUs = 2'000'000;
// Then transports let go of blocks, and routers hear of the ends.
constexpr int64_t kFailedUs = 1'000'000;
// For the last tokens to reach the routers, and for these to have read them before they see the
// lease end, which comes on another connection.
constexpr int64_t kLastWordsUs = 500'000;
constexpr int64_t kReadingUs = 50'000;

bool AllIdle(std::span<const DrainingParts> workers) {
  return std::all_of(workers.begin(), workers.end(),
                     [](const DrainingParts& w) { return w.engine->IsIdle(); });
}

bool AllHaveTaken(std::span<const DrainingParts> workers) {
  return std::all_of(workers.begin(), workers.end(),
                     [](const DrainingParts& w) { return w.engine->HasTakenAll(); });
}

bool AllQuiet(std::span<const DrainingParts> workers) {
  return std::all_of(workers.begin(), workers.end(),
                     [](const DrainingParts& w) { return w.sessions->num_sessions() == 0; });
}

// Sleeps until `is_done` or for `limit_us`.
template <typename IsDone>
void WaitFor(const DrainTime& time, int64_t limit_us, const IsDone& is_done) {
  const int64_t end_us = time.clock->NowUs() + limit_us;
  while (!is_done() && time.clock->NowUs() < end_us) time.sleep(kPollUs);
}

// The requests that are left fail.
Status FailTheRest(std::span<const DrainingParts> workers, const DrainTime& time) {
  for (const DrainingParts& worker : workers) {
    if (!worker.engine->IsIdle()) worker.engine->FailAll(Unavailable("the worker stops"));
  }
  bool have_taken = false;
  WaitFor(time, kStepUs, [&] { return have_taken = AllHaveTaken(workers); });
  if (!have_taken) {
    return Internal("a step did not end within {} ms after the worker was to stop", kStepUs / 1000);
  }
  bool are_idle = false;
  WaitFor(time, kFailedUs, [&] { return are_idle = AllIdle(workers); });
  if (!are_idle) return Internal("blocks or requests were left when the worker stopped");
  return OkStatus();
}

}  // namespace

void SleepFor(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

Status DrainEngines(std::span<const DrainingParts> workers, int64_t timeout_ms,
                    const std::atomic<bool>* stop_now, const DrainTime& time) {
  WaitFor(time, kAnnounceUs, [&] { return stop_now->load(); });
  for (const DrainingParts& worker : workers) worker.engine->BeginDrain();
  WaitFor(time, timeout_ms * 1000, [&] { return stop_now->load() || AllIdle(workers); });
  Status status = FailTheRest(workers, time);
  for (const DrainingParts& worker : workers) worker.sessions->CloseAll();
  WaitFor(time, kLastWordsUs, [&] { return AllQuiet(workers); });
  time.sleep(kReadingUs);
  return status;
}

}  // namespace baton::worker
