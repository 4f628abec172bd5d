#include <bit>

#include "kernels/math.h"
#include "kernels/simt/device.h"
#include "tests/kernels/gpu_check/primitives.h"
#include "tests/kernels/simt/overlap_kernels.h"
#include "tests/kernels/simt/wgmma_kernels.h"

namespace baton::kernels::gpu_check {
inline namespace BATON_BODY {
namespace {

using simt::guard;
using simt::kWarpSize;
using simt::lane;
using simt::thread;
using simt::Vec16;

BATON_KERNEL(kShuffleThreads) ShuffleKernel(WordParams params) {
  const uint32_t value = params.in[thread()];
  BATON_UNROLL
  for (uint32_t i = 0; i < kNumShuffles; ++i) {
    params.out[i * kShuffleThreads + thread()] = simt::shfl_xor(value, ShuffleMask(i));
  }
}

// [group][thread]
struct CopyShared {
  Vec16 slots[2][kCopyThreads];
};

BATON_KERNEL(kCopyThreads) CopyKernel(WordParams params) {
  auto& memory = simt::shared<CopyShared>();
  const auto* in = reinterpret_cast<const Vec16*>(params.in);
  auto* out = reinterpret_cast<Vec16*>(params.out);
  const uint32_t next = (thread() + 1) % kCopyThreads;
  BATON_UNROLL
  for (uint32_t group = 0; group < 2; ++group) {
    simt::cp_async16(&memory.slots[group][thread()], in + group * kCopyThreads + thread(),
                     (5 * thread() + 3 * group) % 17);
    simt::cp_async_commit();
  }
  simt::cp_async_wait<1>();
  simt::sync_block();
  out[thread()] = memory.slots[0][next];
  simt::cp_async_wait<0>();
  simt::sync_block();
  out[kCopyThreads + thread()] = memory.slots[1][next];
}

// [row]
struct MatrixShared {
  Vec16 rows[kWarpSize];
};

BATON_KERNEL(kWarpSize) MatrixKernel(WordParams params) {
  auto& memory = simt::shared<MatrixShared>();
  memory.rows[lane()] = reinterpret_cast<const Vec16*>(params.in)[lane()];
  simt::sync_warp();
  const simt::Matrices m = simt::ldmatrix_x4(&memory.rows[(5 * lane() + 3) % kWarpSize]);
  BATON_UNROLL
  for (uint32_t i = 0; i < 4; ++i) params.out[4 * lane() + i] = m.regs[i];
}

BATON_KERNEL(kWarpSize) MmaKernel(WordParams params) {
  const uint32_t* a = params.in + size_t{simt::block().x} * kMmaWords;
  const uint32_t* b = a + kWordsA;
  const uint32_t* c = b + kWordsB;
  uint32_t* d = params.out + size_t{simt::block().x} * kWordsC;
  const uint32_t group = lane() / 4;
  const uint32_t pair = lane() % 4;
  simt::FragmentA a_part;
  BATON_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    a_part.regs[i] = a[(group + i % 2 * 8) * 8 + pair + i / 2 * 4];
  }
  const simt::FragmentB b_part = {{b[group * 8 + pair], b[group * 8 + pair + 4]}};
  simt::FragmentC sums;
  BATON_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    sums.values[i] = std::bit_cast<float>(c[(group + i / 2 * 8) * 8 + 2 * pair + i % 2]);
  }
  simt::mma_bf16_m16n8k16(sums, a_part, b_part);
  BATON_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    d[(group + i / 2 * 8) * 8 + 2 * pair + i % 2] = std::bit_cast<uint32_t>(sums.values[i]);
  }
}

BATON_KERNEL(kAtomicThreads) AtomicsKernel(WordParams params) {
  const uint32_t i = simt::block().x * kAtomicThreads + thread();
  const uint32_t value = params.in[i];
  simt::atomic_add(params.out, 1);
  simt::atomic_max(params.out + 1, value);
  simt::atomic_add64(reinterpret_cast<uint64_t*>(params.out + 4), uint64_t{value} << 20);
  uint32_t seen = 0;
  while (true) {
    const uint32_t before = simt::atomic_cas(params.out + 2, seen, seen + value);
    if (before == seen) break;
    seen = before;
  }
  params.out[8 + kAtomicCtas * kAtomicThreads + i] =
      simt::atomic_exchange(params.out + 8 + i, i + 7);
}

