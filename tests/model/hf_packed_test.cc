// Folders whose matrices are packed integers: each form is what its program's definition says bit
// for bit, a model computes what the same weights in F32 do, and what is wrong with parts or their
// description gives one typed error.
#include "src/model/hf_packed.h"

#include <cmath>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/embed.h"
#include "src/model/folder_error.h"
#include "src/model/hf_folder.h"
#include "src/model/model_report.h"
#include "src/model/tensor_plan.h"
#include "tests/model/model_fixture.h"
#include "tests/model/packed_folder.h"
#include "tests/model/rounding_bound.h"
#include "tests/model/test_model.h"

namespace baton::model {

namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using E = FolderErrorCode;

// A matrix of tests/golden/packed.safetensors, and what it becomes.
struct GoldenCase {
  const char* name;
  HfQuantization quantization;
  GgmlType type;
};

HfQuantization Says(HfQuantMethod method, HfWeightKind kind, bool zeros_less_one = false) {
  return {.method = method, .name = "test", .zeros_less_one = zeros_less_one, .kinds = {kind}};
}

std::vector<GoldenCase> GoldenCases() {
  const auto ct = [](uint32_t bits, uint32_t group, bool zeros = false) {
    return Says(HfQuantMethod::kCompressed, {bits, group, false, zeros});
  };
  const auto gptq = [](uint32_t bits, uint32_t group, bool first) {
    return Says(HfQuantMethod::kGptq, {bits, group, false, true}, first);
  };
  const HfQuantization awq = Says(HfQuantMethod::kAwq, {4, 32, false, true});
  return {
      {"ct4", ct(4, 32), GgmlType::kQ4_0},
      {"ct4_zeros", ct(4, 32, true), GgmlType::kQ5_0},
      {"ct4_channel_f16", ct(4, 0), GgmlType::kQ4_0},
      {"ct4_f32", ct(4, 32), GgmlType::kF32},
      {"ct4_order", ct(4, 32), GgmlType::kBf16},
      {"ct4_group16", ct(4, 16), GgmlType::kBf16},
      {"ct4_row40", ct(4, 0), GgmlType::kBf16},
      {"ct4_tiny", ct(4, 32), GgmlType::kBf16},
      {"ct8", ct(8, 0), GgmlType::kQ8_0},
      {"ct8_zeros", ct(8, 32, true), GgmlType::kBf16},
      {"ct_ints", ct(8, 0), GgmlType::kQ8_0},
      {"ct_ints", ct(4, 0), GgmlType::kQ8_0},  // a byte holds fewer bits too
      {"ct_ints_zeros", ct(8, 0, true), GgmlType::kBf16},
      {"awq", awq, GgmlType::kQ5_0},
      {"awq_eights", awq, GgmlType::kQ4_0},
      {"gptq4", gptq(4, 32, true), GgmlType::kQ4_0},
      {"gptq4_zeros", gptq(4, 32, true), GgmlType::kQ5_0},
      {"gptq4_v2", gptq(4, 32, false), GgmlType::kQ5_0},
      {"gptq4_row", gptq(4, 0, true), GgmlType::kQ5_0},
      {"gptq4_order", gptq(4, 32, false), GgmlType::kF16},
      {"gptq8", gptq(8, 32, true), GgmlType::kQ8_0},
      {"gptq8_zeros", gptq(8, 32, false), GgmlType::kF16},
      {"nvfp4_ct", Says(HfQuantMethod::kCompressed, {4, 16, true, false}), GgmlType::kBf16},
      {"nvfp4_modelopt", Says(HfQuantMethod::kModelOpt, {4, 16, true, false}), GgmlType::kBf16},
      {"nvfp4_ct_blocks", Says(HfQuantMethod::kCompressed, {4, 16, true, false}), GgmlType::kNvfp4},
      {"nvfp4_modelopt_blocks", Says(HfQuantMethod::kModelOpt, {4, 16, true, false}),
       GgmlType::kNvfp4},
      {"mxfp4_ct", Says(HfQuantMethod::kCompressed, {4, 32, true, false}), GgmlType::kMxfp4},
      {"mxfp4_e8m0", Says(HfQuantMethod::kCompressed, {4, 32, true, false}), GgmlType::kMxfp4},
      {"ar4", gptq(4, 32, true), GgmlType::kQ4_0},
      {"ar4_zeros", gptq(4, 32, true), GgmlType::kQ5_0},
      {"ar8", gptq(8, 32, true), GgmlType::kQ8_0},
      {"ar4_own", gptq(4, 32, false), GgmlType::kQ5_0},
      {"ar8_own", gptq(8, 32, false), GgmlType::kF16},
      {"ar4_awq", awq, GgmlType::kQ5_0},
      {"ar_mxfp4", Says(HfQuantMethod::kCompressed, {4, 32, true, false}), GgmlType::kMxfp4},
      {"ar_nvfp4", Says(HfQuantMethod::kCompressed, {4, 16, true, false}), GgmlType::kNvfp4}};
}

class GoldenFile {
 public:
  GoldenFile() : file_(SafetensorsFile::Open(GoldenPath("packed.safetensors"))) {}

