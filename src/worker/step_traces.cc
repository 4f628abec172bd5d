#include "src/worker/step_traces.h"

#include "nlohmann/json.hpp"

namespace baton::worker {

using scheduler::StepShape;

void StepTraces::Add(const StepShape& shape, int64_t elapsed_us, int64_t end_us) {
  const uint64_t number = num_added_.load(std::memory_order_relaxed);
  steps_[number % kMaxSteps].Publish({.number = number,
                                      .end_us = end_us,
                                      .elapsed_us = elapsed_us,
                                      .prefill_tokens = shape.prefill_tokens,
                                      .decode_rows = shape.decode_rows});
  num_added_.store(number + 1, std::memory_order_release);
}

std::vector<StepTrace> StepTraces::Last() const {
  const uint64_t end = num_added_.load(std::memory_order_acquire);
  std::vector<StepTrace> last;
  last.reserve(kMaxSteps);
  for (uint64_t number = end > kMaxSteps ? end - kMaxSteps : 0; number < end; ++number) {
    const StepTrace step = steps_[number % kMaxSteps].Read();
    if (step.number == number) last.push_back(step);
  }
  return last;
}

std::string StepsToJson(const std::vector<StepTrace>& steps, std::string_view role,
                        std::string_view worker_id, const Clock& clock) {
  nlohmann::json rows = nlohmann::json::array();
  for (const StepTrace& step : steps) {
    rows.push_back({{"end_us", step.end_us},
                    {"elapsed_us", step.elapsed_us},
                    {"prefill_tokens", step.prefill_tokens},
                    {"decode_rows", step.decode_rows}});
  }
  return nlohmann::json{{"role", role},
                        {"worker_id", worker_id},
                        {"steady_us", clock.NowUs()},
                        {"unix_us", clock.WallUnixUs()},
                        {"steps", std::move(rows)}}
      .dump();
}

}  // namespace baton::worker
