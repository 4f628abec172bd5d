// The ranges of sampling parameters, and the words in which a value outside is refused.
#include "src/wire/sampling_params.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::wire {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(SamplingParamsTest, NamesFieldValueAndRange) {
  const std::vector<std::pair<const char*, std::function<void(SamplingParams&)>>> cases = {
      {"temperature -1", [](SamplingParams& p) { p.temperature = -1; }},
      {"temperature nan", [](SamplingParams& p) { p.temperature = kNan; }},
      {"top_p 1.5", [](SamplingParams& p) { p.top_p = 1.5f; }},
      {"min_p -0.5", [](SamplingParams& p) { p.min_p = -0.5f; }},
      {"repetition_penalty 0", [](SamplingParams& p) { p.repetition_penalty = 0; }},
      {"presence_penalty 100.5", [](SamplingParams& p) { p.presence_penalty = 100.5f; }},
      {"frequency_penalty -101", [](SamplingParams& p) { p.frequency_penalty = -101; }},
      {"top_logprobs 21", [](SamplingParams& p) { p.top_logprobs = 21; }},
      {"token 100",
       [](SamplingParams& p) {
         p.logit_bias = {{100, 1}};
       }},
      {"token -1",
       [](SamplingParams& p) {
         p.logit_bias = {{-1, 1}};
       }},
      {"logit_bias 101",
       [](SamplingParams& p) {
         p.logit_bias = {{1, 101}};
       }},
      {"twice",
       [](SamplingParams& p) {
         p.logit_bias = {{1, 1}, {2, 1}, {1, 1}};
       }},
      {"1025 entries", [](SamplingParams& p) { p.logit_bias.resize(1025); }},
  };
  for (const auto& [words, change] : cases) {
    SamplingParams params;
    ASSERT_TRUE(ValidateSamplingParams(params, 100).ok());
    change(params);
    const absl::Status status = ValidateSamplingParams(params, 100);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(words));
  }
}

}  // namespace
}  // namespace baton::wire
