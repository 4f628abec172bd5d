#define XXH_STATIC_LINKING_ONLY
#include "src/base/xxh3.h"

#include <xxhash.h>

#include "src/base/instruction_sets.h"
#include "src/base/xxh3_bodies.h"

namespace baton {
namespace {

uint64_t BaselineHash64(const void* data, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

void BaselineHash128(const void* data, size_t size, uint64_t seed, uint64_t out_hi_lo[2]) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, size, seed);
  out_hi_lo[0] = hash.high64;
  out_hi_lo[1] = hash.low64;
}

void BaselineUpdate(void* state, const void* data, size_t size) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, size);
}

const internal::Xxh3Body& Body() {
  static const internal::Xxh3Body body =
      RunsAvx2() ? internal::Xxh3BodyAvx2()
                 : internal::Xxh3Body{&BaselineHash64, &BaselineHash128, &BaselineUpdate};
  return body;
}

}  // namespace

uint64_t Xxh3Hash64(const void* data, size_t size, uint64_t seed) {
  return Body().hash64(data, size, seed);
}

Hash128 Xxh3Hash128(const void* data, size_t size, uint64_t seed) {
  uint64_t hi_lo[2];
  Body().hash128(data, size, seed, hi_lo);
  return {hi_lo[0], hi_lo[1]};
}

// xxhash's accumulator (64-byte aligned by its own declaration).
struct Xxh3Stream::State {
  XXH3_state_t xxh;
};

Xxh3Stream::Xxh3Stream(uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh);
  Reset(seed);
}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::Reset(uint64_t seed) { XXH3_64bits_reset_withSeed(&state_->xxh, seed); }

void Xxh3Stream::Update(const void* data, size_t size) {
  if (size > 0) Body().update(&state_->xxh, data, size);
}

uint64_t Xxh3Stream::Digest64() const { return XXH3_64bits_digest(&state_->xxh); }

Hash128 Xxh3Stream::Digest128() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.high64, hash.low64};
}

}  // namespace baton
