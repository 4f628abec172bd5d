// Folders whose index names shards in subfolders: they are the same model as with the shards beside
// the index, and a shard that is not of the folder is refused by its name.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/folder_error.h"
#include "src/model/hf_folder.h"
#include "src/model/hf_index.h"
#include "tests/model/test_model.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using E = FolderErrorCode;
namespace fs = std::filesystem;

const std::string kShard = "model-00002-of-00003.safetensors";

// A copy of a golden folder in a place of its own, as it lies in the hub's cache: CACHE/blobs,
// CACHE/snapshots/0. Both are removed at the end.
class CachedFolder {
 public:
  CachedFolder() {
    fs::remove_all(cache_);
    fs::create_directories(cache_ / "blobs");
    fs::create_directories(cache_ / "snapshots");
    fs::copy(GoldenPath("tiny_llama_llama3"), path());
  }
  ~CachedFolder() { fs::remove_all(cache_); }
  CachedFolder(const CachedFolder&) = delete;
  CachedFolder& operator=(const CachedFolder&) = delete;

  fs::path path() const { return cache_ / "snapshots" / "0"; }
  fs::path blobs() const { return cache_ / "blobs"; }
  fs::path cache() const { return cache_; }

  // Gives the index another name for the second shard.
  void Rename(const std::string& name) const {
    std::ifstream in(path() / kHfIndexName);
    Json index = Json::parse(in);
    for (auto& [tensor, file] : index["weight_map"].items()) {
      if (file == kShard) file = name;
    }
    std::ofstream(path() / kHfIndexName) << index.dump();
  }
  // Moves the second shard to a folder that is made for it.
  void Move(const fs::path& to) const {
    fs::create_directories(to.parent_path());
    fs::rename(path() / kShard, to);
  }
  absl::StatusOr<std::unique_ptr<GgufFile>> Open() const { return OpenModelFile(path()); }

 private:
  const fs::path cache_ = fs::path(::testing::TempDir()) / "baton_cached_folder";
};

std::map<std::string, std::string> WeightsOf(const GgufFile& file) {
  std::map<std::string, std::string> out;
  for (const GgufTensor& tensor : file.tensors()) {
    std::string& bytes = out[std::string(tensor.name)];
    bytes.assign(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  return out;
}

TEST(HfShardsTest, AShardMayLieInASubfolder) {
  const std::string name = "text/part.2/" + kShard;
  const std::vector<std::function<void(const CachedFolder&)>> forms = {
      [&](const CachedFolder& f) { f.Move(f.path() / name); },
      [&](const CachedFolder& f) {
        f.Move(f.path() / "store" / kShard);
        fs::create_directories((f.path() / name).parent_path());
        fs::create_symlink("../../store/" + kShard, f.path() / name);
      },
      [&](const CachedFolder& f) {
        f.Move(f.blobs() / "5f2c");
        fs::create_directories((f.path() / name).parent_path());
        fs::create_symlink("../../../../blobs/5f2c", f.path() / name);
      },
  };
  const CachedFolder plain;
  const auto wanted = plain.Open();
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  const auto weights = WeightsOf(**wanted);
  for (const auto& form : forms) {
    const CachedFolder folder;
    form(folder);
    folder.Rename(name);
    const auto file = folder.Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(WeightsOf(**file) == weights);
  }
}

TEST(HfShardsTest, RefusesAShardOutsideTheFolderByItsName) {
  struct Case {
    const char* name;
    E code;
    const char* said;
    std::function<void(const CachedFolder&)> prepare;
  };
  const auto moved = [](const CachedFolder& f) { f.Move(f.cache() / "other" / kShard); };
  const std::vector<Case> cases = {
      {"../../other/model-00002-of-00003.safetensors", E::kBadIndex, "inside the folder", moved},
      {"text/../model-00002-of-00003.safetensors", E::kBadIndex, "inside the folder",
       [](const CachedFolder& f) { fs::create_directory(f.path() / "text"); }},
      {"/other/model-00002-of-00003.safetensors", E::kBadIndex, "inside the folder", moved},
      {"text/model-00002-of-00003.safetensors", E::kBadIndex, "out of the folder by a link",
       [moved](const CachedFolder& f) {
         moved(f);
         fs::create_directory_symlink("../../other", f.path() / "text");
       }},
      {"text/model-00002-of-00003.safetensors", E::kBadIndex, "out of the folder by a link",
       [moved](const CachedFolder& f) {
         moved(f);
         fs::create_directory(f.path() / "text");
         fs::create_symlink("../../../other/" + kShard, f.path() / "text" / kShard);
       }},
      {"text/model-00002-of-00003.safetensors", E::kMissingShard, "model.safetensors.index.json",
       [](const CachedFolder&) {}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const CachedFolder folder;
    test.prepare(folder);
    folder.Rename(test.name);
    const absl::Status status = folder.Open().status();
    EXPECT_EQ(FolderErrorName(FolderErrorOf(status)), FolderErrorName(test.code)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.said));
    EXPECT_THAT(std::string(status.message()), HasSubstr(fmt::format("\"{}\"", test.name)));
  }
}

// Exports of models that are not quantised write the key too.
TEST(HfShardsTest, AnEmptyQuantizationConfigIsNone) {
  for (const Json& says : {Json(nullptr), Json::object()}) {
    const CachedFolder folder;
    std::ifstream in(folder.path() / "config.json");
    Json config = Json::parse(in);
    config["quantization_config"] = says;
    std::ofstream(folder.path() / "config.json") << config.dump();
    EXPECT_TRUE(folder.Open().ok()) << says << folder.Open().status();
  }
}

}  // namespace
}  // namespace baton::model
