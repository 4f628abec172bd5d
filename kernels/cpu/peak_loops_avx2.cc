#include "kernels/cpu/machine_limits.h"

namespace baton::kernels {
namespace {

// Written in assembly: a compiler keeps such loops neither whole nor in registers. 12 chains hide
// the latency of 4 cycles at 2 instructions a cycle. The registers start at zero: speed does not
// depend on values.
float Fp32(uint64_t rounds) {
  __asm__ volatile(
      "vzeroall\n"
      "1:\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm0\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm1\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm2\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm3\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm4\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm5\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm6\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm7\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm8\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm9\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm10\n"
      "vfmadd231ps %%ymm15, %%ymm14, %%ymm11\n"
      "dec %0\n"
      "jnz 1b\n"
      "vzeroupper\n"
      : "+r"(rounds)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  return 1.0f;
}

// Products go to a register of their own and are added from there, as in a matmul.
float Int16(uint64_t rounds) {
  __asm__ volatile(
      "vzeroall\n"
      "1:\n"
      "vpmaddwd %%ymm15, %%ymm14, %%ymm12\n"
      "vpaddd %%ymm12, %%ymm0, %%ymm0\n"
      "vpmaddwd %%ymm15, %%ymm14, %%ymm13\n"
      "vpaddd %%ymm13, %%ymm1, %%ymm1\n"
      "vpmaddwd %%ymm15, %%ymm14, %%ymm12\n"
      "vpaddd %%ymm12, %%ymm2, %%ymm2\n"
      "vpmaddwd %%ymm15, %%ymm14, %%ymm13\n"
      "vpaddd %%ymm13, %%ymm3, %%ymm3\n"
      "vpmaddwd %%ymm15, %%ymm14, %%ymm12\n"
      "vpaddd %%ymm12, %%ymm4, %%ymm4\n"
      "vpmaddwd %%ymm15, %%ymm14, %%ymm13\n"
      "vpaddd %%ymm13, %%ymm5, %%ymm5\n"
      "vpmaddwd %%ymm15, %%ymm14, %%ymm12\n"
      "vpaddd %%ymm12, %%ymm6, %%ymm6\n"
      "vpmaddwd %%ymm15, %%ymm14, %%ymm13\n"
      "vpaddd %%ymm13, %%ymm7, %%ymm7\n"
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

PeakLoop Avx2Fp32Loop() { return {12 * 8 * 2, Fp32}; }
PeakLoop Avx2Int16Loop() { return {8 * 16 * 2, Int16}; }

}  // namespace baton::kernels
