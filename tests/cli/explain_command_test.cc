#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/router/request_error.h"

namespace baton::cli {

using router::ErrorCode;
using router::ErrorNameOf;
using router::kNumErrorCodes;

namespace {

using testing::HasSubstr;
using testing::Not;

std::string Explained(const std::vector<std::string>& args, int expected = kExitOk) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunExplain(args), expected);
  return testing::internal::GetCapturedStdout();
}

TEST(ExplainCommandTest, EachCodeIsExplained) {
  const std::string list = Explained({});
  for (int i = 0; i < kNumErrorCodes; ++i) {
    const std::string name(ErrorNameOf(static_cast<ErrorCode>(i)));
    EXPECT_THAT(list, HasSubstr(name));
    const std::string text = Explained({name});
    EXPECT_THAT(text, HasSubstr("  cause   "));
    EXPECT_THAT(text, HasSubstr("  do      "));
  }
}

TEST(ExplainCommandTest, SaysStatusAndWhetherToTryAgain) {
  EXPECT_THAT(Explained({"queue_full"}),
              testing::AllOf(HasSubstr("HTTP 429, gRPC 8"), HasSubstr("Retry-After")));
  EXPECT_THAT(Explained({"unsupported_http"}), HasSubstr("again   no"));
  EXPECT_THAT(Explained({"invalid_json"}), HasSubstr("again   no"));
}

TEST(ExplainCommandTest, AStatusNamesAllItsCodes) {
  const std::string text = Explained({"429"});
  EXPECT_THAT(text, HasSubstr("rate_limit_exceeded: "));
  EXPECT_THAT(text, HasSubstr("queue_timeout: "));
  EXPECT_THAT(text, Not(HasSubstr("no_workers")));
}

// One code stands for three statuses of HTTP.
TEST(ExplainCommandTest, EachStatusOfAnUnspokenPartIsExplained) {
  for (const char* asked : {"417", "501", "505", "unsupported_http"}) {
    EXPECT_THAT(Explained({asked}),
                testing::AllOf(HasSubstr("unsupported_http: HTTP 501"), HasSubstr("417 for Expect"),
                               HasSubstr("505 for a version")));
  }
}

TEST(ExplainCommandTest, AnUnknownCodeIsAUsageErrorThatNamesTheNearest) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Explained({"queue_ful"}, kExitUsage), "");
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_THAT(error, testing::AllOf(HasSubstr("'queue_ful'"), HasSubstr("queue_full?")));
}

}  // namespace
}  // namespace baton::cli
