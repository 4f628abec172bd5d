// Descriptions of weights in quantization_config: MXFP4 and MXFP8, ModelOpt's lists of layers, and
// auto-round's packings. What is read is what the packages' definition says, and what is not is
// refused by its name.
#include "src/model/hf_quantization.h"

#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/fp8_rows.h"
#include "src/model/folder_error.h"
#include "src/model/hf_folder.h"
#include "src/model/hf_fp8.h"
#include "src/model/model_report.h"
#include "tests/model/packed_folder.h"
#include "tests/model/test_model.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using E = FolderErrorCode;

const std::string kQ = "model.layers.0.self_attn.q_proj";   // [192, 160]
const std::string kFirst = "model.layers.0.mlp.down_proj";  // the first by its name

PackedModel MakeModel(std::string_view form) {
  for (const PackedForm& row : PackedForms()) {
    if (row.name == form) return PackedModelMaker(row).Make(/*has_experts=*/false);
  }
  ADD_FAILURE() << "no form " << form;
  return {};
}

absl::StatusOr<std::unique_ptr<GgufFile>> Opened(const PackedModel& model) {
  const TestFolder folder("quantization");
  folder.Write(model.config, model.packed);
  return OpenModelFile(folder.path());
}

// One way to spoil a model, and the reason that must be given.
struct Refusal {
  E code;
  std::vector<std::string> words;
  std::function<void(PackedModel&)> spoil;
};

void ExpectRefusals(const PackedModel& good, const std::vector<Refusal>& cases) {
  ASSERT_TRUE(Opened(good).ok()) << Opened(good).status();
  for (const Refusal& test : cases) {
    PackedModel model = good;
    test.spoil(model);
    const auto file = Opened(model);
    EXPECT_EQ(FolderErrorName(FolderErrorOf(file.status())), FolderErrorName(test.code))
        << file.status() << model.config["quantization_config"];
    for (const std::string& words : test.words) {
      EXPECT_THAT(std::string(file.status().message()), HasSubstr(words));
    }
  }
}

// Sets a key of the quantization_config, or of what lies in it.
std::function<void(PackedModel&)> Sets(const std::string& pointer, const Json& value) {
  return [pointer, value](PackedModel& m) {
    m.config["quantization_config"][Json::json_pointer(pointer)] = value;
  };
}

std::function<void(PackedModel&)> With(const std::string& name, const FolderTensor& tensor) {
  return [name, tensor](PackedModel& m) { m.packed[name] = tensor; };
}

