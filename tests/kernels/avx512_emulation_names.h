// The names of the intrinsics, given to avx512_emulation.h's functions. Included through
// BATON_AVX512_EMULATION, by the one test source that builds the AVX-512 bodies on AVX2.
#ifndef BATON_TESTS_KERNELS_AVX512_EMULATION_NAMES_H_
#define BATON_TESTS_KERNELS_AVX512_EMULATION_NAMES_H_

#include "tests/kernels/avx512_emulation.h"

// Calls instead of forced inlining: compiles in half the time.
#define BATON_INLINE inline

#define __m512 ::baton::kernels::emulation::F512
#define __m512i ::baton::kernels::emulation::I512
#define __mmask16 ::baton::kernels::emulation::Mask16
#define _mm512_add_epi32 ::baton::kernels::emulation::add_epi32
#define _mm512_add_ps ::baton::kernels::emulation::add_ps
#define _mm512_and_si512 ::baton::kernels::emulation::and_si512
#define _mm512_castps512_ps256 ::baton::kernels::emulation::castps512_ps256
#define _mm512_castps_si512 ::baton::kernels::emulation::castps_si512
#define _mm512_castsi256_si512 ::baton::kernels::emulation::castsi256_si512
#define _mm512_castsi512_ps ::baton::kernels::emulation::castsi512_ps
#define _mm512_castsi512_si256 ::baton::kernels::emulation::castsi512_si256
#define _mm512_cmp_ps_mask ::baton::kernels::emulation::cmp_ps_mask
#define _mm512_cvtepi32_ps ::baton::kernels::emulation::cvtepi32_ps
#define _mm512_cvtepi8_epi32 ::baton::kernels::emulation::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 ::baton::kernels::emulation::cvtepu16_epi32
#define _mm512_cvtepu8_epi32 ::baton::kernels::emulation::cvtepu8_epi32
#define _mm512_cvtph_ps ::baton::kernels::emulation::cvtph_ps
#define _mm512_cvtps_epi32 ::baton::kernels::emulation::cvtps_epi32
#define _mm512_cvtsepi32_epi16 ::baton::kernels::emulation::cvtsepi32_epi16
#define _mm512_div_ps ::baton::kernels::emulation::div_ps
#define _mm512_dpwssd_epi32 ::baton::kernels::emulation::dpwssd_epi32
#define _mm512_extracti64x4_epi64 ::baton::kernels::emulation::extracti64x4_epi64
#define _mm512_fmadd_ps ::baton::kernels::emulation::fmadd_ps
#define _mm512_fmaddsub_ps ::baton::kernels::emulation::fmaddsub_ps
#define _mm512_inserti64x4 ::baton::kernels::emulation::inserti64x4
#define _mm512_loadu_ps ::baton::kernels::emulation::loadu_ps
#define _mm512_loadu_si512 ::baton::kernels::emulation::loadu_si512
#define _mm512_mask_mov_ps ::baton::kernels::emulation::mask_mov_ps
#define _mm512_mask_storeu_ps ::baton::kernels::emulation::mask_storeu_ps
#define _mm512_maskz_loadu_ps ::baton::kernels::emulation::maskz_loadu_ps
#define _mm512_max_epi32 ::baton::kernels::emulation::max_epi32
#define _mm512_max_ps ::baton::kernels::emulation::max_ps
#define _mm512_min_ps ::baton::kernels::emulation::min_ps
#define _mm512_movehdup_ps ::baton::kernels::emulation::movehdup_ps
#define _mm512_moveldup_ps ::baton::kernels::emulation::moveldup_ps
#define _mm512_mul_ps ::baton::kernels::emulation::mul_ps
#define _mm512_or_si512 ::baton::kernels::emulation::or_si512
#define _mm512_permute_ps ::baton::kernels::emulation::permute_ps
#define _mm512_set1_epi32 ::baton::kernels::emulation::set1_epi32
#define _mm512_set1_ps ::baton::kernels::emulation::set1_ps
#define _mm512_setzero_ps ::baton::kernels::emulation::setzero_ps
#define _mm512_shuffle_f32x4 ::baton::kernels::emulation::shuffle_f32x4
#define _mm512_shuffle_epi8 ::baton::kernels::emulation::shuffle_epi8
#define _mm512_shuffle_ps ::baton::kernels::emulation::shuffle_ps
#define _mm512_slli_epi16 ::baton::kernels::emulation::slli_epi16
#define _mm512_slli_epi32 ::baton::kernels::emulation::slli_epi32
#define _mm512_srai_epi16 ::baton::kernels::emulation::srai_epi16
#define _mm512_srai_epi32 ::baton::kernels::emulation::srai_epi32
#define _mm512_srli_epi16 ::baton::kernels::emulation::srli_epi16
#define _mm512_srli_epi32 ::baton::kernels::emulation::srli_epi32
#define _mm512_storeu_ps ::baton::kernels::emulation::storeu_ps
#define _mm512_storeu_si512 ::baton::kernels::emulation::storeu_si512
#define _mm512_sub_epi16 ::baton::kernels::emulation::sub_epi16
#define _mm512_sub_ps ::baton::kernels::emulation::sub_ps
#define _mm512_unpackhi_ps ::baton::kernels::emulation::unpackhi_ps
#define _mm512_unpacklo_ps ::baton::kernels::emulation::unpacklo_ps

#endif  // BATON_TESTS_KERNELS_AVX512_EMULATION_NAMES_H_
