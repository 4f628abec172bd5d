#include "src/api/api_workers.h"

#include <atomic>
#include <future>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(ApiWorkersTest, AShortRequestDoesNotWaitForLargeOnes) {
  std::promise<void> hold;
  std::shared_future<void> held = hold.get_future().share();
  std::promise<void> short_done;
  std::atomic<size_t> num_large{0};
  ApiWorkers workers(1);
  const auto large = [&num_large, held] {
    held.wait();
    ++num_large;
  };
  size_t num_posted = 0;
  while (workers.TryPost(ApiWorkers::kLargeBytes + 1, large)) ++num_posted;
  EXPECT_GE(num_posted, ApiWorkers::kMaxLargeJobs);
  EXPECT_LE(num_posted, ApiWorkers::kMaxLargeJobs + 1) << "the queue, and the one that runs";
  ASSERT_TRUE(workers.TryPost(ApiWorkers::kLargeBytes, [&] { short_done.set_value(); }));
  short_done.get_future().wait();
  EXPECT_EQ(num_large.load(), 0u);
  hold.set_value();
  workers.Stop();
  EXPECT_EQ(num_large.load(), num_posted) << "what was taken runs";
}

}  // namespace
}  // namespace baton
