#include "kernels/cuda/kv_rows_reference.h"

#include <cmath>
#include <cstring>

#include "kernels/cuda/kv_fp8.h"
#include "kernels/math.h"

namespace baton::kernels::cuda {
namespace {

using simt::Bf16;

// The smallest power of two in range that leaves no code beyond 448; NaN for a row that has one, or
// an infinity.
float ScaleOf(const Bf16* row, uint32_t dim) {
  float scale = std::ldexp(1.0f, kMinFp8Exponent);
  for (uint32_t i = 0; i < dim; ++i) {
    const float value = std::fabs(FloatFromBf16(row[i].bits));
    if (!std::isfinite(value)) return FloatFromBf16(kNanFp8Scale);
    // Halfway between 448 and the next step of 32: the tie is even downwards.
    while (value / scale > 464.0f && scale < std::ldexp(1.0f, kMaxFp8Exponent)) scale *= 2;
  }
  return scale;
}

}  // namespace

void ReferenceStoreRow(const KvBlocks& kv, const Bf16* row, std::byte* piece, uint32_t token) {
  std::byte* const to = piece + token * kv.RowBytes();
  if (kv.element == KvElement::kBf16) {
    std::memcpy(to, row, kv.RowBytes());
    return;
  }
  const float scale = ScaleOf(row, kv.head_dim);
  for (uint32_t i = 0; i < kv.head_dim; ++i) {
    const float value = FloatFromBf16(row[i].bits);
    const float code = std::isnan(scale) ? value * 0.0f : value / scale;
    to[Fp8Place(i)] = std::byte{E4m3FromFloat(code)};
  }
  const uint16_t bits = Bf16FromFloat(scale);
  std::memcpy(piece + kv.ScaleOffset(token), &bits, sizeof(bits));
}

std::vector<Bf16> ReferenceLoadRow(const KvBlocks& kv, const std::byte* piece, uint32_t token) {
  std::vector<Bf16> row(kv.head_dim);
  const std::byte* const from = piece + token * kv.RowBytes();
  if (kv.element == KvElement::kBf16) {
    std::memcpy(row.data(), from, kv.RowBytes());
    return row;
  }
  uint16_t scale;
  std::memcpy(&scale, piece + kv.ScaleOffset(token), sizeof(scale));
  for (uint32_t i = 0; i < kv.head_dim; ++i) {
    const float code = FloatFromE4m3(static_cast<uint8_t>(from[Fp8Place(i)]));
    row[i].bits = Bf16FromFloat(code * FloatFromBf16(scale));
  }
  return row;
}

}  // namespace baton::kernels::cuda
