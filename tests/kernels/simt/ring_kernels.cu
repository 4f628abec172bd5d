#include "kernels/simt/device.h"
#include "tests/kernels/simt/ring_kernels.h"

namespace baton::kernels::simt_test {
inline namespace BATON_BODY {
namespace {

using namespace simt;  // NOLINT: the primitives are the language here

// [warp]
struct ReduceShared {
  uint32_t sums[kReduceThreads / kWarpSize];
};

BATON_DEVICE uint32_t WarpSum(uint32_t value) {
  BATON_UNROLL
  for (uint32_t step = kWarpSize / 2; step > 0; step /= 2) value += shfl_xor(value, step);
  return value;
}

BATON_KERNEL(kReduceThreads) BlockReduceKernel(WordParams params) {
  auto& memory = shared<ReduceShared>();
  const uint32_t sum = WarpSum(params.in[block().x * kReduceThreads + thread()]);
  if (lane() == 0) memory.sums[warp()] = sum;
  sync_block();
  if (thread() == 0) {
    uint32_t total = 0;
    for (const uint32_t part : memory.sums) total += part;
    params.out[block().x] = total;
  }
}

constexpr uint32_t kStages = 3;

// [stage][thread]: each thread copies and uses its neighbour's sixteen bytes.
struct PipelineShared {
  Vec16 stages[kStages][kPipelineThreads];
};

BATON_DEVICE void CopyStage(const WordParams& params, PipelineShared& memory, uint32_t step) {
  constexpr uint32_t kWordsPerStep = kPipelineThreads * 4;
  const uint32_t first = step * kWordsPerStep + thread() * 4;
  const uint32_t left = first < params.count ? params.count - first : 0;
  const uint32_t bytes = left < 4 ? left * 4 : 16;
  cp_async16(&memory.stages[step % kStages][thread()], params.in + (bytes > 0 ? first : 0), bytes);
  cp_async_commit();
}

BATON_KERNEL(kPipelineThreads) AsyncPipelineKernel(WordParams params) {
  auto& memory = shared<PipelineShared>();
  constexpr uint32_t kWordsPerStep = kPipelineThreads * 4;
  for (uint32_t step = 0; step < kStages - 1; ++step) CopyStage(params, memory, step);
  const uint32_t neighbour = (thread() + 1) % kPipelineThreads;
  for (uint32_t step = 0; step * kWordsPerStep < params.count; ++step) {
    cp_async_wait<kStages - 2>();
    sync_block();
    CopyStage(params, memory, step + kStages - 1);
    const Vec16 words = memory.stages[step % kStages][neighbour];
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = step * kWordsPerStep + neighbour * 4 + i;
      if (guard(at < params.count)) params.out[at] = 3 * words.words[i];
    }
  }
  cp_async_wait<0>();
}

constexpr uint32_t kSlots = 2;
constexpr uint32_t kTileWords = 64;
constexpr uint32_t kConsumers = kRingThreads - kWarpSize;

// Tiles first: bulk copies want sixteen bytes of alignment.
struct RingShared {
  alignas(16) uint32_t tiles[kSlots][kTileWords];
  Mbarrier full[kSlots];
  Mbarrier empty[kSlots];
};

BATON_DEVICE void Produce(const WordParams& params, RingShared& memory) {
  for (uint32_t tile = 0; tile < params.count; ++tile) {
    const uint32_t slot = tile % kSlots;
    const uint32_t round = tile / kSlots;
    // The first round finds the slots empty: it waits for the phase before the first.
    mbar_wait(&memory.empty[slot], (round + 1) & 1);
    mbar_arrive_expect(&memory.full[slot], sizeof(memory.tiles[slot]));
    bulk_copy(memory.tiles[slot], params.in + tile * kTileWords, sizeof(memory.tiles[slot]),
              &memory.full[slot]);
  }
}

BATON_DEVICE void Consume(const WordParams& params, RingShared& memory, uint32_t consumer) {
  for (uint32_t tile = 0; tile < params.count; ++tile) {
    const uint32_t slot = tile % kSlots;
    mbar_wait(&memory.full[slot], tile / kSlots & 1);
    for (uint32_t i = consumer; i < kTileWords; i += kConsumers) {
      params.out[tile * kTileWords + i] = memory.tiles[slot][i] + 1;
    }
    sync_warp();
    if (lane() == 0) mbar_arrive(&memory.empty[slot]);
  }
}

BATON_KERNEL(kRingThreads) BulkRingKernel(WordParams params) {
  auto& memory = shared<RingShared>();
  if (thread() == 0) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      mbar_init(&memory.full[slot], 1);
      mbar_init(&memory.empty[slot], kConsumers / kWarpSize);
    }
    mbar_fence_init();
  }
  sync_block();
  if (warp() > 0) {
    Consume(params, memory, thread() - kWarpSize);
  } else if (lane() == 0) {
    Produce(params, memory);
  }
}

