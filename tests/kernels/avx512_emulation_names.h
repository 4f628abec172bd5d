// The names of the intrinsics, given to avx512_emulation.h's functions. Included through
// BATON_AVX512_EMULATION, by the one test source that builds the AVX-512 bodies on AVX2.
#ifndef BATON_TESTS_KERNELS_AVX512_EMULATION_NAMES_H_
#define BATON_TESTS_KERNELS_AVX512_EMULATION_NAMES_H_

#include "tests/kernels/avx512_emulation.h"

// Calls instead of forced inlining: compiles in half the time.
#define BATON_INLINE inline

#define __m512 ::baton::emulation::F512
#define __m512i ::baton::emulation::I512
#define __mmask16 ::baton::emulation::Mask16
#define _mm512_add_epi32 ::baton::emulation::add_epi32
#define _mm512_add_ps ::baton::emulation::add_ps
#define _mm512_and_si512 ::baton::emulation::and_si512
#define _mm512_castps512_ps256 ::baton::emulation::castps512_ps256
#define _mm512_castps_si512 ::baton::emulation::castps_si512
#define _mm512_castsi256_si512 ::baton::emulation::castsi256_si512
#define _mm512_castsi512_ps ::baton::emulation::castsi512_ps
#define _mm512_castsi512_si256 ::baton::emulation::castsi512_si256
#define _mm512_cmp_ps_mask ::baton::emulation::cmp_ps_mask
#define _mm512_cvtepi32_ps ::baton::emulation::cvtepi32_ps
#define _mm512_cvtepi8_epi32 ::baton::emulation::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 ::baton::emulation::cvtepu16_epi32
#define _mm512_cvtepu8_epi32 ::baton::emulation::cvtepu8_epi32
#define _mm512_cvtps_epi32 ::baton::emulation::cvtps_epi32
#define _mm512_cvtsepi32_epi16 ::baton::emulation::cvtsepi32_epi16
#define _mm512_div_ps ::baton::emulation::div_ps
#define _mm512_dpwssd_epi32 ::baton::emulation::dpwssd_epi32
#define _mm512_extracti64x4_epi64 ::baton::emulation::extracti64x4_epi64
#define _mm512_fmadd_ps ::baton::emulation::fmadd_ps
#define _mm512_fmaddsub_ps ::baton::emulation::fmaddsub_ps
#define _mm512_inserti64x4 ::baton::emulation::inserti64x4
#define _mm512_loadu_ps ::baton::emulation::loadu_ps
#define _mm512_loadu_si512 ::baton::emulation::loadu_si512
#define _mm512_mask_mov_ps ::baton::emulation::mask_mov_ps
#define _mm512_mask_storeu_ps ::baton::emulation::mask_storeu_ps
#define _mm512_maskz_loadu_ps ::baton::emulation::maskz_loadu_ps
#define _mm512_max_epi32 ::baton::emulation::max_epi32
#define _mm512_max_ps ::baton::emulation::max_ps
#define _mm512_min_ps ::baton::emulation::min_ps
#define _mm512_movehdup_ps ::baton::emulation::movehdup_ps
#define _mm512_moveldup_ps ::baton::emulation::moveldup_ps
#define _mm512_mul_ps ::baton::emulation::mul_ps
#define _mm512_or_si512 ::baton::emulation::or_si512
#define _mm512_permute_ps ::baton::emulation::permute_ps
#define _mm512_set1_epi32 ::baton::emulation::set1_epi32
#define _mm512_set1_ps ::baton::emulation::set1_ps
#define _mm512_setzero_ps ::baton::emulation::setzero_ps
#define _mm512_shuffle_epi8 ::baton::emulation::shuffle_epi8
#define _mm512_slli_epi16 ::baton::emulation::slli_epi16
#define _mm512_slli_epi32 ::baton::emulation::slli_epi32
#define _mm512_srai_epi16 ::baton::emulation::srai_epi16
#define _mm512_srli_epi16 ::baton::emulation::srli_epi16
#define _mm512_storeu_ps ::baton::emulation::storeu_ps
#define _mm512_storeu_si512 ::baton::emulation::storeu_si512
#define _mm512_sub_epi16 ::baton::emulation::sub_epi16
#define _mm512_sub_ps ::baton::emulation::sub_ps

#endif  // BATON_TESTS_KERNELS_AVX512_EMULATION_NAMES_H_