TEST(HfQuantizationTest, Mxfp8IsWhatThePackagesDequantise) {
  const auto file = SafetensorsFile::Open(GoldenPath("packed.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto find = [&](const std::string& name) {
    for (const SafetensorsTensor& tensor : (*file)->tensors()) {
      if (tensor.name == name) return &tensor;
    }
    ADD_FAILURE() << "no tensor " << name;
    return static_cast<const SafetensorsTensor*>(nullptr);
  };
  for (const std::string name : {"mxfp8_ct", "mxfp8_e8m0", "ar_mxfp8"}) {
    SCOPED_TRACE(name);
    const SafetensorsTensor& weight = *find(name + ".weight");
    const SafetensorsTensor& scale = *find(name + ".weight_scale");
    const auto grid = HfScaleGridOf(weight, scale);
    ASSERT_TRUE(grid.ok()) << grid.status();
    EXPECT_EQ(grid->group, 32u);
    const uint64_t n = weight.shape[0];
    const uint64_t k = weight.shape[1];
    std::vector<float> scales(n * grid->groups);
    ASSERT_TRUE(ReadHfScales(scale, *grid, n, scales.data()).ok());
    const kernels::Fp8Rows rows = {weight.data, scales, static_cast<uint32_t>(n),
                                   static_cast<uint32_t>(k), grid->group};
    std::vector<float> values(n * k);
    for (uint32_t row = 0; row < n; ++row) rows.Weights(row, &values[row * k]);
    std::vector<float> wanted(n * k);
    const SafetensorsTensor& expected = *find(name + ".expected");
    ASSERT_EQ(expected.data.size(), wanted.size() * sizeof(float));
    std::memcpy(wanted.data(), expected.data.data(), expected.data.size());
    EXPECT_EQ(values, wanted);
  }
}

TEST(HfQuantizationTest, RefusesMxfp4OfAnotherShapeOrWithoutNumbers) {
  const std::string scale = kQ + ".weight_scale";
  const auto coded = [&](char code) {
    return [scale, code](PackedModel& m) { m.packed[scale].bytes[7] = code; };
  };
  ExpectRefusals(
      MakeModel("ct_mxfp4"),
      {{E::kBadScale, {scale, "element 7 is NaN"}, coded('\xFF')},
       {E::kBadScale, {scale, "element 7 is 2^126", "infinite"}, coded('\xFD')},
       {E::kBadShape,
        {scale, "[192, 10]", "[192, 5]"},
        [&](PackedModel& m) {
          m.packed[scale] = {"U8", {192, 10}, std::string(1920, '\x70')};
        }},
       {E::kBadShape,
        {kQ + ".weight_packed", "whole groups of 32"},
        [](PackedModel& m) {
          m.packed[kQ + ".weight_packed"] = {"U8", {192, 72}, std::string(192 * 72, '\1')};
        }},
       {E::kBadScale, {kQ, "no scales"}, [&](PackedModel& m) { m.packed.erase(scale); }},
       {E::kUnknownTensor,
        {kQ + ".weight_global_scale", "MXFP4"},
        With(kQ + ".weight_global_scale", NumbersTensor("F32", {1}, {1}))},
       {E::kUnknownTensor,
        {kQ + ".weight_zero_point"},
        With(kQ + ".weight_zero_point", {"U8", {192, 5}, std::string(960, '\1')})},
       {E::kUnsupportedValue,
        {kFirst, "MXFP4", "declare"},
        Sets("/config_groups/group_0/weights/group_size", 16)},
       {E::kUnsupportedValue,
        {"group_size", "64"},
        Sets("/config_groups/group_0/weights/group_size", 64)},
       {E::kUnsupportedValue,
        {"format", "mxfp6-pack-quantized"},
        Sets("/format", "mxfp6-pack-quantized")}});
}

TEST(HfQuantizationTest, Mxfp4IsDescribedAsWhatItIs) {
  for (const auto& [form, words] :
       {std::pair{"ct_mxfp4", "compressed-tensors: 14 of MXFP4 as MXFP4"},
        {"ar_mxfp4", "auto-round: 14 of MXFP4 as MXFP4"},
        {"ar4", "auto-round: 14 of 4 bits in groups of 32 as Q4_0"},
        {"ar4_zeros", "auto-round: 14 of 4 bits in groups of 32 as Q5_0"}}) {
    const auto file = Opened(MakeModel(form));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(DescribeModelFile(**file, OkStatus()), HasSubstr(words));
  }
}

// Matrices in NVFP4 but q of the first layer, which is F8_E4M3.
PackedModel MixedModel() {
  PackedModel model = MakeModel("modelopt_nvfp4");
  for (const char* part : {".weight", ".weight_scale", ".weight_scale_2"}) {
    model.packed.erase(kQ + part);
  }
  model.packed[kQ + ".weight"] = {"F8_E4M3", {192, 160}, std::string(192 * 160, '\x38')};
  model.packed[kQ + ".weight_scale"] = NumbersTensor("F32", {}, {0.01f});
  Json& says = model.config["quantization_config"];
  says["quant_algo"] = "MIXED_PRECISION";
  for (const char* layer : {"0", "1"}) {
    for (const char* part : {"mlp", "self_attn"}) {
      says["quantized_layers"][fmt::format("model.layers.{}.{}", layer, part)] = {
          {"quant_algo", part[0] == 'm' ? "W4A16_NVFP4" : "nvfp4"}, {"group_size", 16}};
    }
  }
  says["quantized_layers"][kQ] = {{"quant_algo", "FP8"}};
  says["config_groups"] = {
      {"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}, {"targets", {kQ}}}},
      {"group_1",
       {{"weights", {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}}},
        {"targets", {"model.layers.0.mlp"}}}}};
  return model;
}

TEST(HfQuantizationTest, ReadsTheLayersThatModelOptLists) {
  const PackedModel model = MixedModel();
  const auto file = Opened(model);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE((*file)->FindTensor("blk.0.attn_q.weight")->fp8(), nullptr);
  EXPECT_EQ((*file)->FindTensor("blk.0.ffn_down.weight")->fp8(), nullptr);
  // The older file has the same list.
  PackedModel plain = model;
  plain.config.erase("quantization_config");
  const TestFolder folder("mixed");
  folder.Write(plain.config, plain.packed);
  const Json& says = model.config["quantization_config"];
  const Json inner = {{"quant_algo", "MIXED_PRECISION"},
                      {"kv_cache_quant_algo", nullptr},
                      {"quantized_layers", says["quantized_layers"]}};
  std::ofstream(folder.path() + "/hf_quant_config.json") << Json{{"quantization", inner}}.dump();
  EXPECT_TRUE(OpenModelFile(folder.path()).ok()) << OpenModelFile(folder.path()).status();
}

TEST(HfQuantizationTest, RefusesLayersThatTheListDoesNotHaveSo) {
  const std::string layers = "/quantized_layers/";
  ExpectRefusals(
      MixedModel(),
      {{E::kUnsupportedValue,
        {kQ, "F8_E4M3", "declare"},
        [](PackedModel& m) {
          m.config["quantization_config"]["quantized_layers"].erase(kQ);
          m.config["quantization_config"].erase("config_groups");
        }},
       {E::kUnsupportedValue,
        {kFirst, "NVFP4", "declare"},
        Sets(layers + "model.layers.0.mlp/quant_algo", "FP8")},
       {E::kUnsupportedValue,
        {kFirst, "NVFP4", "declare"},
        [](PackedModel& m) {
          m.config["quantization_config"]["quantized_layers"].erase("model.layers.0.mlp");
        }},
       {E::kUnsupportedValue,
        {"model.layers.0.mlp", "quant_algo", "W4A16_AWQ"},
        Sets(layers + "model.layers.0.mlp/quant_algo", "W4A16_AWQ")},
       {E::kUnsupportedValue,
        {"model.layers.0.mlp", "group_size", "32"},
        Sets(layers + "model.layers.0.mlp/group_size", 32)},
       {E::kUnsupportedValue,
        {"model.layers.0.mlp", "pre_quant_scale"},
        Sets(layers + "model.layers.0.mlp/pre_quant_scale", true)},
       {E::kUnsupportedValue, {"a_new_key"}, Sets(layers + "model.layers.0.mlp/a_new_key", 3)},
       {E::kMissingKey,
        {"model.layers.0.mlp", "quant_algo"},
        Sets(layers + "model.layers.0.mlp", Json::object())},
       {E::kBadValue, {"quantized_layers"}, Sets("/quantized_layers", Json::object())},
       {E::kBadValue,
        {"config_groups"},
        Sets("/config_groups/group_0/weights", {{"num_bits", 4}, {"type", "int"}})}});
}

TEST(HfQuantizationTest, AModelOptConfigOfKvAloneIsOfNoWeights) {
  PackedModel model = MakeModel("modelopt_nvfp4");
  model.packed = model.plain;
  model.config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"ignore", Json::array()}, {"kv_cache_scheme", "NVFP4"}};
  EXPECT_TRUE(Opened(model).ok()) << Opened(model).status();
}

