// The bench's report and limits; the numbers themselves are measured in benchmarks/.
#include "src/engine/model_bench.h"

#include "gtest/gtest.h"

#include "tests/engine/live_rig.h"

namespace baton::engine {

using model::DemoModelPath;

namespace {

TEST(ModelBenchTest, CasesAreNamedAsInLlamaBench) {
  std::vector<std::string> names;
  for (const ModelBenchCase& c : DefaultModelBenchCases()) names.push_back(c.Name());
  EXPECT_EQ(names, (std::vector<std::string>{"pp128", "pp512", "pp2000", "tg64", "tg64@2000"}));
}

TEST(ModelBenchTest, StreamsAreNamedAndReadTheWeightsOnce) {
  const ModelBenchCase one = {.num_generate = 2, .depth = 16};
  const ModelBenchCase four = {.num_generate = 2, .depth = 16, .num_streams = 4};
  EXPECT_EQ(four.Name(), "tg2x4@16");
  const std::string path = DemoModelPath();
  const auto report = RunModelBench(
      {.model_path = path, .max_rows = 16, .repetitions = 1, .cases = {one, four}}, {});
  ASSERT_TRUE(report.ok()) << report.status();
  const double kv_bytes = 30 * 17.5 * 2 * 2 * 192;
  EXPECT_NEAR(report->rows[0].work.per_token - kv_bytes,
              4 * (report->rows[1].work.per_token - kv_bytes), 1);
  EXPECT_NE(report->ToJson().find("\"streams\":4,\"depth\":16"), std::string::npos);
  for (const uint32_t streams : {0u, 17u, 300u}) {
    const auto refused =
        RunModelBench({.model_path = path,
                       .max_rows = 16,
                       .cases = {{.num_generate = 1, .depth = 0, .num_streams = streams}}},
                      {});
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  }
}

TEST(ModelBenchTest, KeysOfQ8AreHalfTheBytes) {
  const std::string path = DemoModelPath();
  ModelBenchOptions options = {.model_path = path, .max_rows = 16, .repetitions = 1};
  options.cases = {{.num_generate = 2, .depth = 16}};
  const auto bf16 = RunModelBench(options, {});
  options.kv_dtype = kv::KvDtype::kQ8;
  const auto q8 = RunModelBench(options, {});
  ASSERT_TRUE(bf16.ok() && q8.ok()) << bf16.status() << q8.status();
  const double saved = 30 * 17.5 * 2 * 3 * (64 * 2 - (64 + 4));
  EXPECT_NEAR(bf16->rows[0].work.per_token - q8->rows[0].work.per_token, saved, 1);
  EXPECT_NE(q8->ToJson().find("\"kv_dtype\":\"q8\""), std::string::npos);
  EXPECT_NE(q8->ToTable().find(", q8 KV, "), std::string::npos);
}

TEST(ModelBenchTest, TheMedianOfAnEvenCountIsTheMiddle) {
  const ModelBenchRow row{.bench_case = {}, .work = {}, .tokens_per_s = {4, 1, 3, 2}};
  EXPECT_EQ(row.median(), 2.5);
}

TEST(ModelBenchTest, AMissingFileAndACaseBeyondTheContextAreErrors) {
  EXPECT_FALSE(RunModelBench({.model_path = "/nowhere.gguf"}, {}).ok());
  const std::string path = DemoModelPath();
  const auto report = RunModelBench({.model_path = path, .cases = {{.num_prompt = 9000}}}, {});
  EXPECT_TRUE(absl::IsInvalidArgument(report.status())) << report.status();
}

TEST(ModelBenchTest, EachCaseGivesOneRowWithItsSamples) {
  const std::string path = DemoModelPath();
  uint32_t num_rows = 0;
  const auto report =
      RunModelBench({.model_path = path,
                     .max_rows = 16,
                     .repetitions = 2,
                     .cases = {{.num_prompt = 20}, {.num_generate = 3, .depth = 20}}},
                    [&](const ModelBenchRow&) { ++num_rows; });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(num_rows, 2u);
  ASSERT_EQ(report->rows.size(), 2u);
  for (const ModelBenchRow& row : report->rows) {
    ASSERT_EQ(row.tokens_per_s.size(), 2u);
    EXPECT_GT(row.median(), 0);
    EXPECT_GT(row.work.limit_per_s, 1e9);
  }
  // 3,538,944 weights a layer and 10.5 keys on average, in 30 layers of 576.
  EXPECT_EQ(report->rows[0].work.limit, "int16");
  EXPECT_DOUBLE_EQ(report->rows[0].work.per_token, 30 * (2.0 * 3'538'944 + 4.0 * 10.5 * 576));
  // The file's 98 MB of weights, repacked, and K and V of 22 positions.
  EXPECT_EQ(report->rows[1].work.limit, "read");
  const double kv_bytes = 30 * 22 * 2 * 2 * 192;
  EXPECT_NEAR(report->rows[1].work.per_token - kv_bytes, 98e6, 10e6);
  EXPECT_NE(report->ToTable().find("| tg3@20 |"), std::string::npos);
  EXPECT_NE(report->ToJson().find("\"case\":\"pp20\""), std::string::npos);
}

}  // namespace
}  // namespace baton::engine
