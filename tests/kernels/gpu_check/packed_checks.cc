#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/pack_weights.h"
#include "kernels/math.h"
#include "kernels/ops.h"
#include "kernels/packed_matrix.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/test_seed.h"

namespace baton::kernels::gpu_check {

using device::ThreadPool;

namespace {

using cuda::Bf16;
using simt_test::RandomBf16;

// A weight type, and where the fp16 fields of its blocks lie.
struct TypeCase {
  WeightType type;
  std::vector<uint32_t> halves;  // byte offsets
};

struct PackedCase {
  uint32_t m;
  uint32_t n;
  uint32_t k;
};

// A matrix [n][k] packed, and its weights in bf16 by the processor.
struct PackedMatrixCase {
  cuda::PackedFormat format;
  std::vector<std::byte> tiles;
  std::vector<Bf16> weights;
};

// Random blocks [n][k] whose scales are about 2^-7.
std::vector<std::byte> RandomBlocks(const TypeCase& c, const PackedCase& shape) {
  TestRandom random(51);
  std::vector<std::byte> raw(shape.n * RawRowBytes(c.type, shape.k));
  for (std::byte& byte : raw) byte = static_cast<std::byte>(random.Below(256));
  for (size_t at = 0; at < raw.size(); at += TraitsOf(c.type).block_bytes) {
    for (const uint32_t offset : c.halves) {
      const auto half = static_cast<uint16_t>((random.Below(1u << 16) & 0x83FFu) | 0x2000u);
      std::memcpy(&raw[at + offset], &half, sizeof(half));
    }
  }
  return raw;
}

absl::StatusOr<PackedMatrixCase> MakeBlocks(const TypeCase& c, const PackedCase& shape) {
  ThreadPool pool(1);
  const std::vector<std::byte> raw = RandomBlocks(c, shape);
  PackedMatrixCase out = {cuda::PackedFormatOf(c.type), {}, {}};
  out.tiles.resize(cuda::PackedBytes(out.format, shape.n, shape.k));
  BATON_RETURN_IF_ERROR(cuda::PackWeights({c.type, raw, shape.n}, shape.k, pool, out.tiles));
  BATON_ASSIGN_OR_RETURN(const PackedMatrix matrix,
                         PackedMatrix::Pack(c.type, raw, shape.n, shape.k, pool));
  std::vector<int32_t> ids(shape.n);
  for (uint32_t i = 0; i < shape.n; ++i) ids[i] = static_cast<int32_t>(i);
  std::vector<float> values(size_t{shape.n} * shape.k);
  ReferenceOps().embed(pool, matrix, ids, values.data());
  for (const float value : values) out.weights.push_back({Bf16FromFloat(value)});
  return out;
}

// Codes with scales of 24 bits for each 128 of a row; those of every seventh row are so small that
// weights are subnormal.
absl::StatusOr<PackedMatrixCase> MakeFp8(const PackedCase& shape) {
  ThreadPool pool(1);
  TestRandom random(53);
  std::vector<std::byte> codes(size_t{shape.n} * shape.k);
  for (std::byte& code : codes) {
    code = static_cast<std::byte>(random.Below(256));
    if (IsNanCode(code)) code ^= std::byte{1};
  }
  Fp8Rows rows = {.codes = codes, .scales = {}, .n = shape.n, .k = shape.k, .group = 128};
  std::vector<float> scales(size_t{shape.n} * rows.groups());
  for (size_t at = 0; at < scales.size(); ++at) {
    const bool is_tiny = at / rows.groups() % 7 == 6;
    const auto digits = static_cast<float>(1 + random.Below(is_tiny ? 1u << 16 : 1u << 24));
    scales[at] = std::ldexp(digits, is_tiny ? -149 : -31);
  }
  rows.scales = scales;
  PackedMatrixCase out = {cuda::PackedFormat::kE4m3, {}, {}};
  out.tiles.resize(cuda::PackedBytes(out.format, shape.n, shape.k));
  BATON_RETURN_IF_ERROR(cuda::PackFp8(rows, pool, out.tiles));
  std::vector<float> values(shape.k);
  for (uint32_t row = 0; row < shape.n; ++row) {
    rows.Weights(row, values.data());
    for (const float value : values) out.weights.push_back({Bf16FromFloat(value)});
  }
  return out;
}

// A zero may have either sign.
absl::Status ExpectSame(const char* what, const std::vector<Bf16>& got,
                        const std::vector<Bf16>& expected) {
  BATON_RETURN_IF_ERROR(CheckCounts(what, got.size(), expected.size()));
  Differences differences(what);
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool is_same = FloatFromBf16(got[i].bits) == FloatFromBf16(expected[i].bits);
    if (!is_same) differences.Note(i, got[i], expected[i]);
  }
  return differences.Result(expected.size());
}

// A packed matrix on the device, the same unpacked, and x [rows][k].
struct ExpertsInput {
  cuda::PackedMatrixView packed;
  const Bf16* weights;
  const Bf16* x;
  uint32_t k;
};

// The first rows of the matrix as two experts: GroupedPacked has the bits of GroupedGemm.
absl::Status CheckExperts(const DeviceBody& body, const ExpertsInput& in, uint32_t tile_rows) {
  constexpr uint32_t kRowsOfExpert = 32;
  const std::vector<uint32_t> slot_rows = {0, 0, 0};
  const std::vector<cuda::ExpertTile> tiles = {{0, 0, 1}, {1, 1, 2}};
  DeviceArray<uint32_t> rows(body, slot_rows);
  DeviceArray<cuda::ExpertTile> tiles_device(body, tiles);
  DeviceArray<uint32_t> num_tiles(body, std::vector<uint32_t>{2});
  DeviceArray<Bf16> y(body, slot_rows.size() * kRowsOfExpert);
  DeviceArray<Bf16> packed_y(body, slot_rows.size() * kRowsOfExpert);
  BATON_RETURN_IF_ERROR(FirstFailure(rows, tiles_device, num_tiles, y, packed_y));
  cuda::GroupedGemmParams params = {.x = in.x,
                                    .slot_rows = rows.data(),
                                    .w = in.weights,
                                    .y = y.data(),
                                    .tiles = tiles_device.data(),
                                    .num_tiles = num_tiles.data(),
                                    .max_tiles = 2,
                                    .tile_rows = tile_rows,
                                    .n = kRowsOfExpert,
                                    .k = in.k};
  BATON_RETURN_IF_ERROR(body.kernels().grouped_gemm(params, nullptr));
  params.y = packed_y.data();
  BATON_RETURN_IF_ERROR(body.kernels().grouped_packed({params, in.packed}, nullptr));
  const std::vector<Bf16> got = packed_y.Values();
  const std::vector<Bf16> wanted = y.Values();
  BATON_RETURN_IF_ERROR(FirstFailure(packed_y, y));
  return ExpectSameBits(fmt::format("experts in tiles of {} rows by those of bf16", tile_rows), got,
                        wanted);
}

// Unpack, EmbedPacked and GemmPacked of one matrix: the weights of the processor, and the bits that
// GemmBf16 gives of them.
absl::Status CheckMatrix(const DeviceBody& body, const PackedMatrixCase& matrix,
                         const PackedCase& shape) {
  const cuda::KernelTable& table = body.kernels();
  const std::vector<Bf16>& weights = matrix.weights;
  const std::vector<uint32_t> ids = {shape.n - 1, 0, shape.n};  // the last is unknown
  DeviceArray<std::byte> tiles_device(body, matrix.tiles);
  DeviceArray<Bf16> unpacked(body, weights.size());
  DeviceArray<Bf16> x_device(body, RandomBf16(size_t{shape.m} * shape.k, 52));
  DeviceArray<uint32_t> ids_device(body, ids);
  DeviceArray<Bf16> rows(body, ids.size() * shape.k);
  DeviceArray<float> packed_y(body, size_t{shape.m} * shape.n);
  DeviceArray<float> y(body, size_t{shape.m} * shape.n);
  DeviceArray<std::byte> partials(body, cuda::GemmPartialBytes(shape.m, shape.n, shape.k));
  DeviceArray<uint32_t> counters(body, std::vector<uint32_t>(cuda::kGemmCounters));
  BATON_RETURN_IF_ERROR(FirstFailure(tiles_device, unpacked, x_device, ids_device, rows, packed_y,
                                     y, partials, counters));
  const cuda::PackedMatrixView view = {tiles_device.data(), matrix.format};
  BATON_RETURN_IF_ERROR(
      table.unpack({.w = view, .out = unpacked.data(), .n = shape.n, .k = shape.k}, nullptr));
  BATON_RETURN_IF_ERROR(table.embed_packed({.table = view,
                                            .ids = ids_device.data(),
                                            .out = rows.data(),
                                            .num_rows = static_cast<uint32_t>(ids.size()),
                                            .num_ids = shape.n,
                                            .dim = shape.k,
                                            .scale = 3.0f},
                                           nullptr));
  cuda::GemmParams params = {.x = x_device.data(),
                             .w = unpacked.data(),
                             .y_float = y.data(),
                             .m = shape.m,
                             .n = shape.n,
                             .k = shape.k,
                             .partials = partials.data(),
                             .counters = counters.data(),
                             .partial_bytes = cuda::GemmPartialBytes(shape.m, shape.n, shape.k)};
  BATON_RETURN_IF_ERROR(table.gemm_bf16(params, nullptr));
  params.y_float = packed_y.data();
  BATON_RETURN_IF_ERROR(table.gemm_packed({params, view}, nullptr));

  for (const uint32_t tile_rows : {cuda::kExpertFewRows, cuda::kExpertManyRows}) {
    BATON_RETURN_IF_ERROR(
        CheckExperts(body, {view, unpacked.data(), x_device.data(), shape.k}, tile_rows));
  }

  std::vector<Bf16> expected_rows(rows.Values().size());
  cuda::ReferenceEmbed({.table = weights.data(),
                        .ids = ids.data(),
                        .out = expected_rows.data(),
                        .num_rows = static_cast<uint32_t>(ids.size()),
                        .num_ids = shape.n,
                        .dim = shape.k,
                        .scale = 3.0f});
  BATON_RETURN_IF_ERROR(ExpectSame("unpacked", unpacked.Values(), weights));
  BATON_RETURN_IF_ERROR(ExpectSame("embedded", rows.Values(), expected_rows));
  const std::vector<float> got = packed_y.Values();
  const std::vector<float> wanted = y.Values();
  BATON_RETURN_IF_ERROR(FirstFailure(unpacked, rows, packed_y, y));
  return ExpectSameBits("the product by that of bf16", got, wanted);
}

}  // namespace

