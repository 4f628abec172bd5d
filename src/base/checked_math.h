// Unsigned arithmetic that reports overflow, for sizes read from files and peers. Pure; any thread.
#ifndef BATON_BASE_CHECKED_MATH_H_
#define BATON_BASE_CHECKED_MATH_H_

#include <cstdint>
#include <optional>

namespace baton {

// a * b, or nothing when it does not fit in 64 bits.
constexpr std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

}  // namespace baton

#endif  // BATON_BASE_CHECKED_MATH_H_
