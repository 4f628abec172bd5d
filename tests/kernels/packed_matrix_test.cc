#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::ThreadPool;

namespace {

// Every element, by the blocks and by embed.
void ExpectElements(const PackedMatrix& matrix, std::span<const std::byte> raw) {
  ThreadPool pool(1);
  const uint32_t k = matrix.k();
  std::vector<float> embedded(k);
  for (uint32_t row = 0; row < matrix.n(); ++row) {
    const int32_t id = static_cast<int32_t>(row);
    ReferenceOps().embed(pool, matrix, {&id, 1}, embedded.data());
    for (uint32_t j = 0; j < k; ++j) {
      const RawTerms terms = RawElementTerms(matrix.type(), raw, k, row, j);
      SCOPED_TRACE(std::string(matrix.traits().name) + " [" + std::to_string(row) + ", " +
                   std::to_string(j) + "]");
      ASSERT_EQ(embedded[j], static_cast<float>(terms.product + terms.min));
      if (!matrix.uses_a16()) continue;
      const WeightBlock block = matrix.Block(row, j / 32);
      const BlockScales scales = ScalesOf(matrix.traits().scales, block);
      ASSERT_EQ(double{scales.scale[j % 32 / 16]} * block.q[j % 32], terms.product);
      ASSERT_EQ(double{scales.min[j % 32 / 16]}, terms.min);
    }
  }
}

TEST(PackedMatrix, GivesBackEveryElementOfEveryType) {
  ThreadPool pool(3);
  for (const WeightType type : WeightTypes()) {
    for (uint32_t n : {1u, 15u, 16u, 17u, 100u}) {
      Random random(n);
      const uint32_t k = WholeBlocks(type, 64) == 64 ? 64 : 512;
      const auto raw = RandomRaw(&random, type, n, k);
      const PackedMatrix matrix = PackedMatrix::Pack(type, raw, n, k, pool).value();
      ASSERT_EQ(matrix.n(), n);
      ASSERT_EQ(matrix.k(), k);
      ASSERT_EQ(matrix.uses_a16(), matrix.traits().quantized());
      ExpectElements(matrix, raw);
    }
  }
}

TEST(PackedMatrix, TakesNoMoreMemoryThanTheFileForWholePanels) {
  ThreadPool pool(1);
  for (const WeightType type : WeightTypes()) {
    Random random(static_cast<uint64_t>(type));
    const uint32_t k = WholeBlocks(type, 1280);
    const auto raw = RandomRaw(&random, type, 48, k);
    const size_t bytes = PackedMatrix::Pack(type, raw, 48, k, pool).value().bytes();
    // A byte for each 6-bit factor: 16 or (IQ4_XS) 8 instead of 12 or 6 bytes for a super-block.
    const bool six_bits =
        type == WeightType::kQ3_K || type == WeightType::kQ4_K || type == WeightType::kQ5_K;
    const size_t more = six_bits ? 4 : type == WeightType::kIq4Xs ? 2 : 0;
    EXPECT_EQ(bytes, raw.size() + raw.size() / TraitsOf(type).block_bytes * more)
        << TraitsOf(type).name;
  }
}

TEST(PackedMatrix, RefusesAScaleThatIsNotFinite) {
  ThreadPool pool(2);
  constexpr uint16_t kInfinity = 0x7C00;
  constexpr uint16_t kNan = 0xFE01;
  for (const WeightType type : WeightTypes()) {
    const WeightTraits& traits = TraitsOf(type);
    if (!traits.quantized()) continue;
    Random random(9);
    const uint32_t k = 512;
    const auto good = RandomRaw(&random, type, 40, k);
    const size_t last_block_of_row_33 = 34 * RawRowBytes(type, k) - traits.block_bytes;
    std::vector<std::pair<size_t, uint16_t>> faults;
    if (type == WeightType::kMxfp4) {
      faults = {{0, static_cast<uint16_t>(0x00FF | static_cast<int>(good[1]) << 8)}};
    } else {
      const size_t at = ScaleAt(type);
      faults = {{at, kInfinity}, {at, kNan}};
      if (traits.has_min()) faults.push_back({at + 2, kNan});
    }
    for (const auto& [at, bits] : faults) {
      auto raw = good;
      std::memcpy(raw.data() + last_block_of_row_33 + at, &bits, 2);
      const Status status = PackedMatrix::Pack(type, raw, 40, k, pool).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << traits.name;
      EXPECT_NE(status.message().find("row 33 of 40"), absl::string_view::npos) << status;
    }
    EXPECT_TRUE(PackedMatrix::Pack(type, good, 40, k, pool).ok());
  }
}

TEST(PackedMatrix, JoinedTensorsEqualOneTensorOfAllRows) {
  ThreadPool pool(2);
  for (WeightType type : {WeightType::kQ4_1, WeightType::kQ4_0, WeightType::kBf16,
                          WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kIq4Nl,
                          WeightType::kIq4Xs, WeightType::kQ3_K, WeightType::kQ2_K}) {
    Random random(3);
    const uint32_t k = WholeBlocks(type, 96);
    const auto raw = RandomRaw(&random, type, 60, k);
    const size_t row_bytes = RawRowBytes(type, k);
    const auto bytes = std::span<const std::byte>(raw);
    const RawRows parts[] = {{type, bytes.subspan(0, 33 * row_bytes), 33},
                             {type, bytes.subspan(33 * row_bytes, 20 * row_bytes), 20},
                             {type, bytes.subspan(53 * row_bytes), 7}};
    const PackedMatrix joined = PackedMatrix::PackRows(parts, k, pool).value();
    const PackedMatrix whole = PackedMatrix::Pack(type, raw, 60, k, pool).value();
    ASSERT_EQ(joined.bytes(), whole.bytes());
    EXPECT_TRUE(std::equal(joined.panel(0), joined.panel(0) + joined.bytes(), whole.panel(0)));
  }
}

TEST(PackedMatrix, PacksTheSameBytesIntoMemoryThatItIsGiven) {
  ThreadPool pool(2);
  for (const WeightType type : WeightTypes()) {
    SCOPED_TRACE(TraitsOf(type).name);
    Random random(5);
    constexpr uint32_t kRows = 37;
    const uint32_t k = WholeBlocks(type, 96);
    const auto raw = RandomRaw(&random, type, kRows, k);
    const RawRows rows = {type, raw, kRows};
    const PackedMatrix packed = PackedMatrix::Pack(type, raw, kRows, k, pool).value();
    const auto equals = [&](const std::byte* bytes) {
      return std::equal(bytes, bytes + packed.bytes(), packed.panel(0));
    };
    PackedMatrix matrix = PackedMatrix::Shaped(type, kRows, k).value();
    ASSERT_EQ(matrix.bytes(), packed.bytes());
    EXPECT_EQ(matrix.uses_a16(), packed.uses_a16());
    std::vector<std::byte> memory(packed.bytes());
    ASSERT_TRUE(matrix.PackInto({&rows, 1}, pool, memory).ok());
    EXPECT_TRUE(equals(memory.data()));
    // Rows that were begun, as another process left them. Rows that fill a panel up stay zero.
    std::vector<std::byte> begun(packed.bytes());
    const size_t whole_panels = kRows / kPanelRows * matrix.panel_bytes();
    std::fill_n(begun.begin(), whole_panels / 2, std::byte{0x5C});
    ASSERT_TRUE(matrix.PackInto({&rows, 1}, pool, begun).ok());
    EXPECT_TRUE(equals(begun.data()));
    matrix.View(memory.data());
    EXPECT_EQ(matrix.panel(1), memory.data() + matrix.panel_bytes());
    device::AlignedBuffer own = device::AlignedBuffer::Allocate(memory.size()).value();
    std::copy(memory.begin(), memory.end(), own.data());
    matrix.Own(std::move(own));
    const PackedMatrix moved = std::move(matrix);
    EXPECT_TRUE(equals(moved.panel(0)));
  }
}

TEST(PackedMatrix, RefusesRowsAndMemoryOfAnotherShape) {
  ThreadPool pool(1);
  const PackedMatrix matrix = PackedMatrix::Shaped(WeightType::kQ4_1, 10, 32).value();
  const std::vector<std::byte> raw(20 * 10);
  std::vector<std::byte> memory(matrix.bytes());
  const auto code = [&](const RawRows& rows, size_t size) {
    return matrix.PackInto({&rows, 1}, pool, std::span(memory).first(size)).code();
  };
  const auto bytes = std::span<const std::byte>(raw);
  EXPECT_EQ(code({WeightType::kQ4_1, raw, 10}, memory.size()), StatusCode::kOk);
  EXPECT_EQ(code({WeightType::kQ4_1, raw, 10}, memory.size() - 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({WeightType::kQ4_1, bytes.first(180), 9}, memory.size()),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code({WeightType::kQ4_0, bytes.first(180), 10}, memory.size()),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(PackedMatrix::Shaped(WeightType::kQ4_1, 0, 32).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(PackedMatrix::Shaped(WeightType::kQ4_1, uint64_t{1} << 32, 32).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(PackedMatrix, SaysWhatIsWrongWithItsInput) {
  ThreadPool pool(1);
  const std::vector<std::byte> raw(20 * 10);
  const auto code = [&](uint32_t n, uint32_t k) {
    return PackedMatrix::Pack(WeightType::kQ4_1, raw, n, k, pool).status().code();
  };
  EXPECT_EQ(code(10, 32), StatusCode::kOk);
  EXPECT_EQ(code(9, 32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(10, 31), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(10, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 32), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(UINT32_MAX, UINT32_MAX - 31), StatusCode::kInvalidArgument);
  EXPECT_FALSE(PackedMatrix::PackRows({}, 32, pool).ok());
  const std::vector<std::byte> super(144);
  const Status half = PackedMatrix::Pack(WeightType::kQ4_K, super, 2, 128, pool).status();
  EXPECT_EQ(half.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(half.message().find("256"), absl::string_view::npos) << half;
  const RawRows mixed[] = {{WeightType::kQ4_1, std::span(raw).first(20), 1},
                           {WeightType::kQ4_0, std::span(raw).first(18), 1}};
  const Status status = PackedMatrix::PackRows(mixed, 32, pool).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("Q4_1"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("Q4_0"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace baton::kernels
