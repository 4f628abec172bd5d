// The tile of 12 rows and two panels of the quantised matmul for AVX-512, in assembly: core_a16.h's
// Tile for types with one scale a block.
//
// Rows 0 to 5 and rows 6 to 11 are halves of 12 sums each. While one half is multiplied with a
// block, the other half's sums become fp32 and are added, an output row with every second pair of
// k. Where all sums of a block end together, the conversions and stores that follow hold up the
// next block's products.
//
// A block: 384 vpdpwssd, 24 vcvtdq2ps, 24 vmulps, 24 vfmadd (with a min 48); 75-79 % of the limit.
#ifndef BATON_KERNELS_CPU_TILE_AVX512_H_
#define BATON_KERNELS_CPU_TILE_AVX512_H_

#include "kernels/cpu/stretch_a16.h"

namespace baton::kernels::BATON_ISA {

// The state of a tile. The assembly names the offsets.
struct Tile12State {
  const int16_t* digits;    // 0
  const int16_t* end;       // 8: of the digits
  const int16_t* q[4];      // 16: rows 0, 3, 6, 9
  size_t q_stride;          // 48: bytes
  const float* scale;       // 56: of the panels
  float* acc;               // 64: [12][2][16]
  size_t scale_stride;      // 72: bytes
  const float* a_scale[4];  // 80: rows 0, 3, 6, 9; they advance
  const float* a_sum[4];    // 112: as a_scale
};
static_assert(sizeof(Tile12State) == 144);

// Registers: rdi state; rdx digits; rax, rbx, rcx, rsi rows 0, 3, 6, 9 of q; r8 bytes between rows;
// r9 scales of the panels; r10 acc; r11 bytes between rows of scales; r12, r13, r14, r15 scales and
// sums of activations of the half that ends. zmm0-11 and zmm12-23 are sums of the halves [6][2].

// A pair of k of one row times both panels.
#define BATON_TILE_ROW(pair, sum0, sum1)  \
  "vpbroadcastd " pair                    \
  ", %%zmm26\n\t"                         \
  "vpdpwssd %%zmm26, %%zmm24, %%zmm" sum0 \
  "\n\t"                                  \
  "vpdpwssd %%zmm26, %%zmm25, %%zmm" sum1 "\n\t"

// The registers of the sums of rows 0 to 5 and of rows 6 to 11.
#define BATON_TILE_LOW "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"
#define BATON_TILE_HIGH "12", "13", "14", "15", "16", "17", "18", "19", "20", "21", "22", "23"

// A pair of k of six rows, of which `p` and `q` are the first and fourth; `w` and `at` are byte
// offsets of digits and pairs. The last argument is BATON_TILE_LOW or BATON_TILE_HIGH.
#define BATON_TILE_PAIR(w, at, p, q, ...) BATON_TILE_PAIR_OF(w, at, p, q, __VA_ARGS__)
#define BATON_TILE_PAIR_OF(w, at, p, q, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11)       \
  "vmovdqu64 " w                                                                                \
  "(%%rdx), %%zmm24\n\t"                                                                        \
  "vmovdqu64 64+" w "(%%rdx), %%zmm25\n\t" BATON_TILE_ROW(at "(%%" p ")", s0, s1)               \
      BATON_TILE_ROW(at "(%%" p ",%%r8)", s2, s3) BATON_TILE_ROW(at "(%%" p ",%%r8,2)", s4, s5) \
          BATON_TILE_ROW(at "(%%" q ")", s6, s7) BATON_TILE_ROW(at "(%%" q ",%%r8)", s8, s9)    \
              BATON_TILE_ROW(at "(%%" q ",%%r8,2)", s10, s11)

// The sums of one row become fp32, times both scales, plus what `acc` (a byte offset) has.
#define BATON_TILE_SCALE(scale, acc, sum0, sum1)    \
  "vbroadcastss " scale                             \
  ", %%zmm27\n\t"                                   \
  "vmulps (%%r9), %%zmm27, %%zmm28\n\t"             \
  "vmulps 64(%%r9), %%zmm27, %%zmm27\n\t"           \
  "vcvtdq2ps %%zmm" sum0                            \
  ", %%zmm29\n\t"                                   \
  "vcvtdq2ps %%zmm" sum1                            \
  ", %%zmm30\n\t"                                   \
  "vpxord %%zmm" sum0 ", %%zmm" sum0 ", %%zmm" sum0 \
  "\n\t"                                            \
  "vpxord %%zmm" sum1 ", %%zmm" sum1 ", %%zmm" sum1 \
  "\n\t"                                            \
  "vfmadd213ps " acc                                \
  "(%%r10), %%zmm29, %%zmm28\n\t"                   \
  "vfmadd213ps 64+" acc "(%%r10), %%zmm30, %%zmm27\n\t"
// Then the mins, where there are any, and back to `acc`.
#define BATON_TILE_MIN(sum)                         \
  "vbroadcastss " sum                               \
  ", %%zmm29\n\t"                                   \
  "vfmadd231ps %c[min](%%r9), %%zmm29, %%zmm28\n\t" \
  "vfmadd231ps 64+%c[min](%%r9), %%zmm29, %%zmm27\n\t"
#define BATON_TILE_NO_MIN(sum) ""
#define BATON_TILE_STORE(acc) \
  "vmovups %%zmm28, " acc     \
  "(%%r10)\n\t"               \
  "vmovups %%zmm27, 64+" acc "(%%r10)\n\t"

// The addresses of scales and sums of the half that ends; `i` is where its first lies.
#define BATON_TILE_BEGIN_END(i) \
  "mov 80+" i                   \
  "(%%rdi), %%r12\n\t"          \
  "mov 88+" i                   \
  "(%%rdi), %%r13\n\t"          \
  "mov 112+" i                  \
  "(%%rdi), %%r14\n\t"          \
  "mov 120+" i                  \
  "(%%rdi), %%r15\n\t"          \
  "addq $4, 80+" i              \
  "(%%rdi)\n\t"                 \
  "addq $4, 88+" i              \
  "(%%rdi)\n\t"                 \
  "addq $4, 112+" i             \
  "(%%rdi)\n\t"                 \
  "addq $4, 120+" i "(%%rdi)\n\t"

// A block of one half: `pair(w, at)` for each pair of k, and between them what ends the other half.
#define BATON_TILE_BLOCK(pair, e0, e1, e2, e3, e4, e5, m0, m1, m2, m3, m4, m5)                    \
  pair("0", "0") pair("128", "4") e0 pair("256", "8") m0 pair("384", "12") e1 pair("512", "16")   \
      m1 pair("640", "20") e2 pair("768", "24") m2 pair("896", "28") e3 pair("1024", "32")        \
          m3 pair("1152", "36") e4 pair("1280", "40") m4 pair("1408", "44") e5 pair("1536", "48") \
              m5 pair("1664", "52") pair("1792", "56") pair("1920", "60")
#define BATON_TILE_PAIR_LOW(w, at) BATON_TILE_PAIR(w, at, "rax", "rbx", BATON_TILE_LOW)
#define BATON_TILE_PAIR_HIGH(w, at) BATON_TILE_PAIR(w, at, "rcx", "rsi", BATON_TILE_HIGH)

// Ends a half: `at` is the byte offset of its first row in `acc`; the last argument as above.
#define BATON_TILE_END(block, min, at, ...) BATON_TILE_END_OF(block, min, at, __VA_ARGS__)
#define BATON_TILE_END_OF(block, min, at, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11)    \
  block(BATON_TILE_SCALE("(%%r12)", at, s0, s1),                                               \
        BATON_TILE_SCALE("(%%r12,%%r11)", at "+128", s2, s3),                                  \
        BATON_TILE_SCALE("(%%r12,%%r11,2)", at "+256", s4, s5),                                \
        BATON_TILE_SCALE("(%%r13)", at "+384", s6, s7),                                        \
        BATON_TILE_SCALE("(%%r13,%%r11)", at "+512", s8, s9),                                  \
        BATON_TILE_SCALE("(%%r13,%%r11,2)", at "+640", s10, s11),                              \
        min("(%%r14)") BATON_TILE_STORE(at), min("(%%r14,%%r11)") BATON_TILE_STORE(at "+128"), \
        min("(%%r14,%%r11,2)") BATON_TILE_STORE(at "+256"),                                    \
        min("(%%r15)") BATON_TILE_STORE(at "+384"),                                            \
        min("(%%r15,%%r11)") BATON_TILE_STORE(at "+512"),                                      \
        min("(%%r15,%%r11,2)") BATON_TILE_STORE(at "+640"))

#define BATON_TILE_LOW_BESIDE(e0, e1, e2, e3, e4, e5, m0, m1, m2, m3, m4, m5) \
  BATON_TILE_BLOCK(BATON_TILE_PAIR_LOW, e0, e1, e2, e3, e4, e5, m0, m1, m2, m3, m4, m5)
#define BATON_TILE_HIGH_BESIDE(e0, e1, e2, e3, e4, e5, m0, m1, m2, m3, m4, m5) \
  BATON_TILE_BLOCK(BATON_TILE_PAIR_HIGH, e0, e1, e2, e3, e4, e5, m0, m1, m2, m3, m4, m5)
#define BATON_TILE_ALONE(e0, e1, e2, e3, e4, e5, m0, m1, m2, m3, m4, m5) \
  e0 m0 e1 m1 e2 m2 e3 m3 e4 m4 e5 m5
#define BATON_TILE_FIRST_LOW \
  BATON_TILE_BLOCK(BATON_TILE_PAIR_LOW, "", "", "", "", "", "", "", "", "", "", "", "")

#define BATON_TILE_CLEAR(n) "vpxord %%zmm" n ", %%zmm" n ", %%zmm" n "\n\t"
#define BATON_TILE_CLEAR6(a, b, c, d, e, f) \
  BATON_TILE_CLEAR(a)                       \
  BATON_TILE_CLEAR(b)                       \
  BATON_TILE_CLEAR(c) BATON_TILE_CLEAR(d) BATON_TILE_CLEAR(e) BATON_TILE_CLEAR(f)
#define BATON_TILE_CLEAR_ALL                            \
  BATON_TILE_CLEAR6("0", "1", "2", "3", "4", "5")       \
  BATON_TILE_CLEAR6("6", "7", "8", "9", "10", "11")     \
  BATON_TILE_CLEAR6("12", "13", "14", "15", "16", "17") \
  BATON_TILE_CLEAR6("18", "19", "20", "21", "22", "23")

#define BATON_TILE_CODE(min) \
  "mov (%%rdi), %%rdx\n\t"                                                              \
  "mov 16(%%rdi), %%rax\n\t"                                                            \
  "mov 24(%%rdi), %%rbx\n\t"                                                            \
  "mov 32(%%rdi), %%rcx\n\t"                                                            \
  "mov 40(%%rdi), %%rsi\n\t"                                                            \
  "mov 48(%%rdi), %%r8\n\t"                                                             \
  "mov 56(%%rdi), %%r9\n\t"                                                             \
  "mov 64(%%rdi), %%r10\n\t"                                                            \
  "mov 72(%%rdi), %%r11\n\t" BATON_TILE_CLEAR_ALL BATON_TILE_FIRST_LOW                  \
  "1:\n\t" BATON_TILE_BEGIN_END("0")                                                    \
      BATON_TILE_END(BATON_TILE_HIGH_BESIDE, min, "0", BATON_TILE_LOW)                  \
  "add $2048, %%rdx\n\t"                                                                \
  "add $64, %%rax\n\t"                                                                  \
  "add $64, %%rbx\n\t"                                                                  \
  "add $64, %%rcx\n\t"                                                                  \
  "add $64, %%rsi\n\t" BATON_TILE_BEGIN_END("16")                                       \
  "cmp 8(%%rdi), %%rdx\n\t"                                                             \
  "je 2f\n\t" BATON_TILE_END(BATON_TILE_LOW_BESIDE, min, "768", BATON_TILE_HIGH)        \
  "add $128, %%r9\n\t"                                                                  \
  "jmp 1b\n\t"                                                                          \
  "2:\n\t" BATON_TILE_END(BATON_TILE_ALONE, min, "768", BATON_TILE_HIGH)

#define BATON_TILE_CLOBBERS                                                                        \
  "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", \
      "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",    \
      "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21",    \
      "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "cc",       \
      "memory"

// As Tile: acc [12][2][16] += the stretch, of one block at least, times 12 rows.
template <bool kHasMin>
__attribute__((noinline)) void Tile12(const PanelStretch& stretch, const A16Rows& rows,
                                      float* acc) {
  const size_t q = rows.q_stride;
  const size_t s = rows.scale_stride;
  constexpr size_t kBlockDigits = size_t{kQuantBlock} * kTilePanels * kPanelRows;
  static_assert(kBlockDigits * sizeof(int16_t) == 2048 && kQuantBlock == 32 && kPanelRows == 16);
  Tile12State state = {stretch.digits,
                       stretch.digits + stretch.num_blocks * kBlockDigits,
                       {rows.q, rows.q + 3 * q, rows.q + 6 * q, rows.q + 9 * q},
                       q * sizeof(int16_t),
                       stretch.scale,
                       acc,
                       s * sizeof(float),
                       {rows.scale, rows.scale + 3 * s, rows.scale + 6 * s, rows.scale + 9 * s},
                       {rows.sum, rows.sum + 3 * s, rows.sum + 6 * s, rows.sum + 9 * s}};
  if constexpr (kHasMin) {
    __asm__ volatile(BATON_TILE_CODE(BATON_TILE_MIN)
                     :
                     : "D"(&state), [min] "i"(kMinOffset)
                     : BATON_TILE_CLOBBERS);
  } else {
    __asm__ volatile(BATON_TILE_CODE(BATON_TILE_NO_MIN) : : "D"(&state) : BATON_TILE_CLOBBERS);
  }
}

template <ScaleForm kForm>
requires(kForm.parts == 1) BATON_INLINE
    void RunTile(TileShape<kForm, 12, 2>, const PanelStretch& stretch, const A16Rows& rows,
                 float* acc) {
  Tile12<kForm.has_min>(stretch, rows, acc);
}

#undef BATON_TILE_CLOBBERS
#undef BATON_TILE_CODE
#undef BATON_TILE_CLEAR_ALL
#undef BATON_TILE_CLEAR6
#undef BATON_TILE_CLEAR
#undef BATON_TILE_FIRST_LOW
#undef BATON_TILE_ALONE
#undef BATON_TILE_HIGH_BESIDE
#undef BATON_TILE_LOW_BESIDE
#undef BATON_TILE_END_OF
#undef BATON_TILE_END
#undef BATON_TILE_PAIR_HIGH
#undef BATON_TILE_PAIR_LOW
#undef BATON_TILE_BLOCK
#undef BATON_TILE_BEGIN_END
#undef BATON_TILE_STORE
#undef BATON_TILE_NO_MIN
#undef BATON_TILE_MIN
#undef BATON_TILE_SCALE
#undef BATON_TILE_PAIR_OF
#undef BATON_TILE_PAIR
#undef BATON_TILE_HIGH
#undef BATON_TILE_LOW
#undef BATON_TILE_ROW

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_TILE_AVX512_H_