BATON_KERNEL(kWarpSize) MessageKernel(WordParams params) {
  if (simt::block().x == 0) {
    params.scratch[1 + lane()] = 3 * params.in[lane()];
    simt::sync_warp();
    if (lane() == 0) simt::store_release(params.scratch, 1);
    return;
  }
  if (lane() == 0) {
    while (simt::load_acquire(params.scratch) != 1) simt::spin_pause();
  }
  simt::sync_warp();
  params.out[lane()] = params.scratch[1 + lane()];
}

BATON_KERNEL(kCopyThreads) RoundKernel(WordParams params) {
  const uint32_t i = simt::block().x * kCopyThreads + thread();
  if (!guard(i < params.count)) return;
  const uint32_t word = params.in[i];
  const uint32_t rounded = simt::to_bf16(std::bit_cast<float>(word)).bits;
  const float upper = simt::from_bf16({static_cast<uint16_t>(word >> 16)});
  params.out[i] = rounded | uint32_t{simt::to_bf16(upper).bits} << 16;
}

BATON_KERNEL(kCopyThreads) HalfKernel(WordParams params) {
  const uint32_t i = simt::block().x * kCopyThreads + thread();
  if (!guard(i < params.count)) return;
  const uint32_t word = params.in[i];
  params.out[3 * i] =
      std::bit_cast<uint32_t>(simt::from_half(static_cast<uint16_t>(word & 0xFFFFu)));
  params.out[3 * i + 1] =
      simt::pack_bf16(std::bit_cast<float>(word), std::bit_cast<float>(word ^ 0x80000001u));
  params.out[3 * i + 2] = simt::and_or(word, 0x007F8000u, 0x43000000u);
}

BATON_KERNEL(kCopyThreads) Fp8Kernel(WordParams params) {
  const uint32_t i = simt::block().x * kCopyThreads + thread();
  if (!guard(i < params.count)) return;
  const uint32_t a = params.in[2 * i];
  const uint32_t b = params.in[2 * i + 1];
  params.out[2 * i] = simt::mul_bf16x2(a, b);
  params.out[2 * i + 1] = simt::to_e4m3x2(std::bit_cast<float>(a), std::bit_cast<float>(b));
}

BATON_KERNEL(kCopyThreads) ArithmeticKernel(WordParams params) {
  const uint32_t i = simt::block().x * kCopyThreads + thread();
  if (!guard(i < params.count)) return;
  const Vec16 words = simt::load_once(reinterpret_cast<const Vec16*>(params.in) + i);
  const float a = std::bit_cast<float>(words.words[0]);
  const float b = std::bit_cast<float>(words.words[1]);
  const float c = std::bit_cast<float>(words.words[2]);
  uint32_t* out = params.out + size_t{i} * kArithmeticWords;
  out[0] = std::bit_cast<uint32_t>(simt::fma(a, b, c));
  out[1] = std::bit_cast<uint32_t>(simt::square_root(a));
  out[2] = std::bit_cast<uint32_t>(a / b);
  out[3] = std::bit_cast<uint32_t>(Exp(a));
  out[4] = std::bit_cast<uint32_t>(a * b + c);
  out[5] = std::bit_cast<uint32_t>(simt::larger_or_nan(a, b));
  out[6] = std::bit_cast<uint32_t>(simt::smaller(a, b));
}

// The values that every launch has.
struct Shape {
  const char* name;
  uint32_t num_threads;
  uint32_t shared_bytes = 0;
};

absl::Status Start(const Shape& shape, uint32_t num_ctas, void (*kernel)(WordParams),
                   const WordParams& params) {
  return simt::launch({.name = shape.name,
                       .grid = {num_ctas, 1, 1},
                       .num_threads = shape.num_threads,
                       .shared_bytes = shape.shared_bytes},
                      kernel, params);
}

