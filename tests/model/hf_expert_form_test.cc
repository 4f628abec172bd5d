// The tensors of all experts of gpt_oss: what becomes of each form, and what is refused.
#include "src/model/hf_expert_form.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/folder_error.h"

namespace baton::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using E = FolderErrorCode;

SafetensorsTensor TensorOf(const char* name, SafetensorsType type, std::vector<uint64_t> shape,
                           std::span<const std::byte> data = {}) {
  return {name, type, std::move(shape), data};
}

TEST(HfExpertFormTest, TransposesWhereGatesAndUpsTakeTurns) {
  // 2 experts, k 3, and 2 gates and ups: element = 100 e + 10 k + column.
  std::vector<float> in;
  for (int e = 0; e < 2; ++e) {
    for (int k = 0; k < 3; ++k) {
      for (int column = 0; column < 4; ++column) in.push_back(100.0f * e + 10.0f * k + column);
    }
  }
  const SafetensorsTensor tensor =
      TensorOf("x.gate_up_proj", SafetensorsType::kF32, {2, 3, 4}, std::as_bytes(std::span(in)));
  const auto shape = HfExpertShapeOf(HfExpertForm::kTransposed, tensor, nullptr, {2, 2});
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->n, 2u);
  EXPECT_EQ(shape->k, 3u);
  ASSERT_EQ(shape->PartBytes(), 12 * sizeof(float));
  std::vector<float> out(12);
  TransposeExperts(*shape, tensor.data, 0, reinterpret_cast<std::byte*>(out.data()));
  EXPECT_THAT(out, ElementsAre(0, 10, 20, 2, 12, 22, 100, 110, 120, 102, 112, 122));
  TransposeExperts(*shape, tensor.data, 1, reinterpret_cast<std::byte*>(out.data()));
  EXPECT_THAT(out, ElementsAre(1, 11, 21, 3, 13, 23, 101, 111, 121, 103, 113, 123));
}

TEST(HfExpertFormTest, TransposesMoreThanATile) {
  std::vector<uint16_t> in(size_t{70} * 45);
  std::iota(in.begin(), in.end(), uint16_t{0});
  const SafetensorsTensor tensor =
      TensorOf("x.down_proj", SafetensorsType::kBf16, {1, 45, 70}, std::as_bytes(std::span(in)));
  const auto shape = HfExpertShapeOf(HfExpertForm::kTransposed, tensor, nullptr, {1, 1});
  ASSERT_TRUE(shape.ok()) << shape.status();
  std::vector<uint16_t> out(in.size());
  TransposeExperts(*shape, tensor.data, 0, reinterpret_cast<std::byte*>(out.data()));
  for (size_t n = 0; n < 70; ++n) {
    for (size_t k = 0; k < 45; ++k) ASSERT_EQ(out[n * 45 + k], in[k * 70 + n]) << n << " " << k;
  }
}

TEST(HfExpertFormTest, CopiesBiasesInTurns) {
  const std::vector<float> in = {1, 2, 3, 4, 5, 6, 7, 8};
  const SafetensorsTensor tensor =
      TensorOf("x.gate_up_proj_bias", SafetensorsType::kF32, {2, 4}, std::as_bytes(std::span(in)));
  const auto shape = HfExpertShapeOf(HfExpertForm::kBias, tensor, nullptr, {2, 2});
  ASSERT_TRUE(shape.ok()) << shape.status();
  std::vector<float> out(4);
  CopyExpertBiases(*shape, tensor, 0, out.data());
  EXPECT_THAT(out, ElementsAre(1, 3, 5, 7));
  CopyExpertBiases(*shape, tensor, 1, out.data());
  EXPECT_THAT(out, ElementsAre(2, 4, 6, 8));
}

