// The error of opening a thing that is no model: it says what a reader saw, what the thing is and
// what to do.
#include "src/model/open_hint.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/folder_error.h"
#include "src/model/gguf_error.h"
#include "src/model/hf_folder.h"
#include "tests/model/test_model.h"

namespace baton::model {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::string_view kPointer =
    "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
constexpr std::string_view kPage = "\n<!DOCTYPE html>\n<html><head></head></html>\n";
constexpr std::string_view kCutShort =
    "; the file is cut short: fetch it again (`baton pull NAME`, or copy it anew)";
constexpr std::string_view kNoModel = "; it is neither a GGUF file nor a folder with config.json";

std::string ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A folder of its own for each test.
class OpenHintTest : public ::testing::Test {
 protected:
  OpenHintTest() : folder_(::testing::TempDir() + "baton_open_hint") {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~OpenHintTest() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, std::string_view text) const {
    const fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
    return path.string();
  }
  // The golden folder, to be spoiled.
  fs::path CopyModel() const {
    fs::copy(GoldenPath("tiny_llama_llama3"), folder_ / "model", fs::copy_options::recursive);
    return folder_ / "model";
  }
  static std::string Refusal(const fs::path& path) {
    const absl::Status status = OpenModelFile(path.string()).status();
    EXPECT_FALSE(status.ok()) << path;
    EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos) << status;
    return std::string(status.message());
  }

  const fs::path folder_;
};

TEST_F(OpenHintTest, AFileThatIsCutShortIsFetchedAgain) {
  const std::string whole = ReadText(GoldenPath("tiny_bf16.gguf"));
  for (const size_t bytes : {size_t{0}, size_t{2}, size_t{500}, whole.size() - 100}) {
    const std::string path = Write("cut.gguf", std::string_view(whole).substr(0, bytes));
    EXPECT_THAT(Refusal(path), EndsWith(kCutShort)) << bytes;
    EXPECT_NE(GgufErrorOf(OpenModelFile(path).status()), GgufErrorCode::kNone) << bytes;
  }
  const fs::path model = CopyModel();
  const fs::path shard = model / "model-00002-of-00003.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 1);
  EXPECT_THAT(Refusal(model), EndsWith(kCutShort));
  EXPECT_EQ(FolderErrorOf(OpenModelFile(model.string()).status()), FolderErrorCode::kDataOutOfFile);
}

TEST_F(OpenHintTest, AFileOfAnotherKindIsNamed) {
  const struct {
    std::string_view text;
    std::string_view expected;
  } cases[] = {
      {kPointer,
       "; it is a git-lfs pointer, not the file itself: run `git lfs pull` where it lies"},
      {kPage,
       "; it is a page for people (HTML), not the file itself: fetch the address of the file"},
      {"{\"error\": \"gone\"}", "; it is a text in JSON, and not a model"},
      {"PK\x03\x04 archive",
       "; it is a zip archive, as PyTorch's .bin and .pt are: models are "
       ".gguf or .safetensors"},
      {"some text", kNoModel},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Refusal(Write("m.gguf", c.text)), HasSubstr("magic is ")) << c.text;
    EXPECT_THAT(Refusal(Write("m.gguf", c.text)), EndsWith(c.expected));
  }
}

TEST_F(OpenHintTest, AFileOfAFolderIsNotTheModel) {
  const fs::path model = CopyModel();
  for (const char* name : {"config.json", "model-00001-of-00003.safetensors"}) {
    EXPECT_THAT(Refusal(model / name), EndsWith("; give the folder, not the file in it"));
  }
}

TEST_F(OpenHintTest, AFolderWithoutAModelSaysWhatItHolds) {
  EXPECT_THAT(Refusal(folder_), EndsWith(kNoModel));
  Write("m.gguf", "x");
  EXPECT_THAT(Refusal(folder_), EndsWith("; the folder holds \"m.gguf\": give that file"));
  EXPECT_THAT(Refusal(folder_), HasSubstr("config.json: cannot open"));
  Write("n.gguf", "x");
  EXPECT_THAT(Refusal(folder_),
              EndsWith("; the folder holds \"m.gguf\" and 1 more .gguf files: give one of them"));
}

TEST_F(OpenHintTest, AFolderThatIsNotWholeIsFetchedAgain) {
  const fs::path model = CopyModel();
  const std::string shard = "model-00002-of-00003.safetensors";
  Write("model/" + shard, kPointer);
  EXPECT_THAT(Refusal(model), EndsWith("; \"" + shard +
                                       "\": it is a git-lfs pointer, not the file itself: run "
                                       "`git lfs pull` where it lies"));
  Write("model/" + shard, kPage);
  EXPECT_THAT(Refusal(model), HasSubstr("\"" + shard + "\": it is a page for people (HTML)"));
  fs::remove(model / shard);
  EXPECT_THAT(Refusal(model), EndsWith("; the folder is not whole: fetch all its files again"));
  fs::remove(model / "model.safetensors.index.json");
  EXPECT_THAT(Refusal(model), EndsWith("; the folder is not whole: fetch all its files again"));
  Write("model/config.json", kPointer);
  EXPECT_THAT(Refusal(model), HasSubstr("\"config.json\": it is a git-lfs pointer"));
}

}  // namespace
}  // namespace baton::model
