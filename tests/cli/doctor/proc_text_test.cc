#include "src/cli/doctor/proc_text.h"

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

TEST(ProcTextTest, MeminfoIsInBytes) {
  const std::string text = "MemTotal:       24576 kB\nMemTotalX: 1 kB\nHugePages_Total:       3\n";
  EXPECT_EQ(MeminfoValue(text, "MemTotal"), 24576u * 1024);
  EXPECT_EQ(MeminfoValue(text, "HugePages_Total"), 3u);
  EXPECT_EQ(MeminfoValue(text, "MemT"), std::nullopt);
  EXPECT_EQ(MeminfoValue("SwapTotal: some kB", "SwapTotal"), std::nullopt);
  EXPECT_EQ(MeminfoValue("", "SwapTotal"), std::nullopt);
}

TEST(ProcTextTest, CpuListsHaveRangesAndSingles) {
  EXPECT_EQ(ParseCpuList("0-3,8,10-11\n"), (std::set<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseCpuList("5"), std::set<int>{5});
  for (const char* text : {"", "a", "1-", "-1", "1-2-3", "0-99999999", "1;2"}) {
    EXPECT_TRUE(ParseCpuList(text).empty()) << text;
  }
}

TEST(ProcTextTest, TheChosenWordStandsInBrackets) {
  EXPECT_EQ(ChosenWord("always [madvise] never"), "madvise");
  EXPECT_EQ(ChosenWord("always madvise"), "");
  EXPECT_EQ(ChosenWord("] [x"), "");
}

TEST(ProcTextTest, StealIsAShareOfAllTime) {
  EXPECT_EQ(ParseStealRatio("cpu  10 0 10 50 5 0 5 20 7 0\ncpu0 1 2 3\n"), 0.2);
  EXPECT_EQ(ParseStealRatio("cpu 1 2 3"), std::nullopt);
  EXPECT_EQ(ParseStealRatio("intr 1 2 3 4 5 6 7 8 9"), std::nullopt);
  EXPECT_EQ(ParseStealRatio("cpu 0 0 0 0 0 0 0 0"), std::nullopt);
}

TEST(ProcTextTest, ControlGroupsOfBothVersions) {
  const std::string text = "12:cpu,cpuacct:/a\n5:memory:/b/c:d\n0::/unified\n";
  EXPECT_EQ(CgroupPath(text, ""), "/unified");
  EXPECT_EQ(CgroupPath(text, "cpu"), "/a");
  EXPECT_EQ(CgroupPath(text, "cpuacct"), "/a");
  EXPECT_EQ(CgroupPath(text, "memory"), "/b/c:d");
  EXPECT_EQ(CgroupPath(text, "pids"), std::nullopt);
  EXPECT_EQ(CgroupPath("", ""), std::nullopt);
}

TEST(ProcTextTest, LimitsOfAllAncestorsHold) {
  EXPECT_EQ(WithAncestors("/a/b"), (std::vector<std::string>{"/a/b", "/a", ""}));
  EXPECT_EQ(WithAncestors("/"), std::vector<std::string>{""});
  EXPECT_EQ(WithAncestors(""), std::vector<std::string>{""});
}

}  // namespace
}  // namespace baton::cli
