#include "kernels/packed_matrix.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "src/base/atomic_min.h"
#include "src/base/check.h"
#include "src/base/checked_math.h"

namespace baton::kernels {

using device::AlignedBuffer;
using device::TaskRange;
using device::ThreadPool;

namespace {

// Largest matrix: 2^40 bytes; anything above is a damaged file.
constexpr uint64_t kMaxMatrixBytes = uint64_t{1} << 40;

// Where element k (0..31) of row r lies in the digits of a block: byte offset, and shift of a
// nibble.
struct DigitPlace {
  uint32_t byte;
  uint32_t shift;
};

constexpr uint32_t kByteOfPair[2] = {0, 2};

constexpr DigitPlace NibblePlace(uint32_t row, uint32_t k) {
  const uint32_t in_chunk = k % 8;
  const uint32_t byte = kByteOfPair[in_chunk % 2] + in_chunk / 4;
  return {k / 8 * (kPanelRows * 4) + row * 4 + byte, (in_chunk / 2 % 2) * 4};
}

constexpr DigitPlace TwoBitPlace(uint32_t row, uint32_t k) {
  const uint32_t pair = k % 16 / 2;
  return {k / 16 * (kPanelRows * 4) + row * 4 + k % 2 * 2 + pair / 4, pair % 4 * 2};
}

constexpr DigitPlace BytePlace(uint32_t row, uint32_t k) {
  const uint32_t in_chunk = k % 4;
  return {k / 4 * (kPanelRows * 4) + row * 4 + kByteOfPair[in_chunk % 2] + in_chunk / 2, 0};
}

// Where the bits above the nibble of element k lie: which byte after the nibbles, and their shift.
constexpr DigitPlace UpperPlace(PackedDigits digits, uint32_t row, uint32_t k) {
  const uint32_t chunk = k / 8;
  const uint32_t in_chunk = k % 8;
  const uint32_t byte = kByteOfPair[in_chunk % 2] + in_chunk / 4;
  const uint32_t high = in_chunk / 2 % 2;
  if (digits == PackedDigits::kSixOff32) {
    return {chunk / 2 * (kPanelRows * 4) + row * 4 + byte, 2 * (2 * (chunk % 2) + high)};
  }
  return {row * 4 + byte, 2 * chunk + high};
}

constexpr uint32_t UpperMask(PackedDigits digits) {
  switch (digits) {
    case PackedDigits::kFive:
    case PackedDigits::kFiveOff16:
      return 1;
    case PackedDigits::kSixOff32:
      return 3;
    default:
      return 0;
  }
}

// The code of each value of a table, by value + 128; of two equal values the first code.
using CodeOfValue = std::array<uint8_t, 256>;
constexpr CodeOfValue CodesOf(const int8_t (&values)[16]) {
  CodeOfValue codes = {};
  for (int code = 15; code >= 0; --code) {
    codes[static_cast<size_t>(values[code] + 128)] = static_cast<uint8_t>(code);
  }
  return codes;
}
constexpr CodeOfValue kFp4Codes = CodesOf(kFp4Values);
constexpr CodeOfValue kIq4Codes = CodesOf(kIq4Values);

// A digit as it is stored, without a sign.
constexpr uint32_t CodeOf(PackedDigits digits, int8_t q) {
  switch (digits) {
    case PackedDigits::kFp4:
      return kFp4Codes[static_cast<size_t>(q + 128)];
    case PackedDigits::kIq4:
      return kIq4Codes[static_cast<size_t>(q + 128)];
    default:
      return static_cast<uint32_t>(q + OffsetOf(digits));
  }
}

int8_t DigitOf(PackedDigits digits, uint32_t code) {
  switch (digits) {
    case PackedDigits::kFp4:
      return kFp4Values[code];
    case PackedDigits::kIq4:
      return kIq4Values[code];
    default:
      return static_cast<int8_t>(static_cast<int>(code) - OffsetOf(digits));
  }
}

// kThree: where bit `bit` of the digit of element k lies: byte offset, and shift.
constexpr DigitPlace ThreeBitPlace(uint32_t row, uint32_t k, uint32_t bit) {
  const uint32_t pair = k / 2;
  const uint32_t word = pair < 15 ? pair / 5 : bit;
  const uint32_t at = pair < 15 ? 3 * (pair % 5) + bit : 15;
  return {word * (kPanelRows * 4) + row * 4 + k % 2 * 2 + at / 8, at % 8};
}

// Stores the digits of one row of a block. Compiled once for each form, where the places of all
// digits are constants, and in words, since loading a model is mostly this.
template <PackedDigits kDigits>
void PutDigits(const WeightBlock& block, uint32_t row, std::byte* out) {
  static_assert(std::endian::native == std::endian::little);
  constexpr size_t kWordStride = kPanelRows * sizeof(uint32_t);
  constexpr uint32_t kUpper = UpperMask(kDigits);
  uint32_t words[DigitBytes(kDigits) / kWordStride] = {};
  // `place` is that of row 0.
  const auto put = [&words](DigitPlace place, uint32_t bits) __attribute__((always_inline)) {
    words[place.byte / kWordStride] |= bits << (place.byte % kWordStride * 8 + place.shift);
  };
#pragma GCC unroll 32
  for (uint32_t k = 0; k < kQuantBlock; ++k) {
    if constexpr (kDigits == PackedDigits::kBytes) {
      put(BytePlace(0, k), static_cast<uint8_t>(block.q[k]));
    } else if constexpr (kDigits == PackedDigits::kThree) {
      for (uint32_t bit = 0; bit < 3; ++bit) {
        put(ThreeBitPlace(0, k, bit), static_cast<uint32_t>(block.q[k] >> bit & 1));
      }
    } else {
      const uint32_t digit = CodeOf(kDigits, block.q[k]);
      put(kDigits == PackedDigits::kTwo ? TwoBitPlace(0, k) : NibblePlace(0, k), digit & 15);
      if constexpr (kUpper != 0) {
        DigitPlace above = UpperPlace(kDigits, 0, k);
        above.byte += kNibbleBytes;
        put(above, digit >> 4 & kUpper);
      }
    }
  }
  for (size_t w = 0; w < std::size(words); ++w) {
    std::memcpy(out + w * kWordStride + row * sizeof(uint32_t), &words[w], sizeof(uint32_t));
  }
}

using PutDigitsFn = void (*)(const WeightBlock& block, uint32_t row, std::byte* out);
PutDigitsFn PutDigitsOf(PackedDigits digits) {
  switch (digits) {
    case PackedDigits::kNibbles:
      return PutDigits<PackedDigits::kNibbles>;
    case PackedDigits::kNibblesOff8:
      return PutDigits<PackedDigits::kNibblesOff8>;
    case PackedDigits::kBytes:
      return PutDigits<PackedDigits::kBytes>;
    case PackedDigits::kFive:
      return PutDigits<PackedDigits::kFive>;
    case PackedDigits::kFiveOff16:
      return PutDigits<PackedDigits::kFiveOff16>;
    case PackedDigits::kSixOff32:
      return PutDigits<PackedDigits::kSixOff32>;
    case PackedDigits::kFp4:
      return PutDigits<PackedDigits::kFp4>;
    case PackedDigits::kIq4:
      return PutDigits<PackedDigits::kIq4>;
    case PackedDigits::kThree:
      return PutDigits<PackedDigits::kThree>;
    case PackedDigits::kTwo:
      return PutDigits<PackedDigits::kTwo>;
    case PackedDigits::kNone:
      break;
  }
  BATON_CHECK(false, "a float type has no digits");
}

void GetDigits(PackedDigits digits, const std::byte* in, uint32_t row, WeightBlock* block) {
  const uint32_t upper = UpperMask(digits);
  const auto bits = [&](DigitPlace place, uint32_t mask) {
    return static_cast<uint32_t>(in[place.byte]) >> place.shift & mask;
  };
  for (uint32_t k = 0; k < kQuantBlock; ++k) {
    if (digits == PackedDigits::kBytes) {
      block->q[k] = static_cast<int8_t>(in[BytePlace(row, k).byte]);
      continue;
    }
    if (digits == PackedDigits::kThree) {
      uint32_t code = 0;
      for (uint32_t bit = 0; bit < 3; ++bit) code |= bits(ThreeBitPlace(row, k, bit), 1) << bit;
      block->q[k] = static_cast<int8_t>(static_cast<int>(code ^ 4) - 4);
      continue;
    }
    if (digits == PackedDigits::kTwo) {
      block->q[k] = static_cast<int8_t>(bits(TwoBitPlace(row, k), 3));
      continue;
    }
    uint32_t digit = bits(NibblePlace(row, k), 15);
    if (upper != 0) {
      DigitPlace above = UpperPlace(digits, row, k);
      above.byte += kNibbleBytes;
      digit |= bits(above, upper) << 4;
    }
    block->q[k] = DigitOf(digits, digit);
  }
}

// Copies the scales of one row of a block out of (or into) a panel; `copy` gets the place in the
// panel, the field and its bytes.
template <typename Copy>
void EachScale(PackedScales scales, uint32_t row, WeightBlock* block, const Copy& copy) {
  constexpr bool kSuper = true;
  switch (scales) {
    case PackedScales::kHalfAndMin:
      copy(!kSuper, kPanelRows * 2 + row * 2, &block->min, 2);
      [[fallthrough]];
    case PackedScales::kHalf:
      copy(!kSuper, row * 2, &block->scale, 2);
      return;
    case PackedScales::kSuperAndMin:
    case PackedScales::kSuperTwoAndMins:
      copy(kSuper, kPanelRows * 2 + row * 2, &block->min, 2);
      [[fallthrough]];
    case PackedScales::kSuperTwo:
      copy(kSuper, row * 2, &block->scale, 2);
      copy(!kSuper, row, &block->factors[0], 1);
      copy(!kSuper, kPanelRows + row, &block->factors[1], 1);
      return;
    case PackedScales::kSuper:
      copy(kSuper, row * 2, &block->scale, 2);
      [[fallthrough]];
    case PackedScales::kPowerOfTwo:
      copy(!kSuper, row, &block->factors[0], 1);
      return;
    case PackedScales::kNone:
      return;
  }
}

// Where a block lies in its panel.
struct BlockPlace {
  uint32_t row = 0;
  uint32_t block_idx = 0;
};

// Packs one block of one row. False when its scales are not finite.
bool PackBlock(const WeightTraits& traits, PutDigitsFn put_digits, WeightBlock block,
               BlockPlace place, std::byte* panel) {
  const auto [row, block_idx] = place;
  std::byte* super = panel + SuperOffset(traits.digits, traits.scales, block_idx);
  std::byte* out = panel + BlockOffset(traits.digits, traits.scales, block_idx);
  EachScale(traits.scales, row, &block,
            [&](bool in_super, size_t at, const void* field, size_t bytes) {
              std::memcpy((in_super ? super : out) + at, field, bytes);
            });
  put_digits(block, row, out + BlockScaleBytes(traits.scales));
  return HasFiniteScales(traits.scales, block);
}

// Rows that are null stay zero: what they give is never stored. Returns the first row of the panel
// with a scale that is not finite, else kPanelRows.
uint32_t PackQuantizedPanel(const WeightTraits& traits, std::span<const std::byte* const> rows,
                            uint32_t k, std::byte* out) {
  const uint32_t blocks_of_raw = traits.block_elements / kQuantBlock;
  const PutDigitsFn put_digits = PutDigitsOf(traits.digits);
  uint32_t bad_row = kPanelRows;
  for (uint32_t r = 0; r < kPanelRows && rows[r] != nullptr; ++r) {
    for (uint32_t b = 0; b < k / kQuantBlock; ++b) {
      WeightBlock block = {};
      traits.unpack(rows[r] + size_t{b / blocks_of_raw} * traits.block_bytes, b % blocks_of_raw,
                    &block);
      if (!PackBlock(traits, put_digits, block, {r, b}, out)) bad_row = std::min(bad_row, r);
    }
  }
  return bad_row;
}

void PackFloatPanel(uint32_t element_bytes, std::span<const std::byte* const> rows, uint32_t k,
                    std::byte* out) {
  for (uint32_t i = 0; i < k; ++i) {
    for (uint32_t r = 0; r < kPanelRows; ++r) {
      if (rows[r] == nullptr) continue;
      std::memcpy(out + (size_t{i} * kPanelRows + r) * element_bytes,
                  rows[r] + size_t{i} * element_bytes, element_bytes);
    }
  }
}

absl::Status CheckRowLength(const WeightTraits& traits, uint32_t k) {
  if (k != 0 && k % traits.block_elements == 0) return OkStatus();
  return InvalidArgument("row length {} of a {} matrix is not a positive multiple of {}", k,
                         traits.name, traits.block_elements);
}

absl::Status CheckParts(std::span<const RawRows> parts, uint32_t k) {
  if (parts.empty()) return InvalidArgument("no rows to pack");
  const WeightTraits& traits = TraitsOf(parts[0].type);
  BATON_RETURN_IF_ERROR(CheckRowLength(traits, k));
  for (const RawRows& part : parts) {
    if (part.type != parts[0].type) {
      return InvalidArgument("rows of type {} and {} cannot be joined", traits.name,
                             TraitsOf(part.type).name);
    }
    const auto need = CheckedMul(part.n, RawRowBytes(part.type, k));
    if (part.n == 0 || !need.has_value() || part.bytes.size() != *need) {
      return InvalidArgument("{} rows of {} {} elements in {} bytes, need {}", part.n, k,
                             traits.name, part.bytes.size(), need.value_or(UINT64_MAX));
    }
  }
  return OkStatus();
}

uint64_t NumRows(std::span<const RawRows> parts) {
  uint64_t total = 0;
  for (const RawRows& part : parts) total += part.n;
  return total;
}

}  // namespace

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(WeightType type, std::span<const std::byte> raw,
                                                uint32_t n, uint32_t k, ThreadPool& pool) {
  const RawRows part = {type, raw, n};
  return PackRows({&part, 1}, k, pool);
}

absl::StatusOr<PackedMatrix> PackedMatrix::PackRows(std::span<const RawRows> parts, uint32_t k,
                                                    ThreadPool& pool) {
  BATON_RETURN_IF_ERROR(CheckParts(parts, k));
  BATON_ASSIGN_OR_RETURN(PackedMatrix matrix, Shaped(parts[0].type, NumRows(parts), k));
  BATON_ASSIGN_OR_RETURN(AlignedBuffer packed, AlignedBuffer::Allocate(matrix.bytes()));
  BATON_RETURN_IF_ERROR(matrix.PackInto(parts, pool, {packed.data(), packed.size()}));
  matrix.Own(std::move(packed));
  return matrix;
}

absl::StatusOr<PackedMatrix> PackedMatrix::Shaped(WeightType type, uint64_t n, uint32_t k) {
  const WeightTraits& traits = TraitsOf(type);
  BATON_RETURN_IF_ERROR(CheckRowLength(traits, k));
  if (n == 0 || n > UINT32_MAX - kPanelRows) {
    return InvalidArgument("{} rows are outside [1, {}]", n, UINT32_MAX - kPanelRows);
  }
  PackedMatrix matrix;
  matrix.type_ = type;
  matrix.k_ = k;
  matrix.n_ = static_cast<uint32_t>(n);
  matrix.uses_a16_ = traits.quantized();
  if (traits.quantized()) {
    // The whole super-blocks end where the next one's scales would begin.
    matrix.panel_bytes_ = SuperScaleBytes(traits.scales) == 0
                              ? BlockOffset(traits.digits, traits.scales, k / kQuantBlock)
                              : SuperOffset(traits.digits, traits.scales, k / kQuantBlock);
  } else {
    matrix.panel_bytes_ = size_t{k} * kPanelRows * traits.block_bytes;
  }
  const auto total = CheckedMul(matrix.num_panels(), matrix.panel_bytes_);
  if (!total.has_value() || *total > kMaxMatrixBytes) {
    return InvalidArgument("a {} matrix of {} x {} is too large", traits.name, matrix.n_, k);
  }
  return matrix;
}

absl::Status PackedMatrix::PackInto(std::span<const RawRows> parts, ThreadPool& pool,
                                    std::span<std::byte> out) const {
  BATON_RETURN_IF_ERROR(CheckParts(parts, k_));
  if (parts[0].type != type_ || NumRows(parts) != n_ || out.size() != bytes()) {
    return InvalidArgument("{} rows of type {} to {} bytes, the matrix has {} of type {}, {} bytes",
                           NumRows(parts), TraitsOf(parts[0].type).name, out.size(), n_,
                           traits().name, bytes());
  }
  std::vector<const std::byte*> rows(size_t{num_panels()} * kPanelRows, nullptr);
  size_t next = 0;
  for (const RawRows& part : parts) {
    const size_t row_bytes = RawRowBytes(part.type, k_);
    for (uint32_t r = 0; r < part.n; ++r) rows[next++] = part.bytes.data() + r * row_bytes;
  }
  std::atomic<uint32_t> bad_row = n_;
  pool.RunRanges(num_panels(), 4, 8 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t p = range.begin; p < range.end; ++p) {
      const std::span panel_rows(rows.data() + size_t{p} * kPanelRows, kPanelRows);
      std::byte* panel = out.data() + p * panel_bytes_;
      if (!traits().quantized()) {
        PackFloatPanel(traits().block_bytes, panel_rows, k_, panel);
        continue;
      }
      const uint32_t bad = PackQuantizedPanel(traits(), panel_rows, k_, panel);
      if (bad < kPanelRows) LowerTo(p * kPanelRows + bad, &bad_row);
    }
  });
  if (bad_row == n_) return OkStatus();
  return InvalidArgument("row {} of {} has a {} block whose scale is not a finite number",
                         bad_row.load(), n_, traits().name);
}

