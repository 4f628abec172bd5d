// Conversion: the bytes of an independent quantiser, from a file and from a folder, and a file that
// is whole or not there.
#include "src/model/convert.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/math.h"
#include "src/model/hf_folder.h"
#include "src/model/model_report.h"
#include "src/model/partial_file.h"
#include "src/model/quantize.h"
#include "tests/model/model_fixture.h"
#include "tests/model/packed_folder.h"
#include "tests/model/test_model.h"

namespace baton::model {

using device::ThreadPool;
using kernels::FloatFromHalf;
using kernels::HalfFromFloat;

namespace {

using ::testing::HasSubstr;
using ::testing::Not;
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

TEST_P(ConvertTest, BiasesOfExpertsStayAsTheyAre) {
  for (const char* from : {"tiny_gptoss", "tiny_gptoss_mxfp4"}) {
    std::filesystem::remove(out_);
    ASSERT_TRUE(Convert(from, GetParam()).ok()) << from;
    const auto written = GgufFile::Open(out_);
    ASSERT_TRUE(written.ok()) << written.status();
    const auto whole = OpenModelFile(GoldenPath(from));
    ASSERT_TRUE(whole.ok()) << whole.status();
    for (const char* name : {"blk.0.ffn_up_exps.bias", "blk.1.attn_sinks.weight"}) {
      const GgufTensor* mine = (*written)->FindTensor(name);
      const GgufTensor* other = (*whole)->FindTensor(name);
      ASSERT_TRUE(mine != nullptr && other != nullptr) << name;
      EXPECT_STREQ(std::string(mine->type->name).c_str(), "F32");
      EXPECT_TRUE(
          std::equal(mine->data.begin(), mine->data.end(), other->data.begin(), other->data.end()))
          << name;
    }
  }
}

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
  // The weights are equal, so the ids are equal.
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

TEST_F(ConvertTest, AFileDoesNotSayWhatItsFolderPacked) {
  const PackedModel model = PackedModelMaker(PackedForms()[0]).Make(/*has_experts=*/false);
  const TestFolder folder("converted");
  folder.Write(model.config, model.packed);
  const auto file = OpenModelFile(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_NE((*file)->FindValue(kPackedMatricesKey), nullptr);
  const ConvertOptions options = {.type = GgmlType::kBf16, .pool = &pool_, .add_keys = nullptr};
  ASSERT_TRUE(ConvertModel(**file, options, out_).ok());
  const auto written = GgufFile::Open(out_);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ((*written)->FindValue(kPackedMatricesKey), nullptr);
  EXPECT_THAT(DescribeModelFile(**written, absl::OkStatus()), Not(HasSubstr("packed")));
}

TEST_F(ConvertTest, RefusesAnotherTypeAndAnExistingFile) {
  EXPECT_THAT(std::string(Convert("tiny_qwen3.gguf", "q6_k").message()), HasSubstr("q8_0"));
  ASSERT_TRUE(Convert("tiny_qwen3.gguf", "bf16").ok());
  EXPECT_EQ(Convert("tiny_qwen3.gguf", "bf16").code(), absl::StatusCode::kAlreadyExists);
}

// The names in the temporary folder that begin with `prefix`.
std::vector<std::string> NamesWith(const std::string& prefix) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(::testing::TempDir())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix)) names.push_back(name);
  }
  return names;
}

class PartialFileTest : public ::testing::TestWithParam<PartialFile::Kind> {
 protected:
  PartialFileTest() { Clear(); }
  ~PartialFileTest() override { Clear(); }
  void Clear() {
    for (const std::string& name : NamesWith(name_)) fs::remove(::testing::TempDir() + name);
  }

  const std::string name_ = "baton_partial_test";
  const std::string path_ = ::testing::TempDir() + name_;
  const std::byte one_[1] = {std::byte{1}};
};

TEST_P(PartialFileTest, OfTwoWritersTheSecondToFinishIsRefused) {
  PartialFile first(path_, GetParam());
  ASSERT_TRUE(first.Open().ok());
  ASSERT_TRUE(first.Write(one_).ok());
  {
    PartialFile second(path_, GetParam());
    ASSERT_TRUE(second.Open().ok());
    EXPECT_FALSE(fs::exists(path_));
    const std::byte two[] = {std::byte{2}, std::byte{2}};
    ASSERT_TRUE(second.Write(two).ok());
    ASSERT_TRUE(second.Finish().ok());
  }
  EXPECT_EQ(first.Finish().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(fs::file_size(path_), 2u);
  PartialFile refused(path_, GetParam());
  EXPECT_EQ(refused.Open().code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(PartialFileTest, NothingIsLeftOfAFileThatWasNotFinished) {
  {
    PartialFile file(path_, GetParam());
    ASSERT_TRUE(file.Open().ok());
    ASSERT_TRUE(file.Write(one_).ok());
    EXPECT_EQ(file.partial_path().empty(), GetParam() == PartialFile::Kind::kUnnamed);
    EXPECT_EQ(NamesWith(name_).size(), file.partial_path().empty() ? 0u : 1u);
  }
  EXPECT_TRUE(NamesWith(name_).empty());
}

TEST_P(PartialFileTest, WhatDeadWritersLeftIsRemovedAndALivingOnesIsNot) {
  PartialFile living(path_, PartialFile::Kind::kNamed);
  ASSERT_TRUE(living.Open().ok());
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const char* left : {".aB3xYz.partial", ".4711.partial", ".4712.partial", ".notes"}) {
    std::ofstream(path_ + left) << "half";
  }
  // An older release's file without a lock: its writer may live until it has been quiet for long.
  fs::last_write_time(path_ + ".4711.partial", long_ago);
  PartialFile next(path_, GetParam());
  ASSERT_TRUE(next.Open().ok());
  EXPECT_FALSE(fs::exists(path_ + ".aB3xYz.partial"));
  EXPECT_FALSE(fs::exists(path_ + ".4711.partial"));
  EXPECT_TRUE(fs::exists(path_ + ".4712.partial"));
  EXPECT_TRUE(fs::exists(path_ + ".notes"));
  EXPECT_TRUE(fs::exists(living.partial_path()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, PartialFileTest,
                         ::testing::Values(PartialFile::Kind::kUnnamed, PartialFile::Kind::kNamed));

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
}  // namespace baton::model
