#include "kernels/packed_matrix.h"

#include <vector>

#include "gtest/gtest.h"

#include "kernels/math.h"
#include "tests/kernels/kernel_fixtures.h"

namespace baton {
namespace {

TEST(PackedMatrix, GivesBackEveryElementOfEveryType) {
  ThreadPool pool(3);
  for (int i = 0; i < kNumWeightTypes; ++i) {
    const auto type = static_cast<WeightType>(i);
    for (uint32_t n : {1u, 15u, 16u, 17u, 100u}) {
      Random random(n);
      const uint32_t k = 64;
      const auto raw = RandomRaw(&random, type, n, k);
      const PackedMatrix matrix = PackedMatrix::Pack(type, raw, n, k, pool).value();
      ASSERT_EQ(matrix.n(), n);
      ASSERT_EQ(matrix.k(), k);
      ASSERT_EQ(matrix.uses_a16(), matrix.traits().quantized());
      for (uint32_t row = 0; row < n; ++row) {
        for (uint32_t j = 0; j < k; ++j) {
          const double expected = RawElement(type, raw, k, row, j);
          double actual = 0;
          if (matrix.uses_a16()) {
            const WeightBlock block = matrix.Block(row, j / 32);
            actual =
                double{FloatFromHalf(block.scale)} * block.q[j % 32] + FloatFromHalf(block.min);
          } else {
            std::vector<float> out(k);
            const int32_t id = static_cast<int32_t>(row);
            ReferenceOps().embed(pool, matrix, {&id, 1}, out.data());
            actual = out[j];
          }
          ASSERT_EQ(actual, expected) << matrix.traits().name << " [" << row << ", " << j << "]";
        }
      }
    }
  }
}

TEST(PackedMatrix, TakesNoMoreMemoryThanTheFileForWholePanels) {
  ThreadPool pool(1);
  for (int i = 0; i < kNumWeightTypes; ++i) {
    const auto type = static_cast<WeightType>(i);
    Random random(i);
    const auto raw = RandomRaw(&random, type, 48, 320);
    EXPECT_EQ(PackedMatrix::Pack(type, raw, 48, 320, pool).value().bytes(), raw.size());
  }
}

TEST(PackedMatrix, JoinedTensorsEqualOneTensorOfAllRows) {
  ThreadPool pool(2);
  for (WeightType type : {WeightType::kQ4_1, WeightType::kQ4_0, WeightType::kBf16}) {
    Random random(3);
    const uint32_t k = 96;
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
  const RawRows mixed[] = {{WeightType::kQ4_1, std::span(raw).first(20), 1},
                           {WeightType::kQ4_0, std::span(raw).first(18), 1}};
  const Status status = PackedMatrix::PackRows(mixed, 32, pool).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("Q4_1"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("Q4_0"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace baton