TEST(HfExpertFormTest, PutsTheDigitsOfMxfp4InGgufsOrder) {
  // One expert, 2 rows of one block: the digit of element i of row r is (i + 5 r) mod 16.
  std::vector<std::byte> blocks;
  for (uint32_t r = 0; r < 2; ++r) {
    const auto digit = [r](uint32_t i) { return (i + 5 * r) % 16; };
    for (uint32_t j = 0; j < 16; ++j) {
      blocks.push_back(std::byte(digit(2 * j) | digit(2 * j + 1) << 4));
    }
  }
  const std::vector<std::byte> scale_bytes = {std::byte{120}, std::byte{131}};
  const SafetensorsTensor tensor =
      TensorOf("x.gate_up_proj_blocks", SafetensorsType::kU8, {1, 2, 1, 16}, blocks);
  const SafetensorsTensor scales =
      TensorOf("x.gate_up_proj_scales", SafetensorsType::kU8, {1, 2, 1}, scale_bytes);
  const auto shape = HfExpertShapeOf(HfExpertForm::kMxfp4, tensor, &scales, {1, 2});
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->n, 1u);
  EXPECT_EQ(shape->k, 32u);
  ASSERT_EQ(shape->PartBytes(), 17u);
  for (uint32_t part = 0; part < 2; ++part) {
    std::vector<std::byte> out(17);
    RepackMxfp4Experts(*shape, blocks, scale_bytes, part, out.data());
    EXPECT_EQ(out[0], scale_bytes[part]);
    for (uint32_t j = 0; j < 16; ++j) {
      const uint32_t low = (j + 5 * part) % 16;
      const uint32_t high = (j + 16 + 5 * part) % 16;
      EXPECT_EQ(std::to_integer<uint32_t>(out[j + 1]), low | high << 4) << part << " " << j;
    }
  }
}

TEST(HfExpertFormTest, NamesTheTensorThatDoesNotFit) {
  const SafetensorsTensor blocks = TensorOf("a_blocks", SafetensorsType::kU8, {4, 6, 2, 16});
  const SafetensorsTensor short_blocks = TensorOf("a_blocks", SafetensorsType::kU8, {4, 6, 2, 8});
  const SafetensorsTensor scales = TensorOf("a_scales", SafetensorsType::kU8, {4, 6, 2});
  const SafetensorsTensor few_scales = TensorOf("a_scales", SafetensorsType::kU8, {4, 6, 1});
  const SafetensorsTensor wide_scales = TensorOf("a_scales", SafetensorsType::kBf16, {4, 6, 2});
  struct Case {
    E code;
    const char* words;
    HfExpertForm form;
    SafetensorsTensor tensor;
    const SafetensorsTensor* scales;
  };
  const std::vector<Case> cases = {
      {E::kBadScale, "\"a_scales\"", HfExpertForm::kMxfp4, blocks, nullptr},
      {E::kBadScale, "[4, 6, 1] does not scale", HfExpertForm::kMxfp4, blocks, &few_scales},
      {E::kBadDtype, "\"a_scales\"", HfExpertForm::kMxfp4, blocks, &wide_scales},
      {E::kBadShape, "the last dimension", HfExpertForm::kMxfp4, short_blocks, &scales},
      {E::kBadShape, "4 dimensions", HfExpertForm::kMxfp4,
       TensorOf("b", SafetensorsType::kU8, {4, 6, 2}), &scales},
      {E::kBadShape, "number 3 even", HfExpertForm::kTransposed,
       TensorOf("b", SafetensorsType::kBf16, {4, 8, 7}), nullptr},
      {E::kBadShape, "a model of 4 experts", HfExpertForm::kTransposed,
       TensorOf("b", SafetensorsType::kBf16, {5, 8, 6}), nullptr},
      {E::kBadShape, "2 dimensions", HfExpertForm::kBias,
       TensorOf("b", SafetensorsType::kBf16, {4}), nullptr},
      {E::kBadDtype, "F32, F16 and BF16", HfExpertForm::kTransposed,
       TensorOf("b", SafetensorsType::kF8E4M3, {4, 8, 6}), nullptr},
      {E::kBadDtype, "F32, F16 and BF16", HfExpertForm::kBias,
       TensorOf("b", SafetensorsType::kU8, {4, 6}), nullptr},
  };
  for (const Case& test : cases) {
    const absl::Status status =
        HfExpertShapeOf(test.form, test.tensor, test.scales, {4, 2}).status();
    EXPECT_EQ(FolderErrorName(FolderErrorOf(status)), FolderErrorName(test.code)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words));
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor \""));
  }
}

}  // namespace
}  // namespace baton::model
