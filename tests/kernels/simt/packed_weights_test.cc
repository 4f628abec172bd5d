// Packed weights on the runner: what a file's blocks are in double, rounded to bf16, is what the
// kernels make of the tiles, and products have the bits that the same weights in bf16 give.
#include "kernels/cuda/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/experts_reference.h"
#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/pack_weights.h"
#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/kernel_fixtures.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/kernels/simt/other_gpus.h"
#include "tests/test_seed.h"

namespace baton::kernels::cuda {

using device::ThreadPool;

namespace {

using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::FromDevice;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::SameBits;
using testing::HasSubstr;

// How matrices of a file are made into a format; not of kE4m3.
WeightType TypeOf(PackedFormat format) {
  constexpr WeightType kTypes[] = {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ4_K,
                                   WeightType::kQ8_0, WeightType::kQ6_K};
  return kTypes[PackedIndex(format)];
}
std::string NameOf(PackedFormat format) {
  return format == PackedFormat::kE4m3 ? "E4M3" : std::string(TraitsOf(TypeOf(format)).name);
}
// The smallest k.
uint32_t UnitOf(PackedFormat format) {
  return format == PackedFormat::kE4m3 ? kQuantBlock : TraitsOf(TypeOf(format)).block_elements;
}

// A code by its definition (OCP 8-bit floating point): 1.m 2^(e - 7), or 0.m 2^-6 where e is 0.
double ExactE4m3(std::byte code) {
  const auto bits = static_cast<int>(code);
  const int exponent = bits >> 3 & 15;
  const int mantissa = (bits & 7) + (exponent == 0 ? 0 : 8);
  return (bits >= 128 ? -1.0 : 1.0) * std::ldexp(mantissa, std::max(exponent, 1) - 10);
}

// Codes of every value, and scales of all 24 bits: most near 0.01, some the smallest and the
// largest that there are.
struct Fp8Matrix {
  Fp8Matrix(uint32_t n, uint32_t k) {
    Random random(uint64_t{n} << 32 | k);
    codes = random.Bytes(size_t{n} * k);
    for (std::byte& code : codes) code = IsNanCode(code) ? code ^ std::byte{1} : code;
    rows = {.n = n, .k = k, .group = n % 2 == 0 ? 128 : k};
    for (uint32_t at = 0; at < n * rows.groups(); ++at) {
      const float scale = 0.005f + std::ldexp(static_cast<float>(random.Below(1 << 24)), -31);
      const float extremes[] = {std::ldexp(1.0f, -149), std::ldexp(scale, -120), kMaxFp8Scale};
      scales.push_back(at % 7 < 4 ? scale : extremes[at % 7 - 4]);
    }
    rows.codes = codes;
    rows.scales = scales;
  }

  std::vector<std::byte> codes;
  std::vector<float> scales;
  Fp8Rows rows;
};

// A matrix [n][k] of a file, its tiles on the runner, and its weights in bf16.
struct Matrix {
  Matrix(PackedFormat of_format, uint32_t num_rows, uint32_t num_columns)
      : format(of_format),
        n(num_rows),
        k(num_columns),
        tiles(PackedBytes(format, n, k), "tiles"),
        weights(size_t{n} * k) {
    ThreadPool pool(1);
    std::vector<std::byte> packed(tiles.size());
    const absl::Status status =
        format == PackedFormat::kE4m3 ? MakeFp8(pool, packed) : MakeBlocks(pool, packed);
    EXPECT_TRUE(status.ok()) << status;
    std::memcpy(tiles.data(), packed.data(), packed.size());
  }

  PackedMatrixView view() const { return {tiles.data(), format}; }

  PackedFormat format;
  uint32_t n;
  uint32_t k;
  SimBuffer tiles;
  std::vector<Bf16> weights;

