#include "src/model/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/math.h"
#include "src/base/check.h"

namespace baton::model {

using kernels::Bf16FromFloat;
using kernels::HalfFromFloat;

namespace {

constexpr size_t kBlock = 32;
constexpr size_t kQ4_1Bytes = 20;
using Block = std::span<const float, kBlock>;

std::byte* PutU16(std::byte* out, uint16_t value) {
  std::memcpy(out, &value, sizeof(value));
  return out + sizeof(value);
}

bool AllFinite(Block x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

// 1 / d as the reference divides, and 0 where that is infinite: such a d, below 2^-128, is stored
// as a half of 0, and an infinity would become digits that are not defined.
float Inverse(float d) {
  const float inverse = 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

// Two digits a byte: element j in the low nibble of byte j, element j + 16 in the high one.
std::byte* PutNibbles(std::byte* out, const uint8_t* digits) {
  for (size_t j = 0; j < kBlock / 2; ++j) {
    *out++ = static_cast<std::byte>(digits[j] | digits[j + kBlock / 2] << 4);
  }
  return out;
}

uint8_t Nibble(double value) {
  return static_cast<uint8_t>(std::clamp(std::trunc(value), 0.0, 15.0));
}

// All digits 0 under a scale of NaN.
std::byte* EncodeBroken(size_t bytes, std::byte* out) {
  std::fill_n(out, bytes, std::byte{0});
  PutU16(out, HalfFromFloat(std::numeric_limits<float>::quiet_NaN()));
  return out + bytes;
}

// d = absmax / 127, digits rounded away from zero at halves.
std::byte* EncodeQ8_0(Block x, std::byte* out) {
  float absmax = 0.0f;
  for (float v : x) absmax = std::max(absmax, std::fabs(v));
  const float d = absmax / 127.0f;
  const float inverse = Inverse(d);
  out = PutU16(out, HalfFromFloat(d));
  for (float v : x) *out++ = static_cast<std::byte>(static_cast<int8_t>(std::round(v * inverse)));
  return out;
}

// d = (the element of the largest magnitude, the first of equal ones) / -8.
std::byte* EncodeQ4_0(Block x, std::byte* out) {
  float extreme = x[0];
  for (float v : x) extreme = std::fabs(v) > std::fabs(extreme) ? v : extreme;
  const float d = extreme / -8.0f;
  const float inverse = Inverse(d);
  uint8_t digits[kBlock];
  for (size_t j = 0; j < kBlock; ++j) digits[j] = Nibble(double{x[j]} * double{inverse} + 8.5);
  return PutNibbles(PutU16(out, HalfFromFloat(d)), digits);
}

// d = (max - min) / 15, m = min.
std::byte* EncodeQ4_1(Block x, std::byte* out) {
  const auto [min, max] = std::minmax_element(x.begin(), x.end());
  const float d = (*max - *min) / 15.0f;
  if (!std::isfinite(d)) return EncodeBroken(kQ4_1Bytes, out);  // max - min is beyond fp32
  const float inverse = Inverse(d);
  uint8_t digits[kBlock];
  for (size_t j = 0; j < kBlock; ++j) {
    digits[j] = Nibble(double{(x[j] - *min) * inverse + 0.5f});
  }
  return PutNibbles(PutU16(PutU16(out, HalfFromFloat(d)), HalfFromFloat(*min)), digits);
}

std::byte* EncodeBlock(GgmlType type, Block x, std::byte* out) {
  const GgufTensorType* row = FindGgufTensorType(static_cast<uint32_t>(type));
  if (!AllFinite(x)) return EncodeBroken(row->block_bytes, out);
  switch (type) {
    case GgmlType::kQ8_0:
      return EncodeQ8_0(x, out);
    case GgmlType::kQ4_0:
      return EncodeQ4_0(x, out);
    case GgmlType::kQ4_1:
      return EncodeQ4_1(x, out);
    default:
      BATON_CHECK(false, "type {} is never written", row->name);
      return out;
  }
}

}  // namespace

void EncodeRow(GgmlType type, std::span<const float> row, std::byte* out) {
  if (type == GgmlType::kF16) {
    for (float v : row) out = PutU16(out, HalfFromFloat(v));
    return;
  }
  if (type == GgmlType::kBf16) {
    for (float v : row) out = PutU16(out, Bf16FromFloat(v));
    return;
  }
  BATON_CHECK(row.size() % kBlock == 0, "a row of {} elements is no whole number of blocks",
              row.size());
  for (size_t i = 0; i < row.size(); i += kBlock) {
    out = EncodeBlock(type, Block(row.data() + i, kBlock), out);
  }
}

}  // namespace baton::model
