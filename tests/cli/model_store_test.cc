// Which files a server may offer by their names; models folder and downloads: download_test.cc.
#include "src/cli/model_store.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace baton {
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
}  // namespace baton
