// XXH3 compiled for AVX2. Only xxhash's static functions are used here: an inline function from
// another header would be emitted with AVX2 and could be chosen by the linker for the whole
// program.
#define XXH_INLINE_ALL
#define XXH_VECTOR 2  // XXH_AVX2
#include <xxhash.h>

#include "src/base/xxh3_bodies.h"

namespace baton::internal {
namespace {

uint64_t Hash64(const void* data, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

void Hash128(const void* data, size_t size, uint64_t seed, uint64_t out_hi_lo[2]) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
  out_hi_lo[0] = hash.high64;
  out_hi_lo[1] = hash.low64;
}

void Update(void* state, const void* data, size_t size) {
  // The 64 and 128-bit streams share one accumulator; only the digest differs.
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, size);
}

}  // namespace

Xxh3Body Xxh3BodyAvx2() { return {&Hash64, &Hash128, &Update}; }

}  // namespace baton::internal
