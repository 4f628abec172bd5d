// Draws of a simulation: streams of one seed, each for one purpose, so that what is drawn for a
// request or a fault does not depend on what else happens. Pure; one thread per stream.
#ifndef BATON_SIM_SIM_DRAWS_H_
#define BATON_SIM_SIM_DRAWS_H_

#include <cmath>
#include <cstdint>

#include "src/base/split_mix.h"
#include "src/loadgen/random_draws.h"

namespace baton::sim {

// The purpose of a stream.
enum class DrawPurpose : uint64_t {
  kWorld = 1,
  kArrivals = 2,
  kRequest = 3,
  kNetwork = 4,
  kFault = 5,
  kWorker = 6,
  kFill = 7,
  kRouter = 8,
  kRareFields = 9,
};

// The seed of stream `index` of `purpose`.
inline uint64_t StreamSeed(uint64_t seed, DrawPurpose purpose, uint64_t index = 0) {
  return SplitMix(SplitMix(seed + kSplitMixStep * static_cast<uint64_t>(purpose)) + index);
}

// True in `share` (0..1) of the cases.
inline bool Happens(loadgen::RandomDraws& draws, double share) { return draws.Uniform() < share; }

// In [low, high], small values as likely as large ones are rare; 0 < low <= high.
inline double LogUniform(loadgen::RandomDraws& draws, double low, double high) {
  return low * std::pow(high / low, draws.Uniform());
}
inline int64_t LogUniformUs(loadgen::RandomDraws& draws, double low_us, double high_us) {
  return static_cast<int64_t>(LogUniform(draws, low_us, high_us));
}

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_DRAWS_H_
