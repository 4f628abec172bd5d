// Bytes without a pattern, the same on every platform.
#ifndef BATON_TESTS_DRAWN_BYTES_H_
#define BATON_TESTS_DRAWN_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/test_seed.h"

namespace baton {

inline std::vector<std::byte> DrawnBytes(size_t size, uint64_t seed) {
  TestRandom random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

}  // namespace baton

#endif  // BATON_TESTS_DRAWN_BYTES_H_
