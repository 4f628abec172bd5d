// SplitMix64: 64 bits from 64, for tie-breaks, streams of draws and hashes of tests. Not for
// sampling (philox.h), names (random.h) or checksums (xxh3.h). Pure.
#ifndef BATON_BASE_SPLIT_MIX_H_
#define BATON_BASE_SPLIT_MIX_H_

#include <cstdint>

namespace baton {

// The number that the state grows by with each draw.
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15ull;

// The finaliser (Steele et al., OOPSLA 2014): every bit of x reaches every bit of the result.
inline constexpr uint64_t SplitMix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace baton

#endif  // BATON_BASE_SPLIT_MIX_H_
