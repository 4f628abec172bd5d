#include "src/api/api_workers.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace baton::api {
namespace {

TEST(ApiWorkersTest, AShortRequestDoesNotWaitForLargeOnes) {
  std::promise<void> hold;
  std::shared_future<void> held = hold.get_future().share();
  std::promise<void> short_done;
  std::atomic<size_t> num_large{0};
  ApiWorkers workers(1);
  const auto large = [&num_large, held](bool) {
    held.wait();
    ++num_large;
  };
  size_t num_posted = 0;
  while (workers.TryPost(ApiWorkers::kLargeBytes + 1, large)) ++num_posted;
  EXPECT_GE(num_posted, ApiWorkers::kMaxLargeJobs);
  EXPECT_LE(num_posted, ApiWorkers::kMaxLargeJobs + 1) << "the queue, and the one that runs";
  ASSERT_TRUE(workers.TryPost(ApiWorkers::kLargeBytes, [&](bool) { short_done.set_value(); }));
  short_done.get_future().wait();
  EXPECT_EQ(num_large.load(), 0u);
  hold.set_value();
  workers.Stop();
  EXPECT_EQ(num_large.load(), num_posted) << "what was taken runs";
}

TEST(ApiWorkersTest, AnAnswerOfMegabytesIsNotWrittenByItsCaller) {
  ApiWorkers workers(1);
  const auto writer_of = [&workers](size_t num_bytes) {
    const auto writer = std::make_shared<std::promise<std::thread::id>>();
    workers.Write(num_bytes, [writer] { writer->set_value(std::this_thread::get_id()); });
    return writer->get_future().get();
  };
  EXPECT_EQ(writer_of(1000), std::this_thread::get_id());
  // Nor does it wait for prompts of that size.
  std::promise<void> hold;
  ASSERT_TRUE(
      workers.TryPost(ApiWorkers::kLargeBytes + 1, [&](bool) { hold.get_future().wait(); }));
  EXPECT_NE(writer_of(size_t{1} << 20), std::this_thread::get_id());
  hold.set_value();
  workers.Stop();
  EXPECT_EQ(writer_of(size_t{1} << 20), std::this_thread::get_id()) << "an answer is never lost";
}

// 64 bodies of megabytes would be parsed for minutes, after a signal to stop.
TEST(ApiWorkersTest, WhatWaitsWhenItStopsIsToldSo) {
  std::promise<void> begun;
  std::promise<void> hold;
  std::atomic<int> num_in_time{0};
  std::atomic<int> num_too_late{0};
  ApiWorkers workers(1);
  const auto count = [&](bool too_late) { ++(too_late ? num_too_late : num_in_time); };
  ASSERT_TRUE(workers.TryPost(ApiWorkers::kLargeBytes + 1, [&](bool too_late) {
    begun.set_value();
    hold.get_future().wait();
    count(too_late);
  }));
  begun.get_future().wait();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(workers.TryPost(ApiWorkers::kLargeBytes + 1, count));
  std::thread stop([&workers] { workers.Stop(); });
  int num_posted = 3;
  // One at a time: when none is taken any more the queue is closed and not full.
  for (bool taken = true; taken;) {
    std::promise<void> done;
    taken = workers.TryPost(1, [&](bool too_late) {
      count(too_late);
      done.set_value();
    });
    if (taken) done.get_future().wait();
    num_posted += taken;
  }
  hold.set_value();
  stop.join();
  EXPECT_EQ(num_in_time + num_too_late, num_posted + 1) << "none is dropped";
  EXPECT_GE(num_too_late, 3) << "the large ones that waited";
}

}  // namespace
}  // namespace baton::api
