#include "src/cli/plan/measured_steps.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton::cli {

using kv::KvDtype;
using plan::KeyWindow;
using plan::MeasuredWeights;
using plan::StepModel;

namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A machine that takes 2 ms a pass, 0.5 ms a prompt token, 1 us a key of a prompt; 4 ms a decode
// step, 1 ms a row and 3 us a key.
double TrueUs(const json& row) {
  const double depth = row["depth"];
  const double tokens = row["prompt"] > 0 ? row["prompt"] : row["generate"];
  const double keys = tokens * (depth + (tokens + 1) / 2);
  if (row["prompt"] > 0) {
    const int passes = (row["prompt"].get<int>() + 511) / 512;
    return 2'000 * passes + 500 * tokens + keys;
  }
  const double streams = row["streams"];
  return 4'000 * tokens + streams * (1'000 * tokens + 3 * keys);
}

json Row(int prompt, int generate, int streams, int depth) {
  json row = {{"case", "x"},
              {"prompt", prompt},
              {"generate", generate},
              {"streams", streams},
              {"depth", depth}};
  const double per_s = (prompt + generate) * streams * 1e6 / TrueUs(row);
  row["tokens_per_s"] = {per_s, per_s * 0.8, per_s * 1.25};
  return row;
}

json Page() {
  return {{"name", "toy"},
          {"processor", "a processor"},
          {"threads", 2},
          {"chunk", 512},
          {"weight_bytes", 1000},
          {"results",
           {Row(128, 0, 1, 0), Row(512, 0, 1, 0), Row(1500, 0, 1, 0), Row(0, 16, 1, 0),
            Row(0, 16, 1, 1000), Row(0, 16, 4, 250), Row(0, 8, 16, 250)}}};
}

std::string ErrorOf(const std::string& text) {
  return std::string(ReadMeasuredSteps(text).status().message());
}

TEST(MeasuredStepsTest, TheTypeOfKIsThatOfTheMeasurement) {
  json page = Page();
  EXPECT_EQ(ReadMeasuredSteps(page.dump())->kv_dtype, KvDtype::kBf16) << "not said";
  page["kv_dtype"] = "q8";
  EXPECT_EQ(ReadMeasuredSteps(page.dump())->kv_dtype, KvDtype::kQ8);
  page["kv_dtype"] = "q4";
  EXPECT_THAT(ErrorOf(page.dump()), HasSubstr("kv_dtype 'q4'"));
  page["kv_dtype"] = 8;
  EXPECT_THAT(ErrorOf(page.dump()), HasSubstr("kv_dtype ''"));
}

