#include "src/base/span_ids.h"

#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr std::string_view kGood = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// `kGood` with `text` from `at` on.
std::string With(size_t at, std::string_view text) {
  return std::string(kGood).replace(at, text.size(), text);
}

TEST(SpanIdsTest, TheExampleOfTheSpecificationIsRead) {
  const auto context = ParseTraceparent(kGood);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_hi, 0x4bf92f3577b34da6u);
  EXPECT_EQ(context->trace_lo, 0xa3ce929d0e0e4736u);
  EXPECT_EQ(context->span_id, 0x00f067aa0ba902b7u);
  EXPECT_TRUE(context->sampled);
}

TEST(SpanIdsTest, OnlyTheLowestFlagSaysSampled) {
  EXPECT_FALSE(ParseTraceparent(With(53, "00"))->sampled);
  EXPECT_FALSE(ParseTraceparent(With(53, "fe"))->sampled);
  EXPECT_TRUE(ParseTraceparent(With(53, "ff"))->sampled);
}

TEST(SpanIdsTest, ALaterVersionMayBeLonger) {
  EXPECT_TRUE(ParseTraceparent(With(0, "01")).has_value());
  EXPECT_TRUE(ParseTraceparent(With(0, "cc") + "-what-the-future-will-be-like").has_value());
  EXPECT_TRUE(ParseTraceparent(With(0, "cc") + "-").has_value());
  EXPECT_FALSE(ParseTraceparent(With(0, "cc") + ".what").has_value());
}

TEST(SpanIdsTest, AMalformedOneIsNone) {
  const std::string cases[] = {
      "",
      "00",
      std::string(kGood.substr(0, 54)),
      std::string(kGood) + "-00",                   // too long for version 00
      std::string(kGood) + " ",                     //
      With(0, "ff"),                                // no such version
      With(0, "0g"),                                //
      With(0, "A0"),                                // upper case
      With(3, "4BF92F3577B34DA6A3CE929D0E0E4736"),  //
      With(3, "00000000000000000000000000000000"),  // no trace
      With(36, "0000000000000000"),                 // no span
      With(36, "00F067AA0BA902B7"),                 //
      With(36, "00f067aa0ba902bx"),                 //
      With(53, "0."),                               //
      With(53, "0A"),                               //
      With(2, "_"),                                 //
      With(35, "_"),                                //
      With(52, "_"),                                //
      With(10, std::string_view("\0", 1)),          //
  };
  for (const std::string& text : cases) EXPECT_FALSE(ParseTraceparent(text)) << text;
}

TEST(SpanIdsTest, IdsAreBigEndian) {
  const auto context = ParseTraceparent(kGood);
  EXPECT_EQ(TraceIdBytes(*context),
            "\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36");
  EXPECT_EQ(SpanIdBytes(context->span_id), std::string("\x00\xf0\x67\xaa\x0b\xa9\x02\xb7", 8));
}

}  // namespace
}  // namespace baton
