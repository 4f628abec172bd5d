// `baton convert`: the model and tokenizer that come out, and one line for everything that is
// wrong.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/tokenizer_keys.h"
#include "src/model/hf_folder.h"
#include "src/model/model.h"
#include "src/model/tokenizer_metadata.h"
#include "src/text/spec_from_metadata.h"
#include "tests/model/test_model.h"
#include "tests/text/golden_file.h"

namespace baton::cli {

using device::ThreadPool;
using namespace model;  // NOLINT(google-build-using-namespace)
using namespace text;   // NOLINT(google-build-using-namespace)

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

class ConvertCommandTest : public ::testing::Test {
 protected:
  ConvertCommandTest() {
    std::string folder = ::testing::TempDir() + "/convert_XXXXXX";
    folder_ = ::mkdtemp(folder.data());
  }
  ~ConvertCommandTest() override { fs::remove_all(folder_); }

  std::string Out(const std::string& name) const { return folder_ + "/" + name; }

  // Fails with `code` and one line that names `words`.
  void ExpectRefusal(const std::vector<std::string>& args, int code, const std::string& words) {
    ::testing::internal::CaptureStderr();
    const int got = RunConvert(args);
    const std::string line = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(got, code) << line;
    EXPECT_THAT(line, StartsWith("baton convert: "));
    EXPECT_THAT(line, HasSubstr(words));
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  }

  std::string folder_;
};

StatusOr<TokenizerSpec> SpecOf(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const auto file, OpenModelFile(path));
  return ReadModelTokenizer(*file, path);
}

StatusOr<std::string> WeightsId(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const auto file, OpenModelFile(path));
  ThreadPool pool(1);
  BATON_ASSIGN_OR_RETURN(const auto model, Model::Load(*file, {.pool = &pool}));
  return model->weights_id();
}

// Both forms of one model give the same prompt tokens and the same weights, so the same text.
TEST_F(ConvertCommandTest, AFolderBecomesAFileOfTheSameModel) {
  for (const char* name : {"tiny_qwen2", "tiny_gemma3", "tiny_llama_llama3", "tiny_qwen3moe",
                           "tiny_qwen35moe", "tiny_nemotron_h"}) {
    const std::string out = Out(std::string(name) + ".gguf");
    ASSERT_EQ(RunConvert({GoldenPath(name), out, "--type=bf16"}), kExitOk) << name;
    const auto spec = SpecOf(out);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(*spec, SpecOf(GoldenPath(name)).value());
    const auto id = WeightsId(out);
    ASSERT_TRUE(id.ok()) << id.status();
    // These folders hold BF16, so nothing was rounded.
    EXPECT_EQ(*id, WeightsId(GoldenPath(name)).value());
    EXPECT_EQ(RunInspectCommand({out}), kExitOk);
  }
}

TEST_F(ConvertCommandTest, AFileKeepsItsTokenizerKeys) {
  const std::string source = GoldenPath("tiny_q6_k.gguf");
  ASSERT_EQ(RunConvert({source, Out("a.gguf"), "--type=q8_0", "--threads=2"}), kExitOk);
  EXPECT_EQ(SpecOf(Out("a.gguf")).value(), SpecOf(source).value());
  ASSERT_EQ(RunConvert({GoldenPath("tiny_split-00001-of-00003.gguf"), Out("b.gguf")}), kExitOk);
  EXPECT_EQ(WeightsId(Out("b.gguf")).value(), WeightsId(GoldenPath("tiny_qwen2.gguf")).value());
}