absl::Status RunShuffle(const WordParams& params, uint32_t) {
  return Start({"Shuffle", kShuffleThreads}, 1, ShuffleKernel, params);
}
absl::Status RunCopy(const WordParams& params, uint32_t) {
  return Start({"Copy", kCopyThreads, sizeof(CopyShared)}, 1, CopyKernel, params);
}
absl::Status RunMatrix(const WordParams& params, uint32_t) {
  return Start({"Matrix", kWarpSize, sizeof(MatrixShared)}, 1, MatrixKernel, params);
}
absl::Status RunMma(const WordParams& params, uint32_t num_ctas) {
  return Start({"Mma", kWarpSize}, num_ctas, MmaKernel, params);
}
absl::Status RunAtomics(const WordParams& params, uint32_t) {
  return Start({"Atomics", kAtomicThreads}, kAtomicCtas, AtomicsKernel, params);
}
absl::Status RunRound(const WordParams& params, uint32_t) {
  return Start({"Round", kCopyThreads}, (params.count + kCopyThreads - 1) / kCopyThreads,
               RoundKernel, params);
}
absl::Status RunHalf(const WordParams& params, uint32_t) {
  return Start({"Half", kCopyThreads}, (params.count + kCopyThreads - 1) / kCopyThreads, HalfKernel,
               params);
}
absl::Status RunFp8(const WordParams& params, uint32_t) {
  return Start({"Fp8", kCopyThreads}, (params.count + kCopyThreads - 1) / kCopyThreads, Fp8Kernel,
               params);
}
absl::Status RunArithmetic(const WordParams& params, uint32_t) {
  return Start({"Arithmetic", kCopyThreads}, (params.count + kCopyThreads - 1) / kCopyThreads,
               ArithmeticKernel, params);
}
absl::Status RunMessage(const WordParams& params, uint32_t) {
  return simt::launch(
      {.name = "Message", .grid = {2, 1, 1}, .num_threads = kWarpSize, .cooperative = true},
      MessageKernel, params);
}
absl::Status RunReverse(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::WarpReverse(params);
}
absl::Status RunTransposed(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::WarpLoadMatrices(params, true);
}
absl::Status RunReduce(const WordParams& params, uint32_t num_ctas) {
  return simt_test::BATON_BODY::BlockReduce(params, num_ctas);
}
absl::Status RunPipeline(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::AsyncPipeline(params);
}
absl::Status RunRing(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::BulkRing(params);
}
absl::Status RunLastCta(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::LastCtaCombine(params);
}
absl::Status RunGridBarrier(const WordParams& params, uint32_t num_ctas) {
  return simt_test::BATON_BODY::GridBarrier(params, num_ctas);
}

absl::Status RunTiles(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::TensorTiles(params);
}
template <uint32_t kColumns>
absl::Status RunWgmma(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::WarpgroupProduct(params, kColumns);
}
template <uint32_t kColumns>
absl::Status RunColumns(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::WarpgroupColumns(params, kColumns);
}
absl::Status RunChain(const WordParams& params, uint32_t) {
  return simt_test::BATON_BODY::WarpgroupChain(params);
}
absl::Status RunOverlap(const WordParams& params, uint32_t num_ctas) {
  return simt_test::BATON_BODY::AddAgainAndAgain(
      {params.in, params.out, simt_test::Early::kCopiesConstants}, num_ctas, params.count, nullptr);
}

const Primitives kPrimitives = {
    .shuffle = RunShuffle,
    .warp_reverse = RunReverse,
    .block_reduce = RunReduce,
    .cp_async_pipeline = RunPipeline,
    .bulk_ring = RunRing,
    .last_cta = RunLastCta,
    .grid_barrier = RunGridBarrier,
    .message = RunMessage,
    .cp_async = RunCopy,
    .ldmatrix = RunMatrix,
    .ldmatrix_trans = RunTransposed,
    .mma = RunMma,
    .tensor_tiles = RunTiles,
    .wgmma64 = RunWgmma<64>,
    .wgmma128 = RunWgmma<128>,
    .wgmma192 = RunWgmma<192>,
    .wgmma256 = RunWgmma<256>,
    .wgmma_columns64 = RunColumns<64>,
    .wgmma_columns128 = RunColumns<128>,
    .wgmma_columns256 = RunColumns<256>,
    .wgmma_chain = RunChain,
    .atomics = RunAtomics,
    .to_bf16 = RunRound,
    .half = RunHalf,
    .fp8 = RunFp8,
    .overlap = RunOverlap,
    .arithmetic = RunArithmetic,
};

}  // namespace
}  // namespace BATON_BODY

const Primitives& BATON_BODY::AllPrimitives() { return kPrimitives; }

}  // namespace baton::kernels::gpu_check
