// ModelConfig from GGUF metadata: what is accepted, what is refused and with which words.
#include "src/model/model_config.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/model_report.h"
#include "src/model/tokenizer_metadata.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/test_model.h"

namespace baton::model {

using kv::KvDtype;

namespace {

using ::testing::HasSubstr;

absl::Status Servable(const GgufBuilder& builder) {
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::FromBytes(bytes);
  return file.ok() ? CheckServable(**file) : file.status();
}

TEST(ModelConfigTest, ReadsTheDemoModel) {
  const auto file = GgufFile::Open(DemoModelPath());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 30u);
  EXPECT_EQ(config->hidden_size, 576u);
  EXPECT_EQ(config->ffn_size, 1536u);
  EXPECT_EQ(config->num_heads, 9u);
  EXPECT_EQ(config->num_kv_heads, 3u);
  EXPECT_EQ(config->head_dim, 64u);
  EXPECT_EQ(config->vocab_size, 49152u);
  EXPECT_EQ(config->context_length, 8192u);
  EXPECT_EQ(config->rope_base, 100000.0);
  EXPECT_TRUE(config->rope_interleaved);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(KvLayoutOf(*config, KvDtype::kBf16, 16).BytesPerToken(), 23040u);
  const auto tokenizer = ReadTokenizerMetadata(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->model, "gpt2");
  EXPECT_EQ(tokenizer->pre, "smollm");
  EXPECT_EQ(tokenizer->tokens.size(), 49152u);
  EXPECT_EQ(tokenizer->merges.size(), 48900u);
  EXPECT_EQ(tokenizer->eos_id, 2u);
  EXPECT_EQ(tokenizer->tokens[2], "<|im_end|>");
  EXPECT_EQ(tokenizer->token_types[2], GgufTokenType::kControl);
  EXPECT_THAT(std::string(tokenizer->chat_template), HasSubstr("<|im_start|>"));
}

TEST(ModelConfigTest, TakesOptionalKeysAndTensors) {
  EXPECT_TRUE(Servable(TinyLlama()).ok()) << Servable(TinyLlama());
  GgufBuilder builder = TinyLlama();
  builder.AddU32("llama.attention.key_length", 16)
      .AddU32("llama.attention.value_length", 16)
      .AddU32("llama.rope.dimension_count", 8)
      .AddU32("llama.vocab_size", 8)
      .AddString("llama.rope.scaling.type", "none")
      .AddF32Tensor("rope_freqs.weight", {4})
      .AddF32Tensor("output.weight", {32, 8});
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_dims, 8u);
  EXPECT_TRUE(config->has_rope_factors);
  EXPECT_FALSE(config->tied_output);
}

// One way not to be supported, and words that the message must have.
struct Refusal {
  const char* words;
  absl::StatusCode code;
  std::function<void(GgufBuilder&)> change;
};

