// Dequantisation against the PyPI package `gguf`, bit for bit (tests/golden/dequantize.golden;
// format in the README beside it).
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>

#include "gtest/gtest.h"

#include "kernels/embed.h"
#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::ThreadPool;

namespace {

// The rows of one type and what they mean.
struct Dequantized {
  WeightType type;
  std::vector<std::byte> raw;
  std::vector<float> values;  // [n, k]
};

// The whole file.
struct DequantizedFile {
  uint32_t n = 0;
  uint32_t k = 0;
  std::vector<Dequantized> types;
};

template <typename T>
std::vector<T> Read(std::istream& in, size_t count) {
  std::vector<T> out(count);
  in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(count * sizeof(T)));
  return out;
}

std::optional<WeightType> TypeNamed(std::string_view name) {
  for (const WeightType type : WeightTypes()) {
    if (TraitsOf(type).name == name) return type;
  }
  return std::nullopt;
}

DequantizedFile ReadFile() {
  const char* root = std::getenv("BATON_SOURCE_DIR");
  const std::string folder = root == nullptr ? "." : root;
  std::ifstream in(folder + "/tests/golden/dequantize.golden", std::ios::binary);
  const std::vector<char> magic = Read<char>(in, 8);
  EXPECT_EQ(std::string(magic.begin(), magic.end()), "BATONDEQ");
  const std::vector<uint32_t> head = Read<uint32_t>(in, 3);
  DequantizedFile file = {head[1], head[2], {}};
  for (uint32_t i = 0; i < head[0]; ++i) {
    const std::vector<char> name = Read<char>(in, Read<uint32_t>(in, 1)[0]);
    const auto type = TypeNamed(std::string(name.begin(), name.end()));
    if (!in.good() || !type.has_value()) {
      ADD_FAILURE() << "entry " << i << ": " << std::string(name.begin(), name.end());
      return file;
    }
    std::vector<std::byte> raw = Read<std::byte>(in, file.n * RawRowBytes(*type, file.k));
    std::vector<float> values = Read<float>(in, size_t{file.n} * file.k);
    file.types.push_back({*type, std::move(raw), std::move(values)});
  }
  EXPECT_TRUE(in.good());
  EXPECT_EQ(in.peek(), std::char_traits<char>::eof());
  return file;
}

TEST(Dequantize, EveryTypeGivesTheBitsOfThePythonPackage) {
  const DequantizedFile file = ReadFile();
  ThreadPool pool(1);
  std::set<WeightType> seen = {WeightType::kF32};  // nothing to dequantise
  std::vector<int32_t> ids(file.n);
  std::iota(ids.begin(), ids.end(), 0);
  for (const Dequantized& expected : file.types) {
    seen.insert(expected.type);
    const auto matrix = PackedMatrix::Pack(expected.type, expected.raw, file.n, file.k, pool);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    for (const Body& body : Bodies()) {
      std::vector<float> actual(expected.values.size(), kPoison);
      body.ops->embed(pool, *matrix, ids, actual.data());
      for (size_t i = 0; i < actual.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected.values[i]))
            << TraitsOf(expected.type).name << " " << body.name << " element " << i << ": "
            << actual[i] << ", " << expected.values[i];
      }
    }
  }
  EXPECT_EQ(seen.size(), size_t{kNumWeightTypes});
}

// Rows without packing, as weights are encoded for devices, give the same values.
TEST(Dequantize, RawRowsGiveTheBitsOfThePackedOnes) {
  const DequantizedFile file = ReadFile();
  for (const Dequantized& expected : file.types) {
    const size_t row_bytes = RawRowBytes(expected.type, file.k);
    std::vector<float> actual(file.k);
    for (uint32_t row = 0; row < file.n; ++row) {
      const std::byte* const raw = expected.raw.data() + row * row_bytes;
      EXPECT_TRUE(DequantizeRow(expected.type, raw, file.k, actual.data()));
      EXPECT_EQ(std::memcmp(actual.data(), expected.values.data() + size_t{row} * file.k,
                            file.k * sizeof(float)),
                0)
          << TraitsOf(expected.type).name << " row " << row;
    }
  }
}

}  // namespace
}  // namespace baton::kernels