TEST(HfQuantizationTest, ReadsModulesThatAutoRoundGivesOtherBits) {
  PackedModel model = MakeModel("ar4");
  const PackedModel eights = MakeModel("gptq8");
  for (const char* part : {".qweight", ".qzeros", ".scales"}) {
    model.packed[kQ + part] = eights.packed.at(kQ + part);
    model.packed.erase(kFirst + part);
  }
  model.packed[kFirst + ".weight"] = model.plain.at(kFirst + ".weight");
  EXPECT_FALSE(Opened(model).ok());
  Json& says = model.config["quantization_config"];
  says["extra_config"] = {{".*q_proj", {{"bits", 8}, {"super_bits", nullptr}}},
                          {kFirst, {{"bits", 16}, {"data_type", "float"}}}};
  const auto file = Opened(model);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(
      DescribeModelFile(**file, OkStatus()),
      HasSubstr("12 of 4 bits in groups of 32 as Q4_0, 1 of 8 bits in groups of 32 as Q8_0"));
}

TEST(HfQuantizationTest, RefusesFormsOfAutoRoundByName) {
  const std::vector<Refusal> cases = {
      {E::kUnsupportedValue, {"bits", "3"}, Sets("/bits", 3)},
      {E::kMissingKey,
       {"bits"},
       [](PackedModel& m) { m.config["quantization_config"].erase("bits"); }},
      {E::kUnsupportedValue, {"data_type", "mx_int"}, Sets("/data_type", "mx_int")},
      {E::kUnsupportedValue,
       {"packing_format", "auto_round:mlx"},
       Sets("/packing_format", "auto_round:mlx")},
      {E::kUnsupportedValue, {"act_bits", "8"}, Sets("/act_bits", 8)},
      {E::kUnsupportedValue, {"super_bits"}, Sets("/super_bits", 6)},
      {E::kUnsupportedValue,
       {"rotation_configs"},
       Sets("/rotation_configs", Json::array({{{"type", "hadamard"}}}))},
      {E::kUnsupportedValue, {"a_new_key"}, Sets("/a_new_key", 3)},
      {E::kUnsupportedValue, {kFirst, "groups of 32", "declare"}, Sets("/group_size", 64)},
      {E::kUnsupportedValue,
       {kFirst, "not quantised"},
       Sets("/extra_config", {{kFirst, {{"bits", 16}}}})},
      {E::kUnsupportedValue,
       {"extra_config: \"x\"", "bits", "2"},
       Sets("/extra_config", {{"x", {{"bits", 2}}}})},
      {E::kUnsupportedValue,
       {"extra_config", "a_new_key"},
       Sets("/extra_config", {{"x", {{"a_new_key", 2}}}})},
      {E::kBadValue, {"extra_config"}, Sets("/extra_config", {{"x", 3}})}};
  ExpectRefusals(MakeModel("ar4"), cases);
  ExpectRefusals(MakeModel("ar_mxfp4"),
                 {{E::kUnsupportedValue, {"group_size"}, Sets("/group_size", 16)},
                  {E::kUnsupportedValue, {"sym"}, Sets("/sym", false)},
                  {E::kUnsupportedValue,
                   {"packing_format", "e5m3"},
                   Sets("/packing_format", "auto_round:llm_compressor_nvfp4_e5m3")}});
}

