// StepTraces: the last steps of a worker's engine. They show what the engine did while a request
// waited. They name no request and no token.
//
// The engine's thread adds, without lock or allocation; any thread reads.
#ifndef BATON_WORKER_STEP_TRACES_H_
#define BATON_WORKER_STEP_TRACES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/step_cost.h"
#include "src/base/clock.h"
#include "src/engine/engine_snapshot.h"

namespace baton::worker {

// One step; times in microseconds of the worker's steady clock.
struct StepTrace {
  uint64_t number = 0;  // of the engine's steps, from 0
  int64_t end_us = 0;
  int64_t elapsed_us = 0;
  uint32_t prefill_tokens = 0;
  uint32_t decode_rows = 0;
};

// See the file comment.
class StepTraces {
 public:
  // A minute of decode steps of 15 ms; 40 bytes each.
  static constexpr size_t kMaxSteps = 4096;

  // One thread.
  void Add(const scheduler::StepShape& shape, int64_t elapsed_us, int64_t end_us);
  // Oldest first. A step that is overwritten while this reads is left out.
  std::vector<StepTrace> Last() const;

 private:
  std::atomic<uint64_t> num_added_{0};
  std::array<engine::SnapshotCell<StepTrace>, kMaxSteps> steps_;  // by number, wrapping
};

// The object of a worker's /debug/trace: {"role", "worker_id", "steady_us", "unix_us", "steps":
// [{"end_us", "elapsed_us", "prefill_tokens", "decode_rows"}]}; steady_us and unix_us are the times
// of `clock` now.
std::string StepsToJson(const std::vector<StepTrace>& steps, std::string_view role,
                        std::string_view worker_id, const Clock& clock);

}  // namespace baton::worker

#endif  // BATON_WORKER_STEP_TRACES_H_
