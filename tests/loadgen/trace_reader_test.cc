#include "src/loadgen/trace_reader.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::loadgen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kAzure[] =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.9000000,374,44\r\n"
    "2023-11-17 00:00:01.1500000,396,109";

std::string Mooncake(int64_t ms, int input, const std::string& ids) {
  return "{\"timestamp\": " + std::to_string(ms) + ", \"input_length\": " + std::to_string(input) +
         ", \"output_length\": 7, \"hash_ids\": [" + ids + "]}\n";
}

TEST(TraceReaderTest, AzureRowsStartAtTheFirstAcrossMidnight) {
  const auto rows = ParseTrace(kAzure, "t.csv");
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0].start_us, 0);
  EXPECT_EQ((*rows)[1].start_us, 1'250'000);
  EXPECT_EQ((*rows)[1].num_input, 396u);
  EXPECT_EQ((*rows)[1].num_output, 109u);
}

// The week of 2024 has a zone, and no fraction on whole seconds.
TEST(TraceReaderTest, AzureRowsMayNameTheirZone) {
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const auto rows = ParseTrace(head +
                                   "2024-05-10 00:00:00.009930+00:00,2162,5\n"
                                   "2024-05-10 00:00:01+00:00,2399,6\n"
                                   "2024-05-10 02:00:02.5+0200,1,1\n"
                                   "2024-05-09 20:30:03-03:30,1,1\n"
                                   "2024-05-10 00:00:04Z,1,1\n",
                               "t.csv");
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::vector<int64_t> starts_us;
  for (const TraceRow& row : *rows) starts_us.push_back(row.start_us);
  EXPECT_THAT(starts_us, ElementsAre(0, 990'070, 2'490'070, 2'990'070, 3'990'070));
  for (const char* zone : {"+", "+1", "+1:00", "+15:00", "+00:60", "+aa:00", "ZZ", "+00:000"}) {
    const std::string row = std::string("2024-05-10 00:00:00") + zone + ",1,1\n";
    EXPECT_FALSE(ParseTrace(head + row, "t.csv").ok()) << zone;
  }
}

TEST(TraceReaderTest, MooncakeRowsKeepTheirBlocks) {
  const auto rows = ParseTrace(Mooncake(5, 513, "0, 46") + Mooncake(3005, 512, "0"), "t.jsonl");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[1].start_us, 3'000'000);
  EXPECT_THAT((*rows)[0].block_ids, ElementsAre(0u, 46u));
}

TEST(TraceReaderTest, ABadLineIsNamedByItsNumber) {
  const std::string good = Mooncake(5, 10, "0");
  struct Bad {
    std::string text;
    std::string expected;
  };
  for (const Bad& bad : {
           Bad{good + "{\"timestamp\": 6}\n", "t line 2: input_length is missing"},
           Bad{good + good + "not json\n" + good, "t line 3: it is no JSON object"},
           Bad{good + Mooncake(4, 10, "0"), "t line 2: the time goes back by 1000 us"},
           Bad{good + Mooncake(6, 513, "0"), "t line 2: hash_ids has 1 blocks"},
           Bad{good + Mooncake(6, 0, ""), "t line 2: input_length 0"},
           Bad{good + Mooncake(6, 10, "-1"), "t line 2: hash_ids has -1"},
           Bad{good + "\n" + good, "t line 2: it is no JSON object"},
           Bad{std::string(kAzure) + "x", "t line 3: '109x'"},
           Bad{std::string(kAzure) + "\n2023-13-17 00:00:01,1,1", "t line 4: TIMESTAMP"},
           Bad{std::string(kAzure) + "\n2023-11-17X00:00:02,1,1", "t line 4: TIMESTAMP"},
           Bad{"", "t has no request"},
           Bad{"TIMESTAMP,ContextTokens,GeneratedTokens\n", "t has no request"},
       }) {
    const auto rows = ParseTrace(bad.text, "t");
    EXPECT_FALSE(rows.ok()) << bad.expected;
    EXPECT_THAT(std::string(rows.status().message()), HasSubstr(bad.expected));
  }
}

// A message must not follow the depth of a value: the stack would end before it.
TEST(TraceReaderTest, AValueOfAnyDepthIsOnlyNamed) {
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  const auto as_time = ParseTrace("{\"timestamp\": " + deep + "}\n", "t");
  EXPECT_THAT(std::string(as_time.status().message()), HasSubstr("timestamp a list is not"));
  const auto as_block = ParseTrace(Mooncake(5, 10, deep), "t");
  EXPECT_THAT(std::string(as_block.status().message()), HasSubstr("hash_ids has a list"));
}

TEST(TraceReaderTest, MutatedTextIsRowsOrAnError) {
  const std::string texts[] = {kAzure, Mooncake(5, 513, "0, 46") + Mooncake(9, 5, "0")};
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(seed);
    TestRandom random(seed);
    for (int i = 0; i < 2000; ++i) {
      std::string text = texts[random.Below(2)];
      for (uint32_t k = random.Between(1, 4); k > 0; --k) {
        text[random.Below(static_cast<uint32_t>(text.size()))] =
            static_cast<char>(random.Below(256));
      }
      const auto rows = ParseTrace(text, "t");
      if (rows.ok()) {
        for (const TraceRow& row : *rows) ASSERT_GE(row.start_us, 0);
      } else {
        ASSERT_THAT(std::string(rows.status().message()), HasSubstr("t "));
      }
    }
  }
}