TEST(ModelConfigTest, RefusesByName) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::vector<Refusal> cases = {
      {"\"longrope\"", kUnimplemented,
       [](GgufBuilder& b) { b.AddString("llama.rope.scaling.type", "longrope"); }},
      {"rope.scaling.factor", kInvalid,
       [](GgufBuilder& b) { b.AddF32("llama.rope.scaling.factor", 0.5f); }},
      {"rope.scaling.factor", kInvalid,
       [](GgufBuilder& b) { b.AddF32("llama.rope.scaling.factor", std::nanf("")); }},
      {"attn_factor", kInvalid,
       [](GgufBuilder& b) { b.AddF32("llama.rope.scaling.attn_factor", 1.5f); }},
      {"original_context_length", kInvalid,
       [](GgufBuilder& b) {
         b.AddString("llama.rope.scaling.type", "yarn")
             .AddU32("llama.rope.scaling.original_context_length", 0);
       }},
      {"yarn_log_multiplier", kInvalid,
       [](GgufBuilder& b) {
         b.AddString("llama.rope.scaling.type", "yarn")
             .AddF32("llama.rope.scaling.yarn_log_multiplier", 0.1f);
       }},
      {"llama.expert_count", kUnimplemented,
       [](GgufBuilder& b) { b.AddU32("llama.expert_count", 8); }},
      {"adapter", kUnimplemented, [](GgufBuilder& b) { b.AddString("general.type", "adapter"); }},
      {"quantization_version", kUnimplemented,
       [](GgufBuilder& b) { b.AddU32("general.quantization_version", 1); }},
      {"blk.0.attn_norm.bias", kUnimplemented,
       [](GgufBuilder& b) { b.AddF32Tensor("blk.0.attn_norm.bias", {32}); }},
      {"blk.1.attn_q.weight", kUnimplemented,
       [](GgufBuilder& b) {
         b.AddF32Tensor("blk.1.attn_q.weight", {32, 32});
       }},
      {"llama.vocab_size", kInvalid, [](GgufBuilder& b) { b.AddU32("llama.vocab_size", 9); }},
      {"key_length", kInvalid, [](GgufBuilder& b) { b.AddU32("llama.attention.key_length", 0); }},
      {"key_length", kInvalid,
       [](GgufBuilder& b) { b.AddU32("llama.attention.key_length", 1u << 31); }},
      {"value_length", kUnimplemented,
       [](GgufBuilder& b) { b.AddU32("llama.attention.value_length", 24); }},
      {"dimension_count", kInvalid,
       [](GgufBuilder& b) { b.AddU32("llama.rope.dimension_count", 17); }},
      {"must be even", kInvalid, [](GgufBuilder& b) { b.AddU32("llama.rope.dimension_count", 7); }},
      {"freq_base", kInvalid, [](GgufBuilder& b) { b.AddF32("llama.rope.freq_base", -1.0f); }},
      {"freq_base", kInvalid,
       [](GgufBuilder& b) { b.AddF32("llama.rope.freq_base", std::nanf("")); }},
      {"eos_token_id", kInvalid,
       [](GgufBuilder& b) { b.AddU32("tokenizer.ggml.eos_token_id", 8); }},
      {"token_type", kInvalid,
       [](GgufBuilder& b) {
         b.AddRaw("tokenizer.ggml.token_type", 9,
                  ByteWriter().Put<uint32_t>(5).Put<uint64_t>(1).Put<int32_t>(1));
       }},
      {"rope_freqs", kInvalid, [](GgufBuilder& b) { b.AddF32Tensor("rope_freqs.weight", {9}); }},
      {"IQ3_S", kUnimplemented,
       [](GgufBuilder& b) {
         b.AddTensor("output.weight", {256, 1}, 21, 110);
       }},
  };
  for (const Refusal& refusal : cases) {
    GgufBuilder builder = TinyLlama();
    refusal.change(builder);
    const absl::Status status = Servable(builder);
    EXPECT_EQ(status.code(), refusal.code) << refusal.words << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.words));
  }
}

TEST(ModelConfigTest, RefusesNewKeysOfAttentionAndRope) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::vector<Refusal> cases = {
      {"yarn_attn_factor\" is 2, supported is [1, 1]", kInvalid,
       [](GgufBuilder& b) { b.AddF32("llama.rope.scaling.yarn_attn_factor", 2.0f); }},
      {"only one of them is read", kUnimplemented,
       [](GgufBuilder& b) {
         b.AddString("llama.rope.scaling.type", "yarn")
             .AddF32("llama.rope.scaling.attn_factor", 2.0f)
             .AddF32("llama.rope.scaling.yarn_attn_factor", 2.0f);
       }},
      {"\"llama.attention.new_key\"", kUnimplemented,
       [](GgufBuilder& b) { b.AddF32("llama.attention.new_key", 0.5f); }},
      {"\"llama.rope.scaling.new_key\"", kUnimplemented,
       [](GgufBuilder& b) { b.AddU32("llama.rope.scaling.new_key", 1); }},
  };
  for (const Refusal& refusal : cases) {
    GgufBuilder builder = TinyLlama();
    refusal.change(builder);
    const absl::Status status = Servable(builder);
    EXPECT_EQ(status.code(), refusal.code) << refusal.words << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.words));
  }
}

GgufBuilder& AddExperts(GgufBuilder& b) {
  return b.AddU32("gpt-oss.expert_count", 4)
      .AddU32("gpt-oss.expert_used_count", 2)
      .AddU32("gpt-oss.expert_feed_forward_length", 16);
}

GgufBuilder& AddQkvBiases(GgufBuilder& b) {
  return b.AddF32Tensor("blk.0.attn_q.bias", {32})
      .AddF32Tensor("blk.0.attn_k.bias", {16})
      .AddF32Tensor("blk.0.attn_v.bias", {16});
}