// Every shape of tokenizer.json survives as keys, also what GGUF has no keys for.
TEST_F(ConvertCommandTest, TokenizerKeysAreReadBack) {
  const nlohmann::json golden = ReadGolden("folder_golden.json");
  for (const auto& [name, entry] : golden.items()) {
    if (!entry.contains("tokenizer_json")) continue;
    FolderTokenizerFiles files;
    files.tokenizer_json = entry["tokenizer_json"].dump();
    files.tokenizer_config_json = R"({"chat_template": [{"name": "default", "template": "D"},)"
                                  R"( {"name": "rag", "template": "R"}]})";
    size_t num_tokens = entry["tokenizer_json"]["model"]["vocab"].size();
    for (const auto& added : entry["tokenizer_json"]["added_tokens"]) {
      num_tokens = std::max(num_tokens, added["id"].get<size_t>() + 1);
    }
    const auto spec = TokenizerSpecFromFolder(files, num_tokens);
    ASSERT_TRUE(spec.ok()) << name << spec.status();
    TokenizerSpec taking = *spec;
    taking.token_traits.assign(num_tokens, 0);
    taking.token_traits.back() = text::kTakesBlanksAfter;
    taking.marks_spaces_first = taking.adds_prefix_first = true;
    for (const TokenizerSpec& written : {*spec, taking}) {
      GgufWriter writer;
      writer.AddString("general.architecture", "phi3");
      AddTokenizerKeys(written, writer);
      const std::vector<std::byte> bytes = writer.Header();
      const auto file = GgufFile::FromBytes(bytes);
      ASSERT_TRUE(file.ok()) << name << file.status();
      const auto back = ReadModelTokenizer(**file, "");
      ASSERT_TRUE(back.ok()) << name << back.status();
      EXPECT_EQ(*back, written) << name;
    }
  }
}

TEST_F(ConvertCommandTest, WrongCommandLinesNameTheFix) {
  const std::string source = GoldenPath("tiny_f32.gguf");
  ExpectRefusal({}, kExitUsage, "SRC is missing");
  ExpectRefusal({source}, kExitUsage, "DST is missing");
  ExpectRefusal({source, Out("a"), "--type=q6_k"}, kExitUsage, "q8_0");
  ExpectRefusal({source, Out("a"), "--typ=q8_0"}, kExitUsage, "--type");
  ExpectRefusal({source, source}, kExitFailure, "SRC and DST are the same");
  fs::create_symlink(source, Out("link"));
  ExpectRefusal({source, Out("link")}, kExitFailure, "SRC and DST are the same");
  ExpectRefusal({source, folder_}, kExitFailure, "is a folder");
  ExpectRefusal({source, Out("no/such/a.gguf")}, kExitFailure, "in no folder that exists");
  std::ofstream(Out("old")) << "x";
  ExpectRefusal({source, Out("old")}, kExitFailure, "exists");
  ExpectRefusal({Out("none.gguf"), Out("a")}, kExitFailure, "none.gguf");
}

TEST_F(ConvertCommandTest, SourcesThatCannotBeServedAreNotWritten) {
  std::ofstream(Out("junk.gguf")) << "no model at all";
  ExpectRefusal({Out("junk.gguf"), Out("a")}, kExitFailure, "magic");
  fs::copy(GoldenPath("tiny_qwen2"), Out("folder"));
  fs::remove(Out("folder/tokenizer.json"));
  ExpectRefusal({Out("folder"), Out("a")}, kExitFailure, "has no tokenizer.json");
  fs::remove(Out("folder/model.safetensors"));
  ExpectRefusal({Out("folder"), Out("a")}, kExitFailure, "safetensors");
  EXPECT_FALSE(fs::exists(Out("a")));
}

TEST_F(ConvertCommandTest, AFullDiskLeavesNothingBehind) {
  // A limit on the size of a file stands for the end of the disk: both are ResourceExhausted.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 32768, .rlim_max = before.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  ExpectRefusal({GoldenPath("tiny_f32.gguf"), Out("a.gguf")}, kExitFailure, "File too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(ConvertCommandTest, AnUnreadableSourceIsNamed) {
  fs::create_symlink(Out("loop.gguf"), Out("loop.gguf"));
  ExpectRefusal({Out("loop.gguf"), Out("a")}, kExitFailure, "Too many levels of symbolic links");
  // Root, who may run the tests, is stopped by no permissions.
  if (::geteuid() == 0) return;
  fs::copy(GoldenPath("tiny_f32.gguf"), Out("closed.gguf"));
  fs::permissions(Out("closed.gguf"), fs::perms::none);
  ExpectRefusal({Out("closed.gguf"), Out("a")}, kExitFailure, "Permission denied");
}

}  // namespace
}  // namespace baton::cli
