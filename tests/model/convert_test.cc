// Conversion: the bytes of an independent quantiser, from a file and from a folder, and a file that
// is whole or not there.
#include "src/model/convert.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/math.h"
#include "src/model/hf_folder.h"
#include "src/model/model_report.h"
#include "src/model/partial_file.h"
#include "src/model/quantize.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class ConvertTest : public ::testing::TestWithParam<const char*> {
 protected:
  ConvertTest() { fs::remove(out_); }
  ~ConvertTest() override { fs::remove(out_); }

  absl::Status Convert(const std::string& from, std::string_view type) {
    const auto file = OpenModelFile(GoldenPath(from));
    if (!file.ok()) return file.status();
    const auto parsed = ParseConvertType(type);
    if (!parsed.ok()) return parsed.status();
    return ConvertModel(**file, {.type = *parsed, .pool = &pool_, .add_keys = nullptr}, out_);
  }

  ThreadPool pool_{2};
  const std::string out_ = ::testing::TempDir() + "baton_convert_test.gguf";
};

TEST_P(ConvertTest, WritesTheBytesOfAnotherQuantiser) {
  ASSERT_TRUE(Convert("tiny_llama_yarn.gguf", GetParam()).ok());
  const auto mine = GgufFile::Open(out_);
  const auto other =
      GgufFile::Open(GoldenPath(std::string("tiny_converted_") + GetParam() + ".gguf"));
  ASSERT_TRUE(mine.ok()) << mine.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(CheckServable(**mine).ok()) << CheckServable(**mine);
  ASSERT_EQ((*mine)->tensors().size(), (*other)->tensors().size());
  for (const GgufTensor& tensor : (*other)->tensors()) {
    const GgufTensor* got = (*mine)->FindTensor(tensor.name);
    ASSERT_NE(got, nullptr) << tensor.name;
    EXPECT_EQ(got->type->name, tensor.type->name) << tensor.name;
    EXPECT_EQ(got->dims, tensor.dims);
    ASSERT_EQ(got->data.size(), tensor.data.size());
    EXPECT_EQ(std::memcmp(got->data.data(), tensor.data.data(), got->data.size()), 0)
        << tensor.name;
  }
  // The same weights, so the same id.
  ModelFixture a({.path = out_});
  ModelFixture b({.path = GoldenPath(std::string("tiny_converted_") + GetParam() + ".gguf")});
  ASSERT_TRUE(a.status().ok() && b.status().ok());
  EXPECT_EQ(a.model().weights_id(), b.model().weights_id());
}

