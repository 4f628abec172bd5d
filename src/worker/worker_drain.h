// How the engines of workers that leave together come to rest, once their routers know of it.
#ifndef BATON_WORKER_WORKER_DRAIN_H_
#define BATON_WORKER_WORKER_DRAIN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/engine/engine.h"
#include "src/worker/session_service.h"

namespace baton::worker {

// The parts of one worker that have to come to rest.
struct DrainingParts {
  engine::Engine* engine = nullptr;
  SessionService* sessions = nullptr;
};

// Sleeps so many microseconds.
void SleepFor(int64_t us);

// The time that a drain goes by; a test moves its own.
struct DrainTime {
  const Clock* clock = &SystemClock();
  std::function<void(int64_t us)> sleep = &SleepFor;
};

// Refuses new requests once routers have had two heartbeats to place none any more. Waits until no
// engine has anything to do, at most `timeout_ms` from then or until `*stop_now` is true. Requests
// that are left then fail, after the step that runs. Ends every session after its last word. OK =
// the ledgers were empty; Internal says whether a step did not end or something was left. Blocks,
// for at most 4.1 s beyond the timeout.
Status DrainEngines(std::span<const DrainingParts> workers, int64_t timeout_ms,
                    const std::atomic<bool>* stop_now, const DrainTime& time = {});

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_DRAIN_H_