  // The parts of a matrix, by every name that they have.
  HfPackedParts Parts(const std::string& name) const {
    const auto first_of = [&](std::initializer_list<const char*> names) {
      const SafetensorsTensor* out = nullptr;
      for (const char* part : names) out = out == nullptr ? Find(name + "." + part) : out;
      return out;
    };
    return {.codes = first_of({"weight_packed", "qweight", "weight"}),
            .scales = first_of({"weight_scale", "scales"}),
            .zeros = first_of({"weight_zero_point", "qzeros"}),
            .group_of = first_of({"weight_g_idx", "g_idx"}),
            .shape = first_of({"weight_shape"}),
            .global = first_of({"weight_global_scale", "weight_scale_2"})};
  }
  const SafetensorsTensor* Find(const std::string& name) const {
    for (const SafetensorsTensor& tensor : (*file_)->tensors()) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  const absl::Status status() const { return file_.status(); }

 private:
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file_;
};

std::vector<float> Dequantized(const HfPackedMatrix& matrix, GgmlType type) {
  std::vector<std::byte> rows(matrix.n * matrix.RowBytes(type));
  EXPECT_TRUE(RepackHfMatrix(matrix, type, rows.data()).ok());
  GgufTensor tensor;
  tensor.type = FindGgufTensorType(static_cast<uint32_t>(type));
  std::vector<float> out(matrix.n * matrix.k);
  const Nvfp4Rows nvfp4 = {rows, static_cast<uint32_t>(matrix.n), static_cast<uint32_t>(matrix.k),
                           matrix.scale, matrix.divides};
  for (uint64_t row = 0; row < matrix.n; ++row) {
    if (type == GgmlType::kNvfp4) {
      nvfp4.Weights(static_cast<uint32_t>(row), &out[row * matrix.k]);
      continue;
    }
    EXPECT_TRUE(kernels::DequantizeRow(WeightTypeOf(tensor), &rows[row * matrix.RowBytes(type)],
                                       static_cast<uint32_t>(matrix.k), &out[row * matrix.k]));
  }
  return out;
}

TEST(HfPackedTest, BecomesWhatTheFormatsDefine) {
  const GoldenFile file;
  ASSERT_TRUE(file.status().ok()) << file.status();
  for (const GoldenCase& test : GoldenCases()) {
    SCOPED_TRACE(test.name);
    const SafetensorsTensor* expected = file.Find(std::string(test.name) + ".expected");
    ASSERT_NE(expected, nullptr);
    const auto matrix = HfPackedMatrixOf(file.Parts(test.name), test.quantization);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    EXPECT_EQ(matrix->type, test.type);
    EXPECT_EQ((std::vector<uint64_t>{matrix->n, matrix->k}), expected->shape);
    const std::vector<float> values = Dequantized(*matrix, matrix->type);
    ASSERT_EQ(values.size() * sizeof(float), expected->data.size());
    std::vector<float> wanted(values.size());
    std::memcpy(wanted.data(), expected->data.data(), expected->data.size());
    EXPECT_EQ(values, wanted);  // a zero may have either sign
  }
}

TEST(HfPackedTest, AMatrixCanTakeTheTypeOfAnother) {
  const GoldenFile file;
  ASSERT_TRUE(file.status().ok()) << file.status();
  const HfQuantization says = Says(HfQuantMethod::kAwq, {4, 32, false, true});
  const auto eights = HfPackedMatrixOf(file.Parts("awq_eights"), says);
  const auto zeros = HfPackedMatrixOf(file.Parts("awq"), says);
  ASSERT_TRUE(eights.ok() && zeros.ok());
  const auto type = CommonType(*eights, eights->type, *zeros);
  ASSERT_TRUE(type.ok());
  EXPECT_EQ(*type, GgmlType::kQ5_0);
  EXPECT_EQ(Dequantized(*eights, *type), Dequantized(*eights, eights->type));
}

std::vector<TokenId> SomeTokens() {
  std::vector<TokenId> out;
  for (TokenId i = 0; i < 40; ++i) out.push_back((i * 37 + 5) % 263);
  return out;
}

// The largest difference of two rows of logits, in units of the root mean square of the second.
double Difference(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
    squares += static_cast<double>(b[i]) * b[i];
  }
  return largest / std::sqrt(squares / static_cast<double>(b.size()));
}

class PackedFormTest : public ::testing::TestWithParam<std::tuple<PackedForm, bool>> {};

TEST_P(PackedFormTest, ComputesWhatTheSameWeightsInF32Do) {
  const auto& [form, has_experts] = GetParam();
  const PackedModel model = PackedModelMaker(form).Make(has_experts);
  const TestFolder packed_folder("packed");
  const TestFolder plain_folder("plain");
  packed_folder.Write(model.config, model.packed);
  Json config = model.config;
  config.erase("quantization_config");
  plain_folder.Write(config, model.plain);
  ModelFixture packed({.path = packed_folder.path(), .kv_dtype = kv::KvDtype::kF32});
  ModelFixture plain({.path = plain_folder.path(), .kv_dtype = kv::KvDtype::kF32});
  ASSERT_TRUE(packed.status().ok()) << packed.status();
  ASSERT_TRUE(plain.status().ok()) << plain.status();
  const std::vector<TokenId> tokens = SomeTokens();
  const auto a = packed.Run({{0, 0, tokens}}, /*all_rows=*/true);
  const auto b = plain.Run({{0, 0, tokens}}, /*all_rows=*/true);
  ASSERT_TRUE(a.ok() && b.ok());
  const ModelConfig& shape = plain.model().config();
  const double bound =
      QuantisedBound(shape, Weights::kRandom) + 2 * Fp32ProductsBound(shape, Weights::kRandom);
  double worst = 0;
  for (size_t row = 0; row < tokens.size(); ++row) {
    const auto of_row = [&](const std::vector<float>& logits) {
      return std::span(logits).subspan(row * packed.vocab(), packed.vocab());
    };
    worst = std::max(worst, Difference(of_row(*a), of_row(*b)));
  }
  EXPECT_LE(worst, bound);
  RecordProperty("worst", std::to_string(worst));
  RecordProperty("bound", std::to_string(bound));
}

INSTANTIATE_TEST_SUITE_P(, PackedFormTest,
                         ::testing::Combine(::testing::ValuesIn(PackedForms()), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "_experts" : "");
                         });