TEST_P(ConvertTest, AMixtureConvertsExpertByExpert) {
  ASSERT_TRUE(Convert("tiny_qwen3moe", GetParam()).ok());  // the folder
  const auto file = GgufFile::Open(out_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->FindTensor("blk.0.ffn_gate_inp.weight")->type->name, "F32");
  const GgufTensor* down = (*file)->FindTensor("blk.1.ffn_down_exps.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->DimsText(), "[32, 32, 8]");
}

INSTANTIATE_TEST_SUITE_P(Types, ConvertTest, ::testing::Values("bf16", "q8_0", "q4_0", "q4_1"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(ConvertTest, RowsThatAreNoWholeBlocksBecomeBf16) {
  ASSERT_TRUE(Convert("tiny_qwen3.gguf", "q4_0").ok());  // q_size 48
  const auto file = GgufFile::Open(out_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->FindTensor("blk.0.attn_output.weight")->type->name, "BF16");
  EXPECT_EQ((*file)->FindTensor("blk.0.attn_q.weight")->type->name, "Q4_0");
}

TEST_F(ConvertTest, RefusesAnotherTypeAndAnExistingFile) {
  EXPECT_THAT(std::string(Convert("tiny_qwen3.gguf", "q6_k").message()), HasSubstr("q8_0"));
  ASSERT_TRUE(Convert("tiny_qwen3.gguf", "bf16").ok());
  EXPECT_EQ(Convert("tiny_qwen3.gguf", "bf16").code(), absl::StatusCode::kAlreadyExists);
}

TEST(PartialFileTest, TwoWritersOfOnePathDoNotMeet) {
  const std::string path = ::testing::TempDir() + "baton_partial_test";
  fs::remove(path);
  const std::byte one[] = {std::byte{1}};
  {
    PartialFile first(path);
    ASSERT_TRUE(first.Open().ok());
    ASSERT_TRUE(first.Write(one).ok());
    {
      // The same process id, as on another machine with the same folder: refused, nothing removed.
      PartialFile second(path);
      EXPECT_EQ(second.Open().code(), absl::StatusCode::kAlreadyExists);
    }
    EXPECT_TRUE(fs::exists(first.partial_path()));
    EXPECT_FALSE(fs::exists(path));
    // Another writer finishes first.
    std::ofstream(path) << "whole";
    EXPECT_EQ(first.Finish().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE(fs::exists(first.partial_path()));
  }
  EXPECT_EQ(fs::file_size(path), 5u);
  {
    PartialFile refused(path);
    EXPECT_EQ(refused.Open().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_FALSE(fs::exists(refused.partial_path()));
  }
  fs::remove(path);
  PartialFile last(path);
  ASSERT_TRUE(last.Open().ok());
  ASSERT_TRUE(last.Write(one).ok());
  ASSERT_TRUE(last.Finish().ok());
  EXPECT_EQ(fs::file_size(path), 1u);
  EXPECT_FALSE(fs::exists(last.partial_path()));
  fs::remove(path);
}

// 1 / d is infinite for them: the digits must not be what an infinity or a NaN is cast to.
TEST(QuantizeTest, ABlockOfDenormalsBecomesZeros) {
  for (const float size : {1e-45f, 1e-40f, 1e-38f}) {
    std::vector<float> row(32, 0.0f);
    row[3] = size;
    row[4] = -size / 2;
    for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1}) {
      std::vector<std::byte> out(FindGgufTensorType(static_cast<uint32_t>(type))->block_bytes);
      EncodeRow(type, row, out.data());
      uint16_t scale = 0;
      std::memcpy(&scale, out.data(), 2);
      EXPECT_EQ(scale & 0x7FFF, 0) << size;
      const std::byte neutral{static_cast<uint8_t>(type == GgmlType::kQ4_0 ? 0x88 : 0)};
      for (size_t i = type == GgmlType::kQ4_1 ? 4 : 2; i < out.size(); ++i) {
        EXPECT_EQ(out[i], neutral) << size << " " << i;
      }
    }
  }
}

// The difference of two finite elements may be none.
TEST(QuantizeTest, ARangeBeyondFp32IsVisiblyBroken) {
  std::vector<float> row(32, 3e38f);
  row[0] = -3e38f;
  std::vector<std::byte> out(20);
  EncodeRow(GgmlType::kQ4_1, row, out.data());
  uint16_t scale = 0;
  std::memcpy(&scale, out.data(), 2);
  EXPECT_TRUE(std::isnan(FloatFromHalf(scale)));
}

TEST(QuantizeTest, HalfRoundsToTheNearestEven) {
  // Every half comes back, and what lies between two goes to the nearer, ties to even.
  for (uint32_t h = 0; h < 0x7C00; ++h) {
    const float value = FloatFromHalf(static_cast<uint16_t>(h));
    ASSERT_EQ(HalfFromFloat(value), h);
    ASSERT_EQ(HalfFromFloat(-value), h | 0x8000);
    if (h == 0x7BFF) continue;
    const float next = FloatFromHalf(static_cast<uint16_t>(h + 1));
    const float middle = value + (next - value) / 2;
    ASSERT_EQ(HalfFromFloat(middle), h % 2 == 0 ? h : h + 1);
    ASSERT_EQ(HalfFromFloat(std::nextafter(middle, next)), h + 1);
    ASSERT_EQ(HalfFromFloat(std::nextafter(middle, 0.0f)), h);
  }
  EXPECT_EQ(HalfFromFloat(65519.9f), 0x7BFF);
  EXPECT_EQ(HalfFromFloat(65520.0f), 0x7C00);
  EXPECT_EQ(HalfFromFloat(INFINITY), 0x7C00);
  EXPECT_EQ(HalfFromFloat(NAN) & 0x7C00, 0x7C00);
  EXPECT_NE(HalfFromFloat(NAN) & 0x3FF, 0);
}

TEST(QuantizeTest, ABrokenBlockStaysVisiblyBroken) {
  std::vector<float> row(64, 1.0f);
  row[40] = std::numeric_limits<float>::infinity();
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1}) {
    const size_t bytes = FindGgufTensorType(static_cast<uint32_t>(type))->block_bytes;
    std::vector<std::byte> out(2 * bytes);
    EncodeRow(type, row, out.data());
    uint16_t scale = 0;
    std::memcpy(&scale, out.data(), 2);
    EXPECT_TRUE(std::isfinite(FloatFromHalf(scale)));
    std::memcpy(&scale, out.data() + bytes, 2);
    EXPECT_TRUE(std::isnan(FloatFromHalf(scale)));
  }
}

}  // namespace
}  // namespace baton
