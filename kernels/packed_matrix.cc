#include "kernels/packed_matrix.h"

#include <cstring>
#include <vector>

#include "src/base/checked_math.h"

namespace baton {
namespace {

// Largest matrix: 2^40 bytes; anything above is a damaged file.
constexpr uint64_t kMaxMatrixBytes = uint64_t{1} << 40;

size_t DigitBytes(PackedDigits digits) {
  return digits == PackedDigits::kBytes ? kPanelRows * kQuantBlock : kPanelRows * kQuantBlock / 2;
}

size_t HeaderBytes(const WeightTraits& traits) {
  return kPanelRows * sizeof(uint16_t) * (traits.has_min ? 2 : 1);
}

// Where element k (0..31) of row r lies in the digits of a block: byte offset, and shift of a
// nibble.
struct DigitPlace {
  uint32_t byte;
  uint32_t shift;
};

constexpr uint32_t kByteOfPair[2] = {0, 2};

DigitPlace NibblePlace(uint32_t row, uint32_t k) {
  const uint32_t in_chunk = k % 8;
  const uint32_t byte = kByteOfPair[in_chunk % 2] + in_chunk / 4;
  return {k / 8 * (kPanelRows * 4) + row * 4 + byte, (in_chunk / 2 % 2) * 4};
}

DigitPlace BytePlace(uint32_t row, uint32_t k) {
  const uint32_t in_chunk = k % 4;
  return {k / 4 * (kPanelRows * 4) + row * 4 + kByteOfPair[in_chunk % 2] + in_chunk / 2, 0};
}

void PutDigits(PackedDigits digits, const WeightBlock& block, uint32_t row, std::byte* out) {
  if (digits == PackedDigits::kBytes) {
    for (uint32_t k = 0; k < kQuantBlock; ++k) {
      out[BytePlace(row, k).byte] = static_cast<std::byte>(block.q[k]);
    }
    return;
  }
  const int offset = digits == PackedDigits::kNibblesOff8 ? 8 : 0;
  for (uint32_t k = 0; k < kQuantBlock; ++k) {
    const DigitPlace place = NibblePlace(row, k);
    out[place.byte] |= static_cast<std::byte>((block.q[k] + offset) << place.shift);
  }
}

void GetDigits(PackedDigits digits, const std::byte* in, uint32_t row, WeightBlock* block) {
  const int offset = digits == PackedDigits::kNibblesOff8 ? 8 : 0;
  for (uint32_t k = 0; k < kQuantBlock; ++k) {
    if (digits == PackedDigits::kBytes) {
      block->q[k] = static_cast<int8_t>(in[BytePlace(row, k).byte]);
    } else {
      const DigitPlace place = NibblePlace(row, k);
      const int nibble = (static_cast<int>(in[place.byte]) >> place.shift) & 15;
      block->q[k] = static_cast<int8_t>(nibble - offset);
    }
  }
}

// Padding rows must give 0 for any activation: scale 0 (the panel is zeroed) and digit 0.
void PutZeroRow(PackedDigits digits, uint32_t row, std::byte* out) {
  const WeightBlock zero = {};
  if (digits == PackedDigits::kNibblesOff8) PutDigits(digits, zero, row, out);
}

void PackQuantizedPanel(WeightType type, std::span<const std::byte* const> rows, uint32_t k,
                        std::byte* out) {
  const WeightTraits& traits = TraitsOf(type);
  const size_t header_bytes = HeaderBytes(traits);
  const size_t block_bytes = header_bytes + DigitBytes(traits.digits);
  for (uint32_t b = 0; b < k / kQuantBlock; ++b) {
    std::byte* block_out = out + b * block_bytes;
    for (uint32_t r = 0; r < kPanelRows; ++r) {
      if (rows[r] == nullptr) {
        PutZeroRow(traits.digits, r, block_out + header_bytes);
        continue;
      }
      WeightBlock block;
      traits.unpack(rows[r] + size_t{b} * traits.block_bytes, &block);
      std::memcpy(block_out + r * 2, &block.scale, 2);
      if (traits.has_min) std::memcpy(block_out + kPanelRows * 2 + r * 2, &block.min, 2);
      PutDigits(traits.digits, block, r, block_out + header_bytes);
    }
  }
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

absl::Status CheckParts(std::span<const RawRows> parts, uint32_t k) {
  if (parts.empty()) return InvalidArgument("no rows to pack");
  const WeightTraits& traits = TraitsOf(parts[0].type);
  if (k == 0 || (traits.quantized() && k % kQuantBlock != 0)) {
    return InvalidArgument("row length {} of a {} matrix is not a positive multiple of {}", k,
                           traits.name, traits.quantized() ? kQuantBlock : 1);
  }
  uint64_t total = 0;
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
    total += part.n;
  }
  if (total > UINT32_MAX - kPanelRows) return InvalidArgument("{} rows are too many", total);
  return OkStatus();
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
  PackedMatrix matrix;
  matrix.type_ = parts[0].type;
  matrix.k_ = k;
  for (const RawRows& part : parts) matrix.n_ += part.n;
  const WeightTraits& traits = matrix.traits();
  matrix.uses_a16_ = traits.quantized();
  if (traits.quantized()) {
    matrix.block_bytes_ = HeaderBytes(traits) + DigitBytes(traits.digits);
    matrix.panel_bytes_ = size_t{k} / kQuantBlock * matrix.block_bytes_;
  } else {
    matrix.panel_bytes_ = size_t{k} * kPanelRows * traits.block_bytes;
  }
  const auto total = CheckedMul(matrix.num_panels(), matrix.panel_bytes_);
  if (!total.has_value() || *total > kMaxMatrixBytes) {
    return InvalidArgument("a {} matrix of {} x {} is too large", traits.name, matrix.n_, k);
  }
  BATON_ASSIGN_OR_RETURN(matrix.buffer_, AlignedBuffer::Allocate(*total));

  std::vector<const std::byte*> rows(size_t{matrix.num_panels()} * kPanelRows, nullptr);
  size_t next = 0;
  for (const RawRows& part : parts) {
    const size_t row_bytes = RawRowBytes(part.type, k);
    for (uint32_t r = 0; r < part.n; ++r) rows[next++] = part.bytes.data() + r * row_bytes;
  }
  pool.RunRanges(matrix.num_panels(), 4, 8 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t p = range.begin; p < range.end; ++p) {
      const std::span panel_rows(rows.data() + size_t{p} * kPanelRows, kPanelRows);
      std::byte* out = matrix.buffer_.data() + p * matrix.panel_bytes_;
      if (traits.quantized()) {
        PackQuantizedPanel(matrix.type_, panel_rows, k, out);
      } else {
        PackFloatPanel(traits.block_bytes, panel_rows, k, out);
      }
    }
  });
  return matrix;
}

WeightBlock PackedMatrix::Block(uint32_t row, uint32_t block_idx) const {
  const WeightTraits& type_traits = traits();
  const std::byte* block = panel(row / kPanelRows) + block_idx * block_bytes_;
  const uint32_t r = row % kPanelRows;
  WeightBlock out = {};
  std::memcpy(&out.scale, block + r * 2, 2);
  if (type_traits.has_min) std::memcpy(&out.min, block + kPanelRows * 2 + r * 2, 2);
  GetDigits(type_traits.digits, block + HeaderBytes(type_traits), r, &out);
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

}  // namespace baton
