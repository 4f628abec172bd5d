// Compares the emulation of AVX-512 that the kernel tests run on with SIMDe's, an independent one,
// for every intrinsic that SIMDe has and whose result the bodies depend on.
#include "tests/kernels/avx512_emulation.h"
// After the emulation, whose names it must not see.
#include <bit>
#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "simde/x86/avx512.h"

#include "kernels/math.h"

namespace baton::kernels {
namespace {

using emulation::F512;
using emulation::I512;

simde__m512i ToSimde(I512 a) { return simde_mm512_loadu_si512(&a); }
simde__m512 ToSimde(F512 a) { return simde_mm512_loadu_ps(&a); }
I512 FromSimde(simde__m512i a) {
  I512 out;
  simde_mm512_storeu_si512(&out, a);
  return out;
}
F512 FromSimde(simde__m512 a) {
  F512 out;
  simde_mm512_storeu_ps(&out, a);
  return out;
}
template <typename Register>
bool Same(Register a, Register b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// Not every release of SIMDe has the shift of 512 bits.
I512 ShiftHalvesRight(const I512& a) {
  I512 out;
  simde__m256i halves[2];
  static_assert(sizeof(halves) == sizeof(a) && sizeof(out) == sizeof(a));
  std::memcpy(halves, &a, sizeof(a));
  for (simde__m256i& half : halves) half = simde_mm256_srai_epi32(half, 16);
  std::memcpy(&out, halves, sizeof(out));
  return out;
}

class EmulationTest : public ::testing::Test {
 protected:
  I512 RandomInts() {
    return emulation::EachInt([&](int) { return static_cast<int32_t>(engine_()); });
  }
  F512 RandomFloats() {
    return emulation::EachFloat(
        [&](int) { return static_cast<float>(static_cast<int32_t>(engine_())) * 0x1p-24f; });
  }
  std::mt19937 engine_{42};
};

TEST_F(EmulationTest, IntegersEqualSimde) {
  for (int round = 0; round < 1000; ++round) {
    const I512 a = RandomInts();
    const I512 b = RandomInts();
    const I512 c = RandomInts();
    EXPECT_TRUE(Same(emulation::dpwssd_epi32(a, b, c),
                     FromSimde(simde_mm512_dpwssd_epi32(ToSimde(a), ToSimde(b), ToSimde(c)))));
    EXPECT_TRUE(
        Same(emulation::add_epi32(a, b), FromSimde(simde_mm512_add_epi32(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(
        Same(emulation::max_epi32(a, b), FromSimde(simde_mm512_max_epi32(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(
        Same(emulation::sub_epi16(a, b), FromSimde(simde_mm512_sub_epi16(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(
        Same(emulation::or_si512(a, b), FromSimde(simde_mm512_or_si512(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(Same(emulation::shuffle_epi8(a, b),
                     FromSimde(simde_mm512_shuffle_epi8(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(
        Same(emulation::srli_epi16(a, 4), FromSimde(simde_mm512_srli_epi16(ToSimde(a), 4))));
    EXPECT_TRUE(
        Same(emulation::srai_epi16(a, 8), FromSimde(simde_mm512_srai_epi16(ToSimde(a), 8))));
    EXPECT_TRUE(
        Same(emulation::slli_epi16(a, 8), FromSimde(simde_mm512_slli_epi16(ToSimde(a), 8))));
    EXPECT_TRUE(
        Same(emulation::slli_epi32(a, 16), FromSimde(simde_mm512_slli_epi32(ToSimde(a), 16))));
    EXPECT_TRUE(
        Same(emulation::srli_epi32(a, 16), FromSimde(simde_mm512_srli_epi32(ToSimde(a), 16))));
    EXPECT_TRUE(Same(emulation::srai_epi32(a, 16), ShiftHalvesRight(a)));
  }
}

TEST_F(EmulationTest, FloatsEqualSimde) {
  for (int round = 0; round < 1000; ++round) {
    const F512 a = RandomFloats();
    const F512 b = RandomFloats();
    const auto mask = static_cast<uint16_t>(RandomInts().v[0]);
    EXPECT_TRUE(
        Same(emulation::max_ps(a, b), FromSimde(simde_mm512_max_ps(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(
        Same(emulation::min_ps(a, b), FromSimde(simde_mm512_min_ps(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(
        Same(emulation::div_ps(a, b), FromSimde(simde_mm512_div_ps(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(Same(emulation::unpacklo_ps(a, b),
                     FromSimde(simde_mm512_unpacklo_ps(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(Same(emulation::unpackhi_ps(a, b),
                     FromSimde(simde_mm512_unpackhi_ps(ToSimde(a), ToSimde(b)))));
    EXPECT_TRUE(Same(emulation::shuffle_ps(a, b, 0x44),
                     FromSimde(simde_mm512_shuffle_ps(ToSimde(a), ToSimde(b), 0x44))));
    EXPECT_TRUE(Same(emulation::shuffle_ps(a, b, 0xEE),
                     FromSimde(simde_mm512_shuffle_ps(ToSimde(a), ToSimde(b), 0xEE))));
    EXPECT_TRUE(Same(emulation::mask_mov_ps(a, mask, b),
                     FromSimde(simde_mm512_mask_mov_ps(ToSimde(a), mask, ToSimde(b)))));
    EXPECT_EQ(emulation::cmp_ps_mask(a, b, _CMP_LT_OQ),
              simde_mm512_cmp_ps_mask(ToSimde(a), ToSimde(b), SIMDE_CMP_LT_OQ));
    F512 c = a;
    c.v[round % 16] = NAN;
    EXPECT_EQ(emulation::cmp_ps_mask(b, c, _CMP_UNORD_Q),
              simde_mm512_cmp_ps_mask(ToSimde(b), ToSimde(c), SIMDE_CMP_UNORD_Q));
  }
}

TEST_F(EmulationTest, HalvesAreThoseOfMath) {
  for (uint32_t first = 0; first < 0x10000; first += 16) {
    uint16_t halves[16];
    for (uint32_t i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(first + i);
    __m256i in;
    std::memcpy(&in, halves, sizeof(in));
    const F512 actual = emulation::cvtph_ps(in);
    for (uint32_t i = 0; i < 16; ++i) {
      const float expected = FloatFromHalf(halves[i]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(actual.v[i])) << halves[i];
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(actual.v[i]), std::bit_cast<uint32_t>(expected))
            << halves[i];
      }
    }
  }
}

}  // namespace
}  // namespace baton::kernels
