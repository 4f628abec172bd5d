#include "src/cli/objective_flag.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace baton::cli {

using router::ServiceObjective;

namespace {

TEST(ObjectiveFlagTest, EitherPartMayStandAlone) {
  EXPECT_EQ(*ParseObjective(""), ServiceObjective{});
  EXPECT_EQ(*ParseObjective("ttft=500ms,itl=50ms"),
            (ServiceObjective{.ttft_us = 500'000, .itl_us = 50'000}));
  EXPECT_EQ(*ParseObjective("itl=0.05s,ttft=1.5s"),
            (ServiceObjective{.ttft_us = 1'500'000, .itl_us = 50'000}));
  EXPECT_EQ(*ParseObjective("ttft=600s"), (ServiceObjective{.ttft_us = 600'000'000}));
  EXPECT_EQ(*ParseObjective("itl=1ms"), (ServiceObjective{.itl_us = 1'000}));
}

TEST(ObjectiveFlagTest, AnErrorNamesThePartTheValueAndTheRange) {
  struct Case {
    std::string_view text;
    std::string_view expected;
  };
  const Case cases[] = {
      {"ttft=0ms", "--slo 'ttft=0ms': ttft: '0ms' is not a time from 1ms to 600s"},
      {"ttft=601s", "ttft: '601s' is not a time from 1ms to 600s"},
      {"itl=999us", "itl: '999us' is not a time from 1ms to 60s"},
      {"itl=61s", "itl: '61s' is not a time from 1ms to 60s"},
      {"itl=50", "itl: '50' is not a time like 30ms, 1.5s or 2m"},
      {"itl=-5ms", "itl: '-5ms' is not a time like 30ms"},
      {"itl=", "itl: '' is not a time"},
      {"itl", "itl has no time, e.g. itl=50ms"},
      {"ttft=1s,ttft=2s", "ttft is given twice"},
      {"ttff=1s", "'ttff' is not one of ttft, itl; did you mean ttft?"},
      {"tpot=30ms", "'tpot' is not one of ttft, itl"},
      {"ttft=1s,", "'' is not one of ttft, itl"},
  };
  for (const Case& c : cases) {
    const StatusOr<ServiceObjective> objective = ParseObjective(c.text);
    ASSERT_EQ(objective.status().code(), StatusCode::kInvalidArgument) << c.text;
    EXPECT_NE(std::string(objective.status().message()).find(c.expected), std::string::npos)
        << objective.status();
  }
}

TEST(ObjectiveFlagTest, AnEmptyObjectiveIsAUsageError) {
  std::string text;
  FlagSet flags("serve", "");
  DeclareObjective(flags, text);
  testing::internal::CaptureStderr();
  EXPECT_EQ(flags.Parse({"--slo", ""}), kExitUsage);
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_NE(error.find("--slo: its value is empty"), std::string::npos) << error;
}

TEST(ObjectiveFlagTest, AnotherProcessGetsTheSameObjective) {
  std::string text;
  FlagSet flags("serve", "");
  DeclareObjective(flags, text);
  ASSERT_FALSE(flags.Parse({"--slo", "ttft=500ms", "--slo", "itl=50ms"}).has_value());
  std::vector<std::string> args;
  AppendObjective(text, args);
  EXPECT_EQ(args, std::vector<std::string>({"--slo=ttft=500ms,itl=50ms"}));
  args.clear();
  AppendObjective("", args);
  EXPECT_TRUE(args.empty());
}

}  // namespace
}  // namespace baton::cli
