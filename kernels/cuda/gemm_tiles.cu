// y = x w^T for many rows of x: a cta makes a tile of outputs and walks the segments of K in order,
// with a second set of sums for those that are done.
//
// Work: 128 x 128 outputs by eight warps of 64 x 32, or 64 x 64 by four of 32 x 32; 64 of K a
// stage. 128 x 128 is what the registers allow (64 sums and 64 totals a thread; one cta an SM) and
// reads 2 (1 / 128 + 1 / 128) bytes from L2 for a multiplication: 790 TFLOP/s ask for 6.2 TB/s.
// 64 x 64 asks for twice that, but makes four times as many tiles: it is for products whose
// 128 x 128 tiles leave SMs without work. Tiles of x are the fast index of the grid, so that the
// ctas that run together share a few tiles of w: at 2048 rows w is read once from memory.
// Bytes: 2 (m + n) k from memory, 2 or 4 m n out. Flops: 2 m n k. Limit: the tensor cores from
// about 256 rows on, memory below. Reached: not yet measured on a GPU; mma.sync reaches about 60 %
// of what wgmma does.
#include "kernels/cuda/gemm_tile.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

using simt::FragmentA;
using simt::FragmentB;
using simt::FragmentC;
using simt::Matrices;

// A cta of kWarpsM x kWarpsN warps, each kWarpM rows of x by kWarpN rows of w.
template <uint32_t kWarpsM_, uint32_t kWarpsN_, uint32_t kWarpM_, uint32_t kWarpN_>
struct TileShape {
  static constexpr uint32_t kWarpsN = kWarpsN_;
  static constexpr uint32_t kWarpM = kWarpM_;
  static constexpr uint32_t kWarpN = kWarpN_;
  static constexpr uint32_t kRowsX = kWarpsM_ * kWarpM_;
  static constexpr uint32_t kRowsW = kWarpsN_ * kWarpN_;
  static constexpr uint32_t kThreads = kWarpsM_ * kWarpsN_ * simt::kWarpSize;
};
using Tile64 = TileShape<2, 2, 32, 32>;
using Tile128 = TileShape<2, 4, 64, 32>;

// [stage][row][chunk]
template <typename Shape>
struct TileShared {
  GemmRow x[kGemmStages][Shape::kRowsX];
  GemmRow w[kGemmStages][Shape::kRowsW];
};
static_assert(sizeof(TileShared<Tile128>) == 128 * 1024);

// [16 rows of x][8 rows of w] of a warp's outputs.
template <typename Shape>
using TileSums = FragmentC[Shape::kWarpM / 16][Shape::kWarpN / 8];

template <typename Shape>
BATON_DEVICE void CopyTileStage(const GemmLaunch& launch, TileShared<Shape>& memory,
                                uint32_t stage) {
  const GemmParams& params = launch.params;
  if (simt::guard(stage * kGemmStageK < params.k)) {
    const uint32_t slot = stage % kGemmStages;
    CopyRows<Shape::kRowsX, Shape::kThreads>(
        {params.x, params.m, simt::block().x * Shape::kRowsX, params.k}, stage * kGemmStageK,
        memory.x[slot]);
    CopyRows<Shape::kRowsW, Shape::kThreads>(
        {params.w, params.n, simt::block().y * Shape::kRowsW, params.k}, stage * kGemmStageK,
        memory.w[slot]);
  }
  simt::cp_async_commit();
}

template <typename Shape>
BATON_DEVICE void MultiplyTile(const TileShared<Shape>& memory, uint32_t slot,
                               TileSums<Shape>& sums) {
  const uint32_t row = simt::warp() / Shape::kWarpsN * Shape::kWarpM;
  const uint32_t column = simt::warp() % Shape::kWarpsN * Shape::kWarpN;
  BATON_UNROLL
  for (uint32_t chunk = 0; chunk < kGemmChunks; chunk += kGemmStepK / kVec) {
    FragmentA a[Shape::kWarpM / 16];
    BATON_UNROLL
    for (uint32_t i = 0; i < Shape::kWarpM / 16; ++i) {
      a[i] = LoadA(memory.x[slot], row + 16 * i, chunk);
    }
    BATON_UNROLL
    for (uint32_t j = 0; j < Shape::kWarpN / 8; j += 2) {
      const Matrices b = LoadTwoB(memory.w[slot], column + 8 * j, chunk);
      BATON_UNROLL
      for (uint32_t i = 0; i < Shape::kWarpM / 16; ++i) {
        simt::mma_bf16_m16n8k16(sums[i][j], a[i], FragmentB{{b.regs[0], b.regs[1]}});
        simt::mma_bf16_m16n8k16(sums[i][j + 1], a[i], FragmentB{{b.regs[2], b.regs[3]}});
      }
    }
  }
}

