// How many lines of a source reach the log.
#include "src/rpc/line_allowance.h"

#include <cstdint>
#include <optional>

#include "gtest/gtest.h"

namespace baton::rpc {
namespace {

constexpr int64_t kWindowUs = 60'000'000;

TEST(LineAllowanceTest, AWindowBeginsWithItsFirstLine) {
  LineAllowance allowance(2, kWindowUs);
  EXPECT_EQ(allowance.Take(500), 0u);
  EXPECT_EQ(allowance.Take(kWindowUs + 499), 0u);
  EXPECT_EQ(allowance.Take(kWindowUs + 499), std::nullopt);
  EXPECT_EQ(allowance.Take(kWindowUs + 500), 1u) << "a line later says how many were not logged";
  EXPECT_EQ(allowance.Take(kWindowUs + 501), 0u);
  EXPECT_EQ(allowance.Take(kWindowUs + 502), std::nullopt);
}

TEST(LineAllowanceTest, LinesHeldBackAreCountedUntilOneIsLogged) {
  LineAllowance allowance(1, kWindowUs);
  EXPECT_EQ(allowance.Take(0), 0u);
  for (int64_t i = 1; i <= 1000; ++i) EXPECT_EQ(allowance.Take(i), std::nullopt);
  EXPECT_EQ(allowance.Take(5 * kWindowUs), 1000u);
  EXPECT_EQ(allowance.Take(6 * kWindowUs), 0u);
}

}  // namespace
}  // namespace baton::rpc
