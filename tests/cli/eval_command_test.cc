// `baton eval`: the quality gate of every faster kernel, and one line for everything that is wrong.
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/perplexity.h"
#include "tests/model/damaged_model.h"
#include "tests/model/test_model.h"
#include "tests/text/golden_file.h"

namespace baton::cli {

using namespace model;  // NOLINT(google-build-using-namespace)
using kv::KvDtype;
using text::ReadGolden;

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

std::string TextPath() { return GoldenPath("../data/alice.txt"); }

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// perplexity_golden.json comes from a float64 forward pass that shares no code with ours.
void ExpectReference(const std::string& path, const std::string& name) {
  const nlohmann::json row = ReadGolden("perplexity_golden.json")[name];
  const std::string text = ReadWhole(TextPath());
  const auto report = MeasurePerplexity({.model_path = path, .text = text, .num_threads = 2});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_tokens, row["tokens"].get<uint64_t>());
  EXPECT_EQ(report->num_scored, row["scored"].get<uint64_t>());
  const double difference = report->perplexity() / row["perplexity"].get<double>() - 1;
  std::printf("%s: perplexity %.4f, reference %.4f, %+.3f %%, %.1f s\n", name.c_str(),
              report->perplexity(), row["perplexity"].get<double>(), 100 * difference,
              report->compute_s);
  EXPECT_LT(std::fabs(difference), 0.005);
}

TEST(EvalTest, DemoModelIsWithinHalfAPercentOfTheReference) {
  ExpectReference(DemoModelPath(), "SmolLM2-135M-Instruct.Q4_1.gguf");
}

TEST(EvalTest, Gemma3IsWithinHalfAPercentOfTheReference) {
  ExpectReference(Gemma3Path(), "gemma-3-270m-q4_k_m.gguf");
}

// K and V in q8 beside bf16.
void ExpectQ8NearBf16(const std::string& path) {
  const std::string text = ReadWhole(TextPath());
  PerplexityOptions options{.model_path = path, .text = text, .num_threads = 2};
  const auto bf16 = MeasurePerplexity(options);
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  options.kv_dtype = KvDtype::kQ8;
  const auto q8 = MeasurePerplexity(options);
  ASSERT_TRUE(q8.ok()) << q8.status();
  const double difference = q8->perplexity() / bf16->perplexity() - 1;
  std::printf("perplexity %.4f with q8, %.4f with bf16, %+.4f %%\n", q8->perplexity(),
              bf16->perplexity(), 100 * difference);
  EXPECT_LT(std::fabs(difference), 0.003);
}

TEST(EvalTest, Q8MovesTheDemoModelByLessThanThreeThousandths) { ExpectQ8NearBf16(DemoModelPath()); }

TEST(EvalTest, Q8MovesGemma3ByLessThanThreeThousandths) { ExpectQ8NearBf16(Gemma3Path()); }

TEST(EvalTest, AFolderGivesTheBitsOfItsFile) {
  const std::string text = ReadWhole(TextPath()).substr(0, 700);
  for (const char* name : {"tiny_gemma3", "tiny_qwen2", "tiny_qwen3moe", "tiny_llama_yarn"}) {
    PerplexityOptions options{.model_path = GoldenPath(name), .text = text, .num_threads = 2};
    const auto folder = MeasurePerplexity(options);
    ASSERT_TRUE(folder.ok()) << folder.status();
    options.model_path += ".gguf";
    const auto file = MeasurePerplexity(options);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(folder->mean_nll, file->mean_nll) << name;
    EXPECT_EQ(folder->context, 512u);  // the model's
    EXPECT_EQ(folder->num_windows, 2u);
    EXPECT_EQ(folder->num_scored, folder->num_tokens - 2);  // no bos
  }
}

