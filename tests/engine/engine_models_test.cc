// Every architecture, weight type and file form, as tiny random models: a prompt computed by one
// engine and decoded by another, and a prompt of which the beginning is cached, give the bits of
// one engine that computes everything.
#include "gtest/gtest.h"

#include "src/model/hf_folder.h"
#include "tests/engine/live_requests.h"

namespace baton::engine {

using kv::LocalHub;
using kv::TransportKind;
using model::GgufFile;
using model::GoldenPath;
using model::OpenModelFile;

namespace {

// A file or folder of tests/golden.
class EngineModelsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto opened = OpenModelFile(GoldenPath(GetParam()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    file_ = *std::move(opened);
  }

  // A worker with the model's whole context.
  static constexpr uint32_t kContext = 512;
  std::unique_ptr<GgufFile> file_;
  LocalHub hub_{true};
  TableWire wire_;
};

TEST_P(EngineModelsTest, DisaggregatedEqualsAggregatedBitForBit) {
  LiveWorker alone(*file_, {.max_context = kContext, .incarnation = 1}, &hub_, &wire_);
  LiveWorker p(*file_,
               {.role = WorkerRole::kPrefill,
                .kind = TransportKind::kLocal,
                .max_context = kContext,
                .incarnation = 2},
               &hub_, &wire_);
  LiveWorker d(*file_,
               {.role = WorkerRole::kDecode,
                .kind = TransportKind::kLocal,
                .max_context = kContext,
                .incarnation = 3},
               &hub_, &wire_);
  p.Connect(d);
  const std::vector<uint32_t> lengths = {1, 15, 16, 17, 47, 100, 255, 300};
  const uint32_t vocab_size = alone.model().config().vocab_size;
  const std::vector<RequestSpec> specs = Requests(lengths, 8, vocab_size);
  const std::vector<Record> expected = RunAggregated(&alone, specs);
  const std::vector<Record> records = RunPair(&p, &d, specs);
  for (size_t i = 0; i < specs.size(); ++i) ExpectSameBits(records[i], expected[i], specs[i]);
  EXPECT_EQ(d.engine().Snapshot().computed_tokens, 0u) << "D computed no prompt";
}

// Cuts around a block and around the window of the windowed model (33 tokens).
TEST_P(EngineModelsTest, AHitAtAnyCutChangesNoBit) {
  LiveWorker plain(*file_, {.max_context = kContext, .incarnation = 1}, &hub_, &wire_);
  LiveWorker remembering(*file_, {.max_context = kContext, .incarnation = 2, .prefix_cache = true},
                         &hub_, &wire_);
  const uint32_t vocab_size = plain.model().config().vocab_size;
  uint64_t number = 0;
  for (const uint32_t cut : {15u, 16u, 31u, 32u, 33u, 34u, 48u, 49u, 65u, 200u}) {
    const RequestSpec first = MakeRequest(++number, cut + 9, 2, vocab_size);
    RunAggregated(&remembering, {first});
    RequestSpec second = MakeRequest(++number, cut + 40, 8, vocab_size);
    std::copy_n(first.tokens.begin(), cut, second.tokens.begin());
    const Record expected = RunAggregated(&plain, {second})[0];
    const Record record = RunAggregated(&remembering, {second})[0];
    ExpectSameBits(record, expected, second);
    // A fixed state is that of the last border before the first prompt's end.
    const bool has_state = plain.model().layout().state_blocks > 0;
    const uint32_t kept = (cut + 8) / 16 * 16;
    const uint32_t found = has_state ? (kept <= cut ? kept : 0) : cut / 16 * 16;
    EXPECT_EQ(record.cached_tokens, found) << "cut at " << cut;
  }
}

// Every layer of the model sees 33 tokens: a long stream keeps four blocks of 16.
TEST(EngineWindowTest, BlocksThatNoLayerSeesAreReleasedAndNoBitChanges) {
  const auto file = OpenModelFile(GoldenPath("tiny_phi3_short.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  LocalHub hub(true);
  TableWire wire;
  for (const kv::KvDtype dtype : {kv::KvDtype::kBf16, kv::KvDtype::kF32, kv::KvDtype::kQ8}) {
    for (const bool prefix_cache : {false, true}) {
      const LiveOptions options = {
          .kv_dtype = dtype, .max_context = 512, .prefix_cache = prefix_cache};
      LiveOptions keeps = options;
      keeps.incarnation = 1;
      keeps.releases_unseen = false;
      LiveWorker keeping(**file, keeps, &hub, &wire);
      ASSERT_EQ(keeping.model().config().window_of_all(), 33u);
      LiveOptions releases = options;
      releases.incarnation = 2;
      // Five streams that keep all of their blocks would need 90 of these and more.
      releases.num_blocks = 48;
      LiveWorker releasing(**file, releases, &hub, &wire);
      const std::vector<uint32_t> lengths = {100, 31, 33, 16};
      const uint32_t vocab_size = keeping.model().config().vocab_size;
      const std::vector<RequestSpec> specs = Requests(lengths, 290, vocab_size);
      const std::vector<Record> expected = RunAggregated(&keeping, specs);
      const std::vector<Record> records = RunAggregated(&releasing, specs);
      for (size_t i = 0; i < specs.size(); ++i) ExpectSameBits(records[i], expected[i], specs[i]);
      EXPECT_EQ(releasing.engine().Snapshot().scheduler.num_preemptions, 0u);
    }
  }
}

// A prompt in two chunks, in a pool that has fewer blocks than the prompt.
TEST(EngineWindowTest, APromptLongerThanThePoolHasTheSameBits) {
  const auto file = OpenModelFile(GoldenPath("tiny_phi3_short.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  LocalHub hub(true);
  TableWire wire;
  LiveWorker whole(**file, {.max_context = 512, .incarnation = 1, .releases_unseen = false}, &hub,
                   &wire);
  LiveWorker small(**file, {.num_blocks = 22, .max_context = 512, .incarnation = 2}, &hub, &wire);
  const std::vector<uint32_t> lengths = {400, 420, 450};
  const uint32_t vocab_size = whole.model().config().vocab_size;
  const std::vector<RequestSpec> specs = Requests(lengths, 60, vocab_size);
  const std::vector<Record> expected = RunAggregated(&whole, specs);
  const std::vector<Record> records = RunAggregated(&small, specs);
  for (size_t i = 0; i < specs.size(); ++i) ExpectSameBits(records[i], expected[i], specs[i]);
}

INSTANTIATE_TEST_SUITE_P(
    Golden, EngineModelsTest,
    ::testing::Values(
        "tiny_f32.gguf", "tiny_f16.gguf", "tiny_bf16.gguf", "tiny_q4_0.gguf", "tiny_q4_1.gguf",
        "tiny_q5_0.gguf", "tiny_q5_1.gguf", "tiny_q8_0.gguf", "tiny_q4_k.gguf", "tiny_q5_k.gguf",
        "tiny_q6_k.gguf", "tiny_mxfp4.gguf", "tiny_iq4_nl.gguf", "tiny_iq4_xs.gguf",
        "tiny_q3_k.gguf", "tiny_q2_k.gguf", "tiny_mixed_rope.gguf", "tiny_llama_linear.gguf",
        "tiny_llama_yarn.gguf", "tiny_llama_llama3.gguf", "tiny_qwen2.gguf", "tiny_qwen3.gguf",
        "tiny_qwen3moe.gguf", "tiny_qwen3moe_q8_0.gguf", "tiny_gemma3.gguf", "tiny_llama_linear",
        "tiny_llama_yarn", "tiny_llama_llama3", "tiny_qwen2", "tiny_qwen3", "tiny_qwen3moe",
        "tiny_gemma3", "tiny_smollm3.gguf", "tiny_granite.gguf", "tiny_smollm3", "tiny_granite",
        "tiny_lfm2.gguf", "tiny_lfm2_q8_0.gguf", "tiny_lfm2", "tiny_qwen3moe_mxfp4.gguf",
        "tiny_gptoss.gguf", "tiny_gptoss_mxfp4.gguf", "tiny_gptoss", "tiny_gptoss_mxfp4",
        "tiny_phi3.gguf", "tiny_phi3_short.gguf", "tiny_phi3_plain.gguf", "tiny_phi3",
        "tiny_olmo2.gguf", "tiny_olmo2", "tiny_mistral3.gguf", "tiny_mistral3", "tiny_gemma4.gguf",
        "tiny_gemma4_q8_0.gguf", "tiny_gemma4_dense.gguf", "tiny_gemma4", "tiny_gemma4_dense",
        "tiny_lfm2moe.gguf", "tiny_lfm2moe", "tiny_deepseek2.gguf", "tiny_deepseek2",
        "tiny_deepseek2_lite.gguf", "tiny_deepseek2_lite", "tiny_deepseek2_q8_0.gguf",
        "tiny_deepseek2_split_q8_0.gguf", "tiny_qwen35.gguf", "tiny_qwen35_q8_0.gguf",
        "tiny_qwen35", "tiny_qwen35moe.gguf", "tiny_qwen35moe_q8_0.gguf", "tiny_qwen35moe",
        "tiny_nemotron_h.gguf", "tiny_nemotron_h_q8_0.gguf", "tiny_nemotron_h",
        "tiny_nemotron_h_plain"),
    [](const auto& info) {
      std::string name = info.param;
      const size_t dot = name.find('.');
      return dot == std::string::npos ? name + "_folder" : name.substr(0, dot);
    });

}  // namespace
}  // namespace baton::engine