TEST(MeasuredStepsTest, TheWeightsOfALinearMachineAreFoundAgain) {
  const StatusOr<MeasuredSteps> steps = ReadMeasuredSteps(Page().dump());
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->model_name, "toy");
  EXPECT_EQ(steps->num_threads, 2u);
  EXPECT_EQ(steps->weight_bytes, 1000u);
  EXPECT_LT(steps->worst_error, 1e-6);
  // The fastest repetition was 1.25 times as fast, the slowest 0.8 times.
  EXPECT_NEAR(steps->fastest.prefill.fixed_us, 2'000 * 0.8, 0.1);
  EXPECT_NEAR(steps->fastest.prefill.prefill_token_us, 500 * 0.8, 0.001);
  EXPECT_NEAR(steps->fastest.prefill.key_us, 0.8, 1e-5);
  EXPECT_NEAR(steps->slowest.decode.fixed_us, 4'000 * 1.25, 0.1);
  EXPECT_NEAR(steps->slowest.decode.decode_row_us, 1'000 * 1.25, 0.1);
  EXPECT_NEAR(steps->slowest.decode.key_us, 3 * 1.25, 1e-4);
}

// Half of a key's cost is of layers that see 100 positions.
TEST(MeasuredStepsTest, KeysBeyondAWindowCostTheOtherLayersAlone) {
  const KeyWindow window = {.tokens = 100, .share = 0.5};
  json page = Page();
  for (json& row : page["results"]) {
    const int prompt = row["prompt"];
    const int tokens = prompt > 0 ? prompt : row["generate"].get<int>();
    const double streams = row["streams"];
    const double keys = window.RunKeys(row["depth"].get<double>(), tokens);
    const double us = prompt > 0 ? 2'000 * ((prompt + 511) / 512) + 500.0 * tokens + keys
                                 : 4'000.0 * tokens + streams * (1'000.0 * tokens + 3 * keys);
    row["tokens_per_s"] = {tokens * streams * 1e6 / us};
  }
  const StatusOr<MeasuredSteps> steps = ReadMeasuredSteps(page.dump(), window);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_LT(steps->worst_error, 1e-6);
  EXPECT_NEAR(steps->slowest.prefill.key_us, 1, 1e-5);
  EXPECT_NEAR(steps->slowest.decode.key_us, 3, 1e-4);
  // A row at depth 10,000 reads 5,000 + 50 keys.
  const StepModel model = StepModel::OfMeasurements(steps->slowest, window);
  EXPECT_NEAR(model.StepUs({.decode_rows = 1, .context = 10'000}), 4'000 + 1'000 + 3 * 5'050, 1);
  EXPECT_GT(ReadMeasuredSteps(page.dump())->worst_error, 1e-3) << "as full layers it does not fit";
}

TEST(MeasuredStepsTest, NoWeightIsBelowZero) {
  json page = Page();
  // Long prompts and full batches that are faster than the sum of their parts.
  for (const int row : {2, 6}) {
    for (json& sample : page["results"][row]["tokens_per_s"]) sample = sample.get<double>() * 3;
  }
  const StatusOr<MeasuredSteps> steps = ReadMeasuredSteps(page.dump());
  ASSERT_TRUE(steps.ok()) << steps.status();
  for (const MeasuredWeights& weights : {steps->fastest, steps->slowest}) {
    for (const double us :
         {weights.prefill.fixed_us, weights.prefill.prefill_token_us, weights.prefill.key_us,
          weights.decode.fixed_us, weights.decode.decode_row_us, weights.decode.key_us}) {
      EXPECT_GE(us, 0);
    }
    EXPECT_GT(weights.prefill.prefill_token_us + weights.prefill.fixed_us, 0);
    EXPECT_GT(weights.decode.decode_row_us + weights.decode.fixed_us, 0);
  }
  EXPECT_GT(steps->worst_error, 0.1);
}

TEST(MeasuredStepsTest, TheEndsHoldEveryRepetitionAndAreOrdered) {
  json page = Page();
  page["results"][1]["tokens_per_s"][0] = 5 * page["results"][1]["tokens_per_s"][0].get<double>();
  page["results"][4]["tokens_per_s"][1] = 0.2 * page["results"][4]["tokens_per_s"][1].get<double>();
  const StatusOr<MeasuredSteps> steps = ReadMeasuredSteps(page.dump());
  ASSERT_TRUE(steps.ok()) << steps.status();
  const auto us = [](const MeasuredWeights& weights, uint32_t chunk, uint32_t first_pos) {
    return StepModel::OfMeasurements(weights).StepUs(
        {.chunk_tokens = chunk, .first_pos = first_pos});
  };
  // 512 tokens at five times the speed of the median.
  const double fastest_us = TrueUs(page["results"][1]) / 5;
  EXPECT_LE(us(steps->fastest, 512, 0), fastest_us * 1.001);
  const double slowest_us = TrueUs(page["results"][4]) / 16 / 0.8 / 0.2;
  const StepModel slow = StepModel::OfMeasurements(steps->slowest);
  EXPECT_GE(slow.StepUs({.decode_rows = 1, .context = 1009}), slowest_us * 0.999);
  for (const uint32_t chunk : {1u, 16u, 512u}) {
    EXPECT_LE(us(steps->fastest, chunk, 8000), us(steps->slowest, chunk, 8000));
  }
}

TEST(MeasuredStepsTest, WhatIsNoMeasurementIsRefused) {
  for (const char* text : {"", "[]", "{}", "{\"chunk\": 512}", "{\"chunk\":512,\"results\":3}"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("no result of `baton bench model --json`")) << text;
  }
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, json>>{{"tokens_per_s", json::array()},
                                                 {"tokens_per_s", {0}},
                                                 {"tokens_per_s", {-1}},
                                                 {"tokens_per_s", {"fast"}},
                                                 {"streams", 0},
                                                 {"depth", uint64_t{1} << 40},
                                                 {"prompt", 0}}) {
    json page = Page();
    page["results"][0][key] = value;
    EXPECT_THAT(ErrorOf(page.dump()), HasSubstr("the case \"x\"")) << key << " " << value;
  }
}

TEST(MeasuredStepsTest, CasesThatTellNothingApartNameThoseThatDo) {
  for (const std::vector<int>& kept :
       {std::vector<int>{0, 3, 4, 5}, {0, 1, 3, 4}, {0, 1, 5, 6}, {}}) {
    json page = Page();
    json results = json::array();
    for (const int row : kept) results.push_back(page["results"][row]);
    page["results"] = results;
    EXPECT_THAT(ErrorOf(page.dump()), HasSubstr("--cases pp16,pp128"));
  }
}

}  // namespace
}  // namespace baton::cli
