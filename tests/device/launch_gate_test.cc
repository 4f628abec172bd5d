#include "src/device/launch_gate.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "gtest/gtest.h"

#include "tests/loop_thread.h"

namespace baton::device {
namespace {

// So long that nothing lapses.
constexpr int64_t kForeverUs = 600'000'000;
constexpr int64_t kShortUs = 20'000;
constexpr uint32_t kRounds = 50;
// The one that ran, and one that began before this thread was seen to wait.
constexpr uint64_t kMostBefore = 2;

using Launch = LaunchGate::Launch;
using Call = LaunchGate::Call;

// Until the other side is under way again; how far it is.
uint64_t WaitForOther(const std::atomic<uint64_t>* count) {
  const uint64_t before = count->load();
  while (count->load() == before) std::this_thread::yield();
  return count->load();
}

TEST(LaunchGateTest, ALaunchAndACallAreNeverHeldAtOnce) {
  LaunchGate gate(kForeverUs);
  std::atomic<uint32_t> num_calls = 0;
  std::atomic<bool> is_launching = false;
  const auto call = [&] {
    const Call held(&gate);
    ++num_calls;
    EXPECT_FALSE(is_launching.load());
    std::this_thread::yield();
    EXPECT_FALSE(is_launching.load());
    --num_calls;
  };
  const LoopThread first(call);
  const LoopThread second([&] {
    call();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  for (uint32_t i = 0; i < 200 || first.num_rounds() < 200 || second.num_rounds() < 20; ++i) {
    const Launch held(&gate);
    is_launching = true;
    EXPECT_EQ(num_calls.load(), 0u);
    std::this_thread::yield();
    EXPECT_EQ(num_calls.load(), 0u);
    is_launching = false;
  }
  EXPECT_EQ(gate.num_overruns(), 0u);
}

// One `Other` follows another at once. Each time `Mine` gets in before many of them.
template <typename Mine, typename Other>
void ExpectToGetInBetween() {
  LaunchGate gate(kForeverUs);
  std::atomic<uint64_t> num_others = 0;
  const LoopThread others([&] {
    const Other held(&gate);
    ++num_others;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  });
  uint32_t num_prompt = 0;
  for (uint32_t i = 0; i < kRounds; ++i) {
    const uint64_t before = WaitForOther(&num_others);
    const Mine held(&gate);
    num_prompt += num_others.load() <= before + kMostBefore ? 1 : 0;
  }
  EXPECT_GE(num_prompt, kRounds / 2) << "of the others this thread may have slept";
  EXPECT_EQ(gate.num_overruns(), 0u);
}

TEST(LaunchGateTest, ACallGetsInThoughLaunchesFollowOneAnotherAtOnce) {
  ExpectToGetInBetween<Call, Launch>();
}

TEST(LaunchGateTest, ALaunchGetsInThoughCallsFollowOneAnotherAtOnce) {
  ExpectToGetInBetween<Launch, Call>();
}

// As when one thread has several communicators.
TEST(LaunchGateTest, ACallJoinsOthersThoughALaunchWaitsForThem) {
  LaunchGate gate(kForeverUs);
  std::optional<Call> first(std::in_place, &gate);
  std::atomic<bool> is_launched = false;
  std::thread engine([&] {
    const Launch held(&gate);
    is_launched = true;
  });
  for (uint32_t i = 0; i < 100; ++i) {
    const Call joined(&gate);
    std::this_thread::yield();
  }
  std::optional<Call> last(std::in_place, &gate);
  first.reset();
  std::thread([&] { const Call of_another_thread(&gate); }).join();
  EXPECT_FALSE(is_launched.load());
  // It may end in another thread than it began in.
  std::thread([&] { last.reset(); }).join();
  engine.join();
  EXPECT_TRUE(is_launched.load());
  EXPECT_EQ(gate.num_overruns(), 0u);
}

TEST(LaunchGateTest, AFewCallsThatHangHoldUpALaunchOnceForTheBound) {
  LaunchGate gate(kShortUs);
  const auto begun = std::chrono::steady_clock::now();
  const Call first(&gate);
  const Call second(&gate);
  { const Launch held(&gate); }
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::microseconds(kShortUs));
  EXPECT_EQ(gate.num_overruns(), 1u);
  { const Launch held(&gate); }
  EXPECT_EQ(gate.num_overruns(), 1u) << "they hold nothing any more";
}

TEST(LaunchGateTest, TheEndOfACallThatLapsedLetsNobodyIntoTheNext) {
  LaunchGate gate(kShortUs);
  std::optional<Call> lapsed(std::in_place, &gate);
  { const Launch held(&gate); }
  EXPECT_EQ(gate.num_overruns(), 1u);
  std::optional<Call> next(std::in_place, &gate);
  lapsed.reset();
  { const Launch held(&gate); }
  EXPECT_EQ(gate.num_overruns(), 2u) << "it waited for the next one too";
}

TEST(LaunchGateTest, ALaunchThatHangsHoldsUpACallForTheBound) {
  LaunchGate gate(kShortUs);
  {
    const Launch held(&gate);
    std::thread([&] { const Call beside(&gate); }).join();
    EXPECT_EQ(gate.num_overruns(), 1u);
  }
  { const Launch next(&gate); }
  { const Call next(&gate); }
  EXPECT_EQ(gate.num_overruns(), 1u);
}

TEST(LaunchGateTest, WithoutAGateNobodyWaits) {
  const Launch launch(nullptr);
  const Call call(nullptr);
}

}  // namespace
}  // namespace baton::device
