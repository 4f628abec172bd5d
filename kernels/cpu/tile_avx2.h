// The innermost loop of the quantised matmul for AVX2, in assembly. In a tile of more than three
// rows that is written with intrinsics, gcc 12 hoists the broadcasts and spills the sums. That
// costs 35 % (tile of six rows on Zen 3: 77 instead of 120 Gop/s). These are the overloads of
// core_a16.h's DotBlock for 4, 5 and 6 rows.
#ifndef BATON_KERNELS_CPU_TILE_AVX2_H_
#define BATON_KERNELS_CPU_TILE_AVX2_H_

namespace baton::kernels::BATON_ISA {

// One pair of k for one row: the broadcast pair at `pair` times both halves of 16 weights.
#define BATON_TILE_ROW(pair, row)                     \
  "vpbroadcastd " pair ", %[a]\n\t"                   \
  "vpmaddwd %[a], %[w0], %[product]\n\t"              \
  "vpaddd %[product], %[lo" row "], %[lo" row "]\n\t" \
  "vpmaddwd %[a], %[w1], %[a]\n\t"                    \
  "vpaddd %[a], %[hi" row "], %[hi" row "]\n\t"

// One pair of k for 4, 5 or 6 rows: 64 bytes of weights at byte `at_w`, pairs at byte `at` of each
// row.
#define BATON_TILE_STEP4(at_w, at)                                           \
  "vmovdqu " at_w "(%[w]), %[w0]\n\t"                                        \
  "vmovdqu 32+" at_w "(%[w]), %[w1]\n\t" BATON_TILE_ROW(at "(%[row0])", "0") \
      BATON_TILE_ROW(at "(%[row0],%[stride])", "1")                          \
          BATON_TILE_ROW(at "(%[row0],%[stride],2)", "2") BATON_TILE_ROW(at "(%[row3])", "3")
#define BATON_TILE_STEP5(at_w, at) \
  BATON_TILE_STEP4(at_w, at) BATON_TILE_ROW(at "(%[row3],%[stride])", "4")
#define BATON_TILE_STEP6(at_w, at) \
  BATON_TILE_STEP5(at_w, at) BATON_TILE_ROW(at "(%[row3],%[stride],2)", "5")

#define BATON_TILE_CLEAR(row)                                                                    \
  "vpxor %[lo" row "], %[lo" row "], %[lo" row "]\n\tvpxor %[hi" row "], %[hi" row "], %[hi" row \
  "]\n\t"
#define BATON_TILE_CLEAR4 \
  BATON_TILE_CLEAR("0") BATON_TILE_CLEAR("1") BATON_TILE_CLEAR("2") BATON_TILE_CLEAR("3")
#define BATON_TILE_CLEAR5 BATON_TILE_CLEAR4 BATON_TILE_CLEAR("4")
#define BATON_TILE_CLEAR6 BATON_TILE_CLEAR5 BATON_TILE_CLEAR("5")

#define BATON_TILE_SUM(row) [lo##row] "=&x"(dot[row][0].lo), [hi##row] "=&x"(dot[row][0].hi)
#define BATON_TILE_SUMS4 BATON_TILE_SUM(0), BATON_TILE_SUM(1), BATON_TILE_SUM(2), BATON_TILE_SUM(3)
#define BATON_TILE_SUMS5 BATON_TILE_SUMS4, BATON_TILE_SUM(4)
#define BATON_TILE_SUMS6 BATON_TILE_SUMS5, BATON_TILE_SUM(5)

// dot [rows][1][16] = w [kPairs][1][16][2] times `rows` rows; rounds of four pairs.
#define BATON_DOT_BLOCK(num_rows)                                                             \
  template <int kPairs>                                                                       \
  BATON_INLINE void DotBlock(const int16_t* w, const int16_t* rows, size_t stride,            \
                             I32x16(&dot)[num_rows][1]) {                                     \
    const int16_t* row3 = rows + 3 * stride;                                                  \
    __m256i w0;                                                                               \
    __m256i w1;                                                                               \
    __m256i a;                                                                                \
    __m256i product;                                                                          \
    static_assert(kPairs % 4 == 0);                                                           \
    uint32_t count = kPairs / 4;                                                              \
    __asm__(BATON_TILE_CLEAR##num_rows "1:\n\t" BATON_TILE_STEP##num_rows("0", "0")           \
                BATON_TILE_STEP##num_rows("64", "4") BATON_TILE_STEP##num_rows("128", "8")    \
                    BATON_TILE_STEP##num_rows("192", "12") "add $256, %[w]\n\t"               \
                                                           "add $16, %[row0]\n\t"             \
                                                           "add $16, %[row3]\n\t"             \
                                                           "dec %[count]\n\t"                 \
                                                           "jnz 1b\n\t"                       \
            : BATON_TILE_SUMS##num_rows, [w0] "=&x"(w0), [w1] "=&x"(w1), [a] "=&x"(a),        \
              [product] "=&x"(product), [w] "+&r"(w), [row0] "+&r"(rows), [row3] "+&r"(row3), \
              [count] "+&r"(count)                                                            \
            : [stride] "r"(stride * sizeof(int16_t))                                          \
            : "cc", "memory");                                                                \
  }

BATON_DOT_BLOCK(4)
BATON_DOT_BLOCK(5)
BATON_DOT_BLOCK(6)

#undef BATON_DOT_BLOCK
#undef BATON_TILE_SUMS6
#undef BATON_TILE_SUMS5
#undef BATON_TILE_SUMS4
#undef BATON_TILE_SUM
#undef BATON_TILE_CLEAR6
#undef BATON_TILE_CLEAR5
#undef BATON_TILE_CLEAR4
#undef BATON_TILE_CLEAR
#undef BATON_TILE_STEP6
#undef BATON_TILE_STEP5
#undef BATON_TILE_STEP4
#undef BATON_TILE_ROW

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_TILE_AVX2_H_
