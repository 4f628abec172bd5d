#include "kernels/cuda/pack_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "src/base/atomic_min.h"

namespace baton::kernels::cuda {

using device::TaskRange;
using device::ThreadPool;

namespace {

constexpr uint32_t kGroupsOfTile = kPackedK / kQuantBlock;
constexpr uint32_t kStepK = 16;

// Where the element of row r and k of a tile lies among its digits: a byte, and a shift in it.
struct DigitPlace {
  uint32_t byte;
  uint32_t shift;
};

constexpr DigitPlace PlaceOf(PackedFormat format, uint32_t r, uint32_t k) {
  const uint32_t step = k / kStepK;
  const uint32_t in_step = k % kStepK;
  const uint32_t lane = r % 8 * 4 + in_step % 8 / 2;
  const uint32_t pair = r / 8 + in_step / 8 * 2;
  const uint32_t upper = in_step % 2;
  if (PackedDigitBits(format) == 4) {
    const uint32_t bit = 4 * pair + 16 * upper;
    return {(lane * 4 + step) * 4 + bit / 8, bit % 8};
  }
  const uint32_t words = ((step / 2 * 32 + lane) * 2 + step % 2) * 8;
  if (format == PackedFormat::kE4m3) return {words + pair / 2 * 4 + pair % 2 + 2 * upper, 0};
  return {words + 2 * pair + upper, 0};
}

// PlaceOf of a whole tile, which three ways of laying digits out share.
struct TilePlaces {
  explicit constexpr TilePlaces(PackedFormat format) {
    for (uint32_t r = 0; r < kPackedRows; ++r) {
      for (uint32_t k = 0; k < kPackedK; ++k) at[r][k] = PlaceOf(format, r, k);
    }
  }
  DigitPlace at[kPackedRows][kPackedK] = {};
};
constexpr TilePlaces kPlacesOfNibbles(PackedFormat::kQ4_0);
constexpr TilePlaces kPlacesOfBytes(PackedFormat::kQ8_0);
constexpr TilePlaces kPlacesOfE4m3(PackedFormat::kE4m3);

const TilePlaces& PlacesOf(PackedFormat format) {
  if (format == PackedFormat::kE4m3) return kPlacesOfE4m3;
  return PackedDigitBits(format) == 4 ? kPlacesOfNibbles : kPlacesOfBytes;
}

void StoreHalf(std::byte* scales, uint32_t at, uint16_t half) {
  std::memcpy(scales + 2 * size_t{at}, &half, sizeof(half));
}

// `scales` is of the tile; `group` counts in it.
void StoreScales(PackedFormat format, const WeightBlock& block, uint32_t r, uint32_t group,
                 std::byte* scales) {
  std::byte* const second = scales + 4 * size_t{kPackedRows};
  switch (format) {
    case PackedFormat::kQ4_1:
      StoreHalf(second, 2 * r + group, block.min);
      [[fallthrough]];
    case PackedFormat::kQ4_0:
    case PackedFormat::kQ8_0:
      StoreHalf(scales, 2 * r + group, block.scale);
      return;
    case PackedFormat::kQ4_K:
    case PackedFormat::kQ6_K:
      StoreHalf(scales, 2 * r, block.scale);
      StoreHalf(scales, 2 * r + 1, format == PackedFormat::kQ4_K ? block.min : block.scale);
      std::memcpy(second + 4 * size_t{r} + 2 * size_t{group}, block.factors, 2);
      return;
    case PackedFormat::kE4m3:
    case PackedFormat::kBf16:
      return;
  }
}

// A row of a file: of what type, and how long.
struct RawRow {
  const std::byte* bytes;
  const WeightTraits& traits;
  uint32_t k;
};

// Row r of sixteen into their tiles, which are zero; false when a scale is not finite.
bool PackRow(PackedFormat format, const RawRow& row, uint32_t r, std::byte* tiles) {
  const WeightTraits& traits = row.traits;
  const uint32_t blocks_of_raw = traits.block_elements / kQuantBlock;
  const uint32_t offset = PackedOffset(format);
  const auto& places = PlacesOf(format).at[r];
  bool is_finite = true;
  for (uint32_t b = 0; b < row.k / kQuantBlock; ++b) {
    WeightBlock block = {};
    traits.unpack(row.bytes + size_t{b / blocks_of_raw} * traits.block_bytes, b % blocks_of_raw,
                  &block);
    is_finite = is_finite && HasFiniteScales(traits.scales, block);
    std::byte* const tile = tiles + size_t{b / kGroupsOfTile} * PackedTileBytes(format);
    const uint32_t group = b % kGroupsOfTile;
    for (uint32_t i = 0; i < kQuantBlock; ++i) {
      const DigitPlace place = places[group * kQuantBlock + i];
      const auto digit =
          static_cast<uint8_t>(static_cast<uint32_t>(block.q[i] + int(offset)) << place.shift);
      tile[place.byte] |= static_cast<std::byte>(digit);
    }
    StoreScales(format, block, r, group, tile + PackedDigitBytes(format));
  }
  return is_finite;
}

// Row `at` into the tiles of its sixteen, which are zero.
void PackFp8Row(const Fp8Rows& rows, uint32_t at, std::byte* tiles) {
  constexpr PackedFormat kFormat = PackedFormat::kE4m3;
  const uint32_t r = at % kPackedRows;
  const std::byte* const codes = rows.codes.data() + size_t{at} * rows.k;
  const float* const scales = rows.scales.data() + size_t{at} * rows.groups();
  for (uint32_t first = 0; first < rows.k; first += kPackedK, tiles += PackedTileBytes(kFormat)) {
    for (uint32_t i = 0; i < std::min(kPackedK, rows.k - first); ++i) {
      tiles[kPlacesOfE4m3.at[r][i].byte] = codes[first + i];
    }
    const float scale = std::ldexp(scales[first / rows.group], 120);
    std::memcpy(tiles + PackedDigitBytes(kFormat) + 4 * size_t{r}, &scale, sizeof(scale));
  }
}

// Calls pack_rows(first row, its tiles) for each sixteen of n rows, whose tiles are zero before.
template <typename PackRows>
void ForEachTileRow(uint32_t n, ThreadPool& pool, std::span<std::byte> out,
                    const PackRows& pack_rows) {
  const uint32_t num_groups = (n - 1) / kPackedRows + 1;
  const size_t tiles_bytes = out.size() / num_groups;
  pool.RunRanges(num_groups, 1, 8 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t at = range.begin; at < range.end; ++at) {
      std::byte* const tiles = out.data() + at * tiles_bytes;
      std::memset(tiles, 0, tiles_bytes);
      pack_rows(at * kPackedRows, tiles);
    }
  });
}

}  // namespace

