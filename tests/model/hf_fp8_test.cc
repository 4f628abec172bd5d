// Folders whose matrices are F8_E4M3: they compute what the same weights in bf16 do, and what is
// wrong with scales, codes or their description gives one typed error.
#include "src/model/hf_fp8.h"

#include <filesystem>
#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/convert.h"
#include "src/model/folder_error.h"
#include "src/model/hf_folder.h"
#include "src/model/model_report.h"
#include "tests/model/fp8_folder.h"
#include "tests/model/model_fixture.h"

namespace baton::model {

using device::ThreadPool;

namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using E = FolderErrorCode;

constexpr char kQ[] = "model.layers.0.self_attn.q_proj.weight";  // [192, 160]
constexpr char kQScale[] = "model.layers.0.self_attn.q_proj.weight_scale";
constexpr char kQInverse[] = "model.layers.0.self_attn.q_proj.weight_scale_inv";

std::vector<TokenId> SomeTokens() {
  std::vector<TokenId> out;
  for (TokenId i = 0; i < 40; ++i) out.push_back((i * 37 + 5) % 263);
  return out;
}

Fp8Model MakeModel(std::string_view layout, bool has_experts = false) {
  for (const Fp8Layout& row : Fp8Layouts()) {
    if (row.name == layout) return Fp8ModelMaker(row).Make(has_experts);
  }
  ADD_FAILURE() << "no layout " << layout;
  return {};
}

class Fp8LayoutTest : public ::testing::TestWithParam<std::tuple<Fp8Layout, bool>> {};

TEST_P(Fp8LayoutTest, HasTheBitsOfTheSameWeightsInBf16) {
  const auto& [layout, has_experts] = GetParam();
  const Fp8Model model = Fp8ModelMaker(layout).Make(has_experts);
  const TestFolder coded("coded");
  const TestFolder plain("plain");
  coded.Write(model.config, model.fp8);
  plain.Write(model.config, model.bf16);
  ModelFixture fp8({.path = coded.path()});
  ModelFixture bf16({.path = plain.path()});
  ASSERT_TRUE(fp8.status().ok()) << fp8.status();
  ASSERT_TRUE(bf16.status().ok()) << bf16.status();
  const std::vector<TokenId> tokens = SomeTokens();
  const auto a = fp8.Run({{0, 0, tokens}}, /*all_rows=*/true);
  const auto b = bf16.Run({{0, 0, tokens}}, /*all_rows=*/true);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(std::memcmp(a->data(), b->data(), a->size() * sizeof(float)), 0);
  EXPECT_EQ(fp8.KvBytes(0, 40), bf16.KvBytes(0, 40));
  // Other bytes, so another id: there is no file of this form.
  EXPECT_NE(fp8.model().weights_id(), bf16.model().weights_id());
}

INSTANTIATE_TEST_SUITE_P(, Fp8LayoutTest,
                         ::testing::Combine(::testing::ValuesIn(Fp8Layouts()), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "_experts" : "");
                         });

absl::Status OpenStatus(const Fp8Model& model) {
  const TestFolder folder("refused");
  folder.Write(model.config, model.fp8);
  const auto file = OpenModelFile(folder.path());
  return file.ok() ? ReadModelConfig(**file).status() : file.status();
}

// One way to spoil a model, and the reason that must be given.
struct Refusal {
  E code;
  std::vector<std::string> words;
  const char* layout;
  std::function<void(Fp8Model&)> spoil;
};

void ExpectRefusals(const std::vector<Refusal>& cases) {
  for (const Refusal& test : cases) {
    Fp8Model model = MakeModel(test.layout);
    ASSERT_TRUE(OpenStatus(model).ok()) << OpenStatus(model);
    test.spoil(model);
    const absl::Status status = OpenStatus(model);
    EXPECT_EQ(FolderErrorName(FolderErrorOf(status)), FolderErrorName(test.code)) << status;
    for (const std::string& words : test.words) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    }
  }
}

FolderTensor Scales(std::vector<uint64_t> shape, float value = 0.5f) {
  uint64_t count = 1;
  for (const uint64_t size : shape) count *= size;
  return NumbersTensor("F32", std::move(shape), std::vector<float>(count, value));
}

