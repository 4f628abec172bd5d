#include "src/model/nvfp4_rows.h"

#include <cmath>

#include "kernels/math.h"
#include "kernels/weight_type.h"

namespace baton::model {

using kernels::Bf16FromFloat;
using kernels::FloatFromBf16;
using kernels::FloatFromE4m3;
using kernels::kFp4Values;

namespace {

// ggml takes the NaN of e4m3 for 0, and 0xFF, which no file should hold, for 480.
float BlockScale(std::byte code) {
  const auto bits = static_cast<uint8_t>(code);
  if (bits == 0x7F) return 0;
  return bits == 0xFF ? 480.0f : FloatFromE4m3(bits & 0x7F);
}

}  // namespace

bool HasInfiniteNvfp4(std::span<const std::byte> rows, float scale, bool divides) {
  constexpr float kLargest = 6;  // of e2m1
  for (size_t at = 0; at < rows.size(); at += kNvfp4BlockBytes) {
    for (const std::byte code : rows.subspan(at, kNvfp4Block / kNvfp4Group)) {
      const float of_both = divides ? BlockScale(code) / scale : BlockScale(code) * scale;
      if (!std::isfinite(FloatFromBf16(Bf16FromFloat(of_both * kLargest)))) return true;
    }
  }
  return false;
}

void Nvfp4Rows::Weights(uint32_t row, float* out) const {
  const auto weight = [](uint32_t code, float of_both) {
    // The values are doubled.
    const float number = 0.5f * static_cast<float>(kFp4Values[code]);
    return FloatFromBf16(Bf16FromFloat(number * of_both));
  };
  const std::byte* block = bytes.data() + row * RowBytes();
  for (uint32_t at = 0; at < k; at += kNvfp4Block, block += kNvfp4BlockBytes) {
    const std::byte* pairs = block + kNvfp4Block / kNvfp4Group;
    for (uint32_t group = 0; group < kNvfp4Block / kNvfp4Group; ++group, out += kNvfp4Group) {
      const float of_block = BlockScale(block[group]);
      const float of_both = divides ? of_block / scale : of_block * scale;
      for (uint32_t j = 0; j < kNvfp4Group / 2; ++j, ++pairs) {
        out[j] = weight(static_cast<uint32_t>(*pairs) & 15, of_both);
        out[j + kNvfp4Group / 2] = weight(static_cast<uint32_t>(*pairs) >> 4, of_both);
      }
    }
  }
}

}  // namespace baton::model
