#include "kernels/rope_table.h"

#include <bit>
#include <cstddef>

#include "src/base/check.h"

namespace baton::kernels {
namespace {

constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 32 bits: n * kLn2High is exact for |n| < 2^20
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// pi / 2 in three parts of 33 bits, so that n * part is exact for n <= 2^20.
constexpr double kHalfPi1 = 0x1.921fb54400000p+0;
constexpr double kHalfPi2 = 0x1.0b4611a600000p-34;
constexpr double kHalfPi3 = 0x1.3198a2e037073p-69;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// Adding and subtracting it rounds to an integer.
constexpr double kRound = 0x1.8p52;

constexpr double kMaxAngle = 1647099.0;  // 2^20 * pi / 2
constexpr double kMinBase = 1e-3;
constexpr double kMaxBase = 1e30;
constexpr double kMinAmplitude = 1e-3;
constexpr double kMaxAmplitude = 1e3;

// e^x for |x| < 700.
double ExpDouble(double x) {
  const double n = (x * 0x1.71547652b82fep+0 + kRound) - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= 0.347, r^15 / 15! < 1e-19
  double sum = 1.0;
  for (int i = 14; i >= 1; --i) sum = 1.0 + sum * r / i;
  const int64_t exponent = static_cast<int64_t>(n) + 1023;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(exponent) << 52);
}

// Taylor series on |r| <= pi / 4; the first term left out is below 1e-19.
double SinReduced(double r) {
  const double z = r * r;
  double sum = 1.0;
  for (int i = 16; i >= 2; i -= 2) sum = 1.0 - sum * z / (i * (i + 1));
  return r * sum;
}

double CosReduced(double r) {
  const double z = r * r;
  double sum = 1.0;
  for (int i = 17; i >= 1; i -= 2) sum = 1.0 - sum * z / (i * (i + 1));
  return sum;
}

double FactorOf(const RopeTableParams& params, uint32_t pair) {
  return params.freq_factors.empty() ? 1.0 : params.freq_factors[pair];
}

// Radians a position.
double FrequencyOf(const RopeTableParams& params, uint32_t pair) {
  return Power(params.base, -2.0 * pair / params.head_dim) / FactorOf(params, pair);
}

}  // namespace

SinCosResult SinCos(double x) {
  const double n = (x * kTwoOverPi + kRound) - kRound;
  const double r = ((x - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;
  const double sin = SinReduced(r);
  const double cos = CosReduced(r);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {sin, cos};
    case 1:
      return {cos, -sin};
    case 2:
      return {-sin, -cos};
    default:
      return {-cos, sin};
  }
}

// x = 2^n m, log m = 2 atanh((m - 1) / (m + 1)).
double Logarithm(double x) {
  const uint64_t offset =
      std::bit_cast<uint64_t>(x) - std::bit_cast<uint64_t>(0x1.6a09e667f3bcdp-1);
  const double n = static_cast<double>(static_cast<int64_t>(offset) >> 52);
  const double m = std::bit_cast<double>((offset & 0x000FFFFFFFFFFFFFu) +
                                         std::bit_cast<uint64_t>(0x1.6a09e667f3bcdp-1));
  const double s = (m - 1.0) / (m + 1.0);  // |s| <= 0.1716, s^23 / 23 < 2e-19
  const double z = s * s;
  double sum = 0.0;
  for (int i = 21; i >= 1; i -= 2) sum = sum * z + 1.0 / i;
  return n * kLn2High + (n * kLn2Low + 2.0 * s * sum);
}

double Power(double base, double exponent) { return ExpDouble(exponent * Logarithm(base)); }

absl::Status CheckRopeTable(const RopeTableParams& params) {
  const uint32_t half = params.head_dim / 2;
  if (!params.freq_factors.empty() && params.freq_factors.size() != half) {
    return InvalidArgument("{} rope frequency factors, need head_dim / 2 = {}",
                           params.freq_factors.size(), half);
  }
  if (!(params.base >= kMinBase && params.base <= kMaxBase)) {
    return InvalidArgument("rope base {} is outside [{}, {}]", params.base, kMinBase, kMaxBase);
  }
  if (!(params.amplitude >= kMinAmplitude && params.amplitude <= kMaxAmplitude)) {
    return InvalidArgument("rope amplitude {} is outside [{}, {}]", params.amplitude, kMinAmplitude,
                           kMaxAmplitude);
  }
  for (uint32_t i = 0; i < half; ++i) {
    const double frequency = FrequencyOf(params, i);
    if (!(frequency > 0.0 && frequency * params.max_position <= kMaxAngle)) {
      return InvalidArgument(
          "rope frequency {} of dimension pair {} (factor {}) times {} positions "
          "is outside (0, {}]",
          frequency, i, FactorOf(params, i), params.max_position, kMaxAngle);
    }
  }
  return OkStatus();
}

absl::Status BuildRopeTable(const RopeTableParams& params, std::span<float> cos_sin) {
  const uint32_t half = params.head_dim / 2;
  BATON_CHECK(cos_sin.size() == size_t{params.max_position} * half * 2,
              "cos_sin has {} elements, need {} x {} x 2", cos_sin.size(), params.max_position,
              half);
  BATON_RETURN_IF_ERROR(CheckRopeTable(params));
  for (uint32_t i = 0; i < half; ++i) {
    const double frequency = FrequencyOf(params, i);
    for (uint32_t position = 0; position < params.max_position; ++position) {
      const SinCosResult value = SinCos(position * frequency);
      float* pair = &cos_sin[(size_t{position} * half + i) * 2];
      pair[0] = static_cast<float>(params.amplitude * value.cos);
      pair[1] = static_cast<float>(params.amplitude * value.sin);
    }
  }
  return OkStatus();
}

}  // namespace baton::kernels