// Whether this cta arrived last.
struct CombineShared {
  uint32_t is_last;
};

BATON_KERNEL(kWarpSize) LastCtaCombineKernel(WordParams params) {
  auto& memory = shared<CombineShared>();
  uint32_t sum = 0;
  for (uint32_t i = block().x * kWarpSize + lane(); i < params.count;
       i += kCombineCtas * kWarpSize) {
    sum += params.in[i];
  }
  sum = WarpSum(sum);
  if (lane() == 0) {
    params.scratch[1 + block().x] = sum;
    fence();
    memory.is_last = atomic_add(params.scratch, 1) == kCombineCtas - 1;
    fence();
  }
  sync_warp();
  if (memory.is_last == 0) return;
  const uint32_t part = lane() < kCombineCtas ? params.scratch[1 + lane()] : 0;
  const uint32_t total = WarpSum(part);
  if (lane() == 0) {
    params.out[0] = total;
    atomic_exchange(params.scratch, 0);
  }
}

BATON_KERNEL(kGridThreads) GridBarrierKernel(WordParams params) {
  const uint32_t ctas = grid().x;
  if (thread() == 0) {
    params.scratch[1 + block().x] = params.in[block().x];
    fence();
    atomic_add(params.scratch, 1);
    while (load_acquire(params.scratch) < ctas) spin_pause();
  }
  sync_block();
  if (thread() != kGridThreads - 1) return;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < ctas; ++i) sum += params.scratch[1 + i];
  params.out[block().x] = sum;
}

// One warp's tile.
struct ReverseShared {
  uint32_t words[kWarpSize];
};

BATON_KERNEL(kWarpSize) WarpReverseKernel(WordParams params) {
  auto& memory = shared<ReverseShared>();
  memory.words[lane()] = params.in[lane()];
  sync_warp();
  params.out[lane()] = memory.words[kWarpSize - 1 - lane()];
}

// Row r of matrix m at 8m + r.
struct MatricesShared {
  Vec16 rows[kWarpSize];
};

// `count` is 1 for transposed matrices.
BATON_KERNEL(kWarpSize) WarpLoadMatricesKernel(WordParams params) {
  auto& memory = shared<MatricesShared>();
  memory.rows[lane()] = reinterpret_cast<const Vec16*>(params.in)[lane()];
  sync_warp();
  const void* row = &memory.rows[lane()];
  const Matrices m = params.count == 1 ? ldmatrix_x4_trans(row) : ldmatrix_x4(row);
  for (uint32_t i = 0; i < 4; ++i) params.out[4 * lane() + i] = m.regs[i];
}

}  // namespace

absl::Status BlockReduce(const WordParams& params, uint32_t num_ctas) {
  return launch({.name = "BlockReduce",
                 .grid = {num_ctas, 1, 1},
                 .num_threads = kReduceThreads,
                 .shared_bytes = sizeof(ReduceShared)},
                BlockReduceKernel, params);
}

absl::Status AsyncPipeline(const WordParams& params) {
  return launch({.name = "AsyncPipeline",
                 .num_threads = kPipelineThreads,
                 .shared_bytes = sizeof(PipelineShared)},
                AsyncPipelineKernel, params);
}

absl::Status BulkRing(const WordParams& params) {
  return launch(
      {.name = "BulkRing", .num_threads = kRingThreads, .shared_bytes = sizeof(RingShared)},
      BulkRingKernel, params);
}

absl::Status LastCtaCombine(const WordParams& params) {
  return launch({.name = "LastCtaCombine",
                 .grid = {kCombineCtas, 1, 1},
                 .num_threads = kWarpSize,
                 .shared_bytes = sizeof(CombineShared)},
                LastCtaCombineKernel, params);
}

absl::Status GridBarrier(const WordParams& params, uint32_t num_ctas) {
  return launch({.name = "GridBarrier",
                 .grid = {num_ctas, 1, 1},
                 .num_threads = kGridThreads,
                 .cooperative = true},
                GridBarrierKernel, params);
}

absl::Status WarpReverse(const WordParams& params) {
  return launch(
      {.name = "WarpReverse", .num_threads = kWarpSize, .shared_bytes = sizeof(ReverseShared)},
      WarpReverseKernel, params);
}

absl::Status WarpLoadMatrices(const WordParams& params, bool transposed) {
  WordParams call = params;
  call.count = transposed ? 1 : 0;
  return launch({.name = "WarpLoadMatrices",
                 .num_threads = kWarpSize,
                 .shared_bytes = sizeof(MatricesShared)},
                WarpLoadMatricesKernel, call);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::simt_test
