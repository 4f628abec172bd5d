// config.json as releases of transformers write it: what is read, what is the same under another
// name, and what is refused by name.
#include "src/model/hf_config.h"

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/folder_error.h"
#include "src/model/gguf.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using E = FolderErrorCode;

Json SmallConfig(const char* model_type) {
  Json json = {
      {"model_type", model_type}, {"vocab_size", 258},      {"hidden_size", 32},
      {"intermediate_size", 32},  {"num_hidden_layers", 2}, {"num_attention_heads", 2},
      {"num_key_value_heads", 1}, {"head_dim", 16},         {"max_position_embeddings", 256},
      {"rms_norm_eps", 1e-6}};
  if (json["model_type"] == "qwen3_moe") {
    json.update({{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16}});
  }
  if (json["model_type"] == "gemma3_text") {
    json.update({{"query_pre_attn_scalar", 16}, {"sliding_window", 16}});
  }
  if (json["model_type"] == "lfm2") json["norm_eps"] = 1e-6;
  if (json["model_type"] == "gpt_oss") {
    json.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"sliding_window", 16}});
  }
  if (json["model_type"] == "mistral") json["sliding_window"] = nullptr;
  return json;
}

constexpr const char* kTypes[] = {"llama",     "mistral",     "qwen2",   "qwen3",
                                  "qwen3_moe", "gemma3_text", "smollm3", "granite",
                                  "lfm2",      "gpt_oss",     "phi3",    "olmo2"};

// rope_scaling of a phi3 whose heads rotate whole.
Json LongRope() {
  const std::vector<double> factors(8, 1.5);
  return {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}};
}

// The keys that the config becomes, as bytes; empty when it is refused.
std::string KeysOf(const Json& json) {
  const auto config = ReadHfConfig(json.dump());
  EXPECT_TRUE(config.ok()) << config.status() << json;
  if (!config.ok()) return "";
  const std::vector<std::byte> header = config->keys.Header();
  return {reinterpret_cast<const char*>(header.data()), header.size()};
}

