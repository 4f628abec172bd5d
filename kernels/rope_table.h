// The cosines and sines of rotary position embedding (Su et al., "RoFormer", 2021), computed in
// double by our own sin, cos, exp and log: the same bits whatever the C library. Called once at
// load.
#ifndef BATON_KERNELS_ROPE_TABLE_H_
#define BATON_KERNELS_ROPE_TABLE_H_

#include <cstdint>
#include <span>

#include "src/base/status.h"

namespace baton::kernels {

// The parameters of a table.
struct RopeTableParams {
  uint32_t max_position;  // rows; <= 2^20
  uint32_t head_dim;      // even
  double base;            // > 0; 10000, 100000, 500000 ...
  // Divisors of the frequencies [head_dim / 2] (rope_freqs.weight, scaling); empty = all 1.
  std::span<const double> freq_factors = {};
  double amplitude = 1.0;  // of both cos and sin (YaRN)
};

// Fills cos_sin [max_position, head_dim / 2, 2] with (cos, sin) of
//   position * base^(-2i / head_dim) / freq_factors[i],
// times the amplitude, each within 1 ulp of fp32. The parameters may come from a file:
// InvalidArgument when base or a factor is not a positive number, or an angle leaves the range of
// SinCos; cos_sin is then unspecified.
absl::Status BuildRopeTable(const RopeTableParams& params, std::span<float> cos_sin);
// The errors that BuildRopeTable would give for `params`, without a table.
absl::Status CheckRopeTable(const RopeTableParams& params);

// sin and cos of x, |x| <= 2^20 * pi / 2; absolute error < 1e-15.
struct SinCosResult {
  double sin;
  double cos;
};
SinCosResult SinCos(double x);

// Natural logarithm of a normal x > 0; relative error < 1e-14 away from 1.
double Logarithm(double x);

// base^exponent for base > 0 and a result in [1e-300, 1e300]; relative error < 1e-14.
double Power(double base, double exponent);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_ROPE_TABLE_H_
