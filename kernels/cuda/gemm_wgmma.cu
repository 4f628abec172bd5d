// y = x w^T for many rows of x on Hopper: one thread brings tiles by tensor copies, two warpgroups
// multiply them by wgmma, with a second set of sums for the segments of K that are done.
//
// Work: a cta stays on its SM and takes tiles of 128 rows of x by 128 or 192 of w in turn, or by
// 256 where K is one segment. Each warpgroup has 64 of the rows. 64 of K a stage; six, five or four
// stages of 32, 40 or 48 KiB; the copies of the next tile begin while this one is stored.
// Registers: 2 x 64, 2 x 96 or 1 x 128 for sums, of 232 a thread (the warpgroup that copies gives
// its own back); 2 x 128 do not fit. Tiles go by groups of 16 tiles of x, those the fast index. So
// 2048 rows of x and eight tiles of w or so run at once, and w is read from memory once for each
// 2048 rows. Bytes: 2 (m + n) k from memory, 2 or 4 m n out. Flops: 2 m n k.
//
// Limit of shared memory, 128 bytes a cycle: a wgmma of n columns takes n / 2 cycles and reads 32
// (64 + n) bytes (96, 85 or 80 a cycle). The bytes that it reads were written once (64, 53 or 48 a
// cycle). That is 160, 139 or 128 in all, so 80, 92 or 100 % of the tensor cores' rate.
//
// Limit of L2: the same 64, 53 or 48 bytes a cycle and SM are 12.3, 10.3 or 9.3 TB/s at 790
// TFLOP/s. That is more than the 5.5 to 7 that are published for it, unless it merges what SMs that
// run side by side ask for at once. Ctas that share a tile of w are neighbours for that. If it does
// not, pairs of ctas that copy w to each other would need 7.2. Reached: kernels/NOTES.md.
#include <algorithm>

#include "kernels/cuda/gemm_tile.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kConsumers = 2;  // warpgroups that multiply
constexpr uint32_t kRowsA = 64;     // of x, a warpgroup
constexpr uint32_t kRowsX = kConsumers * kRowsA;
constexpr uint32_t kThreads = (1 + kConsumers) * simt::kWarpgroupSize;
constexpr uint32_t kGroupTiles = 16;
constexpr uint32_t kWholeColumns = 256;  // of the tile that has room for one segment only
// 65536 of an SM: 168 a thread at the start, then 128 x 40 + 256 x 232.
constexpr uint32_t kCopyRegisters = 40;
constexpr uint32_t kMultiplyRegisters = 232;
static_assert(kGemmStageK == simt::kTileColumns);

// The ring of stages for tiles of kColumns rows of w: [slot][row].
template <uint32_t kColumns>
struct WgmmaShared {
  static constexpr uint32_t kSlots = kColumns == 128 ? 6 : (kColumns == 192 ? 5 : 4);
  static constexpr uint32_t kStageBytes = (kRowsX + kColumns) * sizeof(GemmRow);

  alignas(simt::kTileAlignment) GemmRow x[kSlots][kRowsX];
  GemmRow w[kSlots][kColumns];
  simt::Mbarrier full[kSlots];   // a phase: one arrival and kStageBytes
  simt::Mbarrier empty[kSlots];  // a phase: every warp that multiplies
};

// A launch: the call, and its operands as tensor copies see them.
struct WgmmaLaunch {
  simt::TensorMap x;
  simt::TensorMap w;
  GemmLaunch gemm;
};

// Where in the ring a thread is.
template <uint32_t kSlots>
struct RingPlace {
  uint32_t slot = 0;
  uint32_t parity = 0;  // of the phase in which the slot is filled

  BATON_DEVICE void Advance() {
    if (++slot < kSlots) return;
    slot = 0;
    parity ^= 1;
  }
};

constexpr uint32_t TilesOf(uint32_t size, uint32_t tile) { return (size - 1) / tile + 1; }

template <uint32_t kColumns>
constexpr uint32_t NumTiles(const GemmParams& params) {
  return TilesOf(params.m, kRowsX) * TilesOf(params.n, kColumns);
}