// totals += sums; sums = 0: the end of a segment.
template <typename Shape>
BATON_DEVICE void AddSegment(TileSums<Shape>& totals, TileSums<Shape>& sums) {
  BATON_UNROLL
  for (uint32_t i = 0; i < Shape::kWarpM / 16; ++i) {
    BATON_UNROLL
    for (uint32_t j = 0; j < Shape::kWarpN / 8; ++j) {
      BATON_UNROLL
      for (uint32_t v = 0; v < 4; ++v) totals[i][j].values[v] += sums[i][j].values[v];
      sums[i][j] = {{0.0f, 0.0f, 0.0f, 0.0f}};
    }
  }
}

// Values 0..3 of a lane: rows of x g, g, g + 8, g + 8; rows of w 2t, 2t + 1, 2t, 2t + 1.
template <typename Shape>
BATON_DEVICE void StoreTile(const GemmParams& params, const TileSums<Shape>& totals) {
  const uint32_t row = simt::block().x * Shape::kRowsX +
                       simt::warp() / Shape::kWarpsN * Shape::kWarpM + simt::lane() / 4;
  const uint32_t column = simt::block().y * Shape::kRowsW +
                          simt::warp() % Shape::kWarpsN * Shape::kWarpN + simt::lane() % 4 * 2;
  BATON_UNROLL
  for (uint32_t i = 0; i < Shape::kWarpM / 16; ++i) {
    BATON_UNROLL
    for (uint32_t j = 0; j < Shape::kWarpN / 8; ++j) {
      BATON_UNROLL
      for (uint32_t v = 0; v < 4; ++v) {
        const uint32_t r = row + 16 * i + v / 2 * 8;
        const uint32_t c = column + 8 * j + v % 2;
        if (simt::guard(r < params.m && c < params.n)) {
          StoreOutput(params, r, c, totals[i][j].values[v]);
        }
      }
    }
  }
}

template <typename Shape>
BATON_DEVICE void MultiplyManyRows(const GemmLaunch& launch) {
  auto& memory = simt::shared<TileShared<Shape>>();
  TileSums<Shape> sums;
  TileSums<Shape> totals;
  BATON_UNROLL
  for (uint32_t i = 0; i < Shape::kWarpM / 16; ++i) {
    BATON_UNROLL
    for (uint32_t j = 0; j < Shape::kWarpN / 8; ++j) {
      sums[i][j] = totals[i][j] = {{0.0f, 0.0f, 0.0f, 0.0f}};
    }
  }
  const uint32_t num_stages = (launch.params.k + kGemmStageK - 1) / kGemmStageK;
  const uint32_t stages_a_segment = launch.split.segment_k / kGemmStageK;
  BATON_UNROLL
  for (uint32_t stage = 0; stage < kGemmStages - 1; ++stage) {
    CopyTileStage<Shape>(launch, memory, stage);
  }
  uint32_t left = stages_a_segment;
  for (uint32_t stage = 0; stage < num_stages; ++stage) {
    // The own copies of this stage have landed; behind the barrier everyone's have, and everyone
    // has read the stage before, whose slot is filled next.
    simt::cp_async_wait<kGemmStages - 2>();
    simt::sync_block();
    CopyTileStage<Shape>(launch, memory, stage + kGemmStages - 1);
    MultiplyTile<Shape>(memory, stage % kGemmStages, sums);
    if (--left == 0 || stage + 1 == num_stages) {
      AddSegment<Shape>(totals, sums);
      left = stages_a_segment;
    }
  }
  StoreTile<Shape>(launch.params, totals);
}

BATON_KERNEL(Tile64::kThreads) GemmTile64Kernel(GemmLaunch launch) {
  MultiplyManyRows<Tile64>(launch);
}
BATON_KERNEL(Tile128::kThreads) GemmTile128Kernel(GemmLaunch launch) {
  MultiplyManyRows<Tile128>(launch);
}

template <typename Shape>
absl::Status Launch(const GemmLaunch& launch, void (*kernel)(GemmLaunch), void* stream) {
  constexpr uint32_t kMaxGridY = 65535;
  const GemmParams& params = launch.params;
  const uint32_t tiles_w = (params.n - 1) / Shape::kRowsW + 1;
  if (tiles_w > kMaxGridY) return absl::InvalidArgumentError("GemmBf16: too many rows of w");
  return simt::launch({.name = "GemmTiles",
                       .grid = {(params.m - 1) / Shape::kRowsX + 1, tiles_w, 1},
                       .num_threads = Shape::kThreads,
                       .shared_bytes = sizeof(TileShared<Shape>),
                       .stream = stream},
                      kernel, launch);
}

}  // namespace

const KernelInfo kGemmTile64Info = {"GemmTile64Kernel", Tile64::kThreads,
                                    sizeof(TileShared<Tile64>)};
const KernelInfo kGemmTile128Info = {"GemmTile128Kernel", Tile128::kThreads,
                                     sizeof(TileShared<Tile128>)};

absl::Status LaunchGemmTiles(const GemmLaunch& launch, GemmPath path, void* stream) {
  return path == GemmPath::kTile64 ? Launch<Tile64>(launch, GemmTile64Kernel, stream)
                                   : Launch<Tile128>(launch, GemmTile128Kernel, stream);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
