// y = x w^T for many rows of x: a cta makes a tile of outputs and walks the segments of K in order,
// with a second set of sums for those that are done.
//
// Work: 128 x 128 outputs by eight warps of 64 x 32, or 64 x 64 by four of 32 x 32; 64 of K a
// stage. 128 x 128 is what the registers allow (64 sums and 64 totals a thread; one cta an SM) and
// reads 2 (1 / 128 + 1 / 128) bytes from L2 for a multiplication: 790 TFLOP/s ask for 12.3 TB/s.
// 64 x 64 asks for twice that, but makes four times as many tiles: it is for products whose
// 128 x 128 tiles leave SMs without work. Tiles of x are the fast index of the grid, so that the
// ctas that run together share a few tiles of w: at 2048 rows w is read once from memory.
// Bytes: 2 (m + n) k from memory, 2 or 4 m n out. Flops: 2 m n k. Limit: the tensor cores from
// about 256 rows on, memory below. Reached: kernels/NOTES.md; on an H100 2.1 to 2.7 times the time
// of wgmma.
#include "kernels/cuda/gemm_shapes.h"
#include "kernels/cuda/gemm_tile.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using Tile128 = TileShape<2, 4, 64, 32>;
static_assert(sizeof(GemmStages<Tile128>) == 128 * 1024);

// The stages of K of this cta's rows.
template <typename Shape>
struct TileStages {
  static constexpr uint32_t kCount = kGemmStages;

  const GemmParams& params;
  GemmStages<Shape>& memory;

  BATON_DEVICE void Copy(uint32_t stage) const {
    const uint32_t slot = stage % kCount;
    CopyRows<Shape::kRowsX, Shape::kThreads>(
        {params.x, params.m, simt::block().x * Shape::kRowsX, params.k}, stage * kGemmStageK,
        memory.x[slot]);
    CopyRows<Shape::kRowsW, Shape::kThreads>(
        {params.w, params.n, simt::block().y * Shape::kRowsW, params.k}, stage * kGemmStageK,
        memory.w[slot]);
  }
  BATON_DEVICE void Multiply(uint32_t stage, typename Shape::Sums& sums) const {
    Shape::Multiply(memory, stage % kCount, sums);
  }
};

template <typename Shape>
BATON_DEVICE void MultiplyManyRows(const GemmLaunch& launch) {
  simt::wait_for_previous();
  const TileStages<Shape> stages = {launch.params, simt::shared<GemmStages<Shape>>()};
  typename Shape::Sums totals;
  AddSegments(launch.split, launch.params.k, stages, totals);
  Shape::Store(launch.params, {simt::block().x * Shape::kRowsX, simt::block().y * Shape::kRowsW},
               totals);
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
                       .shared_bytes = sizeof(GemmStages<Shape>),
                       .overlaps = true,
                       .stream = stream},
                      kernel, launch);
}

}  // namespace

const KernelInfo kGemmTile64Info = {"GemmTile64Kernel", Tile64::kThreads,
                                    sizeof(GemmStages<Tile64>)};
const KernelInfo kGemmTile128Info = {"GemmTile128Kernel", Tile128::kThreads,
                                     sizeof(GemmStages<Tile128>)};

// All kernels are compiled for the same architectures.
absl::Status CheckCode() { return simt::check_code(GemmTile64Kernel); }

absl::Status LaunchGemmTiles(const GemmLaunch& launch, GemmPath path, void* stream) {
  return path == GemmPath::kTile64 ? Launch<Tile64>(launch, GemmTile64Kernel, stream)
                                   : Launch<Tile128>(launch, GemmTile128Kernel, stream);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