// Tile i in the order of the file comment.
template <uint32_t kColumns>
BATON_DEVICE TileOrigin OriginOf(const GemmParams& params, uint32_t tile) {
  const uint32_t a_group = kGroupTiles * TilesOf(params.n, kColumns);
  const uint32_t first = tile / a_group * kGroupTiles;
  const uint32_t left = TilesOf(params.m, kRowsX) - first;
  const uint32_t in_group = left < kGroupTiles ? left : kGroupTiles;
  const uint32_t at = tile % a_group;
  return {(first + at % in_group) * kRowsX, at / in_group * kColumns};
}

// One thread: fills the slots as they become empty.
template <uint32_t kColumns>
BATON_DEVICE void CopyTiles(const WgmmaLaunch& launch, WgmmaShared<kColumns>& memory) {
  using Shared = WgmmaShared<kColumns>;
  const GemmParams& params = launch.gemm.params;
  RingPlace<Shared::kSlots> place;
  const uint32_t num_tiles = NumTiles<kColumns>(params);
  for (uint32_t tile = simt::block().x; tile < num_tiles; tile += simt::grid().x) {
    const TileOrigin origin = OriginOf<kColumns>(params, tile);
    for (uint32_t k = 0; k < params.k; k += kGemmStageK) {
      simt::Mbarrier* full = &memory.full[place.slot];
      // The phase before the first counts as over: the slots begin empty.
      simt::mbar_wait(&memory.empty[place.slot], place.parity ^ 1);
      simt::mbar_arrive_expect(full, Shared::kStageBytes);
      simt::tensor_copy(memory.x[place.slot], launch.x, {k, origin.row}, full);
      simt::tensor_copy(memory.w[place.slot], launch.w, {k, origin.column}, full);
      place.Advance();
    }
  }
}

// sums = the products of the next num_stages stages; gives their slots back.
template <uint32_t kColumns, size_t kCount>
BATON_DEVICE void MultiplySegment(WgmmaShared<kColumns>& memory, uint32_t num_stages,
                                  RingPlace<WgmmaShared<kColumns>::kSlots>& place,
                                  simt::FragmentC (&sums)[kCount]) {
  const uint32_t row = (simt::warp() / 4 - 1) * kRowsA;
  uint32_t before = 0;  // the slot of the stage whose products are under way
  for (uint32_t stage = 0; stage < num_stages; ++stage) {
    simt::mbar_wait(&memory.full[place.slot], place.parity);
    const simt::TileDescriptor a = simt::describe_tile(&memory.x[place.slot][row]);
    const simt::TileDescriptor b = simt::describe_tile(memory.w[place.slot]);
    simt::wgmma_fence();
    BATON_UNROLL
    for (uint32_t step = 0; step < kGemmStageK / kGemmStepK; ++step) {
      // The first product of a segment starts from zero.
      simt::wgmma_bf16_m64k16(sums, TileStep(a, step), TileStep(b, step),
                              simt::guard(stage > 0 || step > 0));
    }
    simt::wgmma_commit();
    // The tensor cores go on with this stage while the one before is given back.
    simt::wgmma_wait<1>();
    if (stage > 0 && simt::lane() == 0) simt::mbar_arrive(&memory.empty[before]);
    before = place.slot;
    place.Advance();
  }
  simt::wgmma_finish(sums);
  if (simt::lane() == 0) simt::mbar_arrive(&memory.empty[before]);
}

// Two outputs of a row, the first at an even column.
BATON_DEVICE void StorePair(const GemmParams& params, uint32_t row, uint32_t column, float first,
                            float second) {
  if (params.n % 2 != 0) {  // else both are inside or neither
    if (simt::guard(column < params.n)) StoreOutput(params, row, column, first);
    if (simt::guard(column + 1 < params.n)) StoreOutput(params, row, column + 1, second);
    return;
  }
  if (!simt::guard(column < params.n)) return;
  const size_t at = size_t{row} * params.n + column;
  first = WithBias(params, column, first);
  second = WithBias(params, column + 1, second);
  if (params.y_float != nullptr) {
    struct alignas(8) FloatPair {
      float first;
      float second;
    };
    *reinterpret_cast<FloatPair*>(params.y_float + at) = {first, second};
  } else {
    *reinterpret_cast<uint32_t*>(params.y_bf16 + at) = Pair(first, second);
  }
}

