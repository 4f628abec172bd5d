// Tensors of GGUF's NVFP4: their weights are those of the PyPI package gguf, and the scale that
// stands beside one is taken or refused by name.
#include "src/model/gguf_nvfp4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/encode_matrix.h"
#include "src/model/gguf_writer.h"
#include "src/model/model_weights.h"
#include "src/model/nvfp4_rows.h"
#include "src/model/safetensors.h"
#include "src/model/tensor_plan.h"
#include "src/model/weight_checks.h"
#include "tests/model/test_model.h"

namespace baton::model {

using device::ThreadPool;

namespace {

using ::testing::HasSubstr;

const SafetensorsTensor* Find(const SafetensorsFile& file, std::string_view name) {
  for (const SafetensorsTensor& tensor : file.tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

TEST(Nvfp4RowsTest, HaveTheWeightsOfThePythonPackage) {
  const auto file = SafetensorsFile::Open(GoldenPath("packed.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const SafetensorsTensor* blocks = Find(**file, "nvfp4_gguf.blocks");
  const SafetensorsTensor* expected = Find(**file, "nvfp4_gguf.expected");
  ASSERT_TRUE(blocks != nullptr && expected != nullptr);
  const auto n = static_cast<uint32_t>(expected->shape[0]);
  const auto k = static_cast<uint32_t>(expected->shape[1]);
  const Nvfp4Rows rows = {blocks->data, n, k};
  std::vector<float> values(size_t{n} * k);
  for (uint32_t row = 0; row < n; ++row) rows.Weights(row, &values[size_t{row} * k]);
  std::vector<float> wanted(values.size());
  ASSERT_EQ(values.size() * sizeof(float), expected->data.size());
  std::memcpy(wanted.data(), expected->data.data(), expected->data.size());
  EXPECT_EQ(values, wanted);
}

// A tensor of a file, with data of its own.
struct Made {
  std::vector<std::byte> bytes;
  GgufTensor tensor;
};

Made Matrix(std::string_view name, uint64_t matrices = 1) {
  Made out;
  out.bytes.assign(36 * 2 * matrices, std::byte{0x38});  // scales of 1
  out.tensor.name = name;
  out.tensor.type = FindGgufTensorType(40);
  out.tensor.num_dims = matrices == 1 ? 2 : 3;
  out.tensor.dims = {64, 2, matrices, 1};
  out.tensor.data = out.bytes;
  return out;
}

Made Numbers(std::string_view name, const std::vector<float>& values) {
  Made out;
  const auto bytes = std::as_bytes(std::span(values));
  out.bytes.assign(bytes.begin(), bytes.end());
  out.tensor.name = name;
  out.tensor.type = FindGgufTensorType(0);
  out.tensor.num_dims = 1;
  out.tensor.dims = {values.size(), 1, 1, 1};
  out.tensor.data = out.bytes;
  return out;
}

absl::Status Take(std::vector<GgufTensor>& tensors,
                  std::vector<std::shared_ptr<const void>>& storage) {
  const auto find = [&tensors](std::string_view name) -> const GgufTensor* {
    for (const GgufTensor& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  };
  return TakeNvfp4Scales(tensors, find, storage);
}

TEST(GgufNvfp4Test, TheScaleBesideATensorMultipliesIt) {
  const Made weight = Matrix("blk.0.attn_q.weight");
  const Made plain = Matrix("blk.0.attn_k.weight");
  const Made scale = Numbers("blk.0.attn_q.scale", {0.25f});
  const Made input = Numbers("blk.0.attn_q.input_scale", {7.0f});
  std::vector<GgufTensor> tensors = {weight.tensor, scale.tensor, plain.tensor, input.tensor};
  std::vector<std::shared_ptr<const void>> storage;
  ASSERT_TRUE(Take(tensors, storage).ok());
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].type->scale, 0.25f);
  EXPECT_EQ(tensors[1].type->scale, 1.0f);
  ThreadPool pool(1);
  const auto scaled = EncodeMatrix(tensors[0], GgmlType::kF16, pool);
  const auto whole = EncodeMatrix(tensors[1], GgmlType::kF16, pool);
  ASSERT_TRUE(scaled.ok() && whole.ok());
  const auto eighth = [](const std::vector<std::byte>& halves) {
    uint16_t half;
    std::memcpy(&half, halves.data() + 8 * sizeof(half), sizeof(half));
    return half;
  };
  EXPECT_EQ(eighth(*scaled), 0x3600) << "1.5 / 4, of the high bits of 0x38";
  EXPECT_EQ(eighth(*whole), 0x3E00) << "1.5";
}

TEST(GgufNvfp4Test, RefusesScalesThatAreNoNumberForTheWhole) {
  const auto status = [](const Made& weight, const std::vector<float>& values) {
    const Made scale = Numbers("blk.0.x.scale", values);
    std::vector<GgufTensor> tensors = {weight.tensor, scale.tensor};
    std::vector<std::shared_ptr<const void>> storage;
    return Take(tensors, storage);
  };
  const Made weight = Matrix("blk.0.x.weight");
  const Made experts = Matrix("blk.0.x.weight", 3);
  EXPECT_TRUE(status(weight, {1}).ok());
  EXPECT_TRUE(status(experts, {0.5f, 0.5f, 0.5f}).ok());
  const std::tuple<const Made*, std::vector<float>, const char*> cases[] = {
      {&weight, {0}, "element 0"},     {&weight, {-1}, "element -1"},
      {&weight, {NAN}, "element nan"}, {&weight, {INFINITY}, "element inf"},
      {&weight, {1, 1}, "[2]"},        {&experts, {1, 1}, "[2]"},
      {&experts, {1, 1, 2}, "expert"}};
  for (const auto& [matrix, values, words] : cases) {
    const absl::Status refused = status(*matrix, values);
    EXPECT_EQ(GgufErrorOf(refused), GgufErrorCode::kBadScale) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("blk.0.x.scale"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(words));
  }
}

// A file made in memory: a table in F32 and a matrix in NVFP4, each with an owner of its own.
struct Assembly {
  explicit Assembly(float scale) : type(Nvfp4TensorType(scale, /*divides=*/false)) {
    *table = Numbers("table.weight", {1, 2, 3, 4, 5, 6, 7, 8});
    table->tensor.num_dims = 2;
    table->tensor.dims = {4, 2, 1, 1};
    table->tensor.data = table->bytes;
    *matrix = Matrix("x.weight");
    matrix->tensor.type = &type;
    matrix->tensor.data = matrix->bytes;
  }
  std::unique_ptr<GgufFile> Open() const {
    GgufAssembly assembly = {.header = GgufWriter().Header(),
                             .tensors = {table->tensor, matrix->tensor}};
    for (const auto& made : {table, matrix}) assembly.memory.push_back({made->bytes, made, false});
    auto file = GgufFile::FromAssembly(std::move(assembly));
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  GgufTensorType type;
  std::shared_ptr<Made> table = std::make_shared<Made>();
  std::shared_ptr<Made> matrix = std::make_shared<Made>();
};

TEST(GgufNvfp4Test, ElementsThatAreInfiniteAreFound) {
  ThreadPool pool(1);
  EXPECT_TRUE(CheckElements(*Assembly(1e34f).Open(), pool).ok());
  Assembly infinite(1e37f);
  infinite.matrix->bytes[36] = std::byte{0x7E};  // 448, in the second row
  const absl::Status status = CheckElements(*infinite.Open(), pool);
  EXPECT_THAT(std::string(status.message()), HasSubstr("x.weight"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("row 1 of 2 has an element that is not"));
}

std::vector<float> RowOf(const MappedRows& rows, uint32_t row) {
  std::vector<float> out(rows.k());
  rows.Read(row, out.data());
  return out;
}

TEST(MappedRowsTest, KeepOnlyTheMemoryOfTheirTensor) {
  ThreadPool pool(1);
  Assembly assembly(1);
  std::unique_ptr<GgufFile> file = assembly.Open();
  const auto rows = MappedRows::Create(*file, file->tensors()[0], pool);
  const auto in_bf16 = MappedRows::Create(*file, file->tensors()[1], pool);
  ASSERT_TRUE(rows.ok() && in_bf16.ok()) << rows.status() << in_bf16.status();
  file.reset();
  const std::weak_ptr<Made> table = assembly.table;
  const std::weak_ptr<Made> matrix = assembly.matrix;
  assembly.table.reset();
  assembly.matrix.reset();
  EXPECT_FALSE(table.expired());
  EXPECT_TRUE(matrix.expired()) << "its rows became bf16";
  EXPECT_EQ(rows->bytes(), 2 * 4 * sizeof(float));
  EXPECT_EQ(in_bf16->bytes(), 2 * 64 * sizeof(uint16_t));
  EXPECT_EQ(RowOf(*rows, 1), (std::vector<float>{5, 6, 7, 8}));
}

// FromBytes with a scaled matrix in NVFP4 has type rows of its own; data is the caller's still.
TEST(MappedRowsTest, CopyWhatIsTheCallers) {
  GgufWriter writer;
  const uint64_t square[] = {4, 2};
  const uint64_t blocks[] = {64, 1};
  const uint64_t one[] = {1};
  writer.AddTensor({"table.weight", square, 0, 32});
  writer.AddTensor({"x.weight", blocks, 40, 36});
  writer.AddTensor({"x.scale", one, 0, 4});
  std::vector<std::byte> bytes = writer.Header();
  const auto add = [&bytes](std::span<const std::byte> data) {
    bytes.insert(bytes.end(), data.begin(), data.end());
    bytes.resize(bytes.size() + GgufWriter::Padded(data.size()) - data.size());
  };
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6, 7, 8};
  add(std::as_bytes(std::span(numbers)));
  add(std::vector<std::byte>(36, std::byte{0x38}));
  add(std::as_bytes(std::span(numbers).first(1)));
  auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  ThreadPool pool(1);
  const auto rows = MappedRows::Create(**file, (*file)->tensors()[0], pool);
  ASSERT_TRUE(rows.ok()) << rows.status();
  file->reset();
  std::ranges::fill(bytes, std::byte{0xFF});
  EXPECT_EQ(RowOf(*rows, 1), (std::vector<float>{5, 6, 7, 8}));
  EXPECT_EQ(rows->bytes(), 32u);
}

}  // namespace
}  // namespace baton::model
