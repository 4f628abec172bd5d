#include "src/base/status.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/check.h"

namespace baton {
namespace {

StatusOr<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("{} is odd", value);
  return value / 2;
}

StatusOr<int> Quarter(int value) {
  BATON_ASSIGN_OR_RETURN(const int half, Half(value));
  BATON_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckEven(int value, int* calls) {
  ++*calls;
  BATON_RETURN_IF_ERROR(Half(value).status());
  ++*calls;
  return OkStatus();
}

TEST(StatusTest, MakersSetCodeAndFormatValues) {
  const Status status = OutOfRange("temperature {} is outside [{}, {}]", 2.5, 0, 2);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(), "temperature 2.5 is outside [0, 2]");
  EXPECT_EQ(ResourceExhausted("x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Unavailable("x").code(), StatusCode::kUnavailable);
  EXPECT_EQ(DataLoss("x").code(), StatusCode::kDataLoss);
  EXPECT_EQ(Cancelled("x").code(), StatusCode::kCancelled);
  EXPECT_EQ(DeadlineExceeded("x").code(), StatusCode::kDeadlineExceeded);
}

TEST(StatusTest, AssignOrReturnStopsAtTheFirstError) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(5).status().message(), "5 is odd");
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
}

TEST(StatusTest, AssignOrReturnMovesTheValue) {
  const auto make = []() -> StatusOr<std::unique_ptr<int>> { return std::make_unique<int>(7); };
  const auto take = [&]() -> StatusOr<int> {
    std::unique_ptr<int> owned;
    BATON_ASSIGN_OR_RETURN(owned, make());
    return *owned;
  };
  EXPECT_EQ(take().value(), 7);
}

TEST(StatusTest, ReturnIfErrorEvaluatesOnceAndStops) {
  int calls = 0;
  EXPECT_FALSE(CheckEven(3, &calls).ok());
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(CheckEven(4, &calls).ok());
  EXPECT_EQ(calls, 3);
}

TEST(StatusTest, PrefixKeepsTheCode) {
  const Status status = WithPrefix(NotFound("no tensor 'a'"), "model.gguf");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "model.gguf: no tensor 'a'");
  EXPECT_TRUE(WithPrefix(OkStatus(), "x").ok());
}

TEST(CheckDeathTest, FailurePrintsPlaceConditionAndValues) {
  const int free = 3;
  const int total = 4;
  BATON_CHECK(free < total, "free {} total {}", free, total);
  BATON_CHECK(free < total);
  EXPECT_DEATH(BATON_CHECK(free == total, "free {} total {}", free, total),
               "status_test.cc:[0-9]+: check failed: free == total: free 3 total 4");
  EXPECT_DEATH(BATON_CHECK(free == total), "check failed: free == total");
}

TEST(CheckDeathTest, DcheckFollowsTheBuild) {
#if defined(BATON_DCHECKS)
  EXPECT_DEATH(BATON_DCHECK(1 == 2, "x {}", 1), "check failed: 1 == 2: x 1");
#else
  int evaluated = 0;
  BATON_DCHECK(++evaluated == 0, "x {}", 1);
  EXPECT_EQ(evaluated, 0);
#endif
}

}  // namespace
}  // namespace baton