// Windows, threads and passes of other sizes change nothing but which tokens are scored.
TEST(EvalTest, AWindowIsScoredByItself) {
  // The byte-level vocabulary joins "he" and "ll" only, so every byte of this is a token.
  std::string text;
  for (int i = 0; i < 20; ++i) text += "quiz grab dust " + std::to_string(i);
  PerplexityOptions options{.model_path = GoldenPath("tiny_f32.gguf"), .text = text, .context = 64};
  const auto all = MeasurePerplexity(options);
  ASSERT_TRUE(all.ok()) << all.status();
  options.num_threads = 3;
  EXPECT_EQ(MeasurePerplexity(options)->mean_nll, all->mean_nll);
  double sum = 0;
  ASSERT_EQ(all->num_tokens, text.size());
  for (size_t at = 0; at < text.size(); at += 64) {
    options.text = std::string_view(text).substr(at, 64);
    const auto one = MeasurePerplexity(options);
    ASSERT_TRUE(one.ok()) << one.status();
    sum += one->mean_nll * static_cast<double>(one->num_scored);
  }
  EXPECT_NEAR(sum / static_cast<double>(all->num_scored), all->mean_nll, 1e-12);
}

void ExpectRefusal(const std::vector<std::string>& args, int code, const std::string& words) {
  ::testing::internal::CaptureStderr();
  const int got = RunEval(args);
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(got, code) << line;
  EXPECT_THAT(line, StartsWith("baton eval: "));
  EXPECT_THAT(line, HasSubstr(words));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
}

TEST(EvalTest, EverythingWrongIsOneLine) {
  const std::string model = "--model=" + GoldenPath("tiny_f32.gguf");
  const std::string text = "--perplexity=" + TextPath();
  const std::string folder = ::testing::TempDir();
  const auto write = [&folder](const std::string& name, const std::string& bytes) {
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
    return "--perplexity=" + folder + "/" + name;
  };
  ExpectRefusal({}, kExitUsage, "--perplexity is missing");
  ExpectRefusal({text, "--context=1"}, kExitUsage, "--context 1");
  ExpectRefusal({text, "--isa=mmx"}, kExitUsage, "--isa");
  ExpectRefusal({text, model, "--context=513"}, kExitFailure, "[2, 512]");
  ExpectRefusal({"--perplexity=/nowhere.txt", model}, kExitFailure, "/nowhere.txt");
  ExpectRefusal({"--perplexity=" + folder, model}, kExitFailure, "no regular file");
  const std::string fifo = folder + "/eval_fifo";
  (void)::mkfifo(fifo.c_str(), 0600);
  ExpectRefusal({"--perplexity=" + fifo, model}, kExitFailure, "no regular file");
  ExpectRefusal({write("empty.txt", ""), model}, kExitFailure, "0 bytes");
  ExpectRefusal({write("one.txt", "a"), model}, kExitFailure, "1 tokens");
  ExpectRefusal({write("latin1.txt", "caf\xe9 au lait"), model}, kExitFailure, "not UTF-8");
  ExpectRefusal({text, "--model=/nowhere.gguf"}, kExitFailure, "/nowhere.gguf");
  ExpectRefusal({text, model, "--json=/nowhere/x.json"}, kExitFailure, "/nowhere/x.json");
  // Asked before anything is computed, or even found.
  ExpectRefusal({text, "--model=/nowhere.gguf", "--json=/nowhere/x.json"}, kExitFailure,
                "/nowhere/x.json");
  const std::string short_text = write("short.txt", "quiz grab dust");
  ::testing::internal::CaptureStdout();
  ExpectRefusal({short_text, model, "--json=/dev/full"}, kExitFailure, "No space left");
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("perplexity"));
  const std::string json = folder + "/eval.json";
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RunEval({short_text, model, "--json=" + json}), kExitOk);
  ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(nlohmann::json::parse(ReadWhole(json)).contains("perplexity")) << ReadWhole(json);
}

TEST(EvalTest, DamagedWeightsAreNamed) {
  const std::string text = "--perplexity=" + TextPath();
  const auto model = [](const std::string& path) { return "--model=" + path; };
  ExpectRefusal({text, model(DamagedModel("tiny_f32.gguf", "blk.1.ffn_down.weight", 3e38f))},
                kExitFailure, "the model's weights are damaged");
  ExpectRefusal({text, model(DamagedModel("tiny_f32.gguf", "output_norm.weight", kNanFloat))},
                kExitFailure, "element 0 of tensor \"output_norm.weight\" is nan");
  ExpectRefusal({text, model(DamagedModel("tiny_q4_0.gguf", "token_embd.weight", kNanHalf))},
                kExitFailure, "tensor \"token_embd.weight\": row 0 of 263");
}

}  // namespace
}  // namespace baton::cli
