// Unsigned arithmetic that reports overflow, for sizes read from files and peers. Pure; any thread.
#ifndef BATON_BASE_CHECKED_MATH_H_
#define BATON_BASE_CHECKED_MATH_H_

#include <cstdint>
#include <optional>

namespace baton {

// a + b, or nothing when it does not fit in 64 bits.
constexpr std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// a - b, or nothing when b > a.
constexpr std::optional<uint64_t> CheckedSub(uint64_t a, uint64_t b) {
  if (b > a) return std::nullopt;
  return a - b;
}

// a * b, or nothing when it does not fit in 64 bits.
constexpr std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// The smallest multiple of `step` that is >= a; nothing when step is 0 or the result does not fit.
constexpr std::optional<uint64_t> CheckedRoundUp(uint64_t a, uint64_t step) {
  if (step == 0) return std::nullopt;
  const uint64_t rest = a % step;
  if (rest == 0) return a;
  return CheckedAdd(a, step - rest);
}

}  // namespace baton

#endif  // BATON_BASE_CHECKED_MATH_H_