void ExpectRefused(const std::string& text, E code, const std::string& words) {
  const absl::Status status = ReadHfConfig(text).status();
  EXPECT_EQ(FolderErrorName(FolderErrorOf(status)), FolderErrorName(code)) << text << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

struct Change {
  const char* model_type;
  Json change;
  const char* words = "";
};

Json With(const Change& test) {
  Json json = SmallConfig(test.model_type);
  json.update(test.change);
  return json;
}

TEST(HfConfigTest, AHeadOfAnotherSizeIsRefusedByItsKey) {
  const std::string range = "wanted a multiple of 8 in [8, 512]";
  for (const int dim : {0, 4, 12, 520}) {
    Json json = SmallConfig("llama");
    json["head_dim"] = dim;
    ExpectRefused(json.dump(), E::kBadValue, fmt::format("\"head_dim\" is {}, {}", dim, range));
  }
  Json json = SmallConfig("llama");
  json.erase("head_dim");
  json["hidden_size"] = 4 * json["num_attention_heads"].get<int>();
  ExpectRefused(json.dump(), E::kBadValue, range + "; hidden_size / num_attention_heads is 4");
}

TEST(HfConfigTest, KeysThatCannotChangeNumbersAreTakenByAll) {
  const Json harmless = {{"_name_or_path", "x"},
                         {"_model_name_or_path", "x"},
                         {"architectures", {"AForCausalLM"}},
                         {"transformers_version", "5.24.0"},
                         {"torch_dtype", "bfloat16"},
                         {"dtype", "bfloat16"},
                         {"bos_token_id", 1},
                         {"eos_token_id", {1, 2}},
                         {"pad_token_id", -1},
                         {"use_cache", false},
                         {"initializer_range", 0.02},
                         {"attention_dropout", 0.1},
                         {"hidden_dropout", 0.1},
                         {"pretraining_tp", 2},
                         {"auto_map", {{"AutoModel", "x.Y"}}},
                         {"task_specific_params", {{"a", 1}}},
                         {"id2label", {{"0", "a"}}},
                         {"gradient_checkpointing", true},
                         {"unsloth_version", "2026"},
                         {"is_llama_config", true},
                         {"rope_interleaved", false},
                         {"use_mrope", false},
                         {"is_encoder_decoder", false},
                         {"add_cross_attention", false},
                         {"tie_encoder_decoder", false},
                         {"torchscript", false},
                         {"bos_token", "<s>"},
                         {"pad_token", nullptr},
                         {"bf16", true},
                         {"transformers.js_config", {{"dtype", "q4"}}},
                         {"cache_implementation", "hybrid"},
                         {"router_aux_loss_coef", 0.001},
                         {"output_router_logits", true},
                         {"max_window_layers", 28},
                         {"temperature", 0.7},
                         {"do_sample", true},
                         {"is_causal", true},
                         {"per_layer_config", Json::object()},
                         {"layer_types", {"full_attention", "full_attention"}},
                         {"neftune_noise_alpha", 5}};
  for (const char* type : kTypes) {
    const std::string name = type;
    if (name == "gemma3_text" || name == "gpt_oss") continue;  // their layer_types are read
    EXPECT_EQ(KeysOf(With({type, harmless})), KeysOf(SmallConfig(type))) << type;
  }
}

TEST(HfConfigTest, UnknownKeysMayOnlySayNothing) {
  for (const char* type : kTypes) {
    for (const Json& nothing : {Json(), Json(""), Json::array(), Json::object()}) {
      EXPECT_EQ(KeysOf(With({type, {{"a_new_key", nothing}}})), KeysOf(SmallConfig(type))) << type;
    }
    for (const Json& value :
         {Json(true), Json(false), Json(0.5), Json(4), Json("x"), Json({1, 2})}) {
      ExpectRefused(With({type, {{"a_new_key", value}}}).dump(), E::kUnsupportedValue,
                    "\"a_new_key\" is ");
    }
  }
}

TEST(HfConfigTest, ReadsBothFormsOfGptOss) {
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 32.0},
                     {"beta_fast", 32.0},   {"beta_slow", 1.0},
                     {"truncate", false},   {"original_max_position_embeddings", 64}};
  Json parameters = yarn;
  parameters["rope_theta"] = 150000;
  const Json before = {{"rope_theta", 150000},
                       {"rope_scaling", yarn},
                       {"experts_per_token", 2},
                       {"initial_context_length", 64},
                       {"swiglu_limit", 7.0},
                       {"attention_bias", true},
                       {"quantization_config", {{"quant_method", "mxfp4"}}},
                       {"hidden_act", "silu"}};
  EXPECT_EQ(KeysOf(With({"gpt_oss", before})),
            KeysOf(With({"gpt_oss", {{"rope_parameters", parameters}}})));
  // Without parameters the class has those of the published models.
  parameters["original_max_position_embeddings"] = 4096;
  parameters.erase("beta_fast");
  parameters.erase("beta_slow");
  EXPECT_EQ(KeysOf(SmallConfig("gpt_oss")),
            KeysOf(With({"gpt_oss", {{"rope_parameters", parameters}}})));
  EXPECT_EQ(KeysOf(SmallConfig("gpt_oss")),
            KeysOf(With({"gpt_oss", {{"rope_parameters", nullptr}}})));
  EXPECT_EQ(KeysOf(With({"gpt_oss", {{"rope_parameters", parameters}, {"rope_scaling", nullptr}}})),
            KeysOf(With({"gpt_oss", {{"rope_parameters", parameters}}})));
}

TEST(HfConfigTest, RefusesWhatGptOssCannotBe) {
  Json json = SmallConfig("gpt_oss");
  json["sliding_window"] = nullptr;
  ExpectRefused(json.dump(), E::kMissingKey, "sliding_window");
  json = SmallConfig("gpt_oss");
  json["experts_per_token"] = 4;
  ExpectRefused(json.dump(), E::kBadValue, "\"experts_per_token\" is 4");
  for (const Json& nothing : {Json(nullptr), Json(Json::object())}) {
    json = SmallConfig("gpt_oss");
    json["rope_scaling"] = nothing;
    ExpectRefused(json.dump(), E::kBadValue, "releases of transformers do not agree");
    json["rope_parameters"] = nullptr;
    ExpectRefused(json.dump(), E::kBadValue, "releases of transformers do not agree");
  }
  json = SmallConfig("llama");
  json["quantization_config"] = {{"quant_method", "mxfp4"}};
  ExpectRefused(json.dump(), E::kQuantized, "mxfp4");
}