TEST(HfFp8Test, RefusesScalesThatAreMissingOrOfAnotherShape) {
  const auto shaped = [](const char* name, std::vector<uint64_t> shape) {
    return [name, shape](Fp8Model& m) { m.fp8[name] = Scales(shape); };
  };
  ExpectRefusals({
      {E::kBadScale, {kQ, "none"}, "rows", [](Fp8Model& m) { m.fp8.erase(kQScale); }},
      {E::kBadScale, {kQ, "both"}, "rows", shaped(kQInverse, {2, 2})},
      {E::kBadScale, {kQScale, "[191]", "[192, 160]"}, "rows", shaped(kQScale, {191})},
      {E::kBadScale, {kQScale, "[160]", "[192, 160]"}, "rows", shaped(kQScale, {160})},
      {E::kBadScale, {kQScale, "[192, 2]"}, "column", shaped(kQScale, {192, 2})},
      {E::kBadScale, {kQScale, "[2, 1]"}, "blocks", shaped(kQScale, {2, 1})},
      // Blocks of 64, and of 128 x 64.
      {E::kBadScale, {kQInverse, "[3, 3]", "[2, 2]"}, "inverse", shaped(kQInverse, {3, 3})},
      {E::kBadScale, {kQInverse, "[2, 3]", "[2, 2]"}, "inverse", shaped(kQInverse, {2, 3})},
      {E::kBadScale, {kQInverse, "[1]"}, "inverse", shaped(kQInverse, {1})},
      {E::kBadScale, {kQInverse, "[192, 1]"}, "inverse", shaped(kQInverse, {192, 1})},
      {E::kBadScale,
       {kQScale, "F32, BF16"},
       "rows",
       [](Fp8Model& m) {
         m.fp8[kQScale] = {"F8_E4M3", {192}, std::string(192, '\x38')};
       }},
      {E::kBadScale,
       {"model.norm.weight_scale", "model.norm.weight"},
       "rows",
       [](Fp8Model& m) { m.fp8["model.norm.weight_scale"] = Scales({1}); }},
      {E::kBadScale,
       {"no.such.weight_scale"},
       "rows",
       [](Fp8Model& m) { m.fp8["no.such.weight_scale"] = Scales({1}); }},
  });
}

// MXFP8: a byte for each 32 of a row.
TEST(HfFp8Test, RefusesPowersOfTwoOfAnotherShapeOrOutOfRange) {
  const auto bytes = [](const char* dtype, std::vector<uint64_t> shape, char code = 120) {
    return [dtype, shape, code](Fp8Model& m) {
      m.fp8[kQScale] = {dtype, shape, std::string(shape[0] * shape[1], code)};
    };
  };
  for (const char* dtype : {"U8", "F8_E8M0"}) {
    const std::string of_16 = fmt::format("{} of shape [192, 10]", dtype);
    ExpectRefusals({
        {E::kBadScale, {kQScale, of_16, "[192, 160 / 32]"}, "mx", bytes(dtype, {192, 10})},
        {E::kBadScale, {kQScale, "[191, 5]"}, "mx", bytes(dtype, {191, 5})},
        {E::kBadScale, {kQScale, "[5, 192]"}, "mx", bytes(dtype, {5, 192})},
        {E::kBadScale, {kQScale, "element 0 is nan"}, "mx", bytes(dtype, {192, 5}, '\xFF')},
        {E::kBadScale, {kQScale, "element 0 is 256"}, "mx", bytes(dtype, {192, 5}, '\x87')},
    });
  }
}

TEST(HfFp8Test, RefusesScalesThatAreNoPositiveNumbers) {
  std::vector<Refusal> cases;
  for (const float value : {0.0f, -0.0f, -0.5f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 128.5f}) {
    for (const auto& [layout, name] : {std::pair{"rows", kQScale}, {"inverse", kQInverse}}) {
      cases.push_back({E::kBadScale,
                       {name, "element 3 is", "(0, 128]"},
                       layout,
                       [value, at = name](Fp8Model& m) {
                         std::memcpy(m.fp8[at].bytes.data() + 12, &value, sizeof(value));
                       }});
    }
  }
  ExpectRefusals(cases);
}