absl::Status CheckPackedWeights(const StageInput& input, Report& report) {
  const std::vector<TypeCase> types = {{WeightType::kQ4_0, {0}},
                                       {WeightType::kQ4_1, {0, 2}},
                                       {WeightType::kQ4_K, {0, 2}},
                                       {WeightType::kQ8_0, {0}},
                                       {WeightType::kQ6_K, {208}}};
  const std::vector<PackedCase> tiny = {{3, 67, 512}};
  // Blocks of 256 leave no half of a tile; those of 32 do in packed_weights_test.
  const std::vector<PackedCase> full = {{1, 4096, 4096}, {33, 1030, 14336}, {64, 519, 768}};
  const std::vector<PackedCase>& shapes = input.is_tiny ? tiny : full;
  const auto check = [&](std::string_view name, const auto& make) {
    Finding finding{.name = fmt::format("packed {}", name)};
    if (!report.Begin(finding.name)) return absl::OkStatus();
    std::string done;
    for (const PackedCase& shape : shapes) {
      const absl::StatusOr<PackedMatrixCase> matrix = make(shape);
      const absl::Status status =
          OfCase(matrix.ok() ? CheckMatrix(input.body, *matrix, shape) : matrix.status(),
                 {{"m", shape.m},
                  {"n", shape.n},
                  {"k", shape.k},
                  {"inputs", "packed_checks.cc: blocks of seed 51 (E4M3: 53), x of seed 52"}});
      done += fmt::format("{}{} x {} x {}", done.empty() ? "" : ", ", shape.m, shape.n, shape.k);
      finding.detail = done;
      if (status.ok()) continue;
      finding = OutcomeOf(finding.name, status, "");
      finding.detail = fmt::format("{}: {}", done, finding.detail);
      break;
    }
    return report.Add(std::move(finding));
  };
  for (const TypeCase& type : types) {
    BATON_RETURN_IF_ERROR(check(TraitsOf(type.type).name, [&type](const PackedCase& shape) {
      return MakeBlocks(type, shape);
    }));
  }
  return check("E4M3", MakeFp8);
}

}  // namespace baton::kernels::gpu_check
