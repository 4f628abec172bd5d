// Models with gated delta nets (qwen35): which layers they are and where their states lie, in files
// and in folders; what is announced to an engine; and files that are refused by name.
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "kernels/embed.h"
#include "src/model/hf_config.h"
#include "src/model/hf_delta.h"
#include "src/model/hf_folder.h"
#include "src/model/model_report.h"
#include "src/model/state_map.h"
#include "src/model/tensor_plan.h"
#include "tests/model/changed_file.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/golden_bytes.h"
#include "tests/model/model_fixture.h"
#include "tests/model/packed_folder.h"
#include "tests/model/test_model.h"
#include "tests/model/told_slices.h"

namespace baton::model {

using kernels::DeltaShape;
using kv::KvDtype;
using kv::KvLayout;

namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kFile = "tiny_qwen35.gguf";

std::vector<std::byte> WithValue(std::string_view key, uint32_t value) {
  return GoldenBytes(kFile).WithValue(key, 0, value);
}

TEST(DeltaModelTest, StatesLieInTheSlicesOfAttention) {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 5u);
  EXPECT_EQ(config->num_mtp_layers, 1u);
  EXPECT_EQ(config->layer_is_delta, (std::vector<bool>{true, true, true, false, true}));
  EXPECT_EQ(config->delta, (DeltaShape{2, 4, 16, 32, 4}));
  EXPECT_EQ(config->num_slices(), 1u);
  EXPECT_EQ(config->projected_size(0), 192u + 128 + 8);
  EXPECT_EQ(config->projected_size(3), 32u + 2 * 16 + 32) << "q, k, v and the gate";
  const size_t state = (4 * 16 * 32 + 3 * 192) * 4;
  EXPECT_EQ(config->delta.state_bytes(), state);
  // The last one stands after all attention: its state comes after the others' in their slice.
  const StateMap map = StateMapOf(*config);
  std::vector<size_t> offsets;
  for (const uint32_t layer : {0u, 1u, 2u, 4u}) {
    EXPECT_EQ(map.places[layer].slice, 0u);
    offsets.push_back(map.places[layer].offset);
  }
  EXPECT_EQ(offsets, (std::vector<size_t>{0, state, 2 * state, 3 * state}));
  EXPECT_EQ(map.num_stored[3], 0u) << "the state of the last layer is still to come";
  EXPECT_EQ(map.num_stored[4], 1u);
  const KvLayout layout = KvLayoutOf(*config, KvDtype::kBf16, 16);
  EXPECT_EQ(layout.num_layers, 1u);
  EXPECT_EQ(layout.BytesPerToken(), 2u * 16 * 2) << "delta nets have no rows";
  EXPECT_EQ(layout.state_blocks, (4 * state + 1023) / 1024);
  const std::string text = DescribeModelFile(**file, OkStatus());
  EXPECT_THAT(text, HasSubstr("in 4 of 5 layers, 4 heads of 16 x 32, 4 tokens convolved"));
  EXPECT_THAT(text, HasSubstr("recurrent: fixed state in 4 layers, 41984 bytes a sequence (f32)"));
  EXPECT_THAT(text, HasSubstr("41984 bytes a sequence in 41 blocks: no less than the rows of up to "
                              "656 tokens"));
  EXPECT_THAT(text, HasSubstr("prediction    1 layer(s) of several tokens at once are not used"));
}