// A change of a tiny file with llama's tensors that some architecture refuses.
struct BadFile {
  const char* words;
  std::string architecture;
  std::function<void(GgufBuilder&)> change;
};

void ExpectRefused(const std::vector<BadFile>& cases) {
  for (const BadFile& test : cases) {
    GgufBuilder builder = TinyLlama({.architecture = test.architecture});
    test.change(builder);
    const absl::Status status = Servable(builder);
    EXPECT_FALSE(status.ok()) << test.words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words));
  }
}

TEST(ModelConfigTest, RefusesWhatAnArchitectureLacks) {
  const auto nothing = [](GgufBuilder&) {};
  ExpectRefused({
      {"blk.0.attn_q.bias", "qwen2", nothing},
      {"blk.0.attn_q_norm.weight", "qwen3", nothing},
      {"qwen3.rope.dimension_count", "qwen3",
       [](GgufBuilder& b) { b.AddU32("qwen3.rope.dimension_count", 8); }},
      {"gemma3.attention.sliding_window", "gemma3", nothing},
      {"gemma3.attention.sliding_window", "gemma3",
       [](GgufBuilder& b) { b.AddU32("gemma3.attention.sliding_window", 0); }},
      {"sliding_window_pattern", "gemma3",
       [](GgufBuilder& b) {
         b.AddU32("gemma3.attention.sliding_window", 8)
             .AddU32("gemma3.attention.sliding_window_pattern", 0);
       }},
      {"sliding_window_pattern", "gemma3",
       [](GgufBuilder& b) {
         b.AddU32("gemma3.attention.sliding_window", 8)
             .AddRaw("gemma3.attention.sliding_window_pattern", 9,
                     ByteWriter().Put<uint32_t>(7).Put<uint64_t>(2).Put<uint16_t>(0));
       }},
      {"rope.unrotated_layers", "llama",
       [](GgufBuilder& b) { b.AddU32("llama.rope.unrotated_layers", 1); }},
      {"must be", "smollm3", [](GgufBuilder& b) { b.AddU32("smollm3.rope.unrotated_layers", 1); }},
      {"residual_scale", "llama", [](GgufBuilder& b) { b.AddF32("llama.residual_scale", 0.5f); }},
      {"residual_scale", "granite",
       [](GgufBuilder& b) { b.AddF32("granite.residual_scale", -0.5f); }},
      {"logit_scale", "granite", [](GgufBuilder& b) { b.AddF32("granite.logit_scale", 1e9f); }},
      {"finetuned", "granite",
       [](GgufBuilder& b) {
         b.Add("granite.rope.scaling.finetuned", GgufValueType::kBool, uint8_t{0});
       }},
      {"final_logit_softcapping", "gemma3",
       [](GgufBuilder& b) { b.AddF32("gemma3.final_logit_softcapping", 30.0f); }},
      {"qwen3moe.expert_count", "qwen3moe", nothing},
      {"qwen3moe.expert_used_count", "qwen3moe",
       [](GgufBuilder& b) {
         b.AddU32("qwen3moe.expert_count", 4).AddU32("qwen3moe.expert_used_count", 5);
       }},
      {"qwen3moe.expert_shared_count", "qwen3moe",
       [](GgufBuilder& b) { b.AddU32("qwen3moe.expert_shared_count", 1); }},
      {"blk.0.ffn_gate_inp.weight", "qwen3moe",
       [](GgufBuilder& b) {
         b.AddU32("qwen3moe.expert_count", 4)
             .AddU32("qwen3moe.expert_used_count", 2)
             .AddU32("qwen3moe.expert_feed_forward_length", 16)
             .AddF32Tensor("blk.0.attn_q_norm.weight", {16})
             .AddF32Tensor("blk.0.attn_k_norm.weight", {16});
       }},
  });
}

