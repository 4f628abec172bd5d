#include "src/text/stop_matcher.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "src/text/utf8.h"
#include "tests/text/test_spec.h"

namespace baton::text {

using limits::kMaxStopBytes;
using limits::kMaxStopStrings;

namespace {

using ::testing::HasSubstr;

// The result of a matcher for a whole text.
struct Outcome {
  std::string text;
  std::optional<size_t> matched_idx;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Tries every end of every stop string from `first_end` on: the definition, without automata.
Outcome Naive(const std::vector<std::string>& stops, const std::string& text,
              size_t first_end = 1) {
  for (size_t end = first_end; end <= text.size(); ++end) {
    Outcome best;
    size_t longest = 0;
    for (size_t i = 0; i < stops.size(); ++i) {
      const size_t size = stops[i].size();
      if (size <= end && size > longest && text.compare(end - size, size, stops[i]) == 0) {
        longest = size;
        best = {text.substr(0, end - size), i};
      }
    }
    if (longest > 0) return best;
  }
  return {text, std::nullopt};
}

// The longest end of `text` that a stop string begins with.
size_t NaiveHeld(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t size = text.size(); size > 0; --size) {
    for (const std::string& stop : stops) {
      if (stop.size() > size && stop.compare(0, size, text, text.size() - size, size) == 0) {
        return size;
      }
    }
  }
  return 0;
}

TEST(StopMatcherTest, TheTextBeforeTheStopIsKept) {
  StopMatcher matcher = StopMatcher::Create({"\n\nUser:", "END"}).value();
  EXPECT_EQ(matcher.Push("Hello\n"), "Hello");
  EXPECT_EQ(matcher.Push("\nUs"), "");
  EXPECT_EQ(matcher.num_held_bytes(), 4u);
  EXPECT_EQ(matcher.Push("ual E"), "\n\nUsual ");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Push("D and more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched_idx(), 1u);
  EXPECT_EQ(matcher.Push("ignored"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, WithoutAMatchFlushGivesTheRest) {
  StopMatcher matcher = StopMatcher::Create({"stop"}).value();
  EXPECT_EQ(matcher.Push("do not sto"), "do not ");
  EXPECT_EQ(matcher.Flush(), "sto");
  EXPECT_EQ(matcher.Push("p"), "p") << "what was flushed is no longer part of a match";
}

TEST(StopMatcherTest, NoStopStringsHoldNothing) {
  StopMatcher matcher;
  EXPECT_EQ(matcher.Push("anything"), "anything");
  EXPECT_EQ(matcher.num_held_bytes(), 0u);
}

TEST(StopMatcherTest, TheMatchThatEndsFirstWinsAndThenTheLongest) {
  EXPECT_EQ(StopMatcher::Create({"abcd", "bc"}).value().Push("xabcd"), "xa");
  EXPECT_EQ(StopMatcher::Create({"c", "abc", "bc"}).value().Push("xabcd"), "x");
  EXPECT_EQ(StopMatcher::Create({"aa"}).value().Push("baaa"), "b");
}

TEST(StopMatcherTest, AnyCutGivesWhatTheNaiveMatcherGives) {
  RandomText random(TestSeed());
  const std::vector<std::string> letters = {"a", "b", "ab", "é", "\n"};
  size_t num_matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = random.Below(4); n > 0; --n) {
      std::string stop = random.Join(letters, 5);
      if (!stop.empty()) stops.push_back(std::move(stop));
    }
    const std::string text = random.Join(letters, 20);
    StopMatcher matcher = StopMatcher::Create(stops).value();
    std::string emitted;
    std::string seen;
    for (size_t pos = 0; pos < text.size();) {
      const size_t size = 1 + random.Below(4);
      const std::string piece = text.substr(pos, size);
      pos += size;
      seen += piece;
      emitted += matcher.Push(piece);
      if (matcher.stopped()) break;
      // Exactly what may still become a match is held back.
      ASSERT_EQ(matcher.num_held_bytes(), NaiveHeld(stops, seen));
      ASSERT_EQ(emitted.size() + matcher.num_held_bytes(), seen.size());
    }
    emitted += matcher.Flush();
    const Outcome outcome = {emitted, matcher.matched_idx()};
    const Outcome expected = Naive(stops, text);
    ASSERT_EQ(outcome, expected) << testing::PrintToString(stops) << " in " << text;
    num_matches += matcher.stopped() ? 1 : 0;
  }
  EXPECT_GT(num_matches, 2000u);
}

TEST(StopMatcherTest, TextThatMayNotStopEndsNoMatchButMayBeginOne) {
  RandomText random(TestSeed());
  const std::vector<std::string> stops = {"aba", "bb", "a\n", "abab"};
  size_t num_across = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = random.Join({"a", "b", "ab", "\n"}, 12);
    const size_t free_from = random.Below(text.size() + 1);
    StopMatcher matcher = StopMatcher::Create(stops).value();
    std::string emitted;
    for (size_t pos = 0; pos < text.size() && !matcher.stopped(); ++pos) {
      emitted += matcher.Push(text.substr(pos, 1), /*may_stop=*/pos >= free_from);
    }
    emitted += matcher.Flush();
    const Outcome outcome = {emitted, matcher.matched_idx()};
    ASSERT_EQ(outcome, Naive(stops, text, free_from + 1)) << text << " free from " << free_from;
    num_across += matcher.stopped() && emitted.size() < free_from ? 1 : 0;
  }
  EXPECT_GT(num_across, 1000u);
}

// A request that goes on elsewhere rebuilds its matcher from the text so far.
TEST(StopMatcherTest, StateIsAFunctionOfTheTextPushed) {
  RandomText random(TestSeed());
  const std::vector<std::string> stops = {"abab", "bb", "éa"};
  for (int round = 0; round < 2000; ++round) {
    const std::string text = random.Join({"a", "b", "é"}, 16);
    const size_t cut = random.Below(text.size() + 1);
    StopMatcher straight = StopMatcher::Create(stops).value();
    std::string emitted = straight.Push(text);
    StopMatcher first = StopMatcher::Create(stops).value();
    first.Push(text.substr(0, cut));
    StopMatcher resumed = StopMatcher::Create(stops).value();
    std::string again;
    for (size_t i = 0; i < cut; ++i) again += resumed.Push(text.substr(i, 1));
    ASSERT_EQ(resumed.num_held_bytes(), first.num_held_bytes());
    again += resumed.Push(text.substr(cut));
    ASSERT_EQ(again, emitted);
    ASSERT_EQ(resumed.matched_idx(), straight.matched_idx());
  }
}

TEST(StopMatcherTest, CharactersAreNeverCut) {
  RandomText random(TestSeed());
  const std::vector<std::string> parts = {"é", "è", "中", "丯", "😀", "😁", "a"};
  for (int round = 0; round < 3000; ++round) {
    std::string stop = random.Join(parts, 3);
    if (stop.empty()) continue;
    StopMatcher matcher = StopMatcher::Create({stop}).value();
    for (int i = 0; i < 10; ++i) {
      const std::string piece = matcher.Push(parts[random.Below(parts.size())]);
      ASSERT_EQ(ValidUtf8Prefix(piece), piece.size());
    }
  }
}

TEST(StopMatcherTest, UnusableStopStringsAreNamed) {
  const auto message = [](const std::vector<std::string>& stops) {
    return std::string(StopMatcher::Create(stops).status().message());
  };
  EXPECT_THAT(message({"a", ""}), HasSubstr("stop[1] has 0 bytes"));
  EXPECT_THAT(message({std::string(kMaxStopBytes + 1, 'a')}), HasSubstr("513 bytes"));
  EXPECT_THAT(message({"\xff"}), HasSubstr("stop[0] is not UTF-8"));
  EXPECT_THAT(message(std::vector<std::string>(kMaxStopStrings + 1, "a")), HasSubstr("17"));
}

}  // namespace
}  // namespace baton::text
