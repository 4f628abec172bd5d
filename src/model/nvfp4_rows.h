// Nvfp4Rows: rows in GGUF's NVFP4. A block of 64 elements is four scales (e4m3 without a sign) and
// 32 bytes of e2m1 numbers; of each 16 elements, byte j of 8 holds element j in its low bits and
// element j + 8 in its high ones. Pure; any thread.
//
// A weight is e2m1 * (block scale * tensor scale), both products in fp32, rounded to bf16. Without
// a tensor scale the product has 6 significant bits, so nothing is rounded.
#ifndef BATON_MODEL_NVFP4_ROWS_H_
#define BATON_MODEL_NVFP4_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace baton::model {

inline constexpr uint32_t kNvfp4Block = 64;
inline constexpr uint32_t kNvfp4BlockBytes = 36;
inline constexpr uint32_t kNvfp4Group = 16;

// See the file comment.
struct Nvfp4Rows {
  std::span<const std::byte> bytes;  // [n][k / 64 * 36]
  uint32_t n = 0;
  uint32_t k = 0;
  float scale = 1.0f;    // of the tensor
  bool divides = false;  // block scales are divided by it

  size_t RowBytes() const { return size_t{k} / kNvfp4Block * kNvfp4BlockBytes; }
  // The weights of a row, which bf16 holds exactly, to out [k].
  void Weights(uint32_t row, float* out) const;
};

// Whether a scale of `rows` is so large that a weight of its 16 may be infinite in bf16. Looks at
// the scales alone.
bool HasInfiniteNvfp4(std::span<const std::byte> rows, float scale, bool divides);

}  // namespace baton::model

#endif  // BATON_MODEL_NVFP4_ROWS_H_