TEST(ModelConfigTest, RefusesWhatOlmo2Lacks) {
  ExpectRefused({
      {"olmo2.attention.sliding_window", "olmo2",  // olmo3's files have it
       [](GgufBuilder& b) { b.AddU32("olmo2.attention.sliding_window", 64); }},
      {"blk.0.attn_q_norm.weight", "olmo2", [](GgufBuilder&) {}},
      {"tensor \"blk.0.attn_k_norm.weight\" is [32], the model needs [16]", "olmo2",
       [](GgufBuilder& b) {
         b.AddF32Tensor("blk.0.attn_q_norm.weight", {32})
             .AddF32Tensor("blk.0.attn_k_norm.weight", {32});
       }},
      {"blk.0.attn_norm.weight", "olmo2",  // a norm that it does not have
       [](GgufBuilder& b) {
         b.AddF32Tensor("blk.0.attn_q_norm.weight", {32})
             .AddF32Tensor("blk.0.attn_k_norm.weight", {16})
             .AddF32Tensor("blk.0.post_attention_norm.weight", {32})
             .AddF32Tensor("blk.0.post_ffw_norm.weight", {32});
       }},
  });
}

TEST(ModelConfigTest, RefusesTemperaturesThatAreNotComputed) {
  const auto yarn = [](GgufBuilder& b) -> GgufBuilder& {
    return b.AddString("mistral3.rope.scaling.type", "yarn")
        .AddF32("mistral3.rope.scaling.factor", 4.0f)
        .AddU32("mistral3.rope.scaling.original_context_length", 32);
  };
  GgufBuilder good = TinyLlama({.architecture = "mistral3"});
  yarn(good).AddF32("mistral3.attention.temperature_scale", 0.1f);
  EXPECT_TRUE(Servable(good).ok()) << Servable(good);
  ExpectRefused({
      {"llama.attention.temperature_scale", "llama",
       [](GgufBuilder& b) { b.AddF32("llama.attention.temperature_scale", 0.1f); }},
      {"mistral3.attention.temperature_scale", "mistral3",  // no yarn, so no length
       [](GgufBuilder& b) { b.AddF32("mistral3.attention.temperature_scale", 0.1f); }},
      {"mistral3.attention.temperature_scale", "mistral3",
       [&](GgufBuilder& b) { yarn(b).AddF32("mistral3.attention.temperature_scale", 11.0f); }},
      {"mistral3.attention.temperature_length", "mistral3",
       [&](GgufBuilder& b) {
         yarn(b)
             .AddF32("mistral3.attention.temperature_scale", 0.1f)
             .AddU32("mistral3.attention.temperature_length", 64);
       }},
      {"mistral3.rope.scaling.yarn_log_multiplier", "mistral3",
       [&](GgufBuilder& b) { yarn(b).AddF32("mistral3.rope.scaling.yarn_log_multiplier", -1); }},
  });
}

TEST(ModelConfigTest, RefusesRopeThatPhi3Lacks) {
  constexpr const char* kLongFactors = "rope_factors_long.weight";
  ExpectRefused({
      {"blk.0.attn_qkv.weight", "phi3", [](GgufBuilder&) {}},
      {"longrope", "phi3",
       [](GgufBuilder& b) {
         b.AddString("phi3.rope.scaling.type", "yarn").AddF32Tensor(kLongFactors, {8});
       }},
      {"rope_factors_short.weight", "phi3",
       [](GgufBuilder& b) { b.AddF32Tensor(kLongFactors, {8}); }},
      {"phi3.rope.scaling.attn_factor", "phi3",
       [](GgufBuilder& b) {
         b.AddF32("phi3.rope.scaling.attn_factor", 1e3f).AddF32Tensor(kLongFactors, {8});
       }},
      {"phi3.rope.scaling.factor", "phi3",
       [](GgufBuilder& b) {
         b.AddF32("phi3.rope.scaling.factor", 4.0f).AddF32Tensor(kLongFactors, {8});
       }},
      {"phi3.rope.dimension_count", "phi3",
       [](GgufBuilder& b) { b.AddU32("phi3.rope.dimension_count", 18); }},
      {"rope_factors_long.weight", "llama",
       [](GgufBuilder& b) { b.AddF32Tensor(kLongFactors, {8}); }},
  });
}

