// Seeded random numbers of a load: the same seed gives the same load on every machine, which the
// distributions of the C++ library do not promise. One thread per object.
#ifndef BATON_LOADGEN_RANDOM_DRAWS_H_
#define BATON_LOADGEN_RANDOM_DRAWS_H_

#include <cstdint>

namespace baton::loadgen {

// A stream of draws from one seed (SplitMix64 underneath).
class RandomDraws {
 public:
  explicit RandomDraws(uint64_t seed) : state_(seed) {}

  uint64_t NextU64();
  // In (0, 1), never an end.
  double Uniform();
  // In [0, end); end >= 1.
  uint64_t Below(uint64_t end);
  // In [first, last].
  uint64_t Between(uint64_t first, uint64_t last) { return first + Below(last - first + 1); }
  // Mean 1.
  double Exponential();
  // Mean 0, variance 1 (Box and Muller, 1958).
  double Normal();
  // Mean `shape`, variance `shape`; shape > 0 (Marsaglia and Tsang, 2000).
  double Gamma(double shape);

 private:
  uint64_t state_;
};

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_RANDOM_DRAWS_H_
