#include "src/worker/step_traces.h"

#include <atomic>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton::worker {

using scheduler::StepShape;

namespace {

StepShape Shape(uint32_t prefill_tokens, uint32_t decode_rows) {
  StepShape shape;
  shape.prefill_tokens = prefill_tokens;
  shape.decode_rows = decode_rows;
  return shape;
}

TEST(StepTracesTest, TheLastStepsAreThereInTheirOrder) {
  const auto traces = std::make_unique<StepTraces>();
  EXPECT_TRUE(traces->Last().empty());
  const int64_t num_steps = StepTraces::kMaxSteps + 10;
  for (int64_t i = 0; i < num_steps; ++i) traces->Add(Shape(0, 1), i + 1, i * 1000);
  const std::vector<StepTrace> last = traces->Last();
  ASSERT_EQ(last.size(), StepTraces::kMaxSteps);
  EXPECT_EQ(last.front().number, 10u);
  EXPECT_EQ(last.back().number, static_cast<uint64_t>(num_steps - 1));
  EXPECT_EQ(last.back().end_us, (num_steps - 1) * 1000);
  EXPECT_EQ(last.back().elapsed_us, num_steps);
}

TEST(StepTracesTest, AReaderNeverSeesHalfAStep) {
  const auto traces = std::make_unique<StepTraces>();
  std::atomic<bool> is_done{false};
  std::thread writer([&] {
    for (uint32_t i = 0; i < 300'000; ++i) traces->Add(Shape(i, i), i, i);
    is_done = true;
  });
  do {
    uint64_t expected = 0;
    for (const StepTrace& step : traces->Last()) {
      ASSERT_GE(step.number, expected) << "in their order";
      expected = step.number + 1;
      ASSERT_EQ(step.end_us, static_cast<int64_t>(step.number));
      ASSERT_EQ(step.elapsed_us, static_cast<int64_t>(step.number));
      ASSERT_EQ(step.prefill_tokens, step.number);
      ASSERT_EQ(step.decode_rows, step.number);
    }
  } while (!is_done);
  writer.join();
}

TEST(StepTracesTest, ThePageHasBothClocks) {
  const FakeClock clock(5'000'000, 1'700'000'000'000);
  const nlohmann::json page = nlohmann::json::parse(
      StepsToJson({{.number = 3, .end_us = 9, .elapsed_us = 4, .prefill_tokens = 2}}, "prefill",
                  "prefill-1", clock));
  EXPECT_EQ(page["role"], "prefill");
  EXPECT_EQ(page["worker_id"], "prefill-1");
  EXPECT_EQ(page["steady_us"], 5'000'000);
  EXPECT_EQ(page["unix_us"], 1'700'000'000'000'000);
  EXPECT_EQ(page["steps"].dump(),
            R"([{"decode_rows":0,"elapsed_us":4,"end_us":9,"prefill_tokens":2}])");
}

}  // namespace
}  // namespace baton::worker
