// Split models: the parts become one directory, and whatever does not belong together is refused
// with one typed error.
#include <filesystem>
#include <fstream>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/model.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/test_model.h"

namespace baton::model {

using device::ThreadPool;

namespace {

using ::testing::HasSubstr;

std::string WeightsId(const std::string& path) {
  ThreadPool pool(1);
  const auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return "";
  const auto model = Model::Load(**file, {.pool = &pool, .max_rows = 8});
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? (*model)->weights_id() : "";
}

TEST(GgufSplitTest, PartsOfAnotherWriterAreTheSameModelAsTheWhole) {
  const std::string split = GoldenPath("tiny_split-00001-of-00003.gguf");
  EXPECT_EQ(WeightsId(split), WeightsId(GoldenPath("tiny_qwen2.gguf")));
  const auto file = GgufFile::Open(split);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->split().num_parts, 3u);
  EXPECT_EQ((*file)->tensors().size(), (*file)->split().num_tensors);
}

// A model in three parts in a folder of its own, which a test then spoils.
class Parts {
 public:
  explicit Parts(const std::string& name) : folder_(::testing::TempDir() + "baton_split_" + name) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    for (uint16_t i = 0; i < 3; ++i) {
      Write(i, Part(i).AddF32Tensor(fmt::format("tensor.{}", i), {4}));
    }
  }
  ~Parts() { std::filesystem::remove_all(folder_); }

  static GgufBuilder Part(uint16_t part_idx, uint16_t num_parts = 3, int32_t num_tensors = 3) {
    GgufBuilder out;
    if (part_idx == 0) out.AddString("general.name", "whole");
    out.Add<uint16_t>("split.no", GgufValueType::kUint16, part_idx)
        .Add<uint16_t>("split.count", GgufValueType::kUint16, num_parts)
        .Add<int32_t>("split.tensors.count", GgufValueType::kInt32, num_tensors);
    return out;
  }
  std::string Path(uint16_t part_idx) const {
    return fmt::format("{}/m-{:05}-of-00003.gguf", folder_, part_idx + 1);
  }
  void Write(uint16_t part_idx, const GgufBuilder& builder) const {
    const std::vector<std::byte> bytes = builder.Build();
    std::ofstream(Path(part_idx), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  absl::Status Open(uint16_t part_idx = 0) const { return GgufFile::Open(Path(part_idx)).status(); }

 private:
  const std::string folder_;
};

TEST(GgufSplitTest, EveryTensorIsFoundWhicheverPartHoldsIt) {
  const Parts parts("good");
  const auto file = GgufFile::Open(parts.Path(0));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 3u);
  for (const char* name : {"tensor.0", "tensor.1", "tensor.2"}) {
    ASSERT_NE((*file)->FindTensor(name), nullptr) << name;
    EXPECT_EQ((*file)->FindTensor(name)->data.size(), 16u);
  }
}

TEST(GgufSplitTest, RefusesWhatDoesNotBelongTogether) {
  using E = GgufErrorCode;
  struct Case {
    const char* words;
    E code;
    std::function<void(const Parts&)> spoil;
  };
  const std::vector<Case> cases = {
      {"m-00002-of-00003.gguf", E::kSplitMissing,
       [](const Parts& p) { std::filesystem::remove(p.Path(1)); }},
      {"m-00003-of-00003.gguf", E::kTruncated,
       [](const Parts& p) { std::filesystem::resize_file(p.Path(2), 20); }},
      {"m-00003-of-00003.gguf", E::kDataOutOfFile,
       [](const Parts& p) {
         std::filesystem::resize_file(p.Path(2), std::filesystem::file_size(p.Path(2)) - 17);
       }},
      {"it says that it is part 3 of 3", E::kSplitMismatch,
       [](const Parts& p) { p.Write(1, Parts::Part(2).AddF32Tensor("tensor.1", {4})); }},
      {"it says that it is part 2 of 4", E::kSplitMismatch,
       [](const Parts& p) { p.Write(1, Parts::Part(1, 4).AddF32Tensor("tensor.1", {4})); }},
      {"it says that it is part 1 of 1", E::kSplitMismatch,
       [](const Parts& p) { p.Write(1, GgufBuilder().AddF32Tensor("tensor.1", {4})); }},
      {"its model has 9 tensors", E::kSplitMismatch,
       [](const Parts& p) { p.Write(1, Parts::Part(1, 3, 9).AddF32Tensor("tensor.1", {4})); }},
      {"the 3 parts hold 2 tensors", E::kSplitMismatch,
       [](const Parts& p) { p.Write(1, Parts::Part(1)); }},
      {"\"general.name\" has another value", E::kSplitMismatch,
       [](const Parts& p) {
         p.Write(1,
                 Parts::Part(1).AddString("general.name", "other").AddF32Tensor("tensor.1", {4}));
       }},
      {"\"general.architecture\" has another value", E::kSplitMismatch,
       [](const Parts& p) {
         p.Write(1, Parts::Part(1)
                        .AddString("general.architecture", "llama")
                        .AddF32Tensor("tensor.1", {4}));
       }},
      {"tensor.0", E::kDuplicateTensor,
       [](const Parts& p) { p.Write(1, Parts::Part(1).AddF32Tensor("tensor.0", {4})); }},
      {"name that ends with -00001-of-00002.gguf", E::kSplitFile,
       [](const Parts& p) { p.Write(0, Parts::Part(0, 2).AddF32Tensor("tensor.0", {4})); }},
      {"split.no", E::kSplitMismatch, [](const Parts& p) { p.Write(0, Parts::Part(3)); }},
      {"split.count", E::kSplitMismatch, [](const Parts& p) { p.Write(0, Parts::Part(0, 60000)); }},
  };
  int number = 0;
  for (const Case& test : cases) {
    const Parts parts(fmt::format("bad{}", number++));
    test.spoil(parts);
    const absl::Status status = parts.Open();
    EXPECT_EQ(GgufErrorOf(status), test.code) << test.words << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words));
  }
}

// The header limit is one for all parts, not one for each of 4,096.
TEST(GgufSplitTest, ThePartsShareOneHeaderLimit) {
  const Parts parts("large");
  const auto write = [&](uint16_t part_idx, size_t pad) {
    parts.Write(part_idx, Parts::Part(part_idx)
                              .AddString("split.pad", std::string(pad, 'x'))
                              .AddF32Tensor(fmt::format("tensor.{}", part_idx), {4}));
  };
  for (uint16_t i = 0; i < 3; ++i) write(i, kMaxGgufHeaderBytes / 3 - 1000);
  EXPECT_TRUE(parts.Open().ok()) << parts.Open();
  write(2, kMaxGgufHeaderBytes / 3 + 2000);
  const absl::Status status = parts.Open();
  EXPECT_EQ(GgufErrorOf(status), GgufErrorCode::kHeaderTooLarge) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("m-00003-of-00003.gguf"));
}

TEST(GgufSplitTest, AskedForALaterPartNamesTheFirst) {
  const Parts parts("later");
  const absl::Status status = parts.Open(1);
  EXPECT_EQ(GgufErrorOf(status), GgufErrorCode::kSplitFile);
  EXPECT_THAT(std::string(status.message()), HasSubstr("-00001-of-00003.gguf"));
}

}  // namespace
}  // namespace baton::model
