#include "src/worker/worker_drain.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "src/base/clock.h"

namespace baton::worker {
namespace {

// Two heartbeats: after them no router places a request here any more.
constexpr int64_t kAnnounceMs = 500;
constexpr int64_t kPollMs = 5;
constexpr int64_t kFailedMs = 1000;
// For the last tokens to reach the routers, and for these to have read them before they see the
// lease end, which comes on another connection.
constexpr int64_t kLastWordsMs = 500;
constexpr int64_t kReadingMs = 50;

bool AllIdle(std::span<const DrainingParts> workers) {
  return std::all_of(workers.begin(), workers.end(),
                     [](const DrainingParts& w) { return w.engine->IsIdle(); });
}

bool AllQuiet(std::span<const DrainingParts> workers) {
  return std::all_of(workers.begin(), workers.end(),
                     [](const DrainingParts& w) { return w.sessions->num_sessions() == 0; });
}

void Nap() { std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs)); }

}  // namespace

Status DrainEngines(std::span<const DrainingParts> workers, int64_t timeout_ms,
                    const std::atomic<bool>* stop_now) {
  const auto now_us = [] { return SystemClock().NowUs(); };
  const int64_t announced_us = now_us() + kAnnounceMs * 1000;
  while (!stop_now->load() && now_us() < announced_us) Nap();
  for (const DrainingParts& worker : workers) worker.engine->BeginDrain();
  const int64_t deadline_us = announced_us + timeout_ms * 1000;
  while (!stop_now->load() && now_us() < deadline_us && !AllIdle(workers)) Nap();
  for (const DrainingParts& worker : workers) {
    if (!worker.engine->IsIdle()) worker.engine->FailAll(Unavailable("the worker stops"));
  }
  const int64_t failed_us = now_us() + kFailedMs * 1000;
  while (!AllIdle(workers) && now_us() < failed_us) Nap();
  const bool is_clean = AllIdle(workers);
  for (const DrainingParts& worker : workers) worker.sessions->CloseAll();
  const int64_t last_words_us = now_us() + kLastWordsMs * 1000;
  while (!AllQuiet(workers) && now_us() < last_words_us) Nap();
  std::this_thread::sleep_for(std::chrono::milliseconds(kReadingMs));
  if (!is_clean) return Internal("blocks or requests were left when the worker stopped");
  return OkStatus();
}

}  // namespace baton::worker