TEST(TraceReaderTest, ScalingKeepsOrderAndNeverMakesAnEmptyPrompt) {
  auto rows = *ParseTrace(Mooncake(0, 512, "0") + Mooncake(100, 3, "0"), "t");
  RandomDraws draws(1);
  ScaleTrace({.time = 2.0, .length = 0.1}, draws, rows);
  EXPECT_EQ(rows[1].start_us, 200'000);
  EXPECT_EQ(rows[0].num_input, 51u);
  EXPECT_EQ(rows[1].num_input, 1u);
  EXPECT_EQ(rows[1].num_output, 1u);
}

TEST(TraceReaderTest, SpreadingFillsTheBucketAndNothingElse) {
  for (const uint64_t seed : TestSeeds(2)) {
    SCOPED_TRACE(seed);
    std::string text;
    for (int i = 0; i < 200; ++i) text += Mooncake(0, 5, "0");
    auto rows = *ParseTrace(text + Mooncake(3000, 5, "0") + Mooncake(3000, 5, "0"), "t");
    RandomDraws draws(seed);
    ScaleTrace({.spread = true}, draws, rows);
    int64_t last = 0;
    double sum = 0;
    for (int i = 0; i < 200; ++i) {
      const int64_t at = rows[static_cast<size_t>(i)].start_us;
      ASSERT_GE(at, last);
      ASSERT_LT(at, 3'000'000);
      last = at;
      sum += static_cast<double>(at);
    }
    EXPECT_NEAR(sum / 200, 1.5e6, 0.35e6);
    EXPECT_EQ(rows[200].start_us, 3'000'000);
    EXPECT_EQ(rows[201].start_us, 3'000'000);
  }
}

TEST(TraceReaderTest, FilesThatAreNotThereOrCutShortSaySo) {
  EXPECT_THAT(std::string(ReadTraceFile("/nowhere.csv").status().message()),
              HasSubstr("/nowhere.csv: there is no such file"));
  const std::string folder = testing::TempDir() + "loadgen_trace_test";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/t.csv";
  std::ofstream(path) << kAzure;
  ASSERT_EQ(ReadTraceFile(path)->size(), 2u);
  ASSERT_EQ(std::system(("gzip -kf " + path).c_str()), 0);
  ASSERT_EQ(ReadTraceFile(path + ".gz")->size(), 2u);
  std::filesystem::resize_file(path + ".gz", std::filesystem::file_size(path + ".gz") - 12);
  EXPECT_EQ(ReadTraceFile(path + ".gz").status().code(), StatusCode::kDataLoss);
  std::filesystem::remove_all(folder);
}

TEST(TraceReaderTest, TablesAsOtherToolsSaveThem) {
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens";
  const std::string first = "2023-11-16 18:17:03.9799600,120,8";
  const std::string second = "2023-11-16 18:17:04.9799600,90,4";
  for (const std::string& text :
       {head + "\n" + first + "\n" + second,
        "\xEF\xBB\xBF" + head + "\r\n" + first + "\r\n" + second,
        head + "\n" + first + "\n" + second + "\n  \n\t\n\n",
        head + "\n2023-11-16T18:17:03.9799600Z,120,8\n2023-11-16T18:17:04.97996Z,90,4\n",
        head + ",Note\n" + first + ",x\n" + second + ",\n",
        head + "\n2023-11-16 18:17:03.9799600, 120 ,8 \n" + second}) {
    const auto rows = ParseTrace(text, "t.csv");
    ASSERT_TRUE(rows.ok()) << text << rows.status();
    ASSERT_EQ(rows->size(), 2u) << text;
    EXPECT_EQ((*rows)[1].start_us, 1'000'000) << text;
    EXPECT_EQ((*rows)[0].num_input, 120u) << text;
    EXPECT_EQ((*rows)[1].num_output, 4u) << text;
  }
  // A blank line in the middle is a row that is missing.
  EXPECT_FALSE(ParseTrace(head + "\n" + first + "\n  \n" + second, "t.csv").ok());
  EXPECT_FALSE(ParseTrace(head + "Note\n" + first, "t.csv").ok());
}

}  // namespace
}  // namespace baton::loadgen
