// The pooling that a folder of sentence-transformers asks for.
#include "src/model/hf_pooling.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::model {
namespace {

class HfPoolingTest : public testing::Test {
 protected:
  HfPoolingTest() : folder_(std::filesystem::path(testing::TempDir()) / "hf_pooling_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "1_Pooling");
  }
  ~HfPoolingTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& json) {
    std::ofstream(folder_ / "1_Pooling" / "config.json") << json;
  }
  absl::StatusOr<std::optional<Pooling>> Read() { return ReadHfPooling(folder_.string()); }

  const std::filesystem::path folder_;
};

TEST_F(HfPoolingTest, ModesAreThoseOfTheFile) {
  EXPECT_EQ(*Read(), std::nullopt) << "no file says nothing";
  Write(R"({"word_embedding_dimension":8,"pooling_mode_mean_tokens":true})");
  EXPECT_EQ(*Read(), Pooling::kMean);
  Write(R"({"pooling_mode_mean_tokens":false,"pooling_mode_lasttoken":true})");
  EXPECT_EQ(*Read(), Pooling::kLast);
  Write(R"({"pooling_mode_cls_token":true})");
  EXPECT_EQ(*Read(), Pooling::kClass);
  Write(R"({"pooling_mode_mean_tokens":true,"pooling_mode_lasttoken":true})");
  EXPECT_EQ(*Read(), Pooling::kNone) << "two at once";
  Write(R"({"pooling_mode_max_tokens":true})");
  EXPECT_EQ(*Read(), Pooling::kNone);
  Write(R"({"pooling_mode_mean_tokens":false})");
  EXPECT_EQ(*Read(), Pooling::kNone);
  Write(R"({"word_embedding_dimension":8})");
  EXPECT_EQ(*Read(), Pooling::kMean) << "the default of every release";
}

// As sentence-transformers 6.2 writes it.
TEST_F(HfPoolingTest, OneKeyNamesTheMode) {
  const std::pair<const char*, Pooling> modes[] = {
      {R"("mean")", Pooling::kMean},         {R"("lasttoken")", Pooling::kLast},
      {R"("cls")", Pooling::kClass},         {R"("max")", Pooling::kNone},
      {R"("weightedmean")", Pooling::kNone}, {R"(["lasttoken"])", Pooling::kLast},
      {R"(["mean","max"])", Pooling::kNone}};
  for (const auto& [mode, pooling] : modes) {
    Write(std::string(R"({"embedding_dimension":8,"include_prompt":true,"pooling_mode":)") + mode +
          R"(,"pooling_mode_cls_token":true})");
    const auto read = Read();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, pooling) << mode;
  }
}

TEST_F(HfPoolingTest, ADenseLayerAfterItIsNotComputed) {
  Write(R"({"pooling_mode_mean_tokens":true})");
  std::filesystem::create_directories(folder_ / "2_Dense");
  EXPECT_EQ(*Read(), Pooling::kNone);
}

TEST_F(HfPoolingTest, WhatIsNoModeIsRefused) {
  Write("[1]");
  EXPECT_FALSE(Read().ok());
  Write(R"({"pooling_mode_mean_tokens":3})");
  EXPECT_FALSE(Read().ok());
  for (const char* mode : {R"("median")", "3", "[4]", "{}"}) {
    Write(std::string(R"({"pooling_mode":)") + mode + "}");
    EXPECT_THAT(std::string(Read().status().message()),
                ::testing::HasSubstr("1_Pooling/config.json: \"pooling_mode\" is "))
        << mode;
  }
}

}  // namespace
}  // namespace baton::model
