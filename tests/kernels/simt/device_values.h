// Random values for kernels, and buffers of the runner that hold them.
#ifndef BATON_TESTS_KERNELS_SIMT_DEVICE_VALUES_H_
#define BATON_TESTS_KERNELS_SIMT_DEVICE_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/types.h"
#include "tests/test_seed.h"

namespace baton::kernels::simt_test {

// Values of a normal-like spread; a few are large, so that a lost term shows.
inline std::vector<simt::Bf16> RandomBf16(size_t count, uint64_t seed, float scale = 1.0f) {
  TestRandom random(seed);
  std::vector<simt::Bf16> values(count);
  for (simt::Bf16& value : values) {
    const float uniform = static_cast<float>(random.Below(2001)) / 1000.0f - 1.0f;
    value.bits = Bf16FromFloat(uniform * scale * (random.OneIn(16) ? 8.0f : 1.0f));
  }
  return values;
}

// RandomBf16 times `scale`: values that are no bf16, unless the scale is a power of two.
inline std::vector<float> RandomFloats(size_t count, uint64_t seed, float scale) {
  std::vector<float> values;
  for (const simt::Bf16 value : RandomBf16(count, seed)) {
    values.push_back(FloatFromBf16(value.bits) * scale);
  }
  return values;
}

// A device buffer that holds these values.
template <typename T>
simt::SimBuffer OnDevice(const std::vector<T>& values, const char* name) {
  simt::SimBuffer buffer(values.size() * sizeof(T), name);
  if (!values.empty()) std::memcpy(buffer.data(), values.data(), buffer.size());
  return buffer;
}

template <typename T>
std::vector<T> FromDevice(simt::SimBuffer& buffer) {
  std::vector<T> values(buffer.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), buffer.data(), buffer.size());
  return values;
}

inline bool SameBits(const void* a, const void* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_DEVICE_VALUES_H_
