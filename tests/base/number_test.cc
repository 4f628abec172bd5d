#include <array>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

#include "src/base/checked_math.h"
#include "src/base/clock.h"
#include "src/base/philox.h"

namespace baton {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(CheckedMathTest, OverflowIsNothing) {
  EXPECT_EQ(CheckedMul(1ull << 32, (1ull << 32) - 1), kMax - (1ull << 32) + 1);
  EXPECT_EQ(CheckedMul(1ull << 32, 1ull << 32), std::nullopt);
  EXPECT_EQ(CheckedMul(0, kMax), 0u);
}

// The known-answer vectors published with the paper's reference implementation (Random123,
// kat_vectors, "philox4x32 10").
TEST(PhiloxTest, PublishedVectors) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, SeedIsTheKeyLowWordFirst) {
  EXPECT_EQ(PhiloxKeyFromSeed(0x299f31d0a4093822ull), (PhiloxKey{0xa4093822, 0x299f31d0}));
}

TEST(ClockTest, SystemClockDoesNotGoBack) {
  const Clock& clock = SystemClock();
  int64_t last = clock.NowUs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.NowUs();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GT(clock.WallUnixMs(), 1'600'000'000'000);
}

TEST(ClockTest, FakeClockMovesOnlyWhenTold) {
  FakeClock clock(5'000, 9'000);
  EXPECT_EQ(clock.NowUs(), 5'000);
  EXPECT_EQ(clock.WallUnixMs(), 9'000);
  clock.AdvanceMs(2);
  EXPECT_EQ(clock.NowUs(), 7'000);
  EXPECT_EQ(clock.WallUnixMs(), 9'002);
  clock.SetUs(8'000);
  EXPECT_EQ(clock.NowUs(), 8'000);
}

}  // namespace
}  // namespace baton
