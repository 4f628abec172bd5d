// The two compilations of XXH3 that src/base/xxh3.cc chooses from. Internal to src/base.
#ifndef BATON_BASE_XXH3_BODIES_H_
#define BATON_BASE_XXH3_BODIES_H_

#include <cstddef>
#include <cstdint>

namespace baton::internal {

// Plain functions on xxhash's state; `state` is an XXH3_state_t. Only the loops over data differ
// between bodies.
struct Xxh3Body {
  uint64_t (*hash64)(const void* data, size_t size, uint64_t seed);
  void (*hash128)(const void* data, size_t size, uint64_t seed, uint64_t out_hi_lo[2]);
  void (*update)(void* state, const void* data, size_t size);
};

Xxh3Body Xxh3BodyAvx2();

}  // namespace baton::internal

#endif  // BATON_BASE_XXH3_BODIES_H_