TEST(HfFp8Test, RefusesTensorsThatAreNoMatricesOfE4m3) {
  ExpectRefusals({
      {E::kBadDtype, {kQ, "F8_E5M2"}, "rows", [](Fp8Model& m) { m.fp8[kQ].dtype = "F8_E5M2"; }},
      {E::kBadDtype,
       {"model.norm.weight"},
       "rows",
       [](Fp8Model& m) {
         m.fp8["model.norm.weight"] = {"F8_E4M3", {160}, std::string(160, 1)};
       }},
      {E::kBadShape,
       {kQ, "[1920, 16]"},
       "scalar",
       [](Fp8Model& m) {
         m.fp8[kQ].shape = {1920, 16};
       }},
      {E::kBadShape,
       {kQ, "3 dimensions"},
       "scalar",
       [](Fp8Model& m) {
         m.fp8[kQ].shape = {192, 16, 10};
       }},
      {E::kBadShape,
       {kQ, "0 dimensions"},
       "scalar",
       [](Fp8Model& m) {
         m.fp8[kQ] = Scales({});
         m.fp8.erase(kQScale);
       }},
      {E::kTiedMismatch,
       {"lm_head.weight is F8_E4M3"},
       "scalar",
       [](Fp8Model& m) { m.config["tie_word_embeddings"] = true; }},
  });
}

