#include "src/cli/plan/plan_replay.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/log.h"
#include "tests/cli/plan/planned_llama.h"

namespace baton::cli {

using loadgen::TraceRow;
using plan::PlanLoad;
using sim::PoissonRows;

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PlanReport SmallReport() {
  EXPECT_TRUE(InitLog({.role = "plan", .level = LogLevel::kOff}).ok());
  PlannedDevice device = Processor();
  device.memory_bytes = uint64_t{16} << 30;
  device.link_bytes_per_s = 2e9;
  return MustPlan(device, kSmallLoad, kLoose);
}

PlanReplays MustReplay(const PlanReport& report, const ReplayAsk& ask) {
  const StatusOr<PlanReplays> replays = ReplayPlan(report, ask);
  EXPECT_TRUE(replays.ok()) << replays.status();
  return replays.ok() ? *replays : PlanReplays{.runs = {PlanRun()}};
}

std::vector<std::string> Policies(const PlanReplays& replays) {
  std::vector<std::string> names;
  for (const PlanRun& run : replays.runs) names.push_back(run.policy + ", " + run.end);
  return names;
}

TEST(PlanReplayTest, ASteadyLoadIsReplayedWithThePlansPoolsAndUnderOtherPolicies) {
  const PlanReport report = SmallReport();
  const std::vector<TraceRow> rows = PoissonRows(400, 1, 64, 33, 1);
  std::vector<std::string> heard;
  const PlanReplays replays =
      MustReplay(report, {.load = "400 requests", .rows = &rows, .on_run = [&](const PlanRun& run) {
                            heard.push_back(RunLine(run));
                          }});
  EXPECT_THAT(
      Policies(replays),
      testing::ElementsAre("split, slowest measured", "split, fastest measured",
                           "adaptive, slowest measured", "no prefix cache, slowest measured",
                           "no split, slowest measured"));
  EXPECT_EQ(heard.size(), 5u);
  EXPECT_EQ(replays.num_sizing, 0u);
  EXPECT_TRUE(replays.sized);
  EXPECT_EQ(replays.alone_share, 1);
  for (const PlanRun& run : replays.runs) {
    SCOPED_TRACE(run.policy);
    EXPECT_EQ(run.report.num_finished, 400u);
    EXPECT_GE(run.report.MetShare(), 0.99);
  }
  // One worker of each kind is planned; the slow end takes 128 ms a prompt, the fast one 64.
  EXPECT_EQ(replays.runs[0].num_prefill, 1u);
  EXPECT_EQ(replays.runs[0].num_decode, 1u);
  EXPECT_EQ(replays.runs[4].num_prefill, 0u);
  EXPECT_EQ(replays.runs[4].num_decode, 2u);
  EXPECT_NEAR(replays.runs[0].report.ttft_ms.p50, report.cautious.plan->prefill.ttft_p50_us / 1e3,
              0.15 * 128);
  EXPECT_NEAR(replays.runs[1].report.ttft_ms.p50, report.best.plan->prefill.ttft_p50_us / 1e3,
              0.15 * 64);
  EXPECT_NEAR(replays.runs[0].report.itl_ms.p50, report.cautious.plan->decode.itl_p50_us / 1e3, 2);
}

TEST(PlanReplayTest, OfATraceThePoolThatIsTooSmallGrows) {
  const PlanReport report = SmallReport();
  // Bursts of 16 prompts of 64 ms to 128 ms each: one prefill worker takes 2 s for the last.
  std::vector<TraceRow> rows;
  for (int64_t burst = 0; burst < 20; ++burst) {
    for (int64_t i = 0; i < 16; ++i) rows.push_back({burst * 20'000'000 + i, 80, 12, {}});
  }
  const PlanReplays replays = MustReplay(report, {.load = "bursts", .rows = &rows, .search = true});
  EXPECT_TRUE(replays.sized);
  EXPECT_GT(replays.num_sizing, 0u);
  EXPECT_GT(replays.runs[0].num_prefill, 1u);
  EXPECT_GE(replays.runs[0].report.MetShare(), 0.99);
  // As it is told to.
  const PlanReplays fixed = MustReplay(
      report, {.load = "bursts", .rows = &rows, .search = true, .num_prefill = 1, .num_decode = 1});
  EXPECT_FALSE(fixed.sized);
  EXPECT_EQ(fixed.runs[0].num_prefill, 1u);
  EXPECT_THAT(ReplayText(fixed), HasSubstr("do not serve 99 % of what can be served in time"));
}

TEST(PlanReplayTest, WhatNoNumberOfWorkersCanDoIsSaidAndNotSoughtFor) {
  const PlanReport report = SmallReport();
  std::vector<TraceRow> rows;
  // Every fourth prompt alone takes twice the TTFT.
  for (int64_t i = 0; i < 80; ++i) rows.push_back({i * 4'000'000, i % 4 == 0 ? 2000u : 64u, 4, {}});
  const PlanReplays replays =
      MustReplay(report, {.load = "long ones", .rows = &rows, .search = true});
  EXPECT_EQ(replays.alone_share, 0.75);
  EXPECT_TRUE(replays.sized);
  EXPECT_THAT(ReplayText(replays), HasSubstr("75.0 % of the prompts"));
}

TEST(PlanReplayTest, TheTableAndTheJsonSayTheSame) {
  const PlanReport report = SmallReport();
  const std::vector<TraceRow> rows = PoissonRows(50, 1, 64, 33, 2);
  const PlanReplays replays = MustReplay(report, {.load = "50 requests", .rows = &rows});
  const std::string text = ReplayText(replays);
  EXPECT_THAT(text, HasSubstr("50 requests; in time = TTFT <= 2.00 s and ITL <= 300.0 ms"));
  EXPECT_THAT(text, HasSubstr("1P 1D"));
  EXPECT_THAT(text, HasSubstr("no split"));
  EXPECT_THAT(text, Not(HasSubstr("left out")));
  const nlohmann::ordered_json json = ReplayJson(replays);
  EXPECT_EQ(json["rows"], 50);
  ASSERT_EQ(json["runs"].size(), 5u);
  EXPECT_EQ(json["runs"][0]["finished"], 50);
  EXPECT_EQ(json["runs"][0]["ttft"]["count"], 50);
  EXPECT_EQ(json["runs"][0]["itl"]["count"], 50 * 31);
  EXPECT_EQ(nlohmann::json::parse(PlanJson(report, &replays))["simulated"]["rows"], 50);
}

TEST(PlanReplayTest, UnknownLinksCannotBeSimulated) {
  const PlanReport report = MustPlan(Processor(), kSmallLoad, kLoose);
  const std::vector<TraceRow> rows = PoissonRows(10, 1, 64, 33, 2);
  const auto replays = ReplayPlan(report, {.load = "", .rows = &rows});
  EXPECT_TRUE(absl::IsFailedPrecondition(replays.status())) << replays.status();
  EXPECT_THAT(std::string(replays.status().message()), HasSubstr("give --link"));
}

TEST(PlanReplayTest, ATraceHasItsMeanAsALoad) {
  const std::vector<TraceRow> rows = {
      {0, 100, 10, {}}, {500'000, 200, 20, {}}, {1'000'000, 600, 33, {}}};
  const StatusOr<PlanLoad> load = LoadOfTrace(rows);
  ASSERT_TRUE(load.ok());
  EXPECT_EQ(load->rate_per_s, 2);
  EXPECT_EQ(load->input_tokens, 300u);
  EXPECT_EQ(load->output_tokens, 21u);
  EXPECT_FALSE(LoadOfTrace({{0, 1, 1, {}}, {0, 1, 1, {}}}).ok());
}

}  // namespace
}  // namespace baton::cli