absl::StatusOr<std::unique_ptr<GgufFile>> Opened(const PackedModel& model) {
  const TestFolder folder("opened");
  folder.Write(model.config, model.packed);
  return OpenModelFile(folder.path());
}

PackedModel MakeModel(std::string_view form) {
  for (const PackedForm& row : PackedForms()) {
    if (row.name == form) return PackedModelMaker(row).Make(/*has_experts=*/false);
  }
  ADD_FAILURE() << "no form " << form;
  return {};
}

TEST(HfPackedTest, IsDescribedAsWhatItIs) {
  const std::pair<const char*, const char*> cases[] = {
      {"awq", "awq: 14 of 4 bits in groups of 32 as Q5_0"},
      {"gptq4", "gptq: 14 of 4 bits in groups of 32 as Q4_0"},
      {"gptq4_order", "gptq: 14 of 4 bits in groups of 32 as F16"},
      {"ct8", "compressed-tensors: 14 of 8 bits in groups of 32 as Q8_0"},
      {"modelopt_nvfp4", "modelopt: 12 of NVFP4 as BF16, 2 of NVFP4 as NVFP4"}};
  for (const auto& [form, words] : cases) {
    const auto file = Opened(MakeModel(form));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(DescribeModelFile(**file, OkStatus()), HasSubstr(words));
  }
}

TEST(HfPackedTest, SaysWhatOfItsDescriptionIsNotUsed) {
  PackedModel model = MakeModel("ct8");
  Json& says = model.config["quantization_config"];
  says["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}, {"dynamic", true}};
  says["kv_cache_scheme"] = {{"num_bits", 8}};
  model.packed["model.layers.0.self_attn.q_proj.input_scale"] = NumbersTensor("F32", {1}, {2});
  const auto file = Opened(model);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(
      DescribeModelFile(**file, OkStatus()),
      HasSubstr("packed        compressed-tensors: 14 of 8 bits in groups of 32 as Q8_0; not used: "
                "input_activations, kv_cache_scheme"));
}

// One way to spoil a model, and the reason that must be given.
struct Refusal {
  E code;
  std::vector<std::string> words;
  const char* form;
  std::function<void(PackedModel&)> spoil;
};

void ExpectRefusals(const std::vector<Refusal>& cases) {
  for (const Refusal& test : cases) {
    PackedModel model = MakeModel(test.form);
    ASSERT_TRUE(Opened(model).ok()) << Opened(model).status();
    test.spoil(model);
    const auto file = Opened(model);
    const absl::Status status = file.ok() ? ReadModelConfig(**file).status() : file.status();
    EXPECT_EQ(FolderErrorName(FolderErrorOf(status)), FolderErrorName(test.code)) << status;
    for (const std::string& words : test.words) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    }
  }
}

// Sets a key of the quantization_config, or of what lies in it.
std::function<void(PackedModel&)> Sets(const std::string& pointer, const Json& value) {
  return [pointer, value](PackedModel& m) {
    m.config["quantization_config"][Json::json_pointer(pointer)] = value;
  };
}

const std::string kFirst = "model.layers.0.mlp.down_proj";  // the first by its name
const std::string kQ = "model.layers.0.self_attn.q_proj";   // [192, 160]

