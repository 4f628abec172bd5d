#include "kernels/cuda/pack_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "src/base/atomic_min.h"

namespace baton::cuda {
namespace {

constexpr uint32_t kGroupsOfTile = kPackedK / kQuantBlock;
constexpr uint32_t kStepK = 16;

// Where the element of row r and k of a tile lies among its digits: a byte, and a shift in it.
struct DigitPlace {
  uint32_t byte;
  uint32_t shift;
};

DigitPlace PlaceOf(PackedFormat format, uint32_t r, uint32_t k) {
  const uint32_t step = k / kStepK;
  const uint32_t in_step = k % kStepK;
  const uint32_t lane = r % 8 * 4 + in_step % 8 / 2;
  const uint32_t pair = r / 8 + in_step / 8 * 2;
  const uint32_t upper = in_step % 2;
  if (PackedDigitBits(format) == 4) {
    const uint32_t bit = 4 * pair + 16 * upper;
    return {(lane * 4 + step) * 4 + bit / 8, bit % 8};
  }
  return {((step / 2 * 32 + lane) * 2 + step % 2) * 8 + 2 * pair + upper, 0};
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
  bool is_finite = true;
  for (uint32_t b = 0; b < row.k / kQuantBlock; ++b) {
    WeightBlock block = {};
    traits.unpack(row.bytes + size_t{b / blocks_of_raw} * traits.block_bytes, b % blocks_of_raw,
                  &block);
    is_finite = is_finite && HasFiniteScales(traits.scales, block);
    std::byte* const tile = tiles + size_t{b / kGroupsOfTile} * PackedTileBytes(format);
    const uint32_t group = b % kGroupsOfTile;
    for (uint32_t i = 0; i < kQuantBlock; ++i) {
      const DigitPlace place = PlaceOf(format, r, group * kQuantBlock + i);
      const auto digit =
          static_cast<uint8_t>(static_cast<uint32_t>(block.q[i] + int(offset)) << place.shift);
      tile[place.byte] |= static_cast<std::byte>(digit);
    }
    StoreScales(format, block, r, group, tile + PackedDigitBytes(format));
  }
  return is_finite;
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
  const size_t tiles_bytes = size_t{PackedTilesOfRow(k)} * PackedTileBytes(format);
  std::atomic<uint32_t> bad_row = rows.n;
  const uint32_t num_groups = (rows.n - 1) / kPackedRows + 1;
  pool.RunRanges(num_groups, 1, 8 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t at = range.begin; at < range.end; ++at) {
      std::byte* const tiles = out.data() + at * tiles_bytes;
      std::memset(tiles, 0, tiles_bytes);
      const uint32_t first = at * kPackedRows;
      for (uint32_t r = 0; r < std::min(kPackedRows, rows.n - first); ++r) {
        const RawRow row = {rows.bytes.data() + (first + r) * RawRowBytes(rows.type, k), traits, k};
        if (!PackRow(format, row, r, tiles)) LowerTo(first + r, &bad_row);
      }
    }
  });
  if (bad_row == rows.n) return absl::OkStatus();
  return InvalidArgument("row {} of {} has a {} block whose scale is not a finite number",
                         bad_row.load(), rows.n, traits.name);
}

}  // namespace baton::cuda
