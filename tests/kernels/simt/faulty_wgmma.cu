#include <bit>

#include "kernels/simt/device.h"
#include "tests/kernels/simt/faulty_wgmma.h"

namespace baton::kernels::simt_test {
namespace {

using namespace simt;  // NOLINT: the primitives are the language here

constexpr uint32_t kThreads = 2 * kWarpgroupSize;
constexpr uint32_t kRows = 128;  // of both tiles; A is the first 64

// [row][chunk]
struct FaultShared {
  alignas(kTileAlignment) Vec16 tile[kRows][8];
  Mbarrier full;
  Mbarrier empty;
};

struct Faulty {
  TensorMap map;
  WgmmaFault fault;
  FaultyWgmmaParams io;
};

// Zeros written by threads, as both operands.
BATON_DEVICE void FillTile(const Faulty& run, FaultShared& memory) {
  for (uint32_t i = thread(); i < kRows * 8; i += num_threads()) memory.tile[i / 8][i % 8] = {};
  const bool is_fenced =
      run.fault != WgmmaFault::kNoProxyFence && run.fault != WgmmaFault::kColumnsNotFenced;
  if (is_fenced) fence_proxy_async();
  sync_block();
}

BATON_DEVICE void Clear(FragmentC (&sums)[16]) {
  for (FragmentC& part : sums) part = {{1.0f, 1.0f, 1.0f, 1.0f}};
}

BATON_DEVICE void Once(FragmentC (&sums)[16], TileDescriptor a, TileDescriptor b) {
  wgmma_fence();
  wgmma_bf16_m64k16(sums, a, b, true);
  wgmma_commit();
  wgmma_finish(sums);
}

constexpr uint32_t kTileBytes = 64 * 128;  // of columns

BATON_DEVICE void Once(FragmentC (&sums)[16], ColumnsDescriptor columns) {
  const FragmentA a[1] = {};
  wgmma_fence();
  wgmma_bf16_m64k16(sums, a[0], columns);
  wgmma_commit();
  wgmma_finish(sums, a);
}

// Faults of the threads that call, and of the operands that they give.
BATON_DEVICE void Calls(const Faulty& run, FaultShared& memory, FragmentC (&sums)[16]) {
  const TileDescriptor tile = describe_tile(memory.tile);
  switch (run.fault) {
    case WgmmaFault::kAcrossWarpgroups:  // half of one warpgroup and half of the next
      if (thread() >= 64 && thread() < 192) Once(sums, tile, tile);
      return;
    case WgmmaFault::kTooFewThreads:
      Once(sums, tile, tile);
      return;
    case WgmmaFault::kTwoPlaces:
      wgmma_fence();
      if (warp() % 4 < 2) {
        wgmma_bf16_m64k16(sums, tile, tile, true);
      } else {
        wgmma_bf16_m64k16(sums, tile, tile, true);
      }
      return;
    case WgmmaFault::kDifferentOperands:
      Once(sums, TileStep(tile, warp() % 4 == 3 ? 1 : 0), tile);
      return;
    case WgmmaFault::kTileMisaligned:  // the second row is no tile's first
      Once(sums, describe_tile(memory.tile[1]), tile);
      return;
    case WgmmaFault::kStepBeyondTile:
      Once(sums, tile, TileStep(tile, 4));
      return;
    case WgmmaFault::kNoSwizzle:
      Once(sums, {tile.bits & ~(uint64_t{3} << 62)}, tile);
      return;
    case WgmmaFault::kColumnsMisaligned:
      Once(sums, describe_columns(memory.tile[1], kTileBytes));
      return;
    case WgmmaFault::kColumnsNoSwizzle:
      Once(sums, {describe_columns(memory.tile, kTileBytes).bits & ~(uint64_t{3} << 62)});
      return;
    case WgmmaFault::kColumnsOutside:  // the second tile
      Once(sums, ColumnsStep(describe_columns(memory.tile, kTileBytes), 4));
      return;
    case WgmmaFault::kTileOutside:  // 128 rows from the middle on
      Once(sums, tile, describe_tile(memory.tile[64]));
      return;
    default:
      return;
  }
}

// Faults in the use of registers and tiles of columns while a product of them is under way.
BATON_DEVICE void OrdersOfColumns(const Faulty& run, FaultShared& memory, FragmentC (&sums)[16]) {
  FragmentA a[1] = {};
  wgmma_fence();
  wgmma_bf16_m64k16(sums, a[0], describe_columns(memory.tile, kTileBytes));
  wgmma_commit();
  if (run.fault == WgmmaFault::kOperandWritten) a[0].regs[thread() % 4] = 1;
  if (run.fault == WgmmaFault::kColumnsWritten) memory.tile[thread() % 16][0] = {};
  wgmma_finish(sums, a);
}

// Faults in the use of sums and tiles while a product is under way.
BATON_DEVICE void Orders(const Faulty& run, FaultShared& memory, FragmentC (&sums)[16]) {
  const TileDescriptor tile = describe_tile(memory.tile);
  if (thread() >= kWarpgroupSize) return;
  if (run.fault >= WgmmaFault::kOperandWritten && run.fault <= WgmmaFault::kColumnsWritten) {
    OrdersOfColumns(run, memory, sums);
    return;
  }
  if (run.fault != WgmmaFault::kNoFence) wgmma_fence();
  wgmma_bf16_m64k16(sums, tile, tile, true);
  wgmma_commit();
  switch (run.fault) {
    case WgmmaFault::kSumsRead:
      run.io.out[thread()] = std::bit_cast<uint32_t>(sums[0].values[0]);
      break;
    case WgmmaFault::kSumsWritten:
      sums[15].values[3] = 0.0f;
      break;
    case WgmmaFault::kSumsWrittenBetween:
      sums[0].values[0] = 0.0f;
      wgmma_bf16_m64k16(sums, tile, tile, true);
      wgmma_commit();
      break;
    case WgmmaFault::kNoFenceAfterWait:  // the sums were the thread's between
      wgmma_finish(sums);
      sums[0].values[0] += 1.0f;
      wgmma_bf16_m64k16(sums, tile, tile, true);
      wgmma_commit();
      break;
    case WgmmaFault::kTileWritten:
      memory.tile[thread()][0] = {};
      break;
    case WgmmaFault::kTileWrittenAfterTooFew:  // the wait covers no product of this tile
      wgmma_wait<1>();
      memory.tile[thread()][0] = {};
      break;
    case WgmmaFault::kNotWaited:
      return;
    default:
      break;
  }
  wgmma_finish(sums);
  if (run.fault != WgmmaFault::kSumsRead) {
    run.io.out[thread()] = std::bit_cast<uint32_t>(sums[0].values[0]);
  }
}

// A tensor copy by one thread.
BATON_DEVICE void Copies(const Faulty& run, FaultShared& memory, FragmentC (&sums)[16]) {
  const bool is_again = run.fault == WgmmaFault::kTileFilledAgain;
  if (thread() == 0) {
    mbar_init(&memory.full, 1);
    mbar_init(&memory.empty, kWarpgroupSize);
    if (run.fault != WgmmaFault::kCopyWithoutFence) mbar_fence_init();
  }
  sync_block();
  TensorMap no_map = {};
  const TensorMap& map = run.fault == WgmmaFault::kNoMap ? no_map : run.map;
  Vec16* to = run.fault == WgmmaFault::kCopyMisaligned ? memory.tile[1] : memory.tile[0];
  constexpr uint32_t kBytes = 64 * 128;
  if (thread() == kWarpgroupSize) {
    mbar_arrive_expect(&memory.full, kBytes);
    tensor_copy(to, map, {0, 0}, &memory.full);
    if (is_again) {
      mbar_wait(&memory.empty, 0);
      mbar_arrive_expect(&memory.full, kBytes);
      tensor_copy(to, map, {0, 0}, &memory.full);
      mbar_wait(&memory.full, 1);
    }
  }
  if (thread() >= kWarpgroupSize) return;
  if (run.fault == WgmmaFault::kCopyReadEarly) {
    run.io.out[thread()] = memory.tile[thread() % 64][0].words[0];
  }
  mbar_wait(&memory.full, 0);
  if (!is_again) return;
  const TileDescriptor tile = describe_tile(memory.tile);
  wgmma_fence();
  wgmma_bf16_m64k16(sums, tile, tile, true);
  wgmma_commit();
  mbar_arrive(&memory.empty);  // given back before the product has read it
  wgmma_finish(sums);
}

BATON_KERNEL(kThreads) FaultyWgmmaKernel(BATON_MAP_PARAM Faulty run) {
  auto& memory = shared<FaultShared>();
  FragmentC sums[16];
  Clear(sums);
  if (run.fault >= WgmmaFault::kTileFilledAgain) {
    Copies(run, memory, sums);
    return;
  }
  FillTile(run, memory);
  const bool is_call =
      run.fault >= WgmmaFault::kAcrossWarpgroups && run.fault <= WgmmaFault::kTileOutside;
  if (is_call) {
    Calls(run, memory, sums);
  } else {
    Orders(run, memory, sums);
  }
}

}  // namespace

absl::Status RunFaultyWgmma(WgmmaFault fault, const FaultyWgmmaParams& params) {
  Faulty call = {{}, fault, params};
  absl::Status status =
      make_tensor_map({reinterpret_cast<const Bf16*>(params.in), 64, 64, 64}, &call.map);
  if (!status.ok()) return status;
  return launch({.name = "FaultyWgmma",
                 .num_threads = fault == WgmmaFault::kTooFewThreads ? 96 : kThreads,
                 .shared_bytes = sizeof(FaultShared)},
                FaultyWgmmaKernel, call);
}

}  // namespace baton::kernels::simt_test