TEST(HfPackedTest, RefusesPartsThatAreMissingOrOfAnotherShape) {
  const auto without = [](const char* part) {
    return [part](PackedModel& m) { m.packed.erase(kQ + part); };
  };
  const auto shaped = [](const char* part, std::vector<uint64_t> shape) {
    return [part, shape](PackedModel& m) { m.packed[kQ + part].shape = shape; };
  };
  ExpectRefusals({
      {E::kBadScale, {kQ, "no scales"}, "gptq4", without(".scales")},
      {E::kBadScale, {kQ, "qzeros"}, "awq", without(".qzeros")},
      {E::kBadScale, {kQ, "no scales"}, "ct4", without(".weight_scale")},
      {E::kBadShape, {kQ, "weight_shape"}, "ct4", without(".weight_shape")},
      {E::kBadScale, {kQ, "zero points"}, "ct4_zeros", without(".weight_zero_point")},
      {E::kUnknownTensor, {kQ + ".g_idx"}, "gptq4", without(".qweight")},
      {E::kBadScale, {kQ + ".scales", "[192, 5]"}, "gptq4", shaped(".scales", {192, 5})},
      {E::kBadScale, {kQ + ".weight_scale", "[5, 192]"}, "ct4", shaped(".weight_scale", {5, 192})},
      {E::kBadShape, {kQ + ".qzeros", "[24, 5]", "[5, 24]"}, "awq", shaped(".qzeros", {24, 5})},
      {E::kBadShape, {kQ + ".weight_packed", "3, "}, "ct4", shaped(".weight_packed", {3, 64, 20})},
      {E::kBadShape,
       {kQ + ".weight_packed", "[20, 192]"},
       "ct4",
       shaped(".weight_packed", {20, 192})},
      {E::kBadScale,
       {kQ + ".scales", "3 groups do not divide rows of 160"},
       "gptq4",
       [](PackedModel& m) {
         FolderTensor& scales = m.packed[kQ + ".scales"];
         scales.shape = {3, 192};
         scales.bytes.resize(3 * 192 * 2);
       }},
      {E::kBadShape,
       {kQ + ".g_idx", "[80]", "[160]"},
       "gptq4",
       [](PackedModel& m) {
         FolderTensor& group_of = m.packed[kQ + ".g_idx"];
         group_of.shape = {80};
         group_of.bytes.resize(80 * 4);
       }},
      {E::kDuplicateTensor,
       {kQ + ".weight", "packed too"},
       "awq",
       [](PackedModel& m) { m.packed[kQ + ".weight"] = m.plain[kQ + ".weight"]; }},
      {E::kTiedMismatch,
       {"lm_head.weight is packed"},
       "gptq4",
       [](PackedModel& m) {
         m.config["tie_word_embeddings"] = true;
         for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"}) {
           m.packed["lm_head" + std::string(part)] = m.packed[kQ + part];
         }
         m.packed.erase("lm_head.weight");
       }},
  });
}

TEST(HfPackedTest, RefusesNumbersAndTypesThatCannotBe) {
  std::vector<Refusal> cases;
  for (const uint16_t half : {uint16_t{0x7E00}, uint16_t{0x7C00}, uint16_t{0xFC00}}) {
    for (const auto& [form, part] : {std::pair{"awq", ".scales"}, {"ct4", ".weight_scale"}}) {
      cases.push_back({E::kBadScale,
                       {kQ + part, "element 3 is", "not a number"},
                       form,
                       [half, at = part](PackedModel& m) {
                         std::memcpy(m.packed[kQ + at].bytes.data() + 6, &half, sizeof(half));
                       }});
    }
  }
  for (const int32_t group : {-1, 5, 1 << 30}) {
    cases.push_back({E::kBadScale,
                     {kQ + ".g_idx", fmt::format("element 7 is {}", group), "[0, 5)"},
                     "gptq4",
                     [group](PackedModel& m) {
                       std::memcpy(m.packed[kQ + ".g_idx"].bytes.data() + 28, &group, 4);
                     }});
  }
  const auto typed = [](const char* part, const char* dtype) {
    return [part, dtype](PackedModel& m) { m.packed[kQ + part].dtype = dtype; };
  };
  cases.push_back({E::kBadDtype, {kQ + ".qweight", "F32", "I32"}, "awq", typed(".qweight", "F32")});
  cases.push_back({E::kBadDtype, {kQ + ".qzeros", "F32"}, "gptq4", typed(".qzeros", "F32")});
  cases.push_back({E::kBadDtype, {kQ + ".g_idx", "F32"}, "gptq4", typed(".g_idx", "F32")});
  cases.push_back({E::kBadDtype, {"model.norm.weight", "I32"}, "gptq4", [](PackedModel& m) {
                     m.packed["model.norm.weight"] = {"I32", {160}, std::string(640, '\1')};
                   }});
  cases.push_back({E::kBadDtype, {"lm_head.weight", "I8"}, "gptq4", [](PackedModel& m) {
                     m.packed["lm_head.weight"] = {"I8", {263, 160}, std::string(263 * 160, '\1')};
                   }});
  ExpectRefusals(cases);
}

