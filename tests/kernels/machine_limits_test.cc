// The measurement of a machine that has too little for it.
#include "kernels/cpu/machine_limits.h"

#include <cstdint>

#include "gtest/gtest.h"

#include "src/device/thread_pool.h"

namespace baton::kernels {
namespace {

// A worker measures while it serves: a limit on its memory (ulimit -v) must not end it then.
TEST(MachineLimitsTest, ReadingWithoutMemoryForItIsNotKnown) {
  device::ThreadPool pool(device::ThreadPool::Options{.num_threads = 1});
  const LimitEffort beyond_memory{.read_bytes = SIZE_MAX / 4, .repeats = 1};
  const MachineLimits limits = MeasureLimits(pool, Isa::kPortable, beyond_memory);
  EXPECT_EQ(limits.read_gb_per_s, 0);
  EXPECT_GT(limits.cache_gb_per_s, 0) << "what fits is measured";
}

}  // namespace
}  // namespace baton::kernels