TEST(HfConfigTest, WhatIsNotComputedIsRefusedByName) {
  const std::vector<Change> cases = {
      {"llama",
       {{"use_rotary_embeddings", false}},
       "\"use_rotary_embeddings\" is false, which is not computed"},
      {"gpt_oss", {{"swiglu_limit", 5.0}}, "\"swiglu_limit\" is 5.0"},
      {"gpt_oss", {{"swiglu_alpha", 1.0}}, "\"swiglu_alpha\" is 1.0"},
      {"llama", {{"swiglu_limit", 7.0}}, "\"swiglu_limit\" is 7.0"},
      {"gpt_oss", {{"norm_topk_prob", true}}, "\"norm_topk_prob\" is true"},
      {"llama", {{"num_experts_per_token", 2}}, "\"num_experts_per_token\" is 2"},
      {"qwen3_moe", {{"num_experts_per_token", 8}}, "\"num_experts_per_token\" is 8"},
      {"llama", {{"num_global_token", 1}}, "\"num_global_token\" is 1"},
      {"llama", {{"is_encoder_decoder", true}}, "\"is_encoder_decoder\" is true"},
      {"gemma3_text",
       {{"use_bidirectional_attention", true}},
       "\"use_bidirectional_attention\" is true, which is not computed (supported is only false)"},
      {"qwen3", {{"is_causal", false}}, "\"is_causal\" is false"},
      {"llama", {{"use_bidirectional_attention", "vision"}}, "is \"vision\""},
      {"llama", {{"attention_chunk_size", 64}}, "\"attention_chunk_size\" is 64"},
      {"llama", {{"no_rope_layers", {1, 1, 0}}}, "\"no_rope_layers\" is [1, 1, 0]"},
      {"llama", {{"quantization", {{"bits", 4}}}}, "\"quantization\" is {\"bits\": 4}"},
      {"qwen2", {{"num_experts", 4}}, "\"num_experts\" is 4"},
      {"gemma3_text", {{"final_logit_softcapping", 30.0}}, "\"final_logit_softcapping\" is 30.0"},
      {"mistral", {{"sliding_window", 0}}, "\"sliding_window\""},
      {"mistral", {{"sliding_window", 128}, {"use_sliding_window", true}}, "use_sliding_window"},
      {"llama", {{"sliding_window", 128}}, "\"sliding_window\" is 128"},
      {"qwen3_moe",
       {{"use_sliding_window", true}, {"sliding_window", 8}},
       "\"sliding_window\" is 8"},
      {"qwen2",
       {{"layer_types", {"full_attention", "sliding_attention"}}, {"sliding_window", nullptr}},
       "\"layer_types\""},
      {"smollm3", {{"use_sliding_window", true}, {"sliding_window", 8}}, "\"sliding_window\" is 8"},
      {"smollm3",
       {{"layer_types", {"full_attention", "sliding_attention"}}, {"sliding_window", 8}},
       "\"sliding_window\" is 8"},
      {"qwen2",
       {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}},
       "\"sliding_window\" is 8"},
      {"llama",
       {{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}}},
       "\"partial_rotary_factor\" is 0.5"},
      {"llama",
       {{"per_layer_config", {{"0", {{"head_dim", 8}}}}}},
       "\"per_layer_config\" is an object"},
      {"llama", {{"intermediate_size", {32, 64}}}, "\"intermediate_size\" is [32, 64]"},
      {"llama", {{"rope_scaling", LongRope()}}, "\"long_factor\""},
      {"phi3", {{"rope_scaling", LongRope()}}, "\"original_max_position_embeddings\""},
      {"phi3", {{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}}, "rope type \"yarn\""},
      {"olmo2", {{"sliding_window", 16}}, "\"sliding_window\" is 16"},
      {"olmo2", {{"clip_qkv", 8.0}}, "\"clip_qkv\" is 8.0"},
      {"olmo2", {{"layer_types", {"full_attention", "sliding_attention"}}}, "\"layer_types\""},
      {"phi3", {{"sliding_window", 0}}, "\"sliding_window\""},
      {"phi3", {{"sliding_window", 16}, {"use_sliding_window", false}}, "\"use_sliding_window\""},
      {"phi3", {{"layer_types", {"full_attention", "sliding_attention"}}}, "\"layer_types\""},
      {"phi3", {{"partial_rotary_factor", 0.2}}, "\"partial_rotary_factor\""},
      {"phi3", {{"partial_rotary_factor", 1.5}}, "\"partial_rotary_factor\""},
      {"phi3", {{"lm_head_bias", true}}, "\"lm_head_bias\" is true"},
      {"phi3", {{"full_attn_mod", 2}}, "\"full_attn_mod\" is 2"},
  };
  for (const Change& test : cases) {
    const absl::Status status = ReadHfConfig(With(test).dump()).status();
    EXPECT_FALSE(status.ok()) << test.words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words));
    EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos);
  }
}