TEST(HfPackedTest, RefusesNvfp4WithoutItsScales) {
  const auto with = [](const char* part, const FolderTensor& tensor) {
    return [part, tensor](PackedModel& m) { m.packed[kQ + part] = tensor; };
  };
  const auto number = [](float value) { return NumbersTensor("F32", {1}, {value}); };
  const char* whole = ".weight_global_scale";
  const char* second = ".weight_scale_2";
  const FolderTensor nan = {"F8_E4M3", {192, 10}, std::string(1920, '\x7F')};
  const FolderTensor negative = {"F8_E4M3", {192, 10}, std::string(1920, '\xB8')};
  const FolderTensor few = {"F8_E4M3", {192, 5}, std::string(960, '\x38')};
  const FolderTensor halves = {"F16", {192, 10}, std::string(3840, '\x38')};
  ExpectRefusals({
      {E::kBadScale, {kQ + whole, "it is 0"}, "ct_nvfp4", with(whole, number(0))},
      {E::kBadScale, {kQ + second, "it is -1"}, "modelopt_nvfp4", with(second, number(-1))},
      {E::kBadScale, {kQ + second, "nan"}, "modelopt_nvfp4", with(second, number(NAN))},
      {E::kBadShape,
       {kQ + second, "[2]", "[1]"},
       "modelopt_nvfp4",
       with(second, NumbersTensor("F32", {2}, {1, 1}))},
      {E::kBadScale,
       {kQ, "whole matrix"},
       "ct_nvfp4",
       [whole](PackedModel& m) { m.packed.erase(kQ + whole); }},
      {E::kBadScale,
       {kQ, "no scales"},
       "ct_nvfp4",
       [](PackedModel& m) { m.packed.erase(kQ + ".weight_scale"); }},
      {E::kBadScale, {kQ, "element 0 is nan"}, "ct_nvfp4", with(".weight_scale", nan)},
      {E::kBadScale, {kQ, "element 0 is -1"}, "modelopt_nvfp4", with(".weight_scale", negative)},
      {E::kBadShape, {kQ, "[192, 5]", "[192, 10]"}, "ct_nvfp4", with(".weight_scale", few)},
      {E::kBadDtype, {kQ, "F16", "F8_E4M3"}, "ct_nvfp4", with(".weight_scale", halves)},
      {E::kUnsupportedValue,
       {"quant_algo", "W4A8_AWQ"},
       "modelopt_nvfp4",
       Sets("/quant_algo", "W4A8_AWQ")},
      {E::kUnsupportedValue, {kFirst, "declare"}, "modelopt_nvfp4", Sets("/quant_algo", "FP8")},
      {E::kUnsupportedValue, {"group_size", "32"}, "modelopt_nvfp4", Sets("/group_size", 32)},
      {E::kUnknownTensor,
       {"pre_quant_scale"},
       "modelopt_nvfp4",
       with(".pre_quant_scale", number(1))},
  });
}

TEST(HfPackedTest, ReadsTheFileThatModelOptUsedToWrite) {
  PackedModel model = MakeModel("modelopt_nvfp4");
  const Json text = {{"producer", {{"name", "modelopt"}}},
                     {"quantization",
                      {{"quant_algo", "NVFP4"},
                       {"group_size", 16},
                       {"kv_cache_quant_algo", "FP8"},
                       {"exclude_modules", {"lm_head"}}}}};
  model.config.erase("quantization_config");
  const TestFolder folder("modelopt");
  folder.Write(model.config, model.packed);
  EXPECT_FALSE(OpenModelFile(folder.path()).ok());
  const std::string path = folder.path() + "/hf_quant_config.json";
  std::ofstream(path) << text.dump();
  const auto file = OpenModelFile(folder.path());
  EXPECT_TRUE(file.ok()) << file.status();
  std::ofstream(path) << "[]";
  const absl::Status bad = OpenModelFile(folder.path()).status();
  EXPECT_EQ(FolderErrorName(FolderErrorOf(bad)), FolderErrorName(E::kBadJson)) << bad;
  EXPECT_THAT(std::string(bad.message()), HasSubstr("hf_quant_config.json"));
}

TEST(HfPackedTest, RefusesDescriptionsByName) {
  const char* group = "/config_groups/group_0/weights/group_size";
  const char* bits = "/config_groups/group_0/weights/num_bits";
  ExpectRefusals({
      {E::kUnsupportedValue, {"bits", "3"}, "awq", Sets("/bits", 3)},
      {E::kUnsupportedValue, {"version", "gemv"}, "awq", Sets("/version", "gemv")},
      {E::kBadValue, {"zero_point"}, "awq", Sets("/zero_point", 3)},
      {E::kUnsupportedValue, {kFirst, "groups of 32", "declare"}, "awq", Sets("/group_size", 64)},
      {E::kBadValue, {"group_size"}, "awq", Sets("/group_size", 0)},
      {E::kUnsupportedValue,
       {kQ, "not quantised"},
       "awq",
       Sets("/modules_to_not_convert", {"q_proj"})},
      {E::kUnsupportedValue,
       {kFirst, "not quantised"},
       "awq",
       Sets("/modules_to_not_convert", {"model.layers.0.*"})},
      {E::kBadValue, {"modules_to_not_convert"}, "awq", Sets("/modules_to_not_convert", {3})},
      {E::kUnsupportedValue, {"bits", "2"}, "gptq4", Sets("/bits", 2)},
      {E::kUnsupportedValue, {kFirst, "4 bits", "declare"}, "gptq4", Sets("/bits", 8)},
      {E::kUnsupportedValue, {"format", "marlin"}, "gptq4", Sets("/checkpoint_format", "marlin")},
      {E::kBadValue, {"checkpoint_format"}, "gptq4", Sets("/format", "gptq_v2")},
      {E::kUnsupportedValue, {"pack_dtype"}, "gptq4", Sets("/pack_dtype", "int64")},
      {E::kUnsupportedValue, {"adapter"}, "gptq4", Sets("/adapter", {{"name", "lora"}})},
      {E::kUnsupportedValue,
       {"dynamic", "bits"},
       "gptq4",
       Sets("/dynamic", {{"+:q", {{"bits", 2}}}})},
      {E::kUnsupportedValue,
       {"dynamic", "format"},
       "gptq4",
       Sets("/dynamic", {{"+:q", {{"format", "gptq_v2"}}}})},
      {E::kBadValue, {"dynamic"}, "gptq4", Sets("/dynamic", {{"+:q", 3}})},
      {E::kUnsupportedValue, {kFirst, "declare"}, "ct4", Sets(group, 128)},
      {E::kUnsupportedValue, {kFirst, "declare"}, "ct4", Sets(bits, 8)},
      {E::kUnsupportedValue, {"num_bits", "3"}, "ct4", Sets(bits, 3)},
      {E::kUnsupportedValue,
       {"strategy"},
       "ct4",
       Sets("/config_groups/group_0/weights/strategy", "block")},
      {E::kUnsupportedValue, {"format", "marlin-24"}, "ct4", Sets("/format", "marlin-24")},
      {E::kUnsupportedValue, {"format", "x"}, "ct4", Sets("/config_groups/group_0/format", "x")},
      {E::kUnsupportedValue,
       {"sparsity_config"},
       "ct4",
       Sets("/sparsity_config", {{"format", "x"}})},
      {E::kUnsupportedValue, {kQ, "not quantised"}, "ct4", Sets("/ignore", {kQ})},
      {E::kQuantized, {"\"bitsandbytes\""}, "ct4", Sets("/quant_method", "bitsandbytes")},
  });
}

