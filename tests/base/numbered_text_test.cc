// Sentences that the compiler puts limits into.
#include "src/base/numbered_text.h"

#include <string_view>

#include "gtest/gtest.h"

#include "src/base/limits.h"

namespace baton {
namespace {

static_assert(kNumberedText<"none"> == "none");
static_assert(kNumberedText<""> == "");
static_assert(kNumberedText<"{}", 0> == "0");
static_assert(kNumberedText<"{}{}", 10, UINT64_MAX> == "1018446744073709551615");
static_assert(kNumberedText<"{ {0} {}", 7> == "{ {0} 7", "fmt's own places stay");

TEST(NumberedTextTest, LimitsStandInTheirSentence) {
  constexpr std::string_view kText =
      kNumberedText<"an array of 1 to {} objects {\"a\":1}, {} KiB", limits::kMaxMessages,
                    (limits::kMaxUserBytes >> 10)>;
  EXPECT_EQ(kText, "an array of 1 to 4096 objects {\"a\":1}, 64 KiB");
}

}  // namespace
}  // namespace baton
