#include "src/cli/model_listing.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/folder_entries.h"
#include "src/base/unique_fd.h"

namespace baton::cli {
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
    Write("org--repo/a.gguf.part.pip/pkg/inside.gguf");
    Write("org--repo/a.gguf.part-x1Y2z3.pip/pkg/inside.gguf");
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
  EXPECT_TRUE(Names().empty());
}

TEST_F(ModelListingTest, NothingOfARemovedModelStays) {
  for (const char* side : {"a.gguf.part.from", "a.gguf.part.members", "a.gguf.part-x1Y2z3",
                           ".digests/a.gguf.sha256", ".digests/a.gguf.sha256.next-0123456789"}) {
    Write(std::string("org--repo/") + side);
  }
  Write("org--repo/.digests/b.gguf.sha256");
  EXPECT_TRUE(RemoveModel(folder_, "org--repo/a.gguf").ok());
  ASSERT_EQ(FolderEntries(folder_ + "/org--repo").size(), 1u);
  const auto left = FolderEntries(folder_ + "/org--repo/.digests");
  ASSERT_EQ(left.size(), 1u) << "another model's record";
  EXPECT_EQ(left[0].path().filename(), "b.gguf.sha256");
  fs::remove(left[0].path());
  Write("org--repo/sub/c.gguf");
  EXPECT_TRUE(RemoveModel(folder_, "org--repo/sub/c.gguf").ok());
  EXPECT_FALSE(fs::exists(folder_ + "/org--repo"));
  EXPECT_TRUE(fs::exists(folder_));
}

TEST_F(ModelListingTest, AModelThatIsBeingFetchedStays) {
  const UniqueFd part(::open((folder_ + "/org--repo/a.gguf.part").c_str(), O_RDWR));
  ASSERT_EQ(::flock(part.get(), LOCK_EX), 0);
  EXPECT_EQ(RemoveModel(folder_, "org--repo/a.gguf").status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(fs::exists(folder_ + "/org--repo/a.gguf"));
}

TEST_F(ModelListingTest, ASplitModelIsOneModel) {
  for (const char* part : {"1", "2", "3"}) {
    const std::string file = std::string("org--split/Q4/m-0000") + part + "-of-00003.gguf";
    Write(file);
    Write(std::string("org--split/Q4/.digests/m-0000") + part + "-of-00003.gguf.sha256");
  }
  const std::string first = "org--split/Q4/m-00001-of-00003.gguf";
  EXPECT_THAT(Names(), testing::ElementsAre("a-folder", "org--repo/a.gguf", first, "smollm2:135m"));
  for (const char* name :
       {"org--split/Q4/m-00001-of-00003.gguf", "org--split/Q4/m-00002-of-00003.gguf",
        "hf:org/split", "hf:org/split/Q4/m-00003-of-00003.gguf", "hf:org/split:q4"}) {
    const StatusOr<ListedModel> model = FindModel(folder_, name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->path, folder_ + "/" + first);
    EXPECT_EQ(model->bytes, 15u);
    EXPECT_TRUE(model->is_whole());
  }
  fs::remove(folder_ + "/" + first);
  ASSERT_TRUE(FindModel(folder_, "hf:org/split").ok());
  EXPECT_FALSE(FindModel(folder_, "hf:org/split")->is_whole());
  EXPECT_TRUE(RemoveModel(folder_, "hf:org/split:q4").ok());
  EXPECT_FALSE(fs::exists(folder_ + "/org--split"));
}

TEST_F(ModelListingTest, ADownloadThatWasCutShortIsAModelThatIsNotWhole) {
  EXPECT_EQ(IncompleteText(ListModels(folder_)[1]), "") << "the part is of a file that is there";
  Write("org--cut/Q4/m.gguf.part");
  Write("org--cut/Q4/m.gguf.part.members");
  std::ofstream(folder_ + "/org--cut/Q4/m.gguf.part.from") << "etag \"1\"\n2048\n";
  Write("org--own/m.gguf.part-x1Y2z3");
  Write("gemma-3-270m-q4_k_m.gguf.part");
  Write("mine.gguf.part");
  EXPECT_THAT(Names(),
              testing::ElementsAre("a-folder", "gemma3:270m", "mine.gguf", "org--cut/Q4/m.gguf",
                                   "org--own/m.gguf", "org--repo/a.gguf", "smollm2:135m"));
  const std::pair<const char*, const char*> texts[] = {
      {"hf:org/cut/Q4/m.gguf",
       "incomplete, 5 B of 2 KiB; `baton pull hf:org/cut/Q4/m.gguf` goes on"},
      {"hf:org/cut:q4", "incomplete, 5 B of 2 KiB; `baton pull hf:org/cut/Q4/m.gguf` goes on"},
      {"hf:org/own", "incomplete, 5 B; `baton pull hf:org/own/m.gguf` goes on"},
      {"gemma3:270m", "incomplete, 5 B of 241.4 MiB; `baton pull gemma3:270m` goes on"},
      {"mine.gguf", "incomplete, 5 B"}};
  for (const auto& [name, text] : texts) {
    const StatusOr<ListedModel> model = FindModel(folder_, name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(IncompleteText(*model), text);
    EXPECT_EQ(model->bytes, 5u);
  }
  for (const char* name : {"org--cut/Q4/m.gguf", "hf:org/own", "gemma3:270m", "mine.gguf"}) {
    EXPECT_TRUE(RemoveModel(folder_, name).ok()) << name;
  }
  EXPECT_THAT(Names(), testing::ElementsAre("a-folder", "org--repo/a.gguf", "smollm2:135m"));
  EXPECT_FALSE(fs::exists(folder_ + "/org--cut"));
  EXPECT_FALSE(fs::exists(folder_ + "/org--own"));
}

TEST_F(ModelListingTest, AWholeModelGoesBeforeOneThatIsNot) {
  Write("org--repo/b-Q4_K_M.gguf.part");
  EXPECT_EQ(FindModel(folder_, "hf:org/repo")->name, "org--repo/a.gguf");
  EXPECT_EQ(FindModel(folder_, "hf:org/repo:q4_k_m")->name, "org--repo/b-Q4_K_M.gguf");
}

TEST_F(ModelListingTest, AModelIsFoundByEachOfItsNames) {
  for (const char* name : {"smollm2:135m", "SmolLM2-135M-Instruct.Q4_1.gguf"}) {
    EXPECT_TRUE(FindModel(folder_, name).ok()) << name;
  }
  for (const char* name : {"org--repo/a.gguf", "hf:org/repo/a.gguf", "hf:org/repo"}) {
    EXPECT_TRUE(FindModel(folder_, name).ok()) << name;
  }
  for (const char* name : {"a.gguf", "hf:org/repo:Q8_0", "hf:org/other", "hf:org"}) {
    EXPECT_FALSE(FindModel(folder_, name).ok()) << name;
  }
}

// As another user: root reads every folder.
TEST_F(ModelListingTest, AFolderThatCannotBeReadIsLeftOut) {
  Write("closed/m.gguf");
  Write("a-folder/closed/x");
  const auto close = [this](fs::perms mode) {
    for (const char* name : {"/closed", "/a-folder/closed"}) fs::permissions(folder_ + name, mode);
  };
  close(fs::perms::none);
  const bool is_root = ::geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(::seteuid(12345), 0);
  }
  const std::vector<std::string> names = Names();
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  close(fs::perms::owner_all);
  EXPECT_EQ(names, (std::vector<std::string>{"a-folder", "org--repo/a.gguf", "smollm2:135m"}));
}

}  // namespace
}  // namespace baton::cli
