// Which files a server may offer by their names; models folder and downloads: download_test.cc.
#include "src/cli/model_store.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

std::string FileNamed(const std::string& name) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << "no model";
  return path;
}

TEST(ModelStoreTest, AFileIsServedUnderItsStem) {
  for (const std::string name : {"toy", "my model", "mod\xc3\xa8le"}) {
    const StatusOr<ModelFile> file = ResolveOrPullModel(FileNamed(name + ".gguf"));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->id, name);
  }
}

TEST(ModelStoreTest, NamesOfTheListAreNamesOfModels) {
  const std::string home = testing::TempDir() + "/model_store_test";
  ::setenv("BATON_HOME", home.c_str(), 1);
  for (const std::string name : {"o--r/m.gguf", "o--r/s-00001-of-00002.gguf",
                                 "o--r/s-00002-of-00002.gguf", "folder/config.json"}) {
    const std::filesystem::path path = home + "/models/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "x";
  }
  const struct {
    const char* name;
    const char* path;
    const char* id;
  } cases[] = {{"o--r/m.gguf", "o--r/m.gguf", "m"},
               {"hf:o/r/m.gguf", "o--r/m.gguf", "m"},
               {"o--r/s-00002-of-00002.gguf", "o--r/s-00001-of-00002.gguf", "s-00001-of-00002"},
               {"folder", "folder", "folder"}};
  for (const auto& c : cases) {
    const StatusOr<ModelFile> file = ResolveModel(c.name);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->path, home + "/models/" + c.path);
    EXPECT_EQ(file->id, c.id);
  }
  std::filesystem::remove(home + "/models/o--r/s-00001-of-00002.gguf");
  EXPECT_EQ(ResolveModel("hf:o/r/s-00001-of-00002.gguf").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ResolveModel("o--r/none.gguf").status().code(), StatusCode::kNotFound);
  std::filesystem::remove_all(home);
  ::unsetenv("BATON_HOME");
}

TEST(ModelStoreTest, WhoServesIsAskedAboutTheIdBeforeAnythingIsFetched) {
  const std::string home = testing::TempDir() + "/model_store_test";
  ::setenv("BATON_HOME", home.c_str(), 1);
  const struct {
    const char* name;
    const char* id;
  } cases[] = {{"smollm2:135m", "smollm2:135m"},
               {"hf:o/r/sub/m.gguf", "m"},
               {"hf:o/r/m-00002-of-00003.gguf", "m-00001-of-00003"}};
  for (const auto& c : cases) {
    std::string asked;
    const Status status = ResolveOrPullModel(c.name, [&asked](const ModelFile& file) {
                            asked = file.id;
                            return Cancelled("asked");
                          }).status();
    EXPECT_EQ(asked, c.id);
    EXPECT_EQ(status.message(), "asked");
  }
  std::filesystem::remove_all(home);
  ::unsetenv("BATON_HOME");
}

TEST(ModelStoreTest, TheCatalogueSaysWhichModelHasNoChats) {
  EXPECT_EQ(CatalogueText(), "smollm2:135m and gemma3:270m (no chats)");
  for (const char* name : {"", "nosuch"}) {
    EXPECT_NE(ResolveModel(name).status().message().find(CatalogueText()), std::string::npos)
        << ResolveModel(name).status();
  }
}

TEST(ModelStoreTest, ANameOfTheHubWithoutItsPrefixGetsIt) {
  const std::pair<const char*, const char*> cases[] = {
      {"o/r", "(did you mean hf:o/r?)"},
      {"https://hub.example/o/r", "(did you mean hf:o/r?)"},
      {"https://hub.example/o/r/resolve/main/sub/m.gguf", "(did you mean hf:o/r/sub/m.gguf?)"},
      {"https://hub.example/o/r/blob/main/m.gguf", "(did you mean hf:o/r/m.gguf?)"},
      {"smollm2", "(did you mean smollm2:135m?)"}};
  for (const auto& [name, hint] : cases) {
    EXPECT_NE(ResolveModel(name).status().message().find(hint), std::string::npos)
        << ResolveModel(name).status();
  }
  for (const char* name : {"./o/r", "/o/r", "o/r/s", "nosuch", "https://hub.example/"}) {
    EXPECT_EQ(ResolveModel(name).status().message().find("did you mean hf:"), std::string::npos)
        << name;
  }
}

TEST(ModelStoreTest, AModelThatIsNotWholeIsNotServed) {
  const std::string home = testing::TempDir() + "/model_store_test";
  ::setenv("BATON_HOME", home.c_str(), 1);
  std::filesystem::create_directories(home + "/models/o--r");
  std::ofstream(home + "/models/o--r/m.gguf.part") << "GGUF";
  for (const char* name : {"o--r/m.gguf", "hf:o/r/m.gguf", "hf:o/r"}) {
    const Status status = ResolveModel(name).status();
    EXPECT_NE(status.message().find("baton pull hf:o/r/m.gguf"), std::string::npos) << status;
  }
  std::filesystem::remove_all(home);
  ::unsetenv("BATON_HOME");
}

// Not by a router, 15 s after the weights were loaded.
TEST(ModelStoreTest, ANameThatNoClientCouldSendIsRefusedAtOnce) {
  for (const std::string name : {"default", "m\xff", "a\nb"}) {
    const std::string path = FileNamed(name + ".gguf");
    EXPECT_TRUE(ResolveModel(path).ok()) << "other subcommands may read it";
    const Status status = ResolveOrPullModel(path).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << "one line";
  }
}

}  // namespace
}  // namespace baton::cli
