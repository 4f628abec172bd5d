#include "src/loadgen/random_draws.h"

#include <cmath>
#include <numbers>

#include "src/base/split_mix.h"

namespace baton::loadgen {

uint64_t RandomDraws::NextU64() { return SplitMix(state_ += kSplitMixStep); }

double RandomDraws::Uniform() {
  // 52 bits and a half step: the ends are never hit.
  return (static_cast<double>(NextU64() >> 12) + 0.5) * 0x1p-52;
}

uint64_t RandomDraws::Below(uint64_t end) {
  // The bias of the multiplication is below 2^-32 for every `end` of a load (< 2^32).
  return static_cast<uint64_t>((static_cast<unsigned __int128>(NextU64()) * end) >> 64);
}

double RandomDraws::Exponential() { return -std::log(Uniform()); }

double RandomDraws::Normal() {
  const double radius = std::sqrt(-2.0 * std::log(Uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * Uniform());
}

double RandomDraws::Gamma(double shape) {
  if (shape < 1.0) {
    // Gamma(k) = Gamma(k + 1) * U^(1/k).
    const double larger = Gamma(shape + 1.0);
    return larger * std::pow(Uniform(), 1.0 / shape);
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = Normal();
    const double v = std::pow(1.0 + c * x, 3);
    if (v <= 0.0) continue;
    if (std::log(Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace baton::loadgen