// Row `r` of this thread's part of a tile that lies inside y whole and has neither bias nor fp32
// outputs: nothing to ask for each output, or the store of a tile would take half as long as its
// products.
template <uint32_t kColumns>
BATON_DEVICE void StoreWholeRow(Bf16* to, uint32_t half,
                                const simt::FragmentC (&results)[kColumns / 8]) {
  BATON_UNROLL
  for (uint32_t j = 0; j < kColumns / 8; ++j) {
    *reinterpret_cast<uint32_t*>(to + 8 * j) =
        simt::pack_bf16(results[j].values[2 * half], results[j].values[2 * half + 1]);
  }
}

// This thread's part of a tile.
template <uint32_t kColumns>
BATON_DEVICE void StoreTile(const GemmParams& params, uint32_t tile,
                            const simt::FragmentC (&results)[kColumns / 8]) {
  const TileOrigin origin = OriginOf<kColumns>(params, tile);
  const uint32_t row = origin.row + (simt::warp() - 4) * 16 + simt::lane() / 4;
  const uint32_t column = origin.column + simt::lane() % 4 * 2;
  if (IsPlain(params) && params.n % 2 == 0 && origin.column + kColumns <= params.n) {
    BATON_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t r = row + 8 * half;
      if (!simt::guard(r < params.m)) continue;
      StoreWholeRow<kColumns>(params.y_bf16 + size_t{r} * params.n + column, half, results);
    }
    return;
  }
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t r = row + 8 * half;
    if (!simt::guard(r < params.m)) continue;
    BATON_UNROLL
    for (uint32_t j = 0; j < kColumns / 8; ++j) {
      StorePair(params, r, column + 8 * j, results[j].values[2 * half],
                results[j].values[2 * half + 1]);
    }
  }
}

// totals += sums.
template <size_t kCount>
BATON_DEVICE void AddTo(simt::FragmentC (&totals)[kCount], const simt::FragmentC (&sums)[kCount]) {
  BATON_UNROLL
  for (uint32_t j = 0; j < kCount; ++j) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) totals[j].values[v] += sums[j].values[v];
  }
}

// The threads that multiply: all tiles of the cta.
template <uint32_t kColumns>
BATON_DEVICE void MultiplyTiles(const WgmmaLaunch& launch, WgmmaShared<kColumns>& memory) {
  const GemmParams& params = launch.gemm.params;
  const uint32_t num_stages = TilesOf(params.k, kGemmStageK);
  const uint32_t a_segment = launch.gemm.split.segment_k / kGemmStageK;
  const uint32_t num_tiles = NumTiles<kColumns>(params);
  RingPlace<WgmmaShared<kColumns>::kSlots> place;
  simt::FragmentC sums[kColumns / 8];
  Clear(sums);
  for (uint32_t tile = simt::block().x; tile < num_tiles; tile += simt::grid().x) {
    if constexpr (kColumns == kWholeColumns) {
      MultiplySegment<kColumns>(memory, num_stages, place, sums);
      // As a segment is added to +0.
      BATON_UNROLL
      for (uint32_t j = 0; j < kColumns / 8; ++j) {
        BATON_UNROLL
        for (uint32_t v = 0; v < 4; ++v) sums[j].values[v] += 0.0f;
      }
      StoreTile<kColumns>(params, tile, sums);
    } else {
      simt::FragmentC totals[kColumns / 8];
      Clear(totals);
      for (uint32_t first = 0; first < num_stages; first += a_segment) {
        const uint32_t left = num_stages - first;
        MultiplySegment<kColumns>(memory, left < a_segment ? left : a_segment, place, sums);
        AddTo(totals, sums);
      }
      StoreTile<kColumns>(params, tile, totals);
    }
  }
}