TEST(HfConfigTest, PatternsOfWindowsThatItsClassPassesOverAreRefused) {
  const std::vector<Change> cases = {
      // Its class takes 6 unless sliding_window_pattern says otherwise.
      {"gemma3_text", {{"_sliding_window_pattern", 2}}, "\"_sliding_window_pattern\" is 2"},
      {"gemma3_text",
       {{"_sliding_window_pattern", 6}, {"sliding_window_pattern", 2}},
       "\"_sliding_window_pattern\" is 6"},
      // Every second layer of it is local unless layer_types says otherwise.
      {"gpt_oss", {{"sliding_window_pattern", 3}}, "\"sliding_window_pattern\" is 3"},
      {"gpt_oss", {{"_sliding_window_pattern", 6}}, "\"_sliding_window_pattern\" is 6"},
  };
  for (const Change& test : cases) {
    const absl::Status status = ReadHfConfig(With(test).dump()).status();
    EXPECT_FALSE(status.ok()) << test.words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words));
    EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos);
  }
}

// Each change of a good one.
TEST(HfConfigTest, ALongRopeThatIsNotWholeIsRefusedByTheKey) {
  const Json context = {{"original_max_position_embeddings", 64}};
  Json good = With({"phi3", context});
  good["rope_scaling"] = LongRope();
  EXPECT_FALSE(KeysOf(good).empty());
  const std::vector<Change> cases = {
      {"short_factor", {{"short_factor", std::vector<double>(7, 1.5)}}},
      {"long_factor", {{"long_factor", std::vector<double>(8, 0.0)}}},
      {"long_factor", {{"long_factor", "1.5"}}},
      {"factor", {{"factor", 5.0}}},
      {"beta_fast", {{"beta_fast", 32.0}}},
      {"original_max_position_embeddings", {{"original_max_position_embeddings", 32}}},
  };
  for (const Change& test : cases) {
    Json bad = good;
    bad["rope_scaling"].update(test.change);
    const absl::Status status = ReadHfConfig(bad.dump()).status();
    EXPECT_FALSE(status.ok()) << test.change;
    EXPECT_THAT(std::string(status.message()), HasSubstr(fmt::format("\"{}\"", test.model_type)));
  }
  // The forms that releases before 5 and from 5 on write.
  Json same = good;
  same["rope_scaling"]["type"] = "su";
  EXPECT_EQ(KeysOf(same), KeysOf(good));
  same["rope_scaling"]["factor"] = 4.0;
  EXPECT_EQ(KeysOf(same), KeysOf(good));
  Json parameters = good["rope_scaling"];
  parameters.update({{"rope_type", "longrope"},
                     {"rope_theta", 10000.0},
                     {"partial_rotary_factor", 1.0},
                     {"original_max_position_embeddings", 64}});
  parameters.erase("type");
  Json renewed = With({"phi3", context});
  renewed["rope_parameters"] = parameters;
  EXPECT_EQ(KeysOf(renewed), KeysOf(good));
  renewed["partial_rotary_factor"] = 0.5;
  ExpectRefused(renewed.dump(), E::kBadValue, "\"partial_rotary_factor\"");
}

Json MinistralRope() {
  return {{"rope_type", "yarn"},
          {"rope_theta", 1e6},
          {"factor", 4.0},
          {"original_max_position_embeddings", 64},
          {"mscale", 1.0},
          {"mscale_all_dim", 1.0},
          {"max_position_embeddings", 256},
          {"llama_4_scaling_beta", 0.1}};
}

