#include "src/cli/model_listing.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ModelListingTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    Write("SmolLM2-135M-Instruct.Q4_1.gguf");
    Write("org--repo/a.gguf");
    Write("a-folder/config.json");
    Write("a-folder/model.safetensors");
    Write("org--repo/a.gguf.part");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name) {
    fs::create_directories(fs::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << "12345";
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const ListedModel& model : ListModels(folder_)) names.push_back(model.name);
    return names;
  }

  const std::string folder_ = testing::TempDir() + "/model_listing_test";
};

TEST_F(ModelListingTest, FilesAndFoldersByTheirNames) {
  EXPECT_EQ(Names(), (std::vector<std::string>{"a-folder", "org--repo/a.gguf", "smollm2:135m"}));
  EXPECT_EQ(ListModels(folder_)[0].bytes, 10u);
  EXPECT_EQ(ListModels(folder_)[1].bytes, 5u);
  EXPECT_TRUE(ListModels(folder_ + "/nowhere").empty());
}

TEST_F(ModelListingTest, OnlyWhatIsListedCanBeRemoved) {
  for (const char* name : {"", ".", "..", "/etc/passwd", "../model_listing_test", "org--repo"}) {
    EXPECT_FALSE(RemoveModel(folder_, name).ok()) << name;
  }
  EXPECT_THAT(std::string(RemoveModel(folder_, "smollm2:135").status().message()),
              HasSubstr("did you mean smollm2:135m?"));
  EXPECT_EQ(Names().size(), 3u);
  EXPECT_TRUE(RemoveModel(folder_, "smollm2:135m").ok());
  EXPECT_TRUE(RemoveModel(folder_, "a-folder").ok());
  EXPECT_FALSE(fs::exists(folder_ + "/a-folder"));
  EXPECT_TRUE(RemoveModel(folder_, "org--repo/a.gguf").ok());
  EXPECT_TRUE(fs::exists(folder_ + "/org--repo/a.gguf.part"));
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace baton
