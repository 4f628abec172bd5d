// Tests which models a router offers, and what a name leads to.
#include "src/router/model_directory.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/obs/baton_metrics.h"
#include "src/router/known_models.h"
#include "src/router/model_metrics.h"
#include "src/router/submit.h"

namespace baton::router {

using obs::BatonMetrics;
using obs::MetricsRegistry;
using obs::RegisterBatonMetrics;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Served = std::vector<std::shared_ptr<const ModelInfo>>;

std::shared_ptr<const ModelInfo> ModelOf(const std::string& id) {
  auto model = std::make_shared<ModelInfo>();
  model->id = id;
  return model;
}

ModelFound Find(const ModelDirectory& directory, std::string_view name, std::string* id = nullptr) {
  std::shared_ptr<const ModelInfo> model;
  const ModelFound found = directory.Find(name, &model);
  EXPECT_TRUE(model != nullptr || found != ModelFound::kServed) << name;
  EXPECT_TRUE(model == nullptr || found == ModelFound::kServed || found == ModelFound::kNoWorkers);
  if (model != nullptr && id != nullptr) *id = model->id;
  return found;
}

TEST(ModelDirectoryTest, NothingIsUnknownWhileNoModelIsOffered) {
  KnownModels known({}, {});
  const auto directory = known.Take({}, 0);
  EXPECT_EQ(Find(*directory, "any"), ModelFound::kNoWorkers);
  EXPECT_EQ(Find(*directory, ""), ModelFound::kNoWorkers);
}

TEST(ModelDirectoryTest, TheOnlyModelNeedsNoName) {
  KnownModels known({}, {});
  const auto directory = known.Take({ModelOf("a")}, 0);
  for (const char* name : {"", "default", "a"}) {
    EXPECT_EQ(Find(*directory, name), ModelFound::kServed) << name;
  }
  EXPECT_EQ(Find(*directory, "b"), ModelFound::kUnknown);
}

TEST(ModelDirectoryTest, SeveralModelsMustBeNamed) {
  KnownModels known({}, {});
  const auto directory = known.Take({ModelOf("a"), ModelOf("b")}, 0);
  EXPECT_EQ(Find(*directory, ""), ModelFound::kNotOne);
  EXPECT_EQ(Find(*directory, "default"), ModelFound::kNotOne);
  std::string id;
  EXPECT_EQ(Find(*directory, "b", &id), ModelFound::kServed);
  EXPECT_EQ(id, "b");
  EXPECT_EQ(directory->NameList(), "'a', 'b'");
}

TEST(ModelDirectoryTest, TheListHasAllNamesOfAModel) {
  std::vector<KnownModel> models;
  models.push_back({"x", {"gpt-4o", "mini"}, ModelOf("x")});
  models.push_back({"y", {"y"}, ModelOf("y")});
  EXPECT_EQ(ModelDirectory(models).NameList(), "'gpt-4o', 'mini', 'y'");
  std::vector<std::string>& names = models.front().names;
  for (int i = 2; i < 18; ++i) names.push_back("n" + std::to_string(i));
  const std::string list = ModelDirectory(models).NameList();
  EXPECT_TRUE(list.ends_with("'n15' and 3 more")) << list;
}

TEST(ModelDirectoryTest, AnExpectedModelIsKnownWithoutWorkersForGood) {
  KnownModels known({"a", "b"}, {});
  for (const int64_t now_us : {int64_t{0}, 2 * KnownModels::kKeptUs}) {
    const auto directory = known.Take({ModelOf("a")}, now_us);
    EXPECT_EQ(Find(*directory, "a"), ModelFound::kServed);
    EXPECT_EQ(Find(*directory, "b"), ModelFound::kNoWorkers);
    EXPECT_EQ(Find(*directory, "c"), ModelFound::kUnknown);
    EXPECT_EQ(Find(*directory, ""), ModelFound::kNotOne) << "both are offered";
    EXPECT_EQ(directory->NameList(), "'a', 'b'");
    EXPECT_EQ(directory->served().size(), 1u);
  }
}

TEST(ModelDirectoryTest, AModelThatWasNotExpectedIsRememberedForAWhile) {
  KnownModels known({}, {});
  (void)known.Take({ModelOf("a"), ModelOf("b")}, 1000);
  auto directory = known.Take({ModelOf("a")}, 2000);
  EXPECT_EQ(known.forget_us(), 2000 + KnownModels::kKeptUs) << "it was served until then";
  EXPECT_EQ(Find(*directory, "b"), ModelFound::kNoWorkers);
  EXPECT_EQ(Find(*directory, ""), ModelFound::kServed) << "the only one that is offered";
  EXPECT_EQ(directory->NameList(), "'a'");
  directory = known.Take({ModelOf("a")}, 2000 + KnownModels::kKeptUs);
  EXPECT_EQ(Find(*directory, "b"), ModelFound::kUnknown);
}

TEST(ModelDirectoryTest, AModelThatWasServedForLongIsRememberedToo) {
  KnownModels known({}, {});
  (void)known.Take({ModelOf("a"), ModelOf("b")}, 0);
  const int64_t later_us = 6 * KnownModels::kKeptUs;
  const auto directory = known.Take({ModelOf("a")}, later_us);
  EXPECT_EQ(Find(*directory, "b"), ModelFound::kNoWorkers);
  EXPECT_EQ(known.forget_us(), later_us + KnownModels::kKeptUs);
}

TEST(ModelDirectoryTest, AModelThatLeftIsWhatItWas) {
  for (const bool is_expected : {false, true}) {
    KnownModels known(is_expected ? std::vector<std::string>{"a"} : std::vector<std::string>{}, {});
    std::string id;
    EXPECT_EQ(Find(*known.Take({}, 0), "a", &id), ModelFound::kNoWorkers);
    EXPECT_EQ(id, "") << "nobody has seen it";
    (void)known.Take({ModelOf("a")}, 0);
    auto directory = known.Take({}, 1000);
    for (const char* name : {"", "default", "a"}) {
      id.clear();
      EXPECT_EQ(Find(*directory, name, &id), ModelFound::kNoWorkers);
      EXPECT_EQ(id, "a") << name;
    }
    EXPECT_TRUE(directory->served().empty());
    directory = known.Take({ModelOf("a")}, 2000);
    EXPECT_EQ(Find(*directory, "a"), ModelFound::kServed);
    EXPECT_EQ(directory->models().front().gone, nullptr);
    (void)known.Take({}, 3000);
    directory = known.Take({}, 3000 + KnownModels::kKeptUs);
    EXPECT_EQ(directory->models().size(), is_expected ? 1u : 0u);
  }
}

TEST(ModelDirectoryTest, OnlyTheLastThatLeftAreWhatTheyWere) {
  KnownModels known({}, {});
  for (size_t i = 0; i <= kMaxGoneModels; ++i) {
    (void)known.Take({ModelOf("m" + std::to_string(i))}, static_cast<int64_t>(i));
  }
  const auto directory = known.Take({}, 1000);
  std::vector<std::string> gone;
  for (const KnownModel& model : directory->models()) {
    if (model.gone != nullptr) gone.push_back(model.gone->id);
  }
  EXPECT_THAT(gone, ElementsAre("m1", "m2", "m3", "m4"));
}

TEST(ModelDirectoryTest, RememberedModelsAreLimited) {
  KnownModels known({}, {});
  for (size_t i = 0; i < 2 * kMaxKnownModels; ++i) {
    (void)known.Take({ModelOf("m" + std::to_string(i))}, static_cast<int64_t>(i));
  }
  EXPECT_EQ(known.Take({}, 1000)->models().size(), kMaxKnownModels);
}

TEST(ModelDirectoryTest, NamesReplaceTheIdOfTheirModel) {
  KnownModels known({"a", "b"}, *ServedNames::Parse("a=x,y"));
  const auto directory = known.Take({ModelOf("a"), ModelOf("b")}, 0);
  std::string id;
  EXPECT_EQ(Find(*directory, "y", &id), ModelFound::kServed);
  EXPECT_EQ(id, "a");
  EXPECT_EQ(Find(*directory, "a"), ModelFound::kUnknown);
  EXPECT_EQ(Find(*directory, "b"), ModelFound::kServed);
  EXPECT_EQ(directory->NameList(), "'x', 'y', 'b'");
  EXPECT_THAT(directory->served()[0]->names, ElementsAre("x", "y"));
}

TEST(ModelDirectoryTest, ANameThatIsTheIdOfAnotherModelIsDropped) {
  KnownModels known({"a", "b"}, *ServedNames::Parse("a=b"));
  const auto directory = known.Take({ModelOf("a")}, 0);
  EXPECT_EQ(Find(*directory, "b"), ModelFound::kNoWorkers) << "no request for b goes to a";
  EXPECT_EQ(Find(*directory, "a"), ModelFound::kServed);
}

TEST(ModelMetricsTest, EachOfSeveralModelsHasSeriesOfItsOwn) {
  MetricsRegistry registry;
  const BatonMetrics process = RegisterBatonMetrics(&registry);
  ModelMetrics metrics(&process, {.vllm = true, .inference_extension = true}, &registry);
  KnownModels known({}, {});
  metrics.Know(*known.Take({ModelOf("a")}, 0));
  EXPECT_EQ(metrics.Of("a"), &process);
  EXPECT_THAT(registry.Expose(), HasSubstr("baton_prompt_tokens_total{model=\"a\"} 0\n"));
  metrics.Know(*known.Take({ModelOf("a"), ModelOf("b")}, 0));
  metrics.Of("a")->prompt_tokens_total->Add(3);
  metrics.Of("b")->prompt_tokens_total->Add(5);
  process.prompt_tokens_total->Add(7);
  const std::string text = registry.Expose();
  EXPECT_THAT(text, HasSubstr("baton_prompt_tokens_total{model=\"a\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("baton_prompt_tokens_total{model=\"b\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("baton_prompt_tokens_total{model=\"a,b\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_total{model_name=\"b\"} 5\n"));
  // One model that is left gets no second series of its name.
  metrics.Know(*known.Take({ModelOf("b")}, 2 * KnownModels::kKeptUs));
  EXPECT_THAT(registry.Expose(), Not(HasSubstr("baton_prompt_tokens_total{model=\"b\"} 7\n")));
}

}  // namespace
}  // namespace baton::router