TEST(ModelConfigTest, RefusesWhatGptOssLacks) {
  ExpectRefused({
      {"gpt-oss.expert_count", "gpt-oss", [](GgufBuilder&) {}},
      {"\"gpt-oss.attention.sliding_window\" is missing", "gpt-oss", AddExperts},
      {"sliding_window\" is 0", "gpt-oss",
       [](GgufBuilder& b) { AddExperts(b).AddU32("gpt-oss.attention.sliding_window", 0); }},
      {"\"gpt-oss.swiglu_limit\" is 5, supported is only 7", "gpt-oss",
       [](GgufBuilder& b) { b.AddF32("gpt-oss.swiglu_limit", 5.0f); }},
      {"\"gpt-oss.swiglu_alpha\" is 1.5, supported is only 1.70", "gpt-oss",
       [](GgufBuilder& b) { b.AddF32("gpt-oss.swiglu_alpha", 1.5f); }},
      {"\"gpt-oss.expert_gating_func\" is 2, supported is only 3", "gpt-oss",
       [](GgufBuilder& b) { b.AddU32("gpt-oss.expert_gating_func", 2); }},
      {"\"gpt-oss.rope.freq_base_swa\" is 20000, supported is only the base of all layers, 10000",
       "gpt-oss",
       [](GgufBuilder& b) {
         AddExperts(b)
             .AddU32("gpt-oss.attention.sliding_window", 8)
             .AddF32("gpt-oss.rope.freq_base_swa", 20000.0f);
       }},
      {"tensor \"blk.0.attn_sinks.weight\" is missing", "gpt-oss",
       [](GgufBuilder& b) {
         AddExperts(b).AddU32("gpt-oss.attention.sliding_window", 8);
         AddQkvBiases(b);
       }},
      {"tensor \"blk.0.attn_sinks.weight\" is [3], the model needs [2]", "gpt-oss",
       [](GgufBuilder& b) {
         AddExperts(b).AddU32("gpt-oss.attention.sliding_window", 8);
         AddQkvBiases(b).AddF32Tensor("blk.0.attn_sinks.weight", {3});
       }},
      {"tensor \"blk.0.attn_output.bias\" is missing", "gpt-oss",
       [](GgufBuilder& b) {
         AddExperts(b).AddU32("gpt-oss.attention.sliding_window", 8);
         AddQkvBiases(b).AddF32Tensor("blk.0.attn_sinks.weight", {2});
       }},
      {"blk.0.attn_sinks.weight", "llama",
       [](GgufBuilder& b) { b.AddF32Tensor("blk.0.attn_sinks.weight", {2}); }},
  });
}

TEST(ModelConfigTest, ReadsWhatEachArchitectureAdds) {
  const auto read = [](const std::string& name) {
    const auto file = GgufFile::Open(GoldenPath("tiny_" + name + ".gguf"));
    EXPECT_TRUE(file.ok()) << file.status();
    const auto config = ReadModelConfig(**file);
    EXPECT_TRUE(config.ok()) << config.status();
    return *config;
  };
  const ModelConfig gemma = read("gemma3");
  EXPECT_EQ(gemma.window, 33u);
  EXPECT_EQ(gemma.rope_base, 1e6);
  EXPECT_EQ(gemma.local_rope_base, 1e4);
  EXPECT_EQ(gemma.layer_is_local, (std::vector<bool>{true, true, true, true, true, false, true}));
  EXPECT_FLOAT_EQ(gemma.embedding_scale, 5.6568542f);
  EXPECT_FALSE(gemma.rope_interleaved);
  const ModelConfig smollm3 = read("smollm3");
  EXPECT_EQ(smollm3.layer_is_unrotated, (std::vector<bool>{false, false, false, true, false}));
  EXPECT_TRUE(smollm3.HasSecondRope(3));
  EXPECT_FALSE(smollm3.HasSecondRope(4));
  EXPECT_TRUE(smollm3.rope_interleaved);
  const ModelConfig granite = read("granite");
  EXPECT_FLOAT_EQ(granite.attention_scale, 0.21f);
  EXPECT_FLOAT_EQ(granite.embedding_scale, 3.7f / 0.23f);
  EXPECT_FLOAT_EQ(granite.rms_epsilon, 1e-6f / (0.23f * 0.23f));
  EXPECT_FLOAT_EQ(granite.logit_scale, 1 / 1.3f);
  const ModelConfig oss = read("gptoss");
  EXPECT_EQ(oss.window, 33u);
  EXPECT_EQ(oss.layer_is_local, (std::vector<bool>{true, false, true, false}));
  EXPECT_FALSE(oss.has_second_rope());
  EXPECT_FALSE(oss.HasSecondRope(0));
  EXPECT_EQ(oss.rope_base, 150000.0);
  EXPECT_FALSE(oss.rope_scaling.truncates);
  EXPECT_EQ(oss.num_experts_used, 4u);
  EXPECT_TRUE(read("llama_yarn").rope_scaling.truncates);
  const ModelConfig phi3 = read("phi3");
  EXPECT_EQ(phi3.rope_dims, 12u);
  EXPECT_TRUE(phi3.reorders_heads());
  EXPECT_EQ(phi3.rope_scaling.type, RopeScalingType::kLong);
  EXPECT_EQ(phi3.rope_scaling.original_context, 128u);
  EXPECT_FLOAT_EQ(static_cast<float>(phi3.rope_scaling.attention_factor), 1.1338934f);
  EXPECT_EQ(phi3.window, 0u);
  const ModelConfig windowed = read("phi3_short");
  EXPECT_EQ(windowed.window, 33u);
  EXPECT_TRUE(windowed.IsLocal(0) && windowed.IsLocal(1));
  EXPECT_FALSE(windowed.HasSecondRope(0));
  const ModelConfig mistral3 = read("mistral3");
  EXPECT_FLOAT_EQ(mistral3.temperature_beta, 0.1f);
  EXPECT_EQ(mistral3.temperature_length, 64u);
  EXPECT_NEAR(RopeAmplitude(mistral3.rope_scaling), 1.0, 1e-7);
  const ModelConfig moe = read("qwen3moe");
  EXPECT_EQ(moe.num_experts, 8u);
  EXPECT_EQ(moe.num_experts_used, 3u);
  EXPECT_EQ(moe.ffn_size, 32u);
  const ModelConfig yarn = read("llama_yarn");
  EXPECT_EQ(yarn.rope_scaling.type, RopeScalingType::kYarn);
  EXPECT_EQ(yarn.rope_scaling.factor, 4.0);
  EXPECT_EQ(yarn.rope_scaling.original_context, 128u);
  EXPECT_EQ(read("llama_linear").rope_scaling.type, RopeScalingType::kLinear);
}

