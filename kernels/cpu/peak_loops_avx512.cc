#include "kernels/cpu/machine_limits.h"

namespace baton::kernels {
namespace {

// As peak_loops_avx2.cc, with 12 chains of 512-bit registers.
float Fp32(uint64_t rounds) {
  __asm__ volatile(
      "vzeroall\n"
      "1:\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm0\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm1\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm2\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm3\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm4\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm5\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm6\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm7\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm8\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm9\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm10\n"
      "vfmadd231ps %%zmm15, %%zmm14, %%zmm11\n"
      "dec %0\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : "+r"(rounds)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  return 1.0f;
}

float Int16(uint64_t rounds) {
  __asm__ volatile(
      "vzeroall\n"
      "1:\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm0\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm1\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm2\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm3\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm4\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm5\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm6\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm7\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm8\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm9\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm10\n"
      "vpdpwssd %%zmm15, %%zmm14, %%zmm11\n"
      "dec %0\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : "+r"(rounds)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  return 1.0f;
}

}  // namespace

PeakLoop Avx512Fp32Loop() { return {12 * 16 * 2, Fp32}; }
PeakLoop Avx512Int16Loop() { return {12 * 32 * 2, Int16}; }

}  // namespace baton::kernels
