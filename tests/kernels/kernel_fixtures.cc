#include "tests/kernels/kernel_fixtures.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "kernels/math.h"
#include "tests/kernels/test_bodies.h"

namespace baton {

const std::vector<Body>& Bodies() {
  static const std::vector<Body> bodies = [] {
    std::vector<Body> found = {{"Portable", OpsFor(Isa::kPortable).value(), false}};
#if defined(__x86_64__)
    if (const auto avx2 = OpsFor(Isa::kAvx2); avx2.ok()) {
      found.push_back({"Avx2", *avx2, true});
      found.push_back({"PortableWithFma", &PortableFmaOps(), true});
      found.push_back({"Avx512Emulated", &EmulatedAvx512Ops(), true});
    }
    if (const auto avx512 = OpsFor(Isa::kAvx512); avx512.ok()) {
      found.push_back({"Avx512", *avx512, true});
    }
#endif
    return found;
  }();
  return bodies;
}

std::string BodyName(const ::testing::TestParamInfo<Body>& info) { return info.param.name; }

void PrintTo(const Body& body, std::ostream* out) { *out << body.name; }

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("BATON_TEST_SEED");
    const uint64_t value = text != nullptr ? std::strtoull(text, nullptr, 0) : 20240607;
    std::cout << "BATON_TEST_SEED=" << value << std::endl;
    return value;
  }();
  return seed;
}

float Random::Activation(float scale) {
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(engine_() >> 11) * 0x1p-53 - 0.5;
  const double outlier = Below(100) == 0 ? 30.0 : 1.0;
  return static_cast<float>(sum * 1.732 * outlier) * scale;
}

std::vector<float> Random::Activations(size_t count, float scale) {
  std::vector<float> out(count);
  for (float& x : out) x = Activation(scale);
  return out;
}

std::vector<std::byte> Random::Bytes(size_t count) {
  std::vector<std::byte> out(count);
  for (std::byte& b : out) b = static_cast<std::byte>(engine_());
  return out;
}

std::vector<std::byte> RandomRaw(Random* random, WeightType type, uint32_t n, uint32_t k) {
  std::vector<std::byte> raw = random->Bytes(size_t{n} * RawRowBytes(type, k));
  const WeightTraits& traits = TraitsOf(type);
  const auto put_half = [&](size_t offset, float value) {
    const uint16_t half = HalfFromFloat(value);
    std::memcpy(raw.data() + offset, &half, 2);
  };
  for (size_t at = 0; at < raw.size(); at += traits.block_bytes) {
    if (traits.quantized()) {
      put_half(at, random->Activation(0.01f));
      if (traits.has_min) put_half(at + 2, random->Activation(0.05f));
      continue;
    }
    const float value = random->Activation(0.05f);
    if (type == WeightType::kF32) std::memcpy(raw.data() + at, &value, 4);
    if (type == WeightType::kF16) put_half(at, value);
    if (type == WeightType::kBf16) {
      const uint16_t bits = Bf16FromFloat(value);
      std::memcpy(raw.data() + at, &bits, 2);
    }
  }
  return raw;
}

namespace {

// Half to double by its definition, not through the code under test.
double HalfValue(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

double RawElement(WeightType type, std::span<const std::byte> raw, uint32_t k, uint32_t row,
                  uint32_t i) {
  const WeightTraits& traits = TraitsOf(type);
  const std::byte* block = raw.data() + row * RawRowBytes(type, k) +
                           size_t{i / traits.block_elements} * traits.block_bytes;
  const uint32_t j = i % traits.block_elements;
  const auto nibble = [&](size_t header) {
    const int byte = static_cast<int>(block[header + j % 16]);
    return j < 16 ? byte & 15 : byte >> 4;
  };
  switch (type) {
    case WeightType::kF32: {
      float value;
      std::memcpy(&value, block, 4);
      return value;
    }
    case WeightType::kF16:
      return HalfValue(block);
    case WeightType::kBf16: {
      uint16_t bits;
      std::memcpy(&bits, block, 2);
      return std::bit_cast<float>(uint32_t{bits} << 16);
    }
    case WeightType::kQ4_0:
      return HalfValue(block) * (nibble(2) - 8);
    case WeightType::kQ4_1:
      return HalfValue(block) * nibble(4) + HalfValue(block + 2);
    case WeightType::kQ8_0:
      return HalfValue(block) * static_cast<int8_t>(block[2 + j]);
  }
  return NAN;
}

size_t CountDifferent(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return SIZE_MAX;
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) || std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) ++count;
  }
  return count;
}

void ExpectAgree(const Body& body, std::span<const float> actual, std::span<const float> expected,
                 double tolerance, double floor) {
  if (body.fused) {
    EXPECT_EQ(CountDifferent(actual, expected), 0u);
    return;
  }
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::fabs(double{actual[i]} - expected[i]),
              tolerance * (std::fabs(expected[i]) + floor))
        << i;
  }
}

}  // namespace baton