TEST(DeltaModelTest, StatesOfLayersBetweenTwoOfAttentionShareASlice) {
  const auto file = GgufFile::Open(GoldenPath("tiny_qwen35_q8_0.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layer_is_delta, (std::vector<bool>{true, false, true, false}));
  const StateMap map = StateMapOf(*config);
  EXPECT_EQ(map.places[0], (StatePlace{0, 0}));
  EXPECT_EQ(map.places[2], (StatePlace{1, 0}));
  EXPECT_EQ(map.num_stored, (std::vector<uint32_t>{0, 1, 1, 2}));
}

TEST(DeltaModelTest, EachSliceIsAnnouncedOnceWhenItIsFinal) {
  for (const char* name : {kFile, "tiny_qwen35_q8_0.gguf", "tiny_nemotron_h.gguf",
                           "tiny_nemotron_h_plain.gguf", "tiny_nemotron_h_q8_0.gguf"}) {
    ExpectSlicesToldWhenFinal(name);
  }
}

TEST(DeltaModelTest, RefusesAStateThatIsNotThere) {
  ModelFixture fixture({.path = GoldenPath(kFile)});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  const TokenId token = 5;
  const uint32_t row = 0;
  std::vector<float> logits(fixture.vocab());
  std::vector<uint32_t> state(fixture.model().layout().state_blocks, 1);
  const auto run = [&](std::span<const uint32_t> blocks) {
    const kernels::AttentionSpan span{{{&row, 1}, blocks}, 0, 1, 0};
    const ModelBatch batch{.token_ids = {&token, 1}, .spans = {&span, 1}, .logit_rows = {&row, 1}};
    return std::string(fixture.model().Forward(batch, fixture.view(), nullptr, logits).message());
  };
  EXPECT_THAT(run({}), HasSubstr("span 0 has 0 blocks of its state, the layout has 41"));
  state.back() = fixture.view().num_blocks;
  EXPECT_THAT(run(state), HasSubstr("of its state, the arena has"));
}

// The bytes of a state in these blocks.
std::vector<std::byte> StateBytesOf(ModelFixture& fixture, std::span<const uint32_t> blocks) {
  std::vector<std::byte> out;
  for (const uint32_t block : blocks) {
    const std::byte* begin = fixture.view().Piece(block, 0, 0, 0);
    out.insert(out.end(), begin, begin + fixture.model().layout().BlockBytes());
  }
  return out;
}

TEST(DeltaModelTest, ACopyWithinAStepIsTheStateThatAStepOfItsOwnLeaves) {
  for (const char* name : {kFile, "tiny_qwen35_q8_0.gguf", "tiny_nemotron_h.gguf"}) {
    for (const uint32_t num_threads : {1u, 3u}) {
      SCOPED_TRACE(testing::Message() << name << ", threads: " << num_threads);
      ModelFixture fixture({.path = GoldenPath(name), .num_threads = num_threads});
      ASSERT_TRUE(fixture.status().ok()) << fixture.status();
      std::vector<TokenId> tokens(60);
      std::iota(tokens.begin(), tokens.end(), 5);
      const std::span<const TokenId> all(tokens);
      // Three sequences: two with a copy each, one without between them.
      const std::vector<Chunk> chunks = {
          {0, 0, all.first(20)}, {1, 0, all.subspan(9, 30)}, {2, 0, all.subspan(3, 40)}};
      const auto expected = fixture.Run(chunks);
      ASSERT_TRUE(expected.ok()) << expected.status();
      std::vector<std::vector<std::byte>> ends;
      for (uint32_t s = 0; s < 3; ++s) ends.push_back(fixture.KvBytes(s, 40));

      std::vector<TokenId> rows;
      std::vector<kernels::AttentionSpan> spans;
      std::vector<uint32_t> logit_rows;
      for (const Chunk& chunk : chunks) {
        const auto first = static_cast<uint32_t>(rows.size());
        const auto size = static_cast<uint32_t>(chunk.tokens.size());
        rows.insert(rows.end(), chunk.tokens.begin(), chunk.tokens.end());
        spans.push_back(
            {{fixture.Blocks(chunk.sequence, size), fixture.StateBlocks(chunk.sequence)},
             first,
             size,
             0});
        logit_rows.push_back(first + size - 1);
      }
      std::vector<StateCopy> copies = {
          {.span = 0, .num_rows = 20, .blocks = fixture.StateBlocks(3)},
          {.span = 2, .num_rows = 16, .blocks = fixture.StateBlocks(4)}};
      // The vectors of blocks may have moved.
      for (uint32_t s = 0; s < 3; ++s) spans[s].kv.state = fixture.StateBlocks(s);
      copies[0].blocks = fixture.StateBlocks(3);
      std::vector<float> logits(3 * fixture.vocab());
      const ModelBatch batch{
          .token_ids = rows, .spans = spans, .logit_rows = logit_rows, .state_copies = copies};
      ASSERT_TRUE(fixture.model().Forward(batch, fixture.view(), nullptr, logits).ok());
      EXPECT_EQ(logits, *expected);
      for (uint32_t s = 0; s < 3; ++s) EXPECT_EQ(fixture.KvBytes(s, 40), ends[s]);
      EXPECT_TRUE(copies[0].has_numbers && copies[1].has_numbers);
      EXPECT_EQ(StateBytesOf(fixture, copies[0].blocks),
                StateBytesOf(fixture, fixture.StateBlocks(0)));
      const std::vector<std::byte> copied = StateBytesOf(fixture, copies[1].blocks);
      ASSERT_TRUE(fixture.Run({{2, 0, chunks[2].tokens.first(16)}}).ok());
      EXPECT_EQ(StateBytesOf(fixture, fixture.StateBlocks(2)), copied);

      // A state that holds no number is told, and the other copy's is not.
      EXPECT_EQ(fixture.model().BrokenStateLayer(fixture.StateBlocks(2), fixture.view()),
                std::nullopt);
      spans[0].first_pos = 20;
      spans[0].kv.blocks = fixture.Blocks(0, 40);
      const float bad = std::numeric_limits<float>::infinity();
      std::memcpy(fixture.view().Piece(fixture.StateBlocks(0)[0], 0, 0, 0) + 8, &bad, sizeof(bad));
      EXPECT_EQ(fixture.model().BrokenStateLayer(fixture.StateBlocks(0), fixture.view()), 0u);
      copies[0].num_rows = 7;
      ASSERT_TRUE(fixture.model().Forward(batch, fixture.view(), nullptr, logits).ok());
      EXPECT_FALSE(copies[0].has_numbers);
      EXPECT_TRUE(copies[1].has_numbers);
    }
  }
}

TEST(DeltaModelTest, RefusesCopiesThatAreOutOfRange) {
  ModelFixture fixture({.path = GoldenPath(kFile)});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  const TokenId token = 5;
  const uint32_t row = 0;
  std::vector<float> logits(fixture.vocab());
  const auto run = [&](StateCopy copy) {
    const kernels::AttentionSpan span{{fixture.Blocks(0, 1), fixture.StateBlocks(0)}, 0, 1, 0};
    const ModelBatch batch{.token_ids = {&token, 1},
                           .spans = {&span, 1},
                           .logit_rows = {&row, 1},
                           .state_copies = {&copy, 1}};
    return std::string(fixture.model().Forward(batch, fixture.view(), nullptr, logits).message());
  };
  std::vector<uint32_t> blocks(fixture.model().layout().state_blocks, 1);
  EXPECT_THAT(run({.span = 1, .num_rows = 1, .blocks = blocks}), HasSubstr("of span 1 of 1"));
  EXPECT_THAT(run({.span = 0, .num_rows = 2, .blocks = blocks}),
              HasSubstr("after row 2 of a span of 1"));
  EXPECT_THAT(run({.span = 0, .num_rows = 1, .blocks = {}}),
              HasSubstr("has 0 blocks, a state has 41"));
  blocks.back() = fixture.view().num_blocks;
  EXPECT_THAT(run({.span = 0, .num_rows = 1, .blocks = blocks}), HasSubstr("the arena has"));
}

TEST(DeltaModelTest, RefusesKeysAndTensorsThatDisagree) {
  ExpectRefused(WithValue("qwen35.ssm.state_size", 24),
                "\"qwen35.ssm.state_size\" is 24, supported are multiples of 16");
  ExpectRefused(WithValue("qwen35.ssm.state_size", 512), "is 512, supported is [1, 256]");
  ExpectRefused(WithValue("qwen35.ssm.conv_kernel", 1), "is 1, supported is [2, 16]");
  ExpectRefused(WithValue("qwen35.ssm.conv_kernel", 3), "blk.0.ssm_conv1d.weight");
  ExpectRefused(WithValue("qwen35.ssm.group_count", 3),
                "\"qwen35.ssm.time_step_rank\" is 4, supported are multiples of 3");
  ExpectRefused(WithValue("qwen35.ssm.inner_size", 100),
                "\"qwen35.ssm.inner_size\" is 100, supported are multiples of 64");
  ExpectRefused(WithValue("qwen35.ssm.inner_size", 0), "is 0, supported is [1, 1048576]");
  ExpectRefused(WithValue("qwen35.full_attention_interval", 3),
                "\"qwen35.full_attention_interval\" makes layer 2 one of attention, but it has the "
                "tensor \"blk.2.ssm_a\"");
  ExpectRefused(WithValue("qwen35.full_attention_interval", 5),
                "makes layer 3 a gated delta net, but it has the tensor \"blk.3.attn_q.weight\"");
  ExpectRefused(WithValue("qwen35.full_attention_interval", 0), "is 0, supported is [1, 5]");
  ExpectRefused(WithValue("qwen35.full_attention_interval", 6), "is 6, supported is [1, 5]");
  ExpectRefused(WithValue("qwen35.nextn_predict_layers", 6), "is 6 of 6 layers");
  ExpectRefused(WithValue("qwen35.nextn_predict_layers", 0), "blk.5.");
}

constexpr const char* kList = "qwen35.attention.recurrent_layers";
constexpr const char* kInterval = "qwen35.full_attention_interval";

// The file with a list of its nets, and without the interval that says the same.
ChangedFile WithList(const std::vector<bool>& nets) {
  ChangedFile changed(kFile);
  changed.SetU32(kInterval, 2);  // the list is what holds
  changed.SetBools(kList, nets);
  return changed;
}

// As files have it that converters wrote since then: one for each block, also of prediction.
TEST(DeltaModelTest, AListSaysWhichLayersAreNets) {
  const std::vector<bool> nets = {true, true, true, false, true, false};
  const auto plain = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto wanted = ReadModelConfig(**plain);
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  ChangedFile numbers(kFile);
  numbers.SetInts(kList, {1, 1, 1, 0, 1, 0});
  for (const std::vector<std::byte>& bytes : {WithList(nets).Bytes(), numbers.Bytes()}) {
    const auto file = GgufFile::FromBytes(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto config = ReadModelConfig(**file);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(CanonicalText(*config), CanonicalText(*wanted));
  }
}

TEST(DeltaModelTest, RefusesAListThatDisagrees) {
  ExpectRefused(WithList({true, true, true, false, true}).Bytes(), "must be 6 bools");
  ExpectRefused(WithList({true, true, false, true, true, false}).Bytes(),
                "key \"qwen35.attention.recurrent_layers\" makes layer 2 one of attention, but it "
                "has the tensor \"blk.2.ssm_a\"");
  ExpectRefused(WithList({true, true, true, true, true, false}).Bytes(), "without attention");
  ExpectRefused(WithList({true, true, true, false, true, true}).Bytes(), "layer 5 of prediction");
  ChangedFile changed(kFile);
  changed.SetInts(kList, {1, 1, 1, 0, 2, 0});
  ExpectRefused(changed.Bytes(), "element 4 is no bool");
  changed = ChangedFile(kFile);
  changed.SetU32(kList, 1);
  ExpectRefused(changed.Bytes(), "must be 6 bools");
}

// As converters leave them out. All that is said of it is one line, as of a file that has them.
TEST(DeltaModelTest, TensorsOfPredictionMayBeMissing) {
  ChangedFile changed(kFile);
  const size_t num_before = changed.tensors().size();
  std::erase_if(changed.tensors(),
                [](const TensorCopy& tensor) { return tensor.name.starts_with("blk.5."); });
  ASSERT_LT(changed.tensors().size(), num_before);
  const std::vector<std::byte> bytes = changed.Bytes();  // the file refers to them
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = CheckServable(**file);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(DescribeModelFile(**file, status),
              HasSubstr("prediction    1 layer(s) of several tokens at once are not used"));
}

// The config.json of the tiny folder with one key set, and what is said of it.
std::string RefusalOf(const std::string& key, const Json& value) {
  std::ifstream in(GoldenPath("tiny_qwen35/config.json"));
  Json json = Json::parse(in);
  json[key] = value;
  const auto config = ReadHfConfig(json.dump());
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(DeltaModelTest, RefusesFoldersByKey) {
  EXPECT_EQ(RefusalOf("hidden_act", "silu"), "");
  EXPECT_THAT(RefusalOf("attn_output_gate", false), HasSubstr("attn_output_gate"));
  EXPECT_THAT(RefusalOf("mamba_ssm_dtype", "bfloat16"), HasSubstr("mamba_ssm_dtype"));
  EXPECT_THAT(RefusalOf("linear_key_head_dim", 20), HasSubstr("a multiple of 16 in [16, 256]"));
  EXPECT_THAT(RefusalOf("linear_num_value_heads", 3),
              HasSubstr("a multiple of the 2 of \"linear_num_key_heads\""));
  EXPECT_THAT(RefusalOf("full_attention_interval", 3), HasSubstr("that of \"layer_types\""));
  const std::string linear = "linear_attention";
  const std::string full = "full_attention";
  EXPECT_THAT(RefusalOf("layer_types", {linear, full, linear, linear, linear}),
              HasSubstr("layer_types"));
  EXPECT_THAT(RefusalOf("layer_types", {linear, linear, linear, linear, linear}),
              HasSubstr("layer_types"));
  EXPECT_THAT(RefusalOf("sliding_window", 16), HasSubstr("sliding_window"));
  EXPECT_THAT(RefusalOf("attention_bias", true), HasSubstr("\"attention_bias\" is true"));
  EXPECT_EQ(RefusalOf("attention_bias", false), "");
}

// A folder may have its layers in any order.
TEST(DeltaModelTest, ListsTheLayersThatNoIntervalGives) {
  std::ifstream in(GoldenPath("tiny_qwen35/config.json"));
  Json json = Json::parse(in);
  json.erase("full_attention_interval");
  const std::string linear = "linear_attention";
  const std::string full = "full_attention";
  const auto listed = [&](const std::vector<std::string>& types) {
    json["layer_types"] = types;
    const auto config = ReadHfConfig(json.dump());
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->delta_layers : std::vector<bool>();
  };
  EXPECT_EQ(listed({linear, full, linear, full, linear}), std::vector<bool>());
  EXPECT_EQ(listed({full, full, full, full, full}), std::vector<bool>());
  EXPECT_EQ(listed({linear, full, linear, linear, linear}),
            (std::vector<bool>{true, false, true, true, true}));
  EXPECT_EQ(listed({full, linear, linear, linear, full}),
            (std::vector<bool>{false, true, true, true, false}));
}

TEST(DeltaModelTest, HeadsOfVGoToTheirPlaceInGguf) {
  const DeltaShape shape{.num_k_heads = 2, .num_v_heads = 6, .k_dim = 1, .v_dim = 1, .num_taps = 2};
  const auto tiled = [&](HfVHeads form, uint64_t num_rows, const std::string& in) {
    std::string out(in.size(), '?');
    const absl::Status status =
        TileVHeads(shape, form, num_rows, std::as_bytes(std::span(in.data(), in.size())),
                   reinterpret_cast<std::byte*>(out.data()));
    return status.ok() ? out : std::string(status.message());
  };
  EXPECT_EQ(tiled(HfVHeads::kOneEach, 6, "abcdef"), "adbecf");
  EXPECT_EQ(tiled(HfVHeads::kRows, 12, "aabbccddeeff"), "aaddbbeeccff");
  EXPECT_EQ(tiled(HfVHeads::kAfterKeys, 10, "qQkKabcdef"), "qQkKadbecf");
  EXPECT_EQ(tiled(HfVHeads::kColumns, 2, "abcdefABCDEF"), "adbecfADBECF");
  EXPECT_EQ(tiled(HfVHeads::kRows, 5, "abcde"), "5 rows for 6 heads of v");
}

std::vector<float> WeightsOf(const GgufTensor& tensor) {
  const auto k = static_cast<uint32_t>(tensor.dims[0]);
  const uint64_t n = tensor.dims[1];
  std::vector<float> out(n * k);
  for (uint64_t row = 0; row < n; ++row) {
    EXPECT_TRUE(kernels::DequantizeRow(WeightTypeOf(tensor),
                                       tensor.data.data() + row * (tensor.data.size() / n), k,
                                       &out[row * k]));
  }
  return out;
}

TEST(DeltaModelTest, PackedMatricesHaveTheirHeadsWhereTheSameInF32HaveThem) {
  const std::string golden = GoldenPath("tiny_qwen35");
  std::ifstream in(golden + "/config.json");
  const Json config = Json::parse(in);
  for (const PackedForm& form : PackedForms()) {
    if (form.is_float && !form.is_mx) continue;  // blocks of 64, and a head of v has 32
    SCOPED_TRACE(form.name);
    const PackedModel model = PackedModelMaker(form).Pack(
        config, TensorsOfFolder(golden),
        {"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight",
         "linear_attn.out_proj.weight", "self_attn.q_proj.weight"});
    const TestFolder packed_folder("delta_packed");
    const TestFolder plain_folder("delta_plain");
    packed_folder.Write(model.config, model.packed);
    plain_folder.Write(config, model.plain);
    const auto packed = OpenModelFile(packed_folder.path());
    const auto plain = OpenModelFile(plain_folder.path());
    ASSERT_TRUE(packed.ok() && plain.ok()) << packed.status() << plain.status();
    EXPECT_TRUE(CheckServable(**packed).ok()) << CheckServable(**packed);
    for (const char* name : {"blk.0.attn_qkv.weight", "blk.1.attn_gate.weight",
                             "blk.4.ssm_out.weight", "blk.3.attn_q.weight"}) {
      const GgufTensor* tensor = (*packed)->FindTensor(name);
      const GgufTensor* wanted = (*plain)->FindTensor(name);
      ASSERT_TRUE(tensor != nullptr && wanted != nullptr) << name;
      EXPECT_NE(tensor->type->id, wanted->type->id) << name;
      EXPECT_EQ(WeightsOf(*tensor), WeightsOf(*wanted)) << name;
    }
  }
}

TEST(DeltaModelTest, RefusesPackedColumnsWhoseBlocksHeadsOfVCut) {
  const std::string golden = GoldenPath("tiny_qwen35");
  for (const PackedForm& form : PackedForms()) {
    if (!form.is_float || form.is_mx) continue;
    const PackedModel model =
        PackedModelMaker(form).Pack(Json::parse(std::ifstream(golden + "/config.json")),
                                    TensorsOfFolder(golden), {"linear_attn.out_proj.weight"});
    const TestFolder folder("delta_cut");
    folder.Write(model.config, model.packed);
    EXPECT_THAT(std::string(OpenModelFile(folder.path()).status().message()),
                HasSubstr("heads of 32 columns in blocks of 64 elements"))
        << form.name;
  }
}

TEST(DeltaModelTest, TensorsOfPredictionBecomeLayersAfterTheModels) {
  uint32_t num = 0;
  EXPECT_EQ(NameOfPrediction("model.norm.weight", 24, &num), "model.norm.weight");
  EXPECT_EQ(num, 0u);
  EXPECT_EQ(NameOfPrediction("mtp.fc.weight", 24, &num), "model.layers.24.nextn.fc.weight");
  EXPECT_EQ(num, 1u);
  EXPECT_EQ(NameOfPrediction("mtp.layers.1.mlp.up_proj.weight", 24, &num),
            "model.layers.25.mlp.up_proj.weight");
  EXPECT_EQ(num, 2u);
  EXPECT_EQ(NameOfPrediction("mtp.layers.x.weight", 24, &num), "mtp.layers.x.weight");
}

}  // namespace
}  // namespace baton::model