TEST(HfPackedTest, RefusesEveryKeyThatIsNotKnown) {
  const char* weights = "/config_groups/group_0/weights";
  std::vector<Refusal> cases = {
      {E::kUnsupportedValue, {"rotation", "hadamard"}, "gptq4", Sets("/rotation", "hadamard")},
      {E::kUnsupportedValue, {"rotation", "random"}, "gptq4", Sets("/rotation", "random")},
      {E::kUnsupportedValue, {"rotation"}, "awq", Sets("/rotation", "hadamard")},
      {E::kUnsupportedValue, {"desc_act"}, "awq", Sets("/desc_act", true)},
      {E::kUnsupportedValue, {"backend", "llm-awq"}, "awq", Sets("/backend", "llm-awq")},
      {E::kUnsupportedValue, {"method", "qqq"}, "gptq4", Sets("/method", "qqq")},
      {E::kUnsupportedValue,
       {"dynamic: \"+:q\"", "rotation"},
       "gptq4",
       Sets("/dynamic", {{"+:q", {{"rotation", "hadamard"}}}})},
      {E::kUnsupportedValue,
       {"dynamic", "bits"},
       "awq",
       Sets("/dynamic", {{"+:q", {{"bits", 3}}}})},
      {E::kUnsupportedValue,
       {"moe_sparsity_config"},
       "ct4",
       Sets("/moe_sparsity_config", {{"method", "prune"}})},
      {E::kUnsupportedValue, {"dynamic"}, "ct4", Sets(weights + std::string("/dynamic"), true)},
      {E::kUnsupportedValue,
       {"actorder", "magic"},
       "ct4",
       Sets(weights + std::string("/actorder"), "magic")},
      {E::kUnsupportedValue, {"pre_quant_scale"}, "modelopt_nvfp4", Sets("/pre_quant_scale", true)},
      {E::kUnsupportedValue,
       {"quantized_layers"},
       "modelopt_nvfp4",
       Sets("/quantized_layers", {{"lm_head", {{"quant_algo", "FP8"}}}})},
      {E::kBadValue,
       {"config_groups", "4 bits"},
       "modelopt_nvfp4",
       Sets("/config_groups", {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}}})}};
  const std::pair<const char*, const char*> objects[] = {{"awq", ""},
                                                         {"gptq4", ""},
                                                         {"ct4", ""},
                                                         {"ct4", weights},
                                                         {"ct4", "/config_groups/group_0"},
                                                         {"modelopt_nvfp4", ""}};
  for (const auto& [form, pointer] : objects) {
    cases.push_back({E::kUnsupportedValue,
                     {"a_new_key", "3"},
                     form,
                     Sets(pointer + std::string("/a_new_key"), 3)});
  }
  for (const char* parent : {"/dynamic/+:q", "/sparsity_config"}) {
    const std::string at = parent + std::string("/a_new_key");
    cases.push_back({E::kUnsupportedValue,
                     {"a_new_key"},
                     parent[1] == 'd' ? "gptq4" : "ct4",
                     [at, parent](PackedModel& m) {
                       Json& says = m.config["quantization_config"];
                       says[Json::json_pointer(parent)] = Json::object();
                       if (parent[1] == 's') says["sparsity_config"]["format"] = "dense";
                       says[Json::json_pointer(at)] = 3;
                     }});
  }
  ExpectRefusals(cases);
}

