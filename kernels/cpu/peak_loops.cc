#include "kernels/cpu/machine_limits.h"

namespace baton::kernels {
namespace {

// Written in assembly: a compiler keeps such loops neither whole nor in registers. 12 chains hide
// the latency of 4 cycles at 2 instructions a cycle. The registers start at zero: speed does not
// depend on values. In `round`, the assembler repeats the lines after .irp for each \i of its list.
#define BATON_PEAK_LOOP(name, round)                                                          \
  float name(uint64_t rounds) {                                                               \
    __asm__ volatile("vzeroall\n1:\n" round ".endr\ndec %0\njnz 1b\nvzeroupper\n"             \
                     : "+r"(rounds)                                                           \
                     :                                                                        \
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",  \
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"); \
    return 1.0f;                                                                              \
  }
#define BATON_12_CHAINS ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n"

BATON_PEAK_LOOP(Fp32Avx2, BATON_12_CHAINS "vfmadd231ps %%ymm15, %%ymm14, %%ymm\\i\n")
BATON_PEAK_LOOP(Fp32Avx512, BATON_12_CHAINS "vfmadd231ps %%zmm15, %%zmm14, %%zmm\\i\n")
BATON_PEAK_LOOP(Int16Avx512, BATON_12_CHAINS "vpdpwssd %%zmm15, %%zmm14, %%zmm\\i\n")
// Products go to a register of their own and are added from there, as in a matmul.
BATON_PEAK_LOOP(Int16Avx2,
                ".irp i,0,1,2,3,4,5,6,7\n"
                "vpmaddwd %%ymm15, %%ymm14, %%ymm12\n"
                "vpaddd %%ymm12, %%ymm\\i, %%ymm\\i\n")

#undef BATON_12_CHAINS
#undef BATON_PEAK_LOOP

}  // namespace

PeakLoop Avx2Fp32Loop() { return {12 * 8 * 2, Fp32Avx2}; }
PeakLoop Avx2Int16Loop() { return {8 * 16 * 2, Int16Avx2}; }
PeakLoop Avx512Fp32Loop() { return {12 * 16 * 2, Fp32Avx512}; }
PeakLoop Avx512Int16Loop() { return {12 * 32 * 2, Int16Avx512}; }

}  // namespace baton::kernels
