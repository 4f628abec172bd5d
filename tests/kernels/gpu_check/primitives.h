// One small kernel for each device primitive, on words in and words out, as a table of host
// functions for each body: what gpu_check compares with the host's own arithmetic.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_PRIMITIVES_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_PRIMITIVES_H_

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/simt/types.h"
#include "tests/kernels/simt/ring_kernels.h"

namespace baton::kernels::gpu_check {

using simt_test::WordParams;

inline constexpr uint32_t kShuffleThreads = 64;
inline constexpr uint32_t kNumShuffles = 7;
inline constexpr uint32_t kCopyThreads = 128;
inline constexpr uint32_t kAtomicThreads = 64;
inline constexpr uint32_t kAtomicCtas = 8;
// Words of an mma's A [16][16], B [n 8][k 16], C and D [16][8].
inline constexpr uint32_t kWordsA = 128;
inline constexpr uint32_t kWordsB = 64;
inline constexpr uint32_t kWordsC = 128;
inline constexpr uint32_t kMmaWords = kWordsA + kWordsB + kWordsC;
// Words that `arithmetic` writes for each three it reads.
inline constexpr uint32_t kArithmeticWords = 7;

// The lane masks that `shuffle` goes through: 1, 2, 4, 8, 16, 5, 31.
constexpr uint32_t ShuffleMask(uint32_t i) { return i < 5 ? 1u << i : (i == 5 ? 5 : 31); }

// Launches with so many ctas; what params.count means is said at each entry.
using Launch = absl::Status (*)(const WordParams& params, uint32_t num_ctas);

// The functions that launch the kernels of one body. The comment at each says what it computes. One
// cta unless said otherwise.
struct Primitives {
  // out[m][t] = in[t ^ ShuffleMask(m)] of each warp.
  Launch shuffle;
  // See ring_kernels.h; block_reduce and grid_barrier take num_ctas.
  Launch warp_reverse;
  Launch block_reduce;
  Launch cp_async_pipeline;
  Launch bulk_ring;  // sm_90
  Launch last_cta;
  Launch grid_barrier;
  // Two ctas: the first publishes 3 in[lane] behind a flag, the second waits for it: out[lane].
  Launch message;
  // Two groups g of 16 bytes a thread t, (5 t + 3 g) % 17 of them valid: out[g][t] = the sixteen
  // bytes of thread t + 1.
  Launch cp_async;
  // Row r of 32 rows of 16 bytes is named by lane (5 r + 3) % 32: out[lane][matrix].
  Launch ldmatrix;
  // Row r is named by lane r: out[lane][matrix] of the transposed matrices.
  Launch ldmatrix_trans;
  // num_ctas products: in[cta] = A, B, C; out[cta] = D.
  Launch mma;
  // See wgmma_kernels.h. sm_90a.
  Launch tensor_tiles;
  Launch wgmma64;
  Launch wgmma128;
  Launch wgmma192;
  Launch wgmma256;
  Launch wgmma_columns64;
  Launch wgmma_columns128;
  Launch wgmma_columns256;
  Launch wgmma_chain;
  // kAtomicCtas ctas; out[0..2] = count, maximum of in, sum of in by compare-and-swap; out[4..5] =
  // the 64-bit sum of in * 2^20; out[8 + i] is exchanged for i + 7 and lands in
  // out[8 + threads + i].
  Launch atomics;
  // out[i] = bf16 of the float in[i] | in[i]'s upper half as a float, rounded again, << 16; `count`
  // words.
  Launch to_bf16;
  // out[3i] = the lower half of in[i] as an IEEE half, in fp32; out[3i + 1] = bf16 of the float
  // in[i] | bf16 of in[i] ^ 0x80000001 << 16; out[3i + 2] = in[i] & 0x007F8000 | 0x43000000.
  // `count` words, none a NaN.
  Launch half;
  // out[2i] = the bf16 pairs in[2i] and in[2i + 1] multiplied; out[2i + 1] = e4m3 of both as
  // floats, the first in the lower byte. `count` pairs.
  Launch fp8;
  // `count` launches of num_ctas ctas, one after the other: each out[i] += in[i]. See
  // overlap_kernels.h.
  Launch overlap;
  // `count` times (a, b, c, unused): fma, square root of a, a / b, Exp(a), a * b + c with two
  // roundings, the larger of a and b or a NaN, the smaller.
  Launch arithmetic;
};

inline namespace gpu {
const Primitives& AllPrimitives();
}
inline namespace runner {
const Primitives& AllPrimitives();
}

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_PRIMITIVES_H_
