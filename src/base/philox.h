// Philox4x32-10: a counter-based random function (Salmon et al., "Parallel Random Numbers: As Easy
// as 1, 2, 3", SC 2011). A key and a counter give the same four words on every machine, so a
// sampler can be continued anywhere. Pure; any thread.
#ifndef BATON_BASE_PHILOX_H_
#define BATON_BASE_PHILOX_H_

#include <array>
#include <cstdint>

namespace baton {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// A 64-bit seed as a key, low word first.
constexpr PhiloxKey PhiloxKeyFromSeed(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

// Ten rounds; about 20 multiplications.
constexpr std::array<uint32_t, 4> Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += kWeyl0;
      key[1] += kWeyl1;
    }
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
  }
  return counter;
}

}  // namespace baton

#endif  // BATON_BASE_PHILOX_H_