std::string TextOf(const GgufBuilder& builder) {
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::FromBytes(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? CanonicalText(*config) : "";
}

GgufBuilder WithHeads(const std::vector<uint32_t>& heads) {
  GgufBuilder out = TinyLlama({.layers = 2, .left_out_key = "llama.attention.head_count"});
  ByteWriter values;
  values.Put<uint32_t>(4).Put<uint64_t>(heads.size());
  for (const uint32_t number : heads) values.Put<uint32_t>(number);
  out.AddRaw("llama.attention.head_count", 9, values);
  return out;
}

TEST(ModelConfigTest, EqualLayersMayHaveANumberEach) {
  EXPECT_EQ(TextOf(WithHeads({2, 2})), TextOf(TinyLlama({.layers = 2})));
  const std::vector<std::vector<uint32_t>> unequal = {{2, 4}, {2}, {2, 2, 2}, {}};
  for (const std::vector<uint32_t>& heads : unequal) {
    const std::vector<std::byte> bytes = WithHeads(heads).Build();
    const auto file = GgufFile::FromBytes(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(std::string(ReadModelConfig(**file).status().message()),
                HasSubstr("\"llama.attention.head_count\""));
  }
}

TEST(ModelConfigTest, AFactorOfZeroScalesNothing) {
  EXPECT_EQ(TextOf(TinyLlama().AddF32("llama.rope.scaling.factor", 0.0f)), TextOf(TinyLlama()));
  EXPECT_EQ(TextOf(TinyLlama()
                       .AddString("llama.rope.scaling.type", "linear")
                       .AddF32("llama.rope.scaling.factor", 0.0f)),
            TextOf(TinyLlama()));
}

// A folder's attention_factor 2 with factor 4 is attn_factor 2 / (1 + 0.1 ln 4).
TEST(ModelConfigTest, YarnAttnFactorIsTheWholeAmplitude) {
  const auto yarn = [](const char* key, float value) {
    return TextOf(TinyLlama()
                      .AddString("llama.rope.scaling.type", "yarn")
                      .AddF32("llama.rope.scaling.factor", 4.0f)
                      .AddU32("llama.rope.scaling.original_context_length", 64)
                      .AddF32(key, value));
  };
  EXPECT_EQ(yarn("llama.rope.scaling.yarn_attn_factor", 2.0f),
            yarn("llama.rope.scaling.attn_factor",
                 static_cast<float>(2.0 / (1.0 + 0.1 * 1.3862943611198906))));
}

// Beside mscale_all_dim it is the whole amplitude, too, as in a folder.
TEST(ModelConfigTest, YarnAttnFactorHoldsBesideALogMultiplier) {
  const auto yarn = [](const std::vector<std::pair<const char*, float>>& keys) {
    GgufBuilder file = TinyLlama({.architecture = "mistral3"});
    file.AddString("mistral3.rope.scaling.type", "yarn")
        .AddF32("mistral3.rope.scaling.factor", 4.0f)
        .AddU32("mistral3.rope.scaling.original_context_length", 64);
    for (const auto& [key, value] : keys) file.AddF32(key, value);
    return file;
  };
  const std::pair<const char*, float> whole = {"mistral3.rope.scaling.yarn_attn_factor", 2.0f};
  const std::pair<const char*, float> log = {"mistral3.rope.scaling.yarn_log_multiplier", 1.0f};
  const std::pair<const char*, float> factor = {"mistral3.rope.scaling.attn_factor", 1.5f};
  EXPECT_EQ(TextOf(yarn({whole, log})), TextOf(yarn({whole})));
  EXPECT_NE(TextOf(yarn({whole, log})), TextOf(yarn({log})));
  EXPECT_THAT(
      std::string(Servable(yarn({whole, factor})).message()),
      HasSubstr("yarn_attn_factor\" is 2 beside \"mistral3.rope.scaling.attn_factor\" 1.5"));
}

TEST(ModelConfigTest, RefusesImpossibleShapes) {
  const std::vector<std::pair<const char*, TinyLlamaOptions>> cases = {
      {"head_count", {.heads = 0}},
      {"head_count_kv", {.kv_heads = 0}},
      {"head_count_kv", {.kv_heads = 3}},
      {"divisor", {.heads = 3, .kv_heads = 2, .hidden = 48}},
      {"embedding_length", {.hidden = 0}},
      {"block_count", {.layers = 0}},
      {"feed_forward_length", {.ffn = 0}},
      {"number of tokens", {.num_tokens = 0}},
      {"llama.context_length", {.context = 0}},
      {"llama.context_length", {.context = 1}},
      {"\"mamba\"", {.architecture = "mamba"}},
      {"llama.block_count", {.left_out_key = "llama.block_count"}},
      {"llama.context_length", {.left_out_key = "llama.context_length"}},
      {"rms_epsilon", {.left_out_key = "llama.attention.layer_norm_rms_epsilon"}},
      {"tokenizer.ggml.tokens", {.left_out_key = "tokenizer.ggml.tokens"}},
      {"blk.0.ffn_up.weight", {.left_out_tensor = "blk.0.ffn_up.weight"}},
      {"token_embd.weight", {.left_out_tensor = "token_embd.weight"}},
      {"blk.0.attn_k.weight", {.odd_tensor = "blk.0.attn_k.weight"}},
      {"token_embd.weight", {.odd_tensor = "token_embd.weight"}},
      {"output_norm.weight", {.odd_tensor = "output_norm.weight"}},
  };
  for (const auto& [words, options] : cases) {
    // A builder cannot hold a tensor with a dimension of 0; the keys are what is tested there.
    const absl::Status status = Servable(TinyLlama(options));
    EXPECT_FALSE(status.ok()) << words;
    if (GgufErrorOf(status) == GgufErrorCode::kBadDims) continue;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
}

// As the loader, which takes a norm for a vector and nothing else.
TEST(ModelConfigTest, ANormOfTwoDimensionsIsRefused) {
  const absl::Status status =
      Servable(TinyLlama({.left_out_tensor = "output_norm.weight"})
                   .AddF32Tensor("output_norm.weight", {TinyLlamaOptions{}.hidden, 1}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the model needs [32]"));
}

TEST(ModelConfigTest, ReportSaysWhatIsUnsupported) {
  GgufBuilder builder = TinyLlama();
  builder.AddTensor("output.weight", {256, 1}, 21, 110);
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string text = DescribeModelFile(**file, CheckServable(**file));
  EXPECT_THAT(text, HasSubstr("IQ3_S"));
  EXPECT_THAT(text, HasSubstr("NOT SUPPORTED"));
  EXPECT_THAT(text, HasSubstr("unsupported   tensor \"output.weight\" has type IQ3_S"));
}

}  // namespace
}  // namespace baton::model