// As GPTQModel, AutoRound, transformers 5, llm-compressor and ModelOpt write them.
TEST(HfPackedTest, TakesKeysThatChangeNoWeight) {
  const std::pair<const char*, Json> cases[] = {
      {"gptq4", Json::parse(R"({"rotation": null, "lm_head": false, "sym": true, "method": "gptq",
                                "pack_dtype": "int32", "format": "gptq", "dynamic": {},
                                "meta": {"quantizer": ["gptqmodel:7.3.4"], "gptaq": null}})")},
      {"gptq4", Json::parse(R"({"damp_percent": 0.1, "true_sequential": true, "adapter": null,
                                "act_group_aware": true, "backend": "auto", "tokenizer": null,
                                "modules_in_block_to_quantize": [["self_attn.q_proj"]],
                                "autoround_version": "0.4.2", "iters": 200, "a_new_key": null})")},
      {"awq", Json::parse(R"({"backend": "auto", "sym": true, "desc_act": false, "method": "awq",
                              "dynamic": {"-:.*lm_head": {}}, "meta": {}, "do_fuse": false})")},
      {"awq", Json::parse(R"({"zero_point": false, "sym": true, "version": "gemm",
                              "meta": {"quantizer": ["gptqmodel:7.7.0"]}})")},
      {"ct4", Json::parse(R"({"quantization_status": "compressed", "kv_cache_scheme": null,
                              "global_compression_ratio": 1.5, "version": "0.12.2",
                              "sparsity_config": {"format": "dense", "global_sparsity": 0.1,
                                                  "sparsity_structure": "unstructured"},
                              "transform_config": {}, "moe_sparsity_config": null})")},
      {"modelopt_nvfp4", Json::parse(R"({"producer": {"name": "modelopt", "version": "0.39.0"},
                                         "kv_cache_scheme": {"num_bits": 8, "type": "float"}})")}};
  for (const auto& [form, keys] : cases) {
    PackedModel model = MakeModel(form);
    model.config["quantization_config"].update(keys);
    const auto file = Opened(model);
    EXPECT_TRUE(file.ok()) << file.status() << " " << keys;
  }
  PackedModel model = MakeModel("ct4");
  Json& group = model.config["quantization_config"]["config_groups"]["group_0"];
  group["weights"].update(Json::parse(R"({"observer": "minmax", "observer_kwargs": {"x": 1},
      "dynamic": false, "actorder": "static", "block_structure": null, "zp_dtype": null})"));
  group["output_activations"] = nullptr;
  EXPECT_TRUE(Opened(model).ok()) << Opened(model).status();
}

TEST(HfPackedTest, NamesWhatModelOptSaysOfActivations) {
  PackedModel model = MakeModel("modelopt_nvfp4");
  const Json numbers = {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}, {"dynamic", false}};
  model.config["quantization_config"]["config_groups"] = {
      {"group_0", {{"input_activations", numbers}, {"weights", numbers}, {"targets", {"Linear"}}}}};
  const auto file = Opened(model);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(DescribeModelFile(**file, OkStatus()), HasSubstr("; not used: input_activations\n"));
}

TEST(HfPackedTest, RefusesTwoDescriptionsThatDisagree) {
  PackedModel model = MakeModel("ct4");
  model.config["compression_config"] = model.config["quantization_config"];
  EXPECT_TRUE(Opened(model).ok()) << Opened(model).status();
  ExpectRefusals({{E::kBadValue,
                   {"compression_config", "quantization_config"},
                   "ct4",
                   [](PackedModel& m) {
                     Json other = m.config["quantization_config"];
                     other["config_groups"]["group_0"]["weights"]["group_size"] = 64;
                     m.config["compression_config"] = other;
                   }},
                  {E::kBadValue, {"compression_config"}, "ct4", [](PackedModel& m) {
                     m.config["compression_config"] = {{"quant_method", "fp8"}};
                   }}});
}

TEST(HfPackedTest, RefusesAnotherOrderOfColumnsWithoutGroups) {
  const std::vector<std::string> words = {"another order", "g_idx"};
  const auto without = [](PackedModel& m) {
    std::erase_if(m.packed, [](const auto& row) { return row.first.ends_with(".g_idx"); });
  };
  std::vector<Refusal> cases = {{E::kBadScale, words, "gptq4_order", without}};
  for (const Json& order : {Json("group"), Json("dynamic"), Json(true)}) {
    cases.push_back(
        {E::kBadScale, words, "ct4", Sets("/config_groups/group_0/weights/actorder", order)});
  }
  cases.push_back({E::kBadScale, words, "gptq4", [without](PackedModel& m) {
                     without(m);
                     m.config["quantization_config"]["desc_act"] = false;
                     m.config["quantization_config"]["dynamic"] = {
                         {"+:.*", {{"desc_act", true}, {"group_size", 32}}}};
                     m.config["quantization_config"]["group_size"] = 64;
                   }});
  ExpectRefusals(cases);
  PackedModel in_order = MakeModel("gptq4");
  without(in_order);
  EXPECT_TRUE(Opened(in_order).ok()) << Opened(in_order).status();
}

