// Whole clusters in one thread: no wrong token, no leaked block, no hung client, under each kind of
// fault and under all of them; and the same seed is the same run.
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/log.h"
#include "src/sim/sim_runner.h"

namespace baton::sim {

using obs::ResumeReason;

namespace {

class SimTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_TRUE(InitLog({.role = "sim", .level = LogLevel::kOff}).ok());
  }
};

SimOptions Options(uint64_t seed, uint64_t num_requests, std::string_view faults) {
  SimOptions options;
  options.seed = seed;
  options.num_requests = num_requests;
  const auto weights = ParseFaults(faults);
  EXPECT_TRUE(weights.ok()) << weights.status();
  options.faults = *weights;
  return options;
}

// Everything that a run must keep, with what to run to see it again.
void ExpectKept(const SimReport& report, const SimOptions& options) {
  EXPECT_TRUE(report.ok()) << "baton sim " << ReplayArguments(options) << "\n" << report.ToTable();
  for (const SimViolation& violation : report.first_violations) {
    ADD_FAILURE() << violation.kind << ": " << violation.text << " at " << violation.at_us;
  }
  EXPECT_EQ(report.num_requests, options.num_requests);
  EXPECT_EQ(report.num_finished + report.num_cancelled + report.num_lost + report.NumFailed(),
            report.num_requests);
  EXPECT_EQ(report.num_fills, 2 * options.shape.num_workers());
}

TEST_F(SimTest, WithoutFaultsEveryRequestIsAnsweredRight) {
  for (const uint64_t seed : {1, 2, 3}) {
    const SimOptions options = Options(seed, 3000, "none");
    const SimReport report = RunSimulation(options, 1);
    ExpectKept(report, options);
    EXPECT_EQ(report.NumFailed(), 0u);
    EXPECT_EQ(report.num_lost, 0u);
    EXPECT_EQ(report.NumFaults(), 0u);
    EXPECT_GT(report.num_tokens, 3000u);
  }
}

TEST_F(SimTest, TheSameSeedIsTheSameRunBitForBit) {
  const SimOptions options = Options(7, 3000, "all");
  const SimReport first = RunSimulation(options, 2);
  const SimReport again = RunSimulation(options, 2);
  EXPECT_EQ(first.digest, again.digest);
  EXPECT_EQ(first.ToTable(), again.ToTable());
  SimOptions other = options;
  other.seed = 8;
  EXPECT_NE(RunSimulation(other, 2).digest, first.digest);
}

// A state is one block of a sequence that each of its tokens writes: handed over, kept at borders
// of prompts, copied for each choice, lost with its worker.
TEST_F(SimTest, SequencesWithFixedStatesKeepEveryPromise) {
  for (const char* faults : {"none", "kill", "flip", "drain", "all"}) {
    SCOPED_TRACE(faults);
    SimOptions options = Options(31, 2500, faults);
    options.has_states = true;
    options.requests_per_fault = 50;
    const SimReport report = RunSimulation(options, 1);
    ExpectKept(report, options);
    if (report.NumFaults() == 0) {
      EXPECT_EQ(report.NumFailed(), 0u);
    }
    SimOptions plain = options;
    plain.has_states = false;
    EXPECT_NE(RunSimulation(plain, 1).digest, report.digest);
  }
}

// Streams release blocks before their window, hand-offs leave them out, streams of a worker that
// drains move with what is left, and prompts may need more blocks than a pool has free.
TEST_F(SimTest, StreamsThatReleaseBlocksKeepEveryPromise) {
  for (const char* faults : {"none", "kill", "memory", "flip", "drain", "all"}) {
    for (const uint32_t window : {2u, 9u, 40u}) {
      for (const bool has_states : {false, true}) {
        SCOPED_TRACE(testing::Message() << faults << " " << window << " " << has_states);
        SimOptions options = Options(37, 1200, faults);
        options.window = window;
        options.has_states = has_states;
        options.requests_per_fault = 50;
        const SimReport report = RunSimulation(options, 1);
        ExpectKept(report, options);
        if (report.NumFaults() == 0) {
          EXPECT_EQ(report.NumFailed(), 0u);
        }
      }
    }
  }
}

// Faults that lose no worker cost time only: every request is answered, and answered right.
TEST_F(SimTest, GentleFaultsFailNoRequest) {
  for (const char* faults :
       {"delay", "duplicate", "reorder", "slow", "memory", "flip", "flap", "slow,flip,flap"}) {
    SimOptions options = Options(11, 2500, faults);
    options.requests_per_fault = 25;
    const SimReport report = RunSimulation(options, 1);
    SCOPED_TRACE(faults);
    ExpectKept(report, options);
    EXPECT_EQ(report.NumFailed(), 0u);
    EXPECT_GT(report.NumFaults(), 20u);
  }
}