 private:
  absl::Status MakeBlocks(ThreadPool& pool, std::span<std::byte> packed) {
    const WeightType type = TypeOf(format);
    Random random(uint64_t{n} << 32 | k);
    const std::vector<std::byte> raw = RandomRaw(&random, type, n, k);
    for (uint32_t at = 0; at < weights.size(); ++at) {
      weights[at] = {Bf16FromFloat(static_cast<float>(RawElement(type, raw, k, at / k, at % k)))};
    }
    return PackWeights({type, raw, n}, k, pool, packed);
  }
  absl::Status MakeFp8(ThreadPool& pool, std::span<std::byte> packed) {
    const Fp8Matrix matrix(n, k);
    const uint32_t groups = matrix.rows.groups();
    for (uint32_t at = 0; at < weights.size(); ++at) {
      const float scale = matrix.scales[at / k * groups + at % k / matrix.rows.group];
      const double exact = ExactE4m3(matrix.codes[at]) * scale;
      weights[at] = {Bf16FromFloat(static_cast<float>(exact))};
    }
    return PackFp8(matrix.rows, pool, packed);
  }
};

std::string Name(const Matrix& w) { return fmt::format("{} {} x {}", NameOf(w.format), w.n, w.k); }

// The first place where `got` is not `expected`, or "". A zero may have either sign.
std::string Difference(const std::vector<Bf16>& got, const std::vector<Bf16>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const float value = FloatFromBf16(got[i].bits);
    const float wanted = FloatFromBf16(expected[i].bits);
    if (!(value == wanted)) return fmt::format("element {} is {}, not {}", i, value, wanted);
  }
  return "";
}

std::string CheckUnpack(const Matrix& w) {
  SimBuffer out(w.weights.size() * sizeof(Bf16), "out");
  const absl::Status status =
      runner::Kernels().unpack({.w = w.view(), .out = out.as<Bf16>(), .n = w.n, .k = w.k}, nullptr);
  if (!status.ok()) return Name(w) + ": " + std::string(status.message());
  const std::string difference = Difference(FromDevice<Bf16>(out), w.weights);
  return difference.empty() ? "" : Name(w) + ": " + difference;
}

// The last two of several ids are ones that another kernel gives.
std::string CheckEmbed(const Matrix& table, const std::vector<uint32_t>& ids, float scale) {
  const auto num_rows = static_cast<uint32_t>(ids.size());
  std::vector<uint32_t> given = ids;
  std::vector<uint32_t> fed;
  for (size_t row = ids.size() > 1 ? ids.size() - 2 : 1; row < ids.size(); ++row) {
    given[row] = cuda::kFedId | static_cast<uint32_t>(fed.size());
    fed.push_back(ids[row]);
  }
  if (fed.empty()) fed.push_back(0);
  SimBuffer fed_buffer = OnDevice(fed, "fed");
  SimBuffer ids_buffer = OnDevice(given, "ids");
  SimBuffer out(ids.size() * table.k * sizeof(Bf16), "out");
  const absl::Status status = runner::Kernels().embed_packed({.table = table.view(),
                                                              .ids = ids_buffer.as<uint32_t>(),
                                                              .out = out.as<Bf16>(),
                                                              .num_rows = num_rows,
                                                              .num_ids = table.n,
                                                              .dim = table.k,
                                                              .scale = scale,
                                                              .fed = fed_buffer.as<uint32_t>()},
                                                             nullptr);
  if (!status.ok()) return Name(table) + ": " + std::string(status.message());
  std::vector<Bf16> expected(size_t{num_rows} * table.k);
  ReferenceEmbed({.table = table.weights.data(),
                  .ids = ids.data(),
                  .out = expected.data(),
                  .num_rows = num_rows,
                  .num_ids = table.n,
                  .dim = table.k,
                  .scale = scale});
  const std::string difference = Difference(FromDevice<Bf16>(out), expected);
  return difference.empty() ? "" : Name(table) + ": " + difference;
}

// x of m rows times a matrix, against the bits that the weights in bf16 give.
struct Product {
  uint32_t m;
  GemmPath path = GemmPath::kAuto;
  bool has_bias = false;
  bool to_bf16 = false;
};

std::string CheckProduct(const Matrix& w, const Product& p) {
  const std::vector<Bf16> x = RandomBf16(size_t{p.m} * w.k, 6);
  std::vector<float> bias(w.n);
  for (uint32_t i = 0; i < w.n; ++i) bias[i] = 0.25f * static_cast<float>(i);
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer bias_buffer = OnDevice(bias, "bias");
  SimBuffer partials(GemmPartialBytes(p.m, w.n, w.k), "partials");
  SimBuffer counters = OnDevice(std::vector<uint32_t>(kGemmCounters), "counters");
  std::vector<std::byte> expected(size_t{p.m} * w.n * (p.to_bf16 ? 2 : 4));
  SimBuffer y(expected.size(), "y");
  GemmParams params = {.x = x_buffer.as<Bf16>(),
                       .w = nullptr,
                       .m = p.m,
                       .n = w.n,
                       .k = w.k,
                       .partials = partials.data(),
                       .counters = counters.as<uint32_t>(),
                       .partial_bytes = partials.size(),
                       .path = p.path};
  if (p.has_bias) params.bias_float = bias_buffer.as<float>();
  const auto write_to = [&p](GemmParams& to, std::byte* out) {
    to.y_float = p.to_bf16 ? nullptr : reinterpret_cast<float*>(out);
    to.y_bf16 = p.to_bf16 ? reinterpret_cast<Bf16*>(out) : nullptr;
  };
  write_to(params, y.data());
  const absl::Status status = runner::Kernels().gemm_packed({params, w.view()}, nullptr);
  const std::string name = fmt::format("{} rows, {}: ", p.m, Name(w));
  if (!status.ok()) return name + std::string(status.message());
  params.x = x.data();
  params.w = w.weights.data();
  if (p.has_bias) params.bias_float = bias.data();
  write_to(params, expected.data());
  ReferenceGemmBits(params, simt_test::CurrentCore());
  return SameBits(y.data(), expected.data(), y.size()) ? "" : name + "other bits";
}

// Tiles of three experts of 19 rows each; a slot's row of x is not its own number.
std::string CheckExperts(PackedFormat format, uint32_t tile_rows, uint32_t k) {
  constexpr uint32_t kExperts = 3;
  constexpr uint32_t kRows = 19;
  constexpr uint32_t kN = 32;  // whole tiles, so that one matrix is all experts
  const Matrix all(format, kExperts * kN, k);
  const std::vector<Bf16> x = RandomBf16(size_t{kRows} * k, 8);
  std::vector<uint32_t> slot_rows;
  std::vector<ExpertTile> tiles;
  for (uint32_t expert = 0; expert < kExperts; ++expert) {
    for (uint32_t row = 0; row < kRows; ++row) {
      if (row % tile_rows == 0) {
        const auto slot = static_cast<uint32_t>(slot_rows.size());
        tiles.push_back({expert, slot, std::min(tile_rows, kRows - row)});
      }
      slot_rows.push_back(row * 7 % kRows);
    }
  }
  const auto num_tiles = static_cast<uint32_t>(tiles.size());
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer rows_buffer = OnDevice(slot_rows, "rows of slots");
  SimBuffer tiles_buffer = OnDevice(tiles, "tiles");
  SimBuffer count = OnDevice(std::vector<uint32_t>{num_tiles}, "number of tiles");
  std::vector<Bf16> expected(slot_rows.size() * kN);
  SimBuffer y(expected.size() * sizeof(Bf16), "y");
  GroupedGemmParams params = {.x = x_buffer.as<Bf16>(),
                              .slot_rows = rows_buffer.as<uint32_t>(),
                              .w = nullptr,
                              .y = y.as<Bf16>(),
                              .tiles = tiles_buffer.as<ExpertTile>(),
                              .num_tiles = count.as<uint32_t>(),
                              .max_tiles = num_tiles + 2,
                              .tile_rows = tile_rows,
                              .n = kN,
                              .k = k};
  const absl::Status status = runner::Kernels().grouped_packed({params, all.view()}, nullptr);
  if (!status.ok()) return Name(all) + ": " + std::string(status.message());
  params.x = x.data();
  params.slot_rows = slot_rows.data();
  params.w = all.weights.data();
  params.y = expected.data();
  params.tiles = tiles.data();
  params.num_tiles = &num_tiles;
  ReferenceGroupedGemmBits(params, simt_test::CurrentCore());
  return SameBits(y.data(), expected.data(), y.size()) ? "" : Name(all) + ": other bits";
}

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, KernelsHaveTheBitsOfTheirReferences) {
  for (const PackedFormat format : kPackedFormats) {
    const Matrix w(format, 67, 512);  // two segments
    EXPECT_EQ(CheckUnpack(w), "");
    EXPECT_EQ(CheckEmbed(w, {0, 7, 66, 67, 8, 15, 16}, 1.0f), "");
    EXPECT_EQ(CheckProduct(w, {.m = 5, .has_bias = true}), "");
    EXPECT_EQ(CheckExperts(format, kExpertFewRows, 512), "");
    EXPECT_EQ(CheckExperts(format, kExpertManyRows, 512), "");
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(simt_test::AllOrdersAndGpus()));

class EveryFormat : public testing::TestWithParam<PackedFormat> {
 protected:
  uint32_t unit() const { return UnitOf(GetParam()); }
};

TEST_P(EveryFormat, EveryElementOfEveryShapeIsUnpacked) {
  for (const uint32_t n : {1u, 15u, 16u, 17u, 67u}) {
    for (const uint32_t blocks : {1u, 2u, 3u, 5u}) {
      EXPECT_EQ(CheckUnpack(Matrix(GetParam(), n, blocks * unit())), "");
    }
  }
}

TEST_P(EveryFormat, EveryNumberOfRowsHasTheBitsOfBf16Weights) {
  const Matrix w(GetParam(), 69, std::max(unit(), 288 / unit() * unit()));
  for (const uint32_t m : {1u, 7u, 8u, 9u, 31u, 32u, 33u, 64u}) {
    EXPECT_EQ(CheckProduct(w, {.m = m, .has_bias = m % 2 == 0, .to_bf16 = m % 3 == 0}), "");
  }
  EXPECT_EQ(CheckProduct(w, {.m = 3, .path = GemmPath::kRows32}), "");
  EXPECT_EQ(CheckProduct(w, {.m = 17, .path = GemmPath::kRows8}), "");
}

TEST_P(EveryFormat, ExpertsHaveTheBitsOfBf16Weights) {
  for (const uint32_t tile_rows : {kExpertFewRows, kExpertManyRows}) {
    for (const uint32_t blocks : {1u, 3u}) {
      EXPECT_EQ(CheckExperts(GetParam(), tile_rows, blocks * unit()), "");
    }
  }
}

TEST_P(EveryFormat, UglyShapesHaveTheBitsOfBf16Weights) {
  for (const uint32_t n : {1u, 16u, 63u, 64u, 137u}) {
    for (const uint32_t blocks : {1u, 2u, 9u}) {
      const Matrix w(GetParam(), n, blocks * unit());
      EXPECT_EQ(CheckProduct(w, {.m = 2}), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryFormat, testing::ValuesIn(kPackedFormats),
                         [](const auto& info) { return NameOf(info.param); });

TEST(PackedWeights, RowsOfATableAreScaledAfterTheirRounding) {
  for (const PackedFormat format : kPackedFormats) {
    const Matrix table(format, 33, 2 * UnitOf(format));
    EXPECT_EQ(CheckEmbed(table, {32, 33, 0, 24, 17, 0xFFFFFFFFu}, 25.298221f), "");
  }
}

// More stages in a segment than slots of the ring, which is filled again before all have read it if
// a barrier is missing.
TEST(PackedWeights, LongSegmentsHaveTheBitsOfBf16Weights) {
  constexpr uint32_t kN = kGemmRowTile * (kGemmTargetTiles / 2);
  ASSERT_EQ(GemmSegments(kN, 1280).segment_k, 10 * kGemmStageK);
  const Matrix narrow(PackedFormat::kQ4_1, kN, 1280);
  const Matrix wide(PackedFormat::kQ8_0, kN, 1280);
  for (const simt::Landing landing : {simt::Landing::kEarliest, simt::Landing::kLatest}) {
    RunOptions options;
    options.landing = landing;
    options.order =
        landing == simt::Landing::kLatest ? simt::Order::kDescending : simt::Order::kAscending;
    options.detect_races = false;  // the copies' own order shows what is missing
    ScopedRunOptions scope(options);
    EXPECT_EQ(CheckProduct(narrow, {.m = 1}), "");
    EXPECT_EQ(CheckProduct(wide, {.m = 9}), "");
  }
}

// Matrices of the same k are joined by their bytes (Q, K and V; gate and up).
TEST(PackedWeights, MatricesOfWholeTilesAreJoinedByRows) {
  const Matrix first(PackedFormat::kQ4_1, 32, 160);
  const Matrix second(PackedFormat::kQ4_1, 19, 160);
  Matrix both(PackedFormat::kQ4_1, 51, 160);
  std::memcpy(both.tiles.data(), first.tiles.data(), first.tiles.size());
  std::memcpy(both.tiles.data() + first.tiles.size(), second.tiles.data(), second.tiles.size());
  both.weights = first.weights;
  both.weights.insert(both.weights.end(), second.weights.begin(), second.weights.end());
  EXPECT_EQ(CheckUnpack(both), "");
}

TEST(PackedWeights, AWeightTakesTheBitsThatItsFormatSays) {
  const auto bits = [](PackedFormat format) {
    return 8.0 * static_cast<double>(PackedBytes(format, 4096, 4096)) / (4096.0 * 4096.0);
  };
  EXPECT_EQ(bits(PackedFormat::kQ4_0), 4.5);
  EXPECT_EQ(bits(PackedFormat::kQ4_1), 5);
  EXPECT_EQ(bits(PackedFormat::kQ4_K), 5);
  EXPECT_EQ(bits(PackedFormat::kQ8_0), 8.5);
  EXPECT_EQ(bits(PackedFormat::kQ6_K), 9);
  EXPECT_EQ(bits(PackedFormat::kE4m3), 8.5);
  EXPECT_EQ(PackedFormatOf(WeightType::kF16), PackedFormat::kBf16);
  EXPECT_EQ(PackedFormatOf(WeightType::kMxfp4), PackedFormat::kBf16);
}

TEST(PackedWeights, AScaleThatIsNotFiniteIsNamedByItsRow) {
  Random random(3);
  ThreadPool pool(2);
  // Where the fp16 fields of a block lie.
  const std::pair<WeightType, uint32_t> fields[] = {{WeightType::kQ4_0, 0},  {WeightType::kQ4_1, 0},
                                                    {WeightType::kQ4_1, 2},  {WeightType::kQ4_K, 0},
                                                    {WeightType::kQ4_K, 2},  {WeightType::kQ8_0, 0},
                                                    {WeightType::kQ6_K, 208}};
  for (const auto& [type, offset] : fields) {
    for (const uint16_t half : {0x7C00, 0xFC00, 0x7E00}) {
      std::vector<std::byte> raw = RandomRaw(&random, type, 40, 256);
      std::memcpy(raw.data() + 37 * RawRowBytes(type, 256) + offset, &half, sizeof(half));
      std::vector<std::byte> out(PackedBytes(PackedFormatOf(type), 40, 256));
      const absl::Status status = PackWeights({type, raw, 40}, 256, pool, out);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(fmt::format("row 37 of 40 has a {} block whose scale is not a finite "
                                        "number",
                                        TraitsOf(type).name)));
    }
  }
}

TEST(PackedWeights, SizesThatDoNotMatchAreRefused) {
  Random random(4);
  ThreadPool pool(1);
  const std::vector<std::byte> raw = RandomRaw(&random, WeightType::kQ4_K, 3, 256);
  std::vector<std::byte> out(PackedBytes(PackedFormat::kQ4_K, 3, 256));
  const auto refused = [&](const RawRows& rows, uint32_t k, std::span<std::byte> to) {
    return PackWeights(rows, k, pool, to).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(PackWeights({WeightType::kQ4_K, raw, 3}, 256, pool, out).ok());
  EXPECT_TRUE(refused({WeightType::kQ4_K, raw, 3}, 128, out));
  EXPECT_TRUE(refused({WeightType::kQ4_K, raw, 4}, 256, out));
  EXPECT_TRUE(refused({WeightType::kQ4_K, raw, 0}, 256, out));
  EXPECT_TRUE(refused({WeightType::kQ4_K, raw, 3}, 256, std::span(out).first(out.size() - 16)));
  EXPECT_TRUE(refused({WeightType::kMxfp4, raw, 3}, 256, out));
}

TEST(PackedWeights, Fp8OfOtherSizesIsRefused) {
  ThreadPool pool(1);
  const Fp8Matrix whole(2, 160);
  std::vector<std::byte> out(PackedBytes(PackedFormat::kE4m3, 2, 160));
  const auto refused = [&](const auto& change, size_t bytes) {
    Fp8Rows rows = whole.rows;
    change(rows);
    return PackFp8(rows, pool, std::span(out).first(bytes)).code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](Fp8Rows&) {}, out.size()));
  EXPECT_TRUE(refused([](Fp8Rows&) {}, out.size() - 16));
  EXPECT_TRUE(refused([](Fp8Rows& rows) { rows.n = 3; }, out.size()));
  EXPECT_TRUE(refused([](Fp8Rows& rows) { rows.n = 0; }, out.size()));
  EXPECT_TRUE(refused([](Fp8Rows& rows) { rows.k = 320; }, out.size()));
  EXPECT_TRUE(refused([](Fp8Rows& rows) { rows.group = 32; }, out.size()));
  EXPECT_TRUE(refused([](Fp8Rows& rows) { rows.group = 0; }, out.size()));
  EXPECT_TRUE(refused([](Fp8Rows& rows) { rows.scales = rows.scales.first(3); }, out.size()));
}

// Where a tile would need two scales of a row, and rows that are no groups of 32.
TEST(PackedWeights, Fp8ThatNoTileHoldsStaysInBf16) {
  EXPECT_EQ(PackedFormatOf({.n = 1, .k = 96, .group = 96}), PackedFormat::kE4m3);
  EXPECT_EQ(PackedFormatOf({.n = 1, .k = 160, .group = 128}), PackedFormat::kE4m3);
  EXPECT_EQ(PackedFormatOf({.n = 1, .k = 160, .group = 96}), PackedFormat::kBf16);
  EXPECT_EQ(PackedFormatOf({.n = 1, .k = 72, .group = 72}), PackedFormat::kBf16);
}

TEST(PackedWeights, CallsThatNoKernelTakesAreRefused) {
  const Matrix w(PackedFormat::kQ4_0, 32, 96);
  SimBuffer x(size_t{65} * 96 * 2, "x");
  SimBuffer y(size_t{65} * 32 * 4, "y");
  const GemmParams good = {
      .x = x.as<Bf16>(), .w = nullptr, .y_float = y.as<float>(), .m = 65, .n = 32, .k = 96};
  const auto message = [](const PackedGemmParams& params) {
    return std::string(runner::Kernels().gemm_packed(params, nullptr).message());
  };
  EXPECT_THAT(message({good, w.view()}), HasSubstr("65 rows, the kernels of few rows take 64"));
  GemmParams few = good;
  few.m = 3;
  few.path = GemmPath::kTile64;
  EXPECT_THAT(message({few, w.view()}), HasSubstr("tiles take weights in bf16"));
  few.path = GemmPath::kAuto;
  EXPECT_THAT(message({few, {w.tiles.data(), PackedFormat::kBf16}}),
              HasSubstr("no packed matrix of rows of 96"));
  EXPECT_THAT(message({few, {nullptr, PackedFormat::kQ4_0}}), HasSubstr("no packed matrix"));
  few.k = 88;
  EXPECT_THAT(message({few, w.view()}), HasSubstr("no packed matrix of rows of 88"));
  few.y_float = nullptr;
  EXPECT_THAT(message({few, w.view()}), HasSubstr("GemmPacked: exactly one of y_float"));
  const GroupedGemmParams tiles = {.max_tiles = 1, .tile_rows = 16, .n = 32, .k = 96};
  EXPECT_THAT(std::string(runner::Kernels().grouped_packed({tiles, w.view()}, nullptr).message()),
              HasSubstr("GroupedPacked: 1 tiles of 16 rows"));
  const UnpackParams unpack = {
      .w = {nullptr, PackedFormat::kQ4_0}, .out = nullptr, .n = 1, .k = 32};
  EXPECT_FALSE(runner::Kernels().unpack(unpack, nullptr).ok());
  EXPECT_FALSE(
      runner::Kernels().embed_packed({.table = w.view(), .num_rows = 1, .dim = 8}, nullptr).ok());
}

TEST(PackedWeights, MutantsAreNoticed) {
  const Matrix small(PackedFormat::kQ4_1, 19, 96);
  const Matrix deep(PackedFormat::kQ8_0, 66, 288);
  const Matrix shallow(PackedFormat::kQ4_0, 3, 32);  // half of a stage
  const Matrix codes(PackedFormat::kE4m3, 18, 160);
  const simt_test::Suite suite = [&] {
    return CheckProduct(shallow, {.m = 1}).empty() && CheckProduct(small, {.m = 2}).empty() &&
           CheckProduct(deep, {.m = 9}).empty() && CheckUnpack(small).empty() &&
           CheckUnpack(deep).empty() && CheckUnpack(codes).empty() &&
           CheckProduct(codes, {.m = 3}).empty() && CheckEmbed(small, {18, 33, 3}, 2.0f).empty() &&
           CheckExperts(PackedFormat::kQ4_0, kExpertFewRows, 96).empty() &&
           CheckExperts(PackedFormat::kQ8_0, kExpertManyRows, 96).empty();
  };
  simt_test::ExpectAllNoticed(suite, 20);
}

}  // namespace
}  // namespace baton::kernels::cuda