TEST(HfPackedTest, RefusesPartsThatAMatrixOfItsFormDoesNotHave) {
  const auto with = [](const char* part, const FolderTensor& tensor) {
    return [part, tensor](PackedModel& m) { m.packed[kQ + part] = tensor; };
  };
  const FolderTensor words = {"I32", {24, 5}, std::string(480, '\0')};
  const FolderTensor order = {"I32", {160}, std::string(640, '\0')};
  const FolderTensor sizes = {"I64", {2}, std::string(16, '\1')};
  const FolderTensor one = NumbersTensor("F32", {1}, {1});
  for (const auto& [form, part, tensor] : {std::tuple{"ct_nvfp4", ".weight_zero_point", words},
                                           {"ct_nvfp4", ".weight_g_idx", order},
                                           {"ct_nvfp4", ".weight_shape", sizes},
                                           {"ct4", ".weight_global_scale", one},
                                           {"awq", ".g_idx", order}}) {
    SCOPED_TRACE(form);
    ExpectRefusals({{E::kUnknownTensor, {kQ + part, "no part of"}, form, with(part, tensor)}});
  }
}

// A weight of NVFP4 is at most 6 * 448 times the scale of its matrix: 2^127 is in reach.
TEST(HfPackedTest, RefusesNvfp4WithInfiniteWeights) {
  const auto scaled = [](const std::string& module, const char* part, float value) {
    return [module, part, value](PackedModel& m) {
      m.packed[module + part] = NumbersTensor("F32", {1}, {value});
      m.packed[module + ".weight_scale"].bytes[7] = '\x7E';  // 448
    };
  };
  std::vector<Refusal> cases;
  for (const std::string& module : {kFirst, kQ}) {  // as NVFP4 and as bf16
    cases.push_back({E::kBadScale,
                     {module + ".weight_scale_2", "infinite"},
                     "modelopt_nvfp4",
                     scaled(module, ".weight_scale_2", 3e38f)});
    cases.push_back({E::kBadScale,
                     {module + ".weight_scale_2", "element 7", "448"},
                     "modelopt_nvfp4",
                     scaled(module, ".weight_scale_2", 1.2664e35f)});
    cases.push_back({E::kBadScale,
                     {module + ".weight_global_scale", "infinite"},
                     "ct_nvfp4",
                     scaled(module, ".weight_global_scale", 1e-37f)});
  }
  ExpectRefusals(cases);
  // 6 * 448 * 1.2e35 is 3.2e38, of bf16's 3.39e38.
  PackedModel largest = MakeModel("modelopt_nvfp4");
  scaled(kFirst, ".weight_scale_2", 1.2e35f)(largest);
  EXPECT_TRUE(Opened(largest).ok()) << Opened(largest).status();
}

TEST(HfPackedTest, ReadsWhatTheTensorsSayOfModulesWithOtherNumbers) {
  // A rule for some modules, and one that is kept in another type.
  PackedModel model = MakeModel("gptq4");
  const PackedModel eights = MakeModel("gptq8");
  for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"}) {
    model.packed[kQ + part] = eights.packed.at(kQ + part);
  }
  const std::string down = "model.layers.1.mlp.down_proj";
  for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"}) {
    model.packed.erase(down + part);
  }
  model.packed[down + ".weight"] = model.plain.at(down + ".weight");
  EXPECT_FALSE(Opened(model).ok());
  model.config["quantization_config"]["dynamic"] = {{"+:.*q_proj", {{"bits", 8}}},
                                                    {"-:.*down_proj", Json::object()}};
  const auto file = Opened(model);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(
      DescribeModelFile(**file, OkStatus()),
      HasSubstr("12 of 4 bits in groups of 32 as Q4_0, 1 of 8 bits in groups of 32 as Q8_0"));
  EXPECT_STREQ((*file)->FindTensor("blk.1.ffn_down.weight")->type->name.data(), "F32");
}

TEST(HfPackedTest, LeavesOutBiasesOfZeros) {
  PackedModel model = MakeModel("gptq4");
  model.packed[kQ + ".bias"] = {"F16", {192}, std::string(384, '\0')};
  const auto file = Opened(model);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->FindTensor("blk.0.attn_q.bias"), nullptr);
  model.packed[kQ + ".bias"].bytes[5] = 1;
  EXPECT_THAT(std::string(Opened(model).status().message()),
              HasSubstr("config.json does not say \"attention_bias\" true"));
}

TEST(HfPackedTest, LeavesOutBiasesOfZerosOfExperts) {
  PackedModel model = PackedModelMaker(PackedForms()[1]).Make(/*has_experts=*/true);
  std::vector<std::string> modules;
  for (const auto& [name, tensor] : model.packed) {
    constexpr std::string_view kCodes = ".qweight";
    if (!name.ends_with(kCodes) || name.find(".experts.") == std::string::npos) continue;
    modules.push_back(name.substr(0, name.size() - kCodes.size()));
  }
  ASSERT_FALSE(modules.empty());
  for (const std::string& module : modules) {
    const uint64_t n = model.packed.at(module + ".qweight").shape[1];
    model.packed[module + ".bias"] = {"F16", {n}, std::string(2 * n, '\0')};
  }
  const auto file = Opened(model);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(ReadModelConfig(**file).ok()) << ReadModelConfig(**file).status();
  EXPECT_EQ((*file)->FindTensor("blk.0.ffn_down_exps.bias"), nullptr);
}

}  // namespace
}  // namespace baton::model