void PackedMatrix::Own(AlignedBuffer packed) {
  BATON_CHECK(packed.size() == bytes(), "{} bytes for a packed matrix of {}", packed.size(),
              bytes());
  owned_ = std::move(packed);
  data_ = owned_.data();
}

WeightBlock PackedMatrix::Block(uint32_t row, uint32_t block_idx) const {
  const PackedDigits digits = traits().digits;
  const PackedScales scales = traits().scales;
  const std::byte* super = panel(row / kPanelRows) + SuperOffset(digits, scales, block_idx);
  const std::byte* block = panel(row / kPanelRows) + BlockOffset(digits, scales, block_idx);
  WeightBlock out = {};
  EachScale(scales, row % kPanelRows, &out,
            [&](bool in_super, size_t at, void* field, size_t bytes) {
              std::memcpy(field, (in_super ? super : block) + at, bytes);
            });
  GetDigits(digits, block + BlockScaleBytes(scales), row % kPanelRows, &out);
  return out;
}

uint32_t PackedMatrix::ElementBits(uint32_t row, uint32_t k_idx) const {
  const uint32_t element_bytes = traits().block_bytes;
  uint32_t bits = 0;  // little endian
  std::memcpy(
      &bits,
      panel(row / kPanelRows) + (size_t{k_idx} * kPanelRows + row % kPanelRows) * element_bytes,
      element_bytes);
  return bits;
}

}  // namespace baton::kernels
