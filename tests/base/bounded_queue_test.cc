#include "src/base/bounded_queue.h"

#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/clock.h"
#include "src/base/thread.h"

namespace baton {
namespace {

constexpr int64_t kNoWait = 0;  // a deadline that has passed

TEST(BoundedQueueTest, FullQueueLeavesTheItemWithTheCaller) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
  EXPECT_EQ(**queue.Pop(kNoWait), 1);
  EXPECT_EQ(queue.Pop(kNoWait), std::nullopt);
}

TEST(BoundedQueueTest, BehavesAsADequeUnderRandomOperations) {
  std::mt19937 random(11);
  BoundedQueue<int> queue(7);
  std::deque<int> model;
  size_t largest = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 5 < 3) {
      const bool fits = model.size() < 7;
      ASSERT_EQ(queue.TryPush(i), fits);
      if (fits) model.push_back(i);
    } else {
      const std::optional<int> expected =
          model.empty() ? std::nullopt : std::optional<int>(model.front());
      ASSERT_EQ(queue.Pop(kNoWait), expected);
      if (!model.empty()) model.pop_front();
    }
    largest = std::max(largest, model.size());
    ASSERT_EQ(queue.size(), model.size());
  }
  EXPECT_EQ(largest, 7u) << "the queue was full at times";
}

TEST(BoundedQueueTest, PopWaitsForItsDeadline) {
  BoundedQueue<int> queue(4);
  const int64_t start = SystemClock().NowUs();
  EXPECT_EQ(queue.Pop(start + 20'000), std::nullopt);
  EXPECT_GE(SystemClock().NowUs(), start + 20'000);
}

TEST(BoundedQueueTest, CloseRefusesPushesDrainsAndWakes) {
  BoundedQueue<int> queue(4);
  ASSERT_TRUE(queue.TryPush(1));
  std::vector<int> seen;
  Thread consumer("test-consumer", [&] {
    const int64_t far = SystemClock().NowUs() + 60'000'000;
    while (const std::optional<int> item = queue.Pop(far)) seen.push_back(*item);
  });
  queue.Close();
  EXPECT_FALSE(queue.TryPush(2));
  consumer.Join();  // returns long before the deadline, or the test times out
  EXPECT_EQ(seen, std::vector<int>{1});
}

TEST(BoundedQueueTest, ManyProducersLoseAndRepeatNothing) {
  constexpr int kProducers = 4;
  constexpr int kPerProducer = 5'000;
  BoundedQueue<int> queue(64);
  std::vector<Thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back("test-producer", [&queue, p] {
      for (int i = 0; i < kPerProducer;) {
        if (queue.TryPush(p * kPerProducer + i)) ++i;
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  for (int i = 0; i < kProducers * kPerProducer; ++i) {
    const std::optional<int> item = queue.Pop(SystemClock().NowUs() + 10'000'000);
    ASSERT_TRUE(item.has_value());
    const size_t p = static_cast<size_t>(*item) / kPerProducer;
    ASSERT_EQ(*item % kPerProducer, next[p]++) << "producer " << p << " out of order";
  }
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace baton
