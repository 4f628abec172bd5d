// The step path allocates nothing. This binary counts every call of operator new.
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/scheduler.h"

namespace {
std::atomic<uint64_t> num_allocations{0};
}  // namespace

void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace baton::scheduler {

using kv::BlockPool;

namespace {

TEST(NoAllocationTest, PlanAndFinishUseTheMemoryTakenBefore) {
  SchedulerConfig config;
  config.max_batch_tokens = 512;
  config.max_running = 64;
  BlockPool pool(160);
  Scheduler scheduler(config, &pool);
  for (uint64_t i = 1; i <= 40; ++i) {
    SequenceSpec spec;
    spec.id = SequenceId(i);
    spec.uid = {0, i};
    spec.tokens.assign(30 + i, 5);
    spec.num_prompt_tokens = static_cast<uint32_t>(spec.tokens.size());
    spec.limits = {900, 2'000};
    ASSERT_TRUE(scheduler.AddWaiting(std::move(spec), static_cast<int64_t>(i)).ok());
  }
  std::vector<ItemResult> results(256);
  uint64_t during_steps = 0;
  uint64_t preempted = 0;
  uint64_t tokens = 0;
  uint64_t ahead = 0;
  for (int step = 0; step < 400; ++step) {
    // From then on nothing waits, and steps are planned ahead.
    for (uint64_t i = 9; step == 200 && i <= 40; ++i) scheduler.Remove(SequenceId(i));
    const uint64_t before = num_allocations.load();
    const BatchPlan& plan = scheduler.Plan(step);
    preempted += plan.preempted.size();
    tokens += plan.num_tokens();
    for (ItemResult& result : results) result.token = step;
    if (step % 2 == 0 && !plan.empty() && scheduler.PlanAhead() != nullptr) {
      ++ahead;
      scheduler.Finish(std::span(results).first(plan.items.size()), 1'000, step);
    }
    scheduler.Finish(std::span(results).first(plan.items.size()), 1'000, step);
    during_steps += num_allocations.load() - before;
  }
  EXPECT_GT(tokens, 4'000u);
  EXPECT_GT(ahead, 20u);
  EXPECT_GT(preempted, 10u) << "the pool is small enough to preempt";
  EXPECT_EQ(during_steps, 0u)
      << "allocations in 400 steps of prefill, decode, preemption and planning ahead";
}

}  // namespace
}  // namespace baton::scheduler