template <uint32_t kColumns>
BATON_DEVICE void MultiplyByWgmma(const WgmmaLaunch& launch) {
  using Shared = WgmmaShared<kColumns>;
  auto& memory = simt::shared<Shared>();
  if (simt::thread() == 0) {
    for (uint32_t slot = 0; slot < Shared::kSlots; ++slot) {
      simt::mbar_init(&memory.full[slot], 1);
      simt::mbar_init(&memory.empty[slot], kConsumers * simt::kWarpgroupSize / simt::kWarpSize);
    }
    simt::mbar_fence_init();
  }
  simt::wait_for_previous();
  simt::sync_block();
  if (simt::warp() < simt::kWarpgroupSize / simt::kWarpSize) {
    simt::reg_dealloc<kCopyRegisters>();
    if (simt::thread() == 0) CopyTiles<kColumns>(launch, memory);
  } else {
    simt::reg_alloc<kMultiplyRegisters>();
    MultiplyTiles<kColumns>(launch, memory);
  }
}

BATON_KERNEL(kThreads) GemmWgmma128Kernel(BATON_MAP_PARAM WgmmaLaunch launch) {
  MultiplyByWgmma<128>(launch);
}
BATON_KERNEL(kThreads) GemmWgmma192Kernel(BATON_MAP_PARAM WgmmaLaunch launch) {
  MultiplyByWgmma<192>(launch);
}
BATON_KERNEL(kThreads) GemmWgmma256Kernel(BATON_MAP_PARAM WgmmaLaunch launch) {
  MultiplyByWgmma<256>(launch);
}

template <uint32_t kColumns>
absl::Status Launch(const GemmLaunch& gemm, void (*kernel)(WgmmaLaunch), void* stream) {
  const GemmParams& params = gemm.params;
  const uint64_t num_tiles = uint64_t{TilesOf(params.m, kRowsX)} * TilesOf(params.n, kColumns);
  if (num_tiles > kMaxGridX) return absl::InvalidArgumentError("GemmBf16: too many tiles");
  WgmmaLaunch launch;
  launch.gemm = gemm;
  const simt::TensorShape x = {params.x, params.m, params.k, kRowsX};
  const simt::TensorShape w = {params.w, params.n, params.k, kColumns};
  if (absl::Status status = simt::make_tensor_map(x, &launch.x); !status.ok()) return status;
  if (absl::Status status = simt::make_tensor_map(w, &launch.w); !status.ok()) return status;
  return simt::launch(
      {.name = "GemmWgmma",
       .grid = {static_cast<uint32_t>(std::min<uint64_t>(num_tiles, params.num_sms)), 1, 1},
       .num_threads = kThreads,
       .shared_bytes = sizeof(WgmmaShared<kColumns>),
       .overlaps = true,
       .stream = stream},
      kernel, launch);
}

}  // namespace

const KernelInfo kGemmWgmmaInfos[3] = {{"GemmWgmma128Kernel", kThreads, sizeof(WgmmaShared<128>)},
                                       {"GemmWgmma192Kernel", kThreads, sizeof(WgmmaShared<192>)},
                                       {"GemmWgmma256Kernel", kThreads, sizeof(WgmmaShared<256>)}};

bool HasWgmma() { return simt::has_wgmma(); }

absl::Status LaunchGemmWgmma(const GemmLaunch& launch, GemmPath path, void* stream) {
  if (!simt::has_wgmma()) {
    return absl::FailedPreconditionError("GemmBf16: the device has no wgmma");
  }
  if (path == GemmPath::kWgmma128) return Launch<128>(launch, GemmWgmma128Kernel, stream);
  if (path == GemmPath::kWgmma192) return Launch<192>(launch, GemmWgmma192Kernel, stream);
  if (launch.split.num_segments > 1) {
    return absl::InvalidArgumentError("GemmBf16: tiles of 256 rows of w take one segment of K");
  }
  return Launch<256>(launch, GemmWgmma256Kernel, stream);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