// Weights in fp8 with auto-round's words: the tensors say how scales lie.
TEST(HfQuantizationTest, ReadsFp8OfAutoRound) {
  for (const Fp8Layout& layout : Fp8Layouts()) {
    const std::string_view name = layout.name;
    if (name != "rows" && name != "inverse") continue;
    SCOPED_TRACE(name);
    const Fp8Model fp8 = Fp8ModelMaker(layout).Make(/*has_experts=*/false);
    PackedModel model = {fp8.config, fp8.fp8, fp8.bf16};
    model.config["quantization_config"] = {{"quant_method", "auto-round"},
                                           {"bits", 8},
                                           {"data_type", "fp"},
                                           {"group_size", -1},
                                           {"fmt", "e4m3"},
                                           {"packing_format", "auto_round:fp8"},
                                           {"act_bits", 8},
                                           {"sym", true},
                                           {"activation_scheme", "dynamic"}};
    if (name == "inverse") model.config["quantization_config"]["group_size"] = {128, 128};
    ExpectRefusals(
        model,
        {{E::kUnsupportedValue, {"fmt", "e5m2"}, Sets("/fmt", "e5m2")},
         {E::kUnsupportedValue, {"bits", "4"}, Sets("/bits", 4)},
         {E::kUnsupportedValue, {"group_size"}, Sets("/group_size", Json::array({64, 64}))}});
  }
}

}  // namespace
}  // namespace baton::model
