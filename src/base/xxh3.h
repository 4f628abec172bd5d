// XXH3 hashes (xxhash's stable format, specification: doc/xxhash_spec.md of the xxHash project),
// with the AVX2 body where the processor has it: the packaged library is built for SSE2 only. Same
// bits on every path.
#ifndef BATON_BASE_XXH3_H_
#define BATON_BASE_XXH3_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace baton {

// A 128-bit hash value.
struct Hash128 {
  uint64_t hi = 0;
  uint64_t lo = 0;
  friend constexpr auto operator<=>(const Hash128&, const Hash128&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Hash128& hash) {
    return H::combine(std::move(state), hash.hi, hash.lo);
  }
};

// One-shot hashes of `size` bytes; any thread. Reads memory once, at about copy speed.
uint64_t Xxh3Hash64(const void* data, size_t size, uint64_t seed = 0);
Hash128 Xxh3Hash128(const void* data, size_t size, uint64_t seed = 0);

inline uint64_t Xxh3Hash64(std::string_view data, uint64_t seed = 0) {
  return Xxh3Hash64(data.data(), data.size(), seed);
}
inline Hash128 Xxh3Hash128(std::string_view data, uint64_t seed = 0) {
  return Xxh3Hash128(data.data(), data.size(), seed);
}

// XXH3 over pieces: the digest equals the one-shot hash of all updates joined, however they were
// cut. One thread at a time. Allocates once, at construction.
class Xxh3Stream {
 public:
  explicit Xxh3Stream(uint64_t seed = 0);
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  // Starts over with `seed`.
  void Reset(uint64_t seed = 0);
  void Update(const void* data, size_t size);
  void Update(std::string_view data) { Update(data.data(), data.size()); }
  // The hash of everything since the last Reset; changes nothing, so more can follow.
  uint64_t Digest64() const;
  Hash128 Digest128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton

#endif  // BATON_BASE_XXH3_H_
