// How splits of a row join, rule 5 of attention_tile.h. Included by the attention kernels and by
// their reference.
#ifndef BATON_KERNELS_CUDA_ATTENTION_FOLD_H_
#define BATON_KERNELS_CUDA_ATTENTION_FOLD_H_

#include "kernels/cuda/attention_tile.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// A row's maximum and weight over some splits; weight 0 = it has seen no key.
struct RowTotal {
  float largest;
  float weight;
};

// How a split joins a row's total.
struct Fold {
  float of_total;
  float of_split;
  bool is_first;
  bool is_empty;

  BATON_DEVICE float Join(float total, float split) const {
    const float sum = simt::fma(split, of_split, total * of_total);
    const float joined = is_first ? split : sum;
    return is_empty ? total : joined;
  }
};

// Joins maximum and weight; the sums follow with the fold that it returns. A NaN weight is not 0,
// so it goes on.
BATON_DEVICE Fold FoldRow(const RowTotal& split, RowTotal& total) {
  const float largest = split.largest > total.largest ? split.largest : total.largest;
  const float base = largest == kNothing ? 0.0f : largest;
  const Fold fold = {Exp2(total.largest - base), Exp2(split.largest - base), total.weight == 0.0f,
                     split.weight == 0.0f};
  total.weight = fold.Join(total.weight, split.weight);
  total.largest = largest;
  return fold;
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_FOLD_H_
