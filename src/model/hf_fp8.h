// Matrices of F8_E4M3 in a folder: the scales that a tensor beside each matrix holds. Private to
// the folder reader; pure; any thread.
//
// X.weight [n, k] is multiplied by X.weight_scale: one number ([], [1], [1, 1]), one a row ([n],
// [n, 1]), one for each 128 x 128 (also [n / 128, 1, k / 128, 1]) or, in MXFP8, a power of two for
// each 32 of a row ([n, k / 32] of F8_E8M0, or of U8 that holds the same codes); or by
// X.weight_scale_inv, one for each 128 x 128. Activations stay bf16, so scales of activations and
// of KV (input_scale, k_scale ...) are not used.
#ifndef BATON_MODEL_HF_FP8_H_
#define BATON_MODEL_HF_FP8_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"
#include "src/model/safetensors.h"

namespace baton::model {

inline constexpr uint32_t kHfFp8Block = 128;
inline constexpr uint32_t kHfMxGroup = 32;
// The shortest row: a scale for each row, in fp32, takes at most an eighth of the codes.
inline constexpr uint32_t kMinHfFp8Row = 32;

// The name of the matrix that a tensor of this name scales; empty for other names.
std::string_view WeightOfHfScale(std::string_view name);

// Whether `name` is a tensor that scales or shifts activations or KV, which are not quantised.
bool IsHfActivationScale(std::string_view name);

// How a scale tensor lies over its matrix [n, k].
struct HfScaleGrid {
  uint64_t rows_each = 1;  // rows that share their scales
  uint32_t group = 0;      // elements of a row that share a scale: k, kHfFp8Block or kHfMxGroup
  uint64_t groups = 1;     // scales of a row
};

// `weight` is F8_E4M3. kBadScale naming both when `scale` has none of the shapes above. kBadShape
// when `weight` is not two-dimensional, has shorter rows or more than 2^32 - 1 rows or columns.
absl::StatusOr<HfScaleGrid> HfScaleGridOf(const SafetensorsTensor& weight,
                                          const SafetensorsTensor& scale);

// The scale of each group of each row, [n][groups]. kBadScale naming one that is not in
// (0, kMaxFp8Scale].
absl::Status ReadHfScales(const SafetensorsTensor& scale, const HfScaleGrid& grid, uint64_t n,
                          float* out);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_FP8_H_
