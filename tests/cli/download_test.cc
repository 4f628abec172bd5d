#include "src/cli/download.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

TEST(ContentRangeTest, Parses) {
  const StatusOr<ByteRange> whole = ParseContentRange("bytes 10-99/100");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->begin, 10u);
  EXPECT_EQ(whole->end, 100u);
  EXPECT_EQ(whole->total, 100u);
  const StatusOr<ByteRange> open = ParseContentRange("bytes 0-0/*");
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->end, 1u);
  EXPECT_EQ(open->total, 0u);
}

TEST(ContentRangeTest, RefusesWhatIsNone) {
  for (const char* text :
       {"", "bytes", "bytes */100", "bytes 5-4/100", "bytes 0-100/100", "bytes -1-2/3", "bytes 0-9",
        "bytes 0-9/", "bytes 0-9/10 ", "bytes +0-9/10", "lines 0-9/10",
        "bytes 0-18446744073709551615/*", "bytes 0-99999999999999999999/*"}) {
    EXPECT_FALSE(ParseContentRange(text).ok()) << text;
  }
}

TEST(ProgressBarTest, MoreThanAnnouncedIsDrawnAsFull) {
  const struct {
    uint64_t total;
    uint64_t done;
    std::string expected;
  } cases[] = {
      {10, 1'000'000, "[" + std::string(30, '#') + "]"},
      {UINT64_MAX, UINT64_MAX - 1, "#]"},
      {0, 1'000'000, "[" + std::string(30, '.') + "]"},
      {4, 1, "[#######."},
  };
  for (const auto& c : cases) {
    testing::internal::CaptureStderr();
    { ProgressBar("m.gguf", c.total).Set(c.done); }
    const std::string drawn = testing::internal::GetCapturedStderr();
    EXPECT_NE(drawn.find(c.expected), std::string::npos) << drawn;
  }
}

}  // namespace
}  // namespace baton::cli
