// BATON_WIDE: a function for loops that are worth wide registers, compiled for AVX2 too and chosen
// when the program starts. Functions that it calls have to be inlined into it.
#ifndef BATON_KERNELS_SIMT_WIDE_H_
#define BATON_KERNELS_SIMT_WIDE_H_

#if defined(__GNUC__) && !defined(__clang__)
#define BATON_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define BATON_WIDE
#endif

#endif  // BATON_KERNELS_SIMT_WIDE_H_
