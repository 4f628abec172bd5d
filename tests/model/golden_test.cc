// Logits and perplexity against a float64 reference that shares no code with us (tests/golden).
#include <cstdio>
#include <fstream>

#include "gtest/gtest.h"

#include "tests/model/golden_compare.h"
#include "tests/model/golden_file.h"
#include "tests/model/model_fixture.h"
#include "tests/model/rounding_bound.h"
#include "tests/model/test_model.h"

namespace baton::model {

using kv::KvDtype;

namespace {

// Products of weights round floats, or inputs that were quantised first.
enum class Products { kFloat, kQuantised };

struct GoldenCase {
  std::string model;
  std::string golden;
  Products products = Products::kFloat;
  Weights weights = Weights::kRandom;
  double least_share = 30;  // of rows that are decided, in percent
};

// The bound of |logit - reference| / rms of the row's logits.
double BoundOf(const GoldenCase& test, const ModelConfig& config, KvDtype kv_dtype) {
  const double products = test.products == Products::kFloat
                              ? Fp32ProductsBound(config, test.weights)
                              : QuantisedBound(config, test.weights);
  if (kv_dtype == KvDtype::kF32) return products;
  return std::hypot(products, Bf16KvBound(config, test.weights));
}

void ExpectGoldenWith(const GoldenCase& test, KvDtype kv_dtype) {
  const auto golden = ReadGolden(test.golden);
  ASSERT_TRUE(golden.ok()) << golden.status();
  ModelFixture fixture({.path = test.model, .kv_dtype = kv_dtype, .max_rows = 64});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  ASSERT_EQ(fixture.vocab(), golden->vocab);
  const double bound = BoundOf(test, fixture.model().config(), kv_dtype);
  const Accuracy accuracy = Compare(fixture, *golden, bound);
  const double share = double{100.0} * accuracy.num_decided / accuracy.num_rows;
  // benchmarks/accuracy reads these lines.
  const kv::KvLayout& layout = fixture.model().layout();
  std::printf(
      "%s %s: %d rows, error worst %.2e rms %.2e of bound %.2e; argmax decided on %d, wrong on %d; "
      "%s, %zu bytes a token, %zu a sequence\n",
      test.model.substr(test.model.rfind('/') + 1).c_str(),
      kv_dtype == KvDtype::kF32 ? "f32" : "bf16", accuracy.num_rows, accuracy.worst, accuracy.mean,
      bound, accuracy.num_decided, accuracy.num_wrong,
      fixture.model().config().architecture.c_str(), layout.BytesPerToken(),
      layout.BytesPerSequence());
  if (kv_dtype == KvDtype::kF32) {
    EXPECT_LE(accuracy.worst, bound);
  } else {
    // The bound takes all queries for equally long. A long one turns a rounded key into a larger
    // error: the float64 reference with rounded keys and values has errors of 4.2 bounds on other
    // prompts. Their root mean square is one standard deviation at most, of the bound's six.
    EXPECT_LE(accuracy.mean, bound / 6);
    EXPECT_LE(accuracy.worst, 5 * bound);
  }
  EXPECT_EQ(accuracy.num_wrong, 0);
  // Enough rows whose largest logit leads by more than the bound: else num_wrong would prove
  // little.
  EXPECT_GE(share, test.least_share);
}

// With K and V in fp32, where the products alone round, and in bf16.
void ExpectGolden(const GoldenCase& test) {
  ExpectGoldenWith(test, KvDtype::kF32);
  ExpectGoldenWith(test, KvDtype::kBf16);
}

bool IsThere(const std::string& path) { return std::ifstream(path).good(); }

struct TinyCase {
  const char* name;
  Products products = Products::kFloat;
  double least_share = 30;
};
class TinyGoldenTest : public ::testing::TestWithParam<TinyCase> {};

TEST_P(TinyGoldenTest, LogitsAgreeWithTheReference) {
  const std::string stem = GoldenPath(std::string("tiny_") + GetParam().name);
  GoldenCase test = {stem + ".gguf", stem + ".golden", GetParam().products};
  test.least_share = GetParam().least_share;
  ExpectGolden(test);
  if (!IsThere(stem + "/config.json")) return;
  test.model = stem;
  ExpectGolden(test);
}

constexpr Products kQuantised = Products::kQuantised;

INSTANTIATE_TEST_SUITE_P(
    WeightTypes, TinyGoldenTest,
    ::testing::Values(TinyCase{"f32"}, TinyCase{"f16"}, TinyCase{"bf16"},
                      TinyCase{"q4_0", kQuantised}, TinyCase{"q4_1", kQuantised},
                      TinyCase{"q8_0", kQuantised}, TinyCase{"mixed_rope", kQuantised},
                      TinyCase{"q5_0", kQuantised}, TinyCase{"q5_1", kQuantised},
                      TinyCase{"q4_k", kQuantised}, TinyCase{"q5_k", kQuantised},
                      TinyCase{"q6_k", kQuantised}, TinyCase{"mxfp4", kQuantised},
                      TinyCase{"iq4_nl", kQuantised}, TinyCase{"iq4_xs", kQuantised},
                      TinyCase{"q3_k", kQuantised}, TinyCase{"q2_k", kQuantised},
                      TinyCase{"nvfp4"}),
    [](const auto& info) { return std::string(info.param.name); });

// Float weights but for one; the bound of a mixture of experts is that of the rest as long as no
// rounding changes which experts serve a row (tests/golden chooses them far apart).
INSTANTIATE_TEST_SUITE_P(
    Architectures, TinyGoldenTest,
    ::testing::Values(TinyCase{"llama_linear"}, TinyCase{"llama_yarn"}, TinyCase{"llama_llama3"},
                      TinyCase{"qwen2"}, TinyCase{"qwen3"}, TinyCase{"qwen3moe"},
                      TinyCase{"qwen3moe_q8_0", kQuantised}, TinyCase{"gemma3"},
                      TinyCase{"smollm3"}, TinyCase{"granite"}, TinyCase{"phi3"},
                      TinyCase{"phi3_short", kQuantised}, TinyCase{"phi3_plain"}, TinyCase{"olmo2"},
                      TinyCase{"olmo2_q8_0", kQuantised}, TinyCase{"mistral3"},
                      TinyCase{"mistral3_q4_0", kQuantised}, TinyCase{"lfm2"},
                      TinyCase{"lfm2_q8_0", kQuantised}, TinyCase{"qwen3moe_mxfp4", kQuantised},
                      TinyCase{"gptoss"}, TinyCase{"gptoss_mxfp4", kQuantised}, TinyCase{"gemma4"},
                      TinyCase{"gemma4_q8_0", kQuantised}, TinyCase{"gemma4_dense"},
                      TinyCase{"lfm2moe"}, TinyCase{"deepseek2"}, TinyCase{"deepseek2_lite"},
                      TinyCase{"deepseek2_q8_0", kQuantised},
                      TinyCase{"deepseek2_split_q8_0", kQuantised, 25}, TinyCase{"qwen35"},
                      TinyCase{"qwen35_q8_0", kQuantised}, TinyCase{"qwen35moe"},
                      TinyCase{"qwen35moe_q8_0", kQuantised}, TinyCase{"nemotron_h"},
                      TinyCase{"nemotron_h_plain"}, TinyCase{"nemotron_h_q8_0", kQuantised}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SplitGoldenTest, LogitsAgreeWithTheReferenceOfTheWhole) {
  const std::string model = GoldenPath("tiny_split-00001-of-00003.gguf");
  ExpectGolden({model, GoldenPath("tiny_qwen2.golden")});
}

TEST(DemoGoldenTest, LogitsAgreeWithTheReference) {
  ExpectGolden({DemoModelPath(), GoldenPath("smollm2.golden"), kQuantised, Weights::kTrained});
}

TEST(Gemma3GoldenTest, LogitsAgreeWithTheReference) {
  ExpectGolden({Gemma3Path(), GoldenPath("gemma3.golden"), kQuantised, Weights::kTrained});
}

// Mean negative log-likelihood of `tokens`, given to the model in chunks.
double MeanNll(ModelFixture& fixture, std::span<const TokenId> tokens) {
  constexpr size_t kChunk = 64;
  const size_t vocab = fixture.vocab();
  double sum = 0;
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += kChunk) {
    const size_t size = std::min(kChunk, tokens.size() - 1 - begin);
    const auto logits =
        fixture.Run({{0, static_cast<uint32_t>(begin), tokens.subspan(begin, size)}}, true);
    EXPECT_TRUE(logits.ok()) << logits.status();
    if (!logits.ok()) return 0;
    for (size_t i = 0; i < size; ++i) {
      const auto row = std::span(*logits).subspan(i * vocab, vocab);
      const double largest = *std::max_element(row.begin(), row.end());
      double total = 0;
      for (float l : row) total += std::exp(double{l} - largest);
      sum -= row[static_cast<size_t>(tokens[begin + i + 1])] - largest - std::log(total);
    }
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

void ExpectPerplexity(const std::string& model, const std::string& golden_name) {
  const auto golden = ReadGolden(GoldenPath(golden_name));
  ASSERT_TRUE(golden.ok()) << golden.status();
  ASSERT_GE(golden->text.size(), 500u);
  ModelFixture fixture({.path = model, .max_rows = 64, .max_context = 1024});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  const double got = std::exp(MeanNll(fixture, golden->text));
  const double wanted = std::exp(golden->mean_nll);
  std::printf("perplexity %.5f, reference %.5f: %+.3f %%\n", got, wanted,
              100.0 * (got / wanted - 1.0));
  EXPECT_NEAR(got / wanted, 1.0, 0.005);
}

TEST(DemoGoldenTest, PerplexityIsWithinHalfAPercentOfTheReference) {
  ExpectPerplexity(DemoModelPath(), "smollm2.golden");
}

// Over 600 tokens: the window of 512 has passed the first ones.
TEST(Gemma3GoldenTest, PerplexityIsWithinHalfAPercentOfTheReference) {
  ExpectPerplexity(Gemma3Path(), "gemma3.golden");
}

}  // namespace
}  // namespace baton::model