TEST_F(SimTest, HardFaultsAloneBreakNoPromise) {
  // A dead worker is found at once, a silent one in 2 s; a router itself may be frozen for 6 s.
  const std::vector<std::pair<const char*, int64_t>> kinds = {
      {"kill", 1'500'000},    {"freeze", 8'500'000}, {"one-way", 8'500'000},
      {"two-way", 8'500'000}, {"clock", 1'500'000},  {"flip", 8'500'000}};
  for (const auto& [faults, max_silence_us] : kinds) {
    SimOptions options = Options(12, 2500, faults);
    options.requests_per_fault = 50;
    options.max_silence_us = max_silence_us;
    const SimReport report = RunSimulation(options, 1);
    SCOPED_TRACE(faults);
    ExpectKept(report, options);
    EXPECT_GT(report.NumFaults(), 10u);
    // Three faults in a row without a token, or two deaths, end a request; that is rare.
    EXPECT_LE(report.NumFailed(), report.num_requests / 250);
  }
}

TEST_F(SimTest, AllFaultsTogetherBreakNoPromise) {
  for (const uint64_t seed : {21, 22, 23, 24}) {
    const SimOptions options = Options(seed, 5000, "all");
    const SimReport report = RunSimulation(options, 1);
    ExpectKept(report, options);
    EXPECT_GT(report.NumFaults(), 30u);
  }
}

TEST_F(SimTest, SmallPoolsAndOneRouterKeepThePromisesToo) {
  SimOptions options = Options(31, 2500, "all");
  options.shape = {.num_routers = 1, .num_prefill = 1, .num_decode = 1};
  options.num_blocks = 88;
  options.rate = 60;
  options.requests_per_fault = 40;
  const SimReport report = RunSimulation(options, 1);
  ExpectKept(report, options);
  EXPECT_EQ(report.num_lost, 0u) << "the only router is not killed";
}

// Planned ends: whoever leaves hands its streams over or finishes them, and no client notices.
TEST_F(SimTest, WorkersThatLeaveFailNoRequest) {
  uint64_t num_moved = 0;
  for (const uint64_t seed : {61, 62, 63}) {
    SimOptions options = Options(seed, 2000, "drain");
    // Streams of seconds: shorter ones end before the workers that could take them are connected.
    options.rate = 30;
    options.requests_per_fault = 60;
    options.step_us = 10'000;
    options.max_output = 190;
    options.num_blocks = 256;
    // No prefill worker may be left for a while: a prompt waits 3 s for one.
    options.max_silence_us = 4'000'000;
    const SimReport report = RunSimulation(options, 1);
    ExpectKept(report, options);
    EXPECT_EQ(report.NumFailed(), 0u);
    EXPECT_GT(report.NumFaults(), 20u);
    for (const uint64_t moved : report.resumes[static_cast<size_t>(ResumeReason::kMoved)]) {
      num_moved += moved;
    }
  }
  EXPECT_GT(num_moved, 20u);
}

// A simulation that cannot fail proves nothing: a flipped bit in KV that no checksum covers must
// show as a wrong token. Here the bit is flipped after the checksum.
TEST_F(SimTest, DamageBehindTheChecksumIsSeenAsWrongTokens) {
  SimOptions options = Options(41, 2000, "none");
  options.damage_every = 50;
  const SimReport report = RunSimulation(options, 1);
  EXPECT_GT(report.Violations("wrong token"), 0u);
}

TEST_F(SimTest, ShrinkingFindsAShorterRunOfTheSameFailure) {
  SimOptions options = Options(42, 600, "delay,reorder");
  options.damage_every = 200;
  const auto shrunk = Shrink(options, 60);
  ASSERT_TRUE(shrunk.has_value());
  EXPECT_EQ(shrunk->violation.kind, "wrong token");
  EXPECT_LT(shrunk->options.num_requests, 600u);
  EXPECT_TRUE(shrunk->options.only_faults.has_value() && shrunk->options.only_faults->empty())
      << "no fault caused it";
  SimWorld replay(shrunk->options);
  EXPECT_EQ(replay.Run().first_violations.front().text, shrunk->violation.text);
}

// Each bug that a simulation found keeps the run that found it. A long silence is one, too: a
// request that waits for the lease of 10 s was noticed by nothing else.
struct FoundBug {
  const char* what;
  uint64_t seed;
  const char* faults;
};

TEST_F(SimTest, RunsThatOnceFoundABugFindNone) {
  const std::vector<FoundBug> bugs = {
      {"the order of a tick followed from addresses", 51,
       "kill,freeze,one-way,two-way,delay,duplicate,reorder,flip,slow,memory,clock"},
      {"one side held a connection that the other had lost in its welcome", 205, "flip"},
      {"one side gave a connection up before the other had it", 231, "one-way"},
  };
  for (const FoundBug& bug : bugs) {
    SCOPED_TRACE(bug.what);
    SimOptions options = Options(bug.seed, 1500, bug.faults);
    options.requests_per_fault = 60;
    options.max_silence_us = 8'500'000;
    ExpectKept(RunSimulation(options, 1), options);
  }
}

}  // namespace
}  // namespace baton::sim
