// Mixtures of experts with one more that serves every row, times a gate of its own (qwen35moe):
// what files and folders say of it, the forms its tensors may have, and what is refused by name.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/convert.h"
#include "src/model/hf_config.h"
#include "src/model/model_report.h"
#include "tests/model/changed_file.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kPlain = "tiny_qwen35moe.gguf";
constexpr const char* kJoined = "tiny_qwen35moe_q8_0.gguf";
constexpr const char* kSharedRouter = "ffn_gate_inp_shexp.weight";

std::string RefusalOf(const ChangedFile& changed) {
  const std::vector<std::byte> bytes = changed.Bytes();
  const auto file = GgufFile::FromBytes(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return "";
  const std::string message(CheckServable(**file).message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(GatedExpertTest, IsReadAndDescribed) {
  const auto file = GgufFile::Open(GoldenPath(kPlain));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_experts, 7u);
  EXPECT_EQ(config->num_experts_used, 3u);
  EXPECT_EQ(config->ffn_size, 16u);
  EXPECT_EQ(config->shared_ffn_size, 24u);
  EXPECT_EQ(config->max_ffn_size(), 24u);
  EXPECT_TRUE(config->experts_sum_to_one);
  EXPECT_EQ(config->num_layers, 5u);
  EXPECT_EQ(config->num_mtp_layers, 1u);
  EXPECT_EQ(config->layer_is_delta, (std::vector<bool>{true, true, true, false, true}));
  EXPECT_THAT(CanonicalText(*config), HasSubstr(" experts=7 used=3 gated_shared=24"));
  const std::string text = DescribeModelFile(**file, CheckServable(**file));
  EXPECT_THAT(text, HasSubstr("experts       7 a layer, 3 for each token"));
  EXPECT_THAT(text, HasSubstr("one of width 24 for every token, times a gate of its own"));
  EXPECT_THAT(text, HasSubstr("in 4 of 5 layers, 4 heads of 16 x 32, 4 tokens convolved"));
  EXPECT_THAT(text, HasSubstr("prediction    1 layer(s) of several tokens at once are not used"));
  EXPECT_THAT(text, HasSubstr("unsupported   nothing"));
}

// The rows of each expert that one tensor holds of several, as a tensor of their own.
TensorCopy Half(const TensorCopy& joined, std::string name, size_t half) {
  const uint64_t num_experts = joined.dims[2];
  const size_t half_bytes = joined.data.size() / num_experts / 2;
  TensorCopy out = {std::move(name), joined.dims, joined.type_id, {}};
  out.dims[1] /= 2;
  for (size_t e = 0; e < num_experts; ++e) {
    const auto begin =
        joined.data.begin() + static_cast<std::ptrdiff_t>((2 * e + half) * half_bytes);
    out.data.insert(out.data.end(), begin, begin + static_cast<std::ptrdiff_t>(half_bytes));
  }
  return out;
}

TEST(GatedExpertTest, BothFormsOfItsTensorsGiveTheSameBits) {
  ChangedFile apart(kJoined);
  std::vector<TensorCopy> halves;
  uint32_t num_joined = 0;
  for (TensorCopy& tensor : apart.tensors()) {
    if (tensor.name.ends_with(kSharedRouter)) {
      ASSERT_EQ(tensor.dims, (std::vector<uint64_t>{64, 1}));
      tensor.dims.pop_back();
    }
    const size_t at = tensor.name.find("ffn_gate_up_exps");
    if (at == std::string::npos) continue;
    ++num_joined;
    const std::string layer = tensor.name.substr(0, at);
    halves.push_back(Half(tensor, layer + "ffn_gate_exps.weight", 0));
    tensor = Half(tensor, layer + "ffn_up_exps.weight", 1);
  }
  EXPECT_EQ(num_joined, 4u);
  apart.tensors().insert(apart.tensors().end(), halves.begin(), halves.end());
  const std::string path = apart.Write("experts_apart.gguf");
  ModelFixture joined({.path = GoldenPath(kJoined), .num_threads = 2});
  ModelFixture separate({.path = path, .num_threads = 2});
  ASSERT_TRUE(joined.status().ok()) << joined.status();
  ASSERT_TRUE(separate.status().ok()) << separate.status();
  std::vector<TokenId> tokens(80);
  std::iota(tokens.begin(), tokens.end(), 5);
  const auto a = joined.Run({{0, 0, tokens}}, true);
  const auto b = separate.Run({{0, 0, tokens}}, true);
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  EXPECT_EQ(std::memcmp(a->data(), b->data(), a->size() * sizeof(float)), 0);
  EXPECT_EQ(joined.KvBytes(0, 80), separate.KvBytes(0, 80));
  std::filesystem::remove(path);
}

TEST(GatedExpertTest, RefusesKeysByName) {
  struct Case {
    const char* key;
    uint32_t value;
    const char* words;
  };
  for (const Case& test : {
           Case{"expert_count", 6, "tensor \"blk.0.ffn_gate_inp.weight\" is [32, 7]"},
           Case{"expert_count", 0, "is 0, supported is [1, 1024]"},
           Case{"expert_used_count", 8, "is 8, supported is [1, 7]"},
           Case{"expert_feed_forward_length", 15, "blk.0.ffn_gate_exps.weight"},
           Case{"expert_shared_feed_forward_length", 16, "blk.0.ffn_gate_shexp.weight"},
           Case{"expert_shared_feed_forward_length", 0, "is 0, supported is [1, 524288]"},
           Case{"expert_shared_count", 2,
                "\"qwen35moe.expert_shared_count\" is 2, supported is "
                "only 1"},
           Case{"expert_gating_func", 2, "is 2, supported is only 1"},
           Case{"expert_group_count", 2, "is 2, supported is only 1"},
           Case{"leading_dense_block_count", 1, "is 1, supported is only 0"},
           Case{"ssm.state_size", 24, "supported are multiples of 16"},
           Case{"full_attention_interval", 3, "blk.2.ssm_a"},
           Case{"nextn_predict_layers", 6, "is 6 of 6 layers"},
       }) {
    ChangedFile changed(kPlain);
    changed.SetU32(std::string("qwen35moe.") + test.key, test.value);
    EXPECT_THAT(RefusalOf(changed), HasSubstr(test.words)) << test.key;
  }
  ChangedFile one(kPlain);
  one.SetU32("qwen35moe.expert_shared_count", 1);
  EXPECT_EQ(RefusalOf(one), "");
  ChangedFile plain_weights(kPlain);
  plain_weights.SetFalse("qwen35moe.expert_weights_norm");
  EXPECT_THAT(RefusalOf(plain_weights),
              HasSubstr("\"qwen35moe.expert_weights_norm\" is 0, supported is only 1"));
}

TEST(GatedExpertTest, RefusesTensorsByName) {
  const std::string router = std::string("blk.2.") + kSharedRouter;
  ChangedFile missing(kPlain);
  missing.Find(router).name = "blk.2.ffn_gate_inp_shexq.weight";
  EXPECT_THAT(RefusalOf(missing), HasSubstr("tensor \"" + router + "\" is missing"));
  ChangedFile two_rows(kPlain);
  two_rows.Find(router).dims = {16, 2};
  EXPECT_THAT(RefusalOf(two_rows),
              HasSubstr("tensor \"" + router + "\" is [16, 2], the model needs [32, 1]"));
  ChangedFile short_row(kJoined);
  short_row.Find(router).dims = {32, 2};
  EXPECT_THAT(RefusalOf(short_row),
              HasSubstr("tensor \"" + router + "\" is [32, 2], the model needs [64, 1]"));
  ChangedFile both(kJoined);
  const TensorCopy joined = both.Find("blk.1.ffn_gate_up_exps.weight");
  both.tensors().push_back(Half(joined, "blk.1.ffn_gate_exps.weight", 0));
  EXPECT_THAT(RefusalOf(both), HasSubstr("tensor \"blk.1.ffn_gate_exps.weight\" is not part of"));
  ChangedFile dense(kPlain);
  dense.Find("blk.0.ffn_down_shexp.weight").name = "blk.0.ffn_down.weight";
  EXPECT_THAT(RefusalOf(dense), HasSubstr("\"blk.0.ffn_down_shexp.weight\" is missing"));
  // A layer of prediction may hold other tensors: nobody looks at them.
  ChangedFile prediction(kPlain);
  prediction.Find(std::string("blk.5.") + kSharedRouter).name = "blk.5.another.weight";
  EXPECT_EQ(RefusalOf(prediction), "");
}

TEST(GatedExpertTest, AGateThatIsNoNumberIsRefusedWhenItIsLoaded) {
  ChangedFile changed(kPlain);
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(changed.Find(std::string("blk.4.") + kSharedRouter).data.data() + 4, &bad,
              sizeof(bad));
  const std::string path = changed.Write("gate_nan.gguf");
  ModelFixture fixture({.path = path});
  EXPECT_EQ(fixture.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(fixture.status().message()),
              HasSubstr("element 1 of tensor \"blk.4.ffn_gate_inp_shexp.weight\" is nan"));
  std::filesystem::remove(path);
}

TEST(GatedExpertTest, ConvertingLeavesItsGateAsItIs) {
  const auto file = GgufFile::Open(GoldenPath(kJoined));
  ASSERT_TRUE(file.ok()) << file.status();
  for (const GgufTensor& tensor : (*file)->tensors()) {
    if (!tensor.name.ends_with(kSharedRouter)) continue;
    EXPECT_EQ(tensor.num_dims, 2u);
    EXPECT_EQ(tensor.type->id, static_cast<uint32_t>(GgmlType::kF32));
  }
  const std::string path = ::testing::TempDir() + "gated_q4_0.gguf";
  std::filesystem::remove(path);
  device::ThreadPool pool(1);
  const absl::Status converted =
      ConvertModel(**file, {.type = GgmlType::kQ4_0, .pool = &pool, .add_keys = nullptr}, path);
  ASSERT_TRUE(converted.ok()) << converted;
  const auto written = GgufFile::Open(path);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_TRUE(CheckServable(**written).ok()) << CheckServable(**written);
  const GgufTensor* gate = (*written)->FindTensor(std::string("blk.1.") + kSharedRouter);
  ASSERT_NE(gate, nullptr);
  EXPECT_EQ(gate->type->id, static_cast<uint32_t>(GgmlType::kF32));
  const GgufTensor* joined = (*written)->FindTensor("blk.1.ffn_gate_up_exps.weight");
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(joined->type->id, static_cast<uint32_t>(GgmlType::kQ4_0));
  std::filesystem::remove(path);
}

// The config.json of a tiny folder with one key set, and what is said of it.
std::string FolderRefusalOf(const char* folder, const std::string& key, const Json& value) {
  std::ifstream in(GoldenPath(folder) + "/config.json");
  Json json = Json::parse(in);
  json[key] = value;
  const auto config = ReadHfConfig(json.dump());
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(GatedExpertTest, RefusesFoldersByKey) {
  const auto refusal = [](const std::string& key, const Json& value) {
    return FolderRefusalOf("tiny_qwen35moe", key, value);
  };
  // Keys that its class does not read.
  EXPECT_EQ(refusal("norm_topk_prob", true), "");
  EXPECT_EQ(refusal("intermediate_size", 12288), "");
  EXPECT_THAT(refusal("norm_topk_prob", false), HasSubstr("\"norm_topk_prob\" is false"));
  EXPECT_THAT(refusal("shared_expert_intermediate_size", -1),
              HasSubstr("shared_expert_intermediate_size"));
  EXPECT_THAT(refusal("num_experts", 0), HasSubstr("num_experts"));
  EXPECT_THAT(refusal("mlp_only_layers", {1}), HasSubstr("\"mlp_only_layers\" is [1]"));
  EXPECT_THAT(refusal("decoder_sparse_step", 2), HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(refusal("attn_output_gate", false), HasSubstr("attn_output_gate"));
  EXPECT_THAT(refusal("n_group", 2), HasSubstr("n_group"));
  EXPECT_THAT(FolderRefusalOf("tiny_qwen35", "shared_expert_intermediate_size", 24),
              HasSubstr("shared_expert_intermediate_size"));
}

}  // namespace
}  // namespace baton::model