PackedFormat PackedFormatOf(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return PackedFormat::kQ4_0;
    case WeightType::kQ4_1:
      return PackedFormat::kQ4_1;
    case WeightType::kQ4_K:
      return PackedFormat::kQ4_K;
    case WeightType::kQ8_0:
      return PackedFormat::kQ8_0;
    case WeightType::kQ6_K:
      return PackedFormat::kQ6_K;
    default:
      return PackedFormat::kBf16;
  }
}

absl::Status PackWeights(const RawRows& rows, uint32_t k, ThreadPool& pool,
                         std::span<std::byte> out) {
  const WeightTraits& traits = TraitsOf(rows.type);
  const PackedFormat format = PackedFormatOf(rows.type);
  const bool fits = format != PackedFormat::kBf16 && rows.n > 0 && k > 0 &&
                    k % traits.block_elements == 0 &&
                    rows.bytes.size() == rows.n * RawRowBytes(rows.type, k) &&
                    out.size() == PackedBytes(format, rows.n, k);
  if (!fits) {
    return InvalidArgument("{} rows of {} {} elements in {} bytes cannot be packed into {} bytes",
                           rows.n, k, traits.name, rows.bytes.size(), out.size());
  }
  std::atomic<uint32_t> bad_row = rows.n;
  ForEachTileRow(rows.n, pool, out, [&](uint32_t first, std::byte* tiles) {
    for (uint32_t r = 0; r < std::min(kPackedRows, rows.n - first); ++r) {
      const RawRow row = {rows.bytes.data() + (first + r) * RawRowBytes(rows.type, k), traits, k};
      if (!PackRow(format, row, r, tiles)) LowerTo(first + r, &bad_row);
    }
  });
  if (bad_row == rows.n) return absl::OkStatus();
  return InvalidArgument("row {} of {} has a {} block whose scale is not a finite number",
                         bad_row.load(), rows.n, traits.name);
}

PackedFormat PackedFormatOf(const Fp8Rows& rows) {
  const bool fits =
      rows.k % kQuantBlock == 0 && (rows.group >= rows.k || rows.group % kPackedK == 0);
  return fits ? PackedFormat::kE4m3 : PackedFormat::kBf16;
}

absl::Status PackFp8(const Fp8Rows& rows, ThreadPool& pool, std::span<std::byte> out) {
  const bool fits = rows.n > 0 && rows.k > 0 && rows.group > 0 &&
                    PackedFormatOf(rows) == PackedFormat::kE4m3 &&
                    rows.codes.size() == size_t{rows.n} * rows.k &&
                    rows.scales.size() == size_t{rows.n} * rows.groups() &&
                    out.size() == PackedBytes(PackedFormat::kE4m3, rows.n, rows.k);
  if (!fits) {
    return InvalidArgument(
        "{} rows of {} e4m3 codes in {} bytes, {} of them to each of {} scales, cannot be packed "
        "into {} bytes",
        rows.n, rows.k, rows.codes.size(), rows.group, rows.scales.size(), out.size());
  }
  ForEachTileRow(rows.n, pool, out, [&rows](uint32_t first, std::byte* tiles) {
    for (uint32_t r = 0; r < std::min(kPackedRows, rows.n - first); ++r) {
      PackFp8Row(rows, first + r, tiles);
    }
  });
  return OkStatus();
}

}  // namespace baton::kernels::cuda
