// Writing rows of weights in the element types of model files: what `baton convert` does to each
// row. Pure; any thread. The roundings are those of ggml's reference functions, as the PyPI package
// gguf has them in numpy (convert_test compares the bytes).
#ifndef BATON_MODEL_QUANTIZE_H_
#define BATON_MODEL_QUANTIZE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/model/gguf_types.h"

namespace baton::model {

// Writes `row` in `type` (kF16, kBf16, kQ8_0, kQ4_0 or kQ4_1) to `out`, which has room for it; the
// quantised types need a multiple of 32 elements. A block that holds a NaN or an infinity gets a
// scale that is not finite, so that its weights stay visibly broken; one whose scale is below
// 2^-128 becomes zeros.
void EncodeRow(GgmlType type, std::span<const float> row, std::byte* out);

}  // namespace baton::model

#endif  // BATON_MODEL_QUANTIZE_H_