TEST(HfConfigTest, TheTextPartOfMistral3IsReadAsItsModel) {
  Json text = With({"ministral3", {{"rope_parameters", MinistralRope()}}});
  const Json outer = {{"model_type", "mistral3"},    {"text_config", text},
                      {"image_token_index", 10},     {"multimodal_projector_bias", false},
                      {"spatial_merge_size", 2},     {"projector_hidden_act", "gelu"},
                      {"vision_feature_layer", -1},  {"vision_config", {{"depth", 1}}},
                      {"tie_word_embeddings", false}};
  EXPECT_EQ(KeysOf(outer), KeysOf(text));
  Json old = outer;  // Mistral Small 3
  old["text_config"] = SmallConfig("mistral");
  EXPECT_EQ(KeysOf(old), KeysOf(SmallConfig("mistral")));
  Json other = outer;
  other["text_config"]["model_type"] = "mistral4";
  ExpectRefused(other.dump(), E::kUnsupportedValue, "\"model_type\" is \"mistral4\"");
  // The form of releases before 5.
  Json scaling = MinistralRope();
  scaling.erase("rope_theta");
  Json before = With({"ministral3", {{"rope_theta", 1e6}, {"rope_scaling", scaling}}});
  EXPECT_EQ(KeysOf(before), KeysOf(text));
  const std::vector<Change> cases = {{"llama_4_scaling_beta", {{"llama_4_scaling_beta", nullptr}}},
                                     {"llama_4_scaling_beta", {{"llama_4_scaling_beta", -0.1}}},
                                     {"rope type", {{"rope_type", "default"}}}};
  for (const Change& test : cases) {
    Json bad = text;
    bad["rope_parameters"].update(test.change);
    const absl::Status status = ReadHfConfig(bad.dump()).status();
    EXPECT_FALSE(status.ok()) << test.change;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.model_type));
  }
}

TEST(HfConfigTest, MistralsHaveTheWindowOfTheirConfigInEveryLayer) {
  const Json rope = {{"rope_parameters", MinistralRope()}};
  for (const Json& base : {SmallConfig("mistral"), With({"ministral3", rope})}) {
    Json windowed = base;
    windowed["sliding_window"] = 64;
    EXPECT_THAT(KeysOf(windowed), HasSubstr(".attention.sliding_window"));
    windowed["sliding_window"] = 256;  // all that it reads at once
    EXPECT_EQ(KeysOf(windowed), KeysOf(base));
  }
  // The class has a window where the file has no key.
  Json by_default = SmallConfig("mistral");
  by_default.erase("sliding_window");
  EXPECT_EQ(KeysOf(by_default), KeysOf(SmallConfig("mistral")));
  by_default["max_position_embeddings"] = 32768;
  EXPECT_THAT(KeysOf(by_default), HasSubstr("llama.attention.sliding_window"));
}