TEST(HfFp8Test, RefusesOtherQuantizationsByName) {
  const auto says = [](Json quantization) {
    return [quantization](Fp8Model& m) { m.config["quantization_config"] = quantization; };
  };
  const Json threes = {{"weights", {{"type", "int"}, {"num_bits", 3}}}};
  const Json fours = {{"weights", {{"type", "float"}, {"num_bits", 4}}}};
  const Json blocks = {{"weights", {{"type", "float"}, {"block_structure", {64, 64}}}}};
  const auto groups = [](const Json& group) {
    return Json{{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", group}}}};
  };
  ExpectRefusals({
      {E::kQuantized, {"\"eetq\""}, "rows", says({{"quant_method", "eetq"}})},
      {E::kQuantized, {"unnamed"}, "rows", says({{"bits", 8}})},
      {E::kBadValue, {"quantization_config"}, "rows", says(3)},
      {E::kBadValue, {"quant_method"}, "rows", says({{"quant_method", 8}})},
      {E::kUnsupportedValue,
       {"fmt", "e5m2"},
       "rows",
       says({{"quant_method", "fp8"}, {"fmt", "e5m2"}})},
      {E::kUnsupportedValue,
       {"weight_block_size", "[128, 128]"},
       "inverse",
       says({{"quant_method", "fp8"}, {"weight_block_size", {64, 128}}})},
      {E::kUnsupportedValue,
       {"weight_block_size"},
       "inverse",
       says({{"quant_method", "fp8"}, {"weight_block_size", 128}})},
      {E::kUnsupportedValue,
       {"format", "marlin-24"},
       "rows",
       says({{"quant_method", "compressed-tensors"}, {"format", "marlin-24"}})},
      {E::kUnsupportedValue, {"num_bits", "3"}, "rows", says(groups(threes))},
      {E::kUnsupportedValue, {"group_size", "16"}, "rows", says(groups(fours))},
      {E::kUnsupportedValue, {"block_structure"}, "rows", says(groups(blocks))},
      {E::kBadValue, {"config_groups"}, "rows", says(groups(3))},
      {E::kBadValue, {"config_groups"}, "rows", says(groups(Json::object()))},
      {E::kUnsupportedValue,
       {"transform_config"},
       "rows",
       says({{"quant_method", "compressed-tensors"}, {"transform_config", {{"u", 1}}}})},
  });
}

TEST(HfFp8Test, ReadsWhatTheKnownMethodsSay) {
  const Json weights = {{"type", "float"}, {"num_bits", 8}, {"strategy", "channel"}};
  const std::pair<const char*, Json> cases[] = {
      {"inverse",
       {{"quant_method", "fp8"},
        {"fmt", "e4m3"},
        {"activation_scheme", "dynamic"},
        {"weight_block_size", {128, 128}}}},
      {"one", {{"quant_method", "fp8"}, {"activation_scheme", "static"}}},
      {"column", {{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}}},
      {"column",
       {{"quant_method", "compressed-tensors"},
        {"format", "float-quantized"},
        {"config_groups", {{"group_0", {{"weights", weights}}}}}}},
      {"column",
       {{"quant_method", "compressed-tensors"},
        {"format", "naive-quantized"},
        {"transform_config", nullptr},
        {"config_groups", {{"group_0", {{"weights", weights}}}}}}},
  };
  for (const auto& [layout, quantization] : cases) {
    Fp8Model model = MakeModel(layout);
    model.config["quantization_config"] = quantization;
    EXPECT_TRUE(OpenStatus(model).ok()) << OpenStatus(model);
  }
}

TEST(HfFp8Test, ScalesOfActivationsAndKvChangeNothing) {
  Fp8Model model = MakeModel("one");
  const TestFolder without("without");
  const TestFolder with("with");
  without.Write(model.config, model.fp8);
  const std::string attention = "model.layers.1.self_attn.";
  for (const char* name :
       {"q_proj.input_scale", "q_scale", "k_scale", "v_scale", "kv_scale", "k_proj.output_scale"}) {
    model.fp8[attention + name] = Scales({}, 7.0f);
  }
  model.fp8["lm_head.input_scale"] = Scales({}, 7.0f);
  with.Write(model.config, model.fp8);
  ModelFixture a({.path = without.path()});
  ModelFixture b({.path = with.path()});
  ASSERT_TRUE(a.status().ok() && b.status().ok()) << b.status();
  EXPECT_EQ(a.model().weights_id(), b.model().weights_id());
}

TEST(HfFp8Test, ANanIsNamedByTensorAndRow) {
  for (const char code : {'\x7F', '\xFF'}) {
    Fp8Model model = MakeModel("inverse");
    model.fp8["model.layers.1.mlp.down_proj.weight"].bytes[37 * 288 + 287] = code;
    const TestFolder folder("nan");
    folder.Write(model.config, model.fp8);
    const std::string wanted =
        "tensor \"blk.1.ffn_down.weight\" (in the folder \"model.layers.1.mlp.down_proj.weight\"): "
        "row 37 of 160 has a NaN (code 0x7F or 0xFF)";
    EXPECT_EQ(ModelFixture({.path = folder.path()}).status().message(), wanted);
    const auto file = OpenModelFile(folder.path());
    ASSERT_TRUE(file.ok()) << file.status();
    ThreadPool pool(2);
    EXPECT_EQ(CheckWeights(**file, pool).message(), wanted);
    const std::string converted = ::testing::TempDir() + "baton_fp8_nan.gguf";
    EXPECT_EQ(ConvertModel(**file, {.type = GgmlType::kBf16, .pool = &pool}, converted).message(),
              wanted);
    EXPECT_FALSE(std::filesystem::exists(converted));
  }
}

TEST(HfFp8Test, AScaleIsPartOfTheWeightsId) {
  Fp8Model model = MakeModel("inverse");
  const auto id = [&model] {
    const TestFolder folder("id");
    folder.Write(model.config, model.fp8);
    ModelFixture fixture({.path = folder.path()});
    EXPECT_TRUE(fixture.status().ok()) << fixture.status();
    return std::string(fixture.model().weights_id());
  };
  const std::string before = id();
  EXPECT_EQ(id(), before);
  model.fp8[kQInverse].bytes[0] ^= 1;
  EXPECT_NE(id(), before);
}

TEST(HfFp8Test, IsDescribedAsWhatItIs) {
  const Fp8Model model = MakeModel("inverse");
  const TestFolder folder("described");
  folder.Write(model.config, model.fp8);
  const auto file = OpenModelFile(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  ThreadPool pool(1);
  EXPECT_TRUE(CheckServable(**file).ok());
  EXPECT_TRUE(CheckWeights(**file, pool).ok()) << CheckWeights(**file, pool);
  const std::string text = DescribeModelFile(**file, OkStatus());
  EXPECT_THAT(text, HasSubstr("F8_E4M3        15"));
  EXPECT_THAT(text, HasSubstr("unsupported   nothing"));
}

class Fp8ConvertTest : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(Fp8ConvertTest, WritesWhatTheSameWeightsInBf16Give) {
  const auto& [type, has_experts] = GetParam();
  const Fp8Model model = MakeModel("inverse", has_experts);
  const auto convert = [&](const FolderTensors& tensors) {
    const TestFolder folder("converted");
    folder.Write(model.config, tensors);
    const auto file = OpenModelFile(folder.path());
    EXPECT_TRUE(file.ok()) << file.status();
    ThreadPool pool(2);
    const std::string path = folder.path() + "/out.gguf";
    const absl::Status status = ConvertModel(
        **file, {.type = *ParseConvertType(type), .pool = &pool, .add_keys = nullptr}, path);
    EXPECT_TRUE(status.ok()) << status;
    std::ifstream in(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  };
  const std::string converted = convert(model.fp8);
  EXPECT_GT(converted.size(), 100000u);
  EXPECT_TRUE(converted == convert(model.bf16));
}

INSTANTIATE_TEST_SUITE_P(, Fp8ConvertTest,
                         ::testing::Combine(::testing::Values("bf16", "q8_0"), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_experts" : "");
                         });

}  // namespace
}  // namespace baton::model
