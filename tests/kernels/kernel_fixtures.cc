#include "tests/kernels/kernel_fixtures.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/math.h"
#include "tests/kernels/test_bodies.h"
#include "tests/test_seed.h"

namespace baton::kernels {

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

uint64_t RunSeed() {
  static const uint64_t seed = TestSeed();
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

std::vector<WeightType> WeightTypes() {
  std::vector<WeightType> types;
  for (int i = 0; i < kNumWeightTypes; ++i) types.push_back(static_cast<WeightType>(i));
  return types;
}

size_t ScaleAt(WeightType type) {
  switch (type) {
    case WeightType::kQ2_K:
      return 80;
    case WeightType::kQ3_K:
      return 108;
    case WeightType::kQ6_K:
      return 208;
    default:
      return 0;
  }
}

namespace {

void PutHalf(float value, std::byte* out) {
  const uint16_t half = HalfFromFloat(value);
  std::memcpy(out, &half, 2);
}

// Gives a block of random bytes scales (and mins) of a usual size.
void PutScales(Random* random, WeightType type, std::byte* block) {
  switch (type) {
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:  // times factors up to 63
      PutHalf(random->Activation(0.0005f), block);
      PutHalf(random->Activation(0.002f), block + 2);
      return;
    case WeightType::kQ6_K:  // times factors of -128 to 127
      PutHalf(random->Activation(0.0002f), block + 208);
      return;
    case WeightType::kIq4Nl:  // times levels up to 127
      PutHalf(random->Activation(0.001f), block);
      return;
    case WeightType::kIq4Xs:  // and factors of -32 to 31
      PutHalf(random->Activation(0.00005f), block);
      return;
    case WeightType::kQ2_K:  // times factors up to 15
      PutHalf(random->Activation(0.002f), block + 80);
      PutHalf(random->Activation(0.004f), block + 82);
      return;
    case WeightType::kQ3_K:  // times factors of -32 to 31
      PutHalf(random->Activation(0.001f), block + 108);
      return;
    case WeightType::kMxfp4:
      block[0] = static_cast<std::byte>(118 + random->Below(6));
      return;
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
      PutHalf(random->Activation(0.05f), block + 2);
      [[fallthrough]];
    default:
      PutHalf(random->Activation(0.01f), block);
  }
}

}  // namespace

std::vector<std::byte> RandomRaw(Random* random, WeightType type, uint32_t n, uint32_t k) {
  std::vector<std::byte> raw = random->Bytes(size_t{n} * RawRowBytes(type, k));
  const WeightTraits& traits = TraitsOf(type);
  for (size_t at = 0; at < raw.size(); at += traits.block_bytes) {
    if (traits.quantized()) {
      PutScales(random, type, raw.data() + at);
      continue;
    }
    const float value = random->Activation(0.05f);
    if (type == WeightType::kF32) std::memcpy(raw.data() + at, &value, 4);
    if (type == WeightType::kF16) PutHalf(value, raw.data() + at);
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

// `count` bits of a little-endian number from bit `first` on.
int Bits(const std::byte* number, uint32_t first, uint32_t count) {
  int value = 0;
  for (uint32_t i = 0; i < count; ++i) {
    value |= (static_cast<int>(number[(first + i) / 8]) >> ((first + i) % 8) & 1) << i;
  }
  return value;
}

// Element j of a block of 32 nibbles.
int Nibble(const std::byte* nibbles, uint32_t j) { return Bits(nibbles + j % 16, j / 16 * 4, 4); }

// Q4_K and Q5_K, element j, from its digit. The 12 bytes of scales as 6-bit numbers: scales 0..3
// and mins 0..3 are the low bits of a byte; the others' parts are four low bits, then two upper
// ones.
RawTerms SuperTerms(const std::byte* block, uint32_t j, int digit) {
  const std::byte* s = block + 4;
  const uint32_t b = j / 32;
  const int scale =
      b < 4 ? Bits(s, 8 * b, 6) : Bits(s, 8 * b + 32, 4) | Bits(s, 8 * b - 26, 2) << 4;
  const int min =
      b < 4 ? Bits(s, 8 * b + 32, 6) : Bits(s, 8 * b + 36, 4) | Bits(s, 8 * b + 6, 2) << 4;
  return {HalfValue(block) * scale * digit, -HalfValue(block + 2) * min};
}

RawTerms Q6KTerms(const std::byte* block, uint32_t j) {
  const uint32_t half = j / 128;
  const uint32_t quarter = j % 128 / 32;
  const uint32_t l = j % 32;
  const int low = Bits(block + half * 64 + quarter % 2 * 32 + l, quarter / 2 * 4, 4);
  const int high = Bits(block + 128 + half * 32 + l, quarter * 2, 2);
  const auto scale = static_cast<int8_t>(block[192 + j / 16]);
  return {HalfValue(block + 208) * scale * (low + 16 * high - 32)};
}

RawTerms Q2KTerms(const std::byte* block, uint32_t j) {
  const int digit = Bits(block + 16 + j / 128 * 32 + j % 32, j % 128 / 32 * 2, 2);
  return {HalfValue(block + 80) * Bits(block, j / 16 * 8, 4) * digit,
          -HalfValue(block + 82) * Bits(block, j / 16 * 8 + 4, 4)};
}

RawTerms Q3KTerms(const std::byte* block, uint32_t j) {
  // The 16 scales: low nibbles of bytes 0..7, then their high ones; above them the bit pairs of
  // bytes 8..11, all at bits 0, 1, then all at bits 2, 3, and so on.
  const std::byte* scales = block + 96;
  const uint32_t s = j / 16;
  const int scale =
      Bits(scales + s % 8, s / 8 * 4, 4) + 16 * Bits(scales + 8 + s % 4, s / 4 * 2, 2);
  const int low = Bits(block + 32 + j / 128 * 32 + j % 32, j % 128 / 32 * 2, 2);
  const int digit = low - (Bits(block + j % 32, j / 32, 1) == 1 ? 0 : 4);
  return {HalfValue(block + 108) * (scale - 32) * digit};
}

// A level of IQ4_NL and IQ4_XS by its index.
int Iq4Level(int index) {
  const int levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return levels[index];
}

RawTerms Iq4XsTerms(const std::byte* block, uint32_t j) {
  const uint32_t b = j / 32;
  const int scale = Bits(block + 4, 4 * b, 4) + 16 * Bits(block + 2, 2 * b, 2) - 32;
  return {HalfValue(block) * scale * Iq4Level(Nibble(block + 8 + b * 16, j % 32))};
}

double Mxfp4Value(const std::byte* block, uint32_t j) {
  const int code = Nibble(block + 1, j);
  const int exponent = code >> 1 & 3;
  // An e2m1 number: subnormal 0 and 0.5, else (1 + m/2) 2^(exponent - 1).
  const double magnitude =
      exponent == 0 ? 0.5 * (code & 1) : (1 + 0.5 * (code & 1)) * std::ldexp(1.0, exponent - 1);
  return std::ldexp(code < 8 ? magnitude : -magnitude, static_cast<int>(block[0]) - 127);
}

}  // namespace

RawTerms RawElementTerms(WeightType type, std::span<const std::byte> raw, uint32_t k, uint32_t row,
                         uint32_t i) {
  const WeightTraits& traits = TraitsOf(type);
  const std::byte* block = raw.data() + row * RawRowBytes(type, k) +
                           size_t{i / traits.block_elements} * traits.block_bytes;
  const uint32_t j = i % traits.block_elements;
  switch (type) {
    case WeightType::kF32: {
      float value;
      std::memcpy(&value, block, 4);
      return {value};
    }
    case WeightType::kF16:
      return {HalfValue(block)};
    case WeightType::kBf16: {
      uint16_t bits;
      std::memcpy(&bits, block, 2);
      return {std::bit_cast<float>(uint32_t{bits} << 16)};
    }
    case WeightType::kQ4_0:
      return {HalfValue(block) * (Nibble(block + 2, j) - 8)};
    case WeightType::kQ4_1:
      return {HalfValue(block) * Nibble(block + 4, j), HalfValue(block + 2)};
    case WeightType::kQ5_0:
      return {HalfValue(block) * (Nibble(block + 6, j) + 16 * Bits(block + 2, j, 1) - 16)};
    case WeightType::kQ5_1:
      return {HalfValue(block) * (Nibble(block + 8, j) + 16 * Bits(block + 4, j, 1)),
              HalfValue(block + 2)};
    case WeightType::kQ8_0:
      return {HalfValue(block) * static_cast<int8_t>(block[2 + j])};
    case WeightType::kQ4_K:
      return SuperTerms(block, j, Bits(block + 16 + j / 64 * 32 + j % 32, j / 32 % 2 * 4, 4));
    case WeightType::kQ5_K:
      return SuperTerms(block, j,
                        Bits(block + 48 + j / 64 * 32 + j % 32, j / 32 % 2 * 4, 4) +
                            16 * Bits(block + 16 + j % 32, j / 32, 1));
    case WeightType::kQ6_K:
      return Q6KTerms(block, j);
    case WeightType::kMxfp4:
      return {Mxfp4Value(block, j)};
    case WeightType::kIq4Nl:
      return {HalfValue(block) * Iq4Level(Nibble(block + 2, j))};
    case WeightType::kIq4Xs:
      return Iq4XsTerms(block, j);
    case WeightType::kQ3_K:
      return Q3KTerms(block, j);
    case WeightType::kQ2_K:
      return Q2KTerms(block, j);
  }
  return {NAN};
}

double RawElement(WeightType type, std::span<const std::byte> raw, uint32_t k, uint32_t row,
                  uint32_t i) {
  const RawTerms terms = RawElementTerms(type, raw, k, row, i);
  return terms.product + terms.min;
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

}  // namespace baton::kernels