TEST(HfConfigTest, TheSameArithmeticUnderAnotherNameIsTheSame) {
  const Json old_rope = {{"rope_theta", 5e5},
                         {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}};
  const Json new_rope = {
      {"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "linear"}, {"factor", 4.0}}}};
  EXPECT_EQ(KeysOf(With({"qwen2", old_rope})), KeysOf(With({"qwen2", new_rope})));
  Json both = old_rope;
  both.update(new_rope);
  EXPECT_EQ(KeysOf(With({"qwen2", both})), KeysOf(With({"qwen2", new_rope})));

  const std::vector<Change> neutral = {
      {"llama", {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}},
      {"llama", {{"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}},
      {"llama", {{"sliding_window", 256}}},
      {"mistral", {{"sliding_window", 4096}}},
      {"qwen2", {{"use_sliding_window", true}, {"sliding_window", 16}, {"max_window_layers", 2}}},
      {"qwen3",
       {{"use_sliding_window", true},
        {"sliding_window", 16},
        {"layer_types", {"full_attention", "full_attention"}}}},
      {"smollm3",
       {{"use_sliding_window", true},
        {"sliding_window", 16},
        {"layer_types", {"full_attention", "full_attention"}}}},
      {"gemma3_text", {{"_sliding_window_pattern", 6}}},
      {"gpt_oss", {{"sliding_window_pattern", 2}}},
      {"qwen3_moe", {{"use_sliding_window", true}, {"sliding_window", 256}}},
      {"qwen2", {{"hidden_act", "swish"}}},
      {"llama", {{"intermediate_size", {32, 32}}, {"num_key_value_heads", {1, 1}}}},
      {"qwen3_moe", {{"num_experts", nullptr}, {"num_local_experts", 4}}},
      {"qwen3_moe", {{"num_experts", 4}, {"num_local_experts", 4}}},
  };
  for (const Change& test : neutral) {
    EXPECT_EQ(KeysOf(With(test)), KeysOf(SmallConfig(test.model_type))) << test.change;
  }
}

TEST(HfConfigTest, TwoNamesThatDisagreeAreRefusedByBoth) {
  ExpectRefused(With({"qwen3_moe", {{"num_local_experts", 3}}}).dump(), E::kBadValue,
                "\"num_local_experts\" is 3, wanted the 4 of \"num_experts\"");
  ExpectRefused(
      With({"llama", {{"rope_theta", 5e5}, {"rope_parameters", {{"rope_theta", 1e4}}}}}).dump(),
      E::kBadValue, "\"rope_theta\" is 500000.0, wanted the 10000 of");
  ExpectRefused(With({"llama",
                      {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
                       {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}}}}})
                    .dump(),
                E::kBadValue, "\"factor\" is 2.0, wanted the value of rope_parameters");
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0},         {"original_max_position_embeddings", 64},
      {"mscale", 1.0},       {"mscale_all_dim", 0.5}, {"truncate", true}};
  EXPECT_EQ(KeysOf(With({"llama", {{"rope_scaling", yarn}, {"rope_parameters", yarn}}})),
            KeysOf(With({"llama", {{"rope_parameters", yarn}}})));
  const Json changes = {{"mscale", 0.5}, {"mscale_all_dim", 1.0}};
  for (const auto& [key, value] : changes.items()) {
    Json other = yarn;
    other[key] = value;
    ExpectRefused(With({"llama", {{"rope_scaling", yarn}, {"rope_parameters", other}}}).dump(),
                  E::kBadValue, "\"" + key + "\" is ");
  }
  Json whole = yarn;
  whole["truncate"] = false;
  ExpectRefused(With({"llama", {{"rope_scaling", yarn}, {"rope_parameters", whole}}}).dump(),
                E::kBadValue, "\"truncate\" is true, wanted the value of rope_parameters");
}

// By their names in config.json: those in GGUF stand in no file of the folder.
TEST(HfConfigTest, NumbersOutOfRangeAreNamedAsTheFileDoes) {
  const std::vector<Change> cases = {
      {"llama", {{"num_hidden_layers", 0}}, "\"num_hidden_layers\" is 0, wanted [1, 1024]"},
      {"llama", {{"num_hidden_layers", 1025}}, "\"num_hidden_layers\" is 1025, wanted [1, 1024]"},
      {"qwen3", {{"hidden_size", 0}}, "\"hidden_size\" is 0, wanted [1, 131072]"},
      {"qwen2", {{"vocab_size", 0}}, "\"vocab_size\" is 0, wanted [1, 1048576]"},
      {"llama", {{"intermediate_size", 1 << 20}}, "\"intermediate_size\" is 1048576, wanted [0, "},
      {"phi3", {{"max_position_embeddings", 1}}, "\"max_position_embeddings\" is 1, wanted [2, "},
      {"llama", {{"rms_norm_eps", 0.0}}, "\"rms_norm_eps\" is 0.0, wanted (0, 1]"},
      {"lfm2", {{"norm_eps", 2.0}}, "\"norm_eps\" is 2.0, wanted (0, 1]"},
  };
  for (const Change& test : cases) {
    ExpectRefused(With(test).dump(), E::kBadValue, std::string("config.json: ") + test.words);
  }
}

TEST(HfConfigTest, LiteralsOfPythonAreNumbers) {
  const std::string whole = SmallConfig("llama").dump();
  const auto with = [&whole](std::string_view member) {
    return whole.substr(0, whole.size() - 1) + "," + std::string(member) + "}";
  };
  ExpectRefused(with(R"("time_step_limit":[0.0,Infinity])"), E::kUnsupportedValue,
                "\"time_step_limit\" is [0.0, Infinity]");
  ExpectRefused(with(R"("time_step_limit":[0.0,{"__float__":"Infinity"}])"), E::kUnsupportedValue,
                "\"time_step_limit\" is [0.0, Infinity]");
  ExpectRefused(with(R"("rope_theta":-Infinity)"), E::kBadValue, "\"rope_theta\" is -Infinity");
  ExpectRefused(with(R"("rope_theta":1e999)"), E::kBadValue, "\"rope_theta\" is Infinity");
  EXPECT_TRUE(
      ReadHfConfig(with(R"("attention_dropout":NaN,"_name_or_path":"NaN, \"Infinity\"")")).ok());
  ExpectRefused(R"({"model_type":"nemotron_h","time_step_limit":[0.0,Infinity]})", E::kMissingKey,
                "no \"hybrid_override_pattern\"");
  ExpectRefused(with(R"("x":Infinit)"), E::kBadJson, "no JSON object");
  ExpectRefused(with(R"("x":NaNNaN)"), E::kBadJson, "no JSON object");
}

TEST(HfConfigTest, TheOuterConfigMaySayAgainWhatTheTextPartSays) {
  const Json text = With({"qwen3_5_text",
                          {{"rope_parameters", {{"partial_rotary_factor", 0.5}}},
                           {"linear_num_value_heads", 16},
                           {"layer_types", {"linear_attention", "full_attention"}}}});
  Json outer = {
      {"model_type", "qwen3_5"}, {"text_config", text}, {"vision_config", Json::object()}};
  const std::string keys = KeysOf(outer);
  for (const Change& again : {Change{"", {{"partial_rotary_factor", 0.5}}},
                              Change{"", {{"hidden_size", 32}, {"head_dim", 16}}}}) {
    Json repeated = outer;
    repeated.update(again.change);
    EXPECT_EQ(KeysOf(repeated), keys) << again.change;
  }
  outer["partial_rotary_factor"] = 0.25;
  ExpectRefused(outer.dump(), E::kUnsupportedValue, "\"partial_rotary_factor\" is 0.25");
}

// Only releases from 5 on have this class, and there the value of rope_parameters holds.
TEST(HfConfigTest, RopeParametersOfQwen35HoldBeforeAnOlderKey) {
  Json json = With({"qwen3_5_text",
                    {{"rope_parameters", {{"partial_rotary_factor", 0.5}}},
                     {"layer_types", {"linear_attention", "full_attention"}}}});
  const std::string keys = KeysOf(json);
  json["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(KeysOf(json), keys);
  json["rope_parameters"]["partial_rotary_factor"] = nullptr;
  const std::string of_older = KeysOf(json);
  EXPECT_NE(of_older, keys);
  json.erase("partial_rotary_factor");
  EXPECT_EQ(KeysOf(json), of_older) << "the default of the class";
}

TEST(HfConfigTest, TextModelsInsideOthersHaveTheDefaultsOfTheirClass) {
  Json published = {{"model_type", "gemma3"},
                    {"architectures", {"Gemma3ForConditionalGeneration"}},
                    {"boi_token_index", 255999},
                    {"eoi_token_index", 256000},
                    {"eos_token_id", {1, 106}},
                    {"image_token_index", 262144},
                    {"initializer_range", 0.02},
                    {"mm_tokens_per_image", 256},
                    {"torch_dtype", "bfloat16"},
                    {"vision_config", {{"hidden_size", 1152}}},
                    {"text_config",
                     {{"hidden_size", 2560},
                      {"intermediate_size", 10240},
                      {"model_type", "gemma3_text"},
                      {"num_hidden_layers", 34},
                      {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                      {"sliding_window", 1024}}}};
  const auto config = ReadHfConfig(published.dump());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->has_images);
  EXPECT_TRUE(config->tied);
  EXPECT_EQ(config->num_heads, 8u);
  EXPECT_EQ(config->num_kv_heads, 4u);
  published["text_config"]["use_bidirectional_attention"] = true;
  ExpectRefused(published.dump(), E::kUnsupportedValue,
                "config.json: text_config: \"use_bidirectional_attention\" is true");
  published["text_config"] = 3;
  ExpectRefused(published.dump(), E::kBadValue, "\"text_config\" is 3");
  published.erase("text_config");
  ExpectRefused(published.dump(), E::kMissingKey, "text_config");
}

}  // namespace
}  // namespace baton::model
