// Folders that the oldest and the newest release of transformers saved (tests/golden/saved): the
// log-probabilities are those that the same release computed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"

namespace baton::model {

using kv::KvDtype;

namespace {

using Json = nlohmann::json;

class SavedFolderTest : public ::testing::TestWithParam<const char*> {};

// Largest difference found: 5.7e-5 (KV in fp32, AMD EPYC).
constexpr double kBound = 1e-3;

TEST_P(SavedFolderTest, GivesTheLogProbabilitiesOfTheReleaseThatSavedIt) {
  const std::string release = GoldenPath(std::string("saved/") + GetParam());
  std::ifstream in(release + "/expected.json");
  const Json expected = Json::parse(in);
  const auto prompt = expected["prompt"].get<std::vector<TokenId>>();
  for (const auto& [name, values] : expected["logprobs"].items()) {
    const auto wanted = values.get<std::vector<double>>();
    ModelFixture fixture(
        {.path = release + "/" + name, .kv_dtype = KvDtype::kF32, .max_context = 128});
    ASSERT_TRUE(fixture.status().ok()) << name << fixture.status();
    const auto logits = fixture.Run({{0, 0, prompt}});
    ASSERT_TRUE(logits.ok()) << logits.status();
    ASSERT_EQ(logits->size(), wanted.size());
    double sum = 0;
    for (const float logit : *logits) sum += std::exp(double{logit});
    double worst = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      worst = std::max(worst, std::fabs((*logits)[i] - std::log(sum) - wanted[i]));
    }
    const auto best = std::ranges::max_element(*logits) - logits->begin();
    const bool agrees = best == std::ranges::max_element(wanted) - wanted.begin();
    // benchmarks/accuracy reads these lines.
    std::printf("%s %s: largest difference %.1e; argmax %s; %s\n", GetParam(), name.c_str(), worst,
                agrees ? "equal" : "other", fixture.model().config().architecture.c_str());
    EXPECT_LT(worst, kBound) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Releases, SavedFolderTest, ::testing::Values("4.51.3", "5.24.0"),
                         [](const auto& info) { return info.index == 0 ? "oldest" : "newest"; });

}  // namespace
}  // namespace baton::model
