// y = x w^T of each expert for its own rows: tiles of slots that were made on the device.
//
// Work: a cta takes one tile of at most 8 or 64 slots and 64 rows of its expert's w. It walks the
// segments of K in order, so the bits are those of GemmBf16 (gemm_segments.h). Rows of w are the
// fast index of the grid: the ctas that run together share the rows of a few tiles, and an expert's
// next tile finds its weights in L2. Ctas after the last tile end at once; there are at most as
// many as experts without rows. Bytes: 2 n k for each expert with a slot, 2 k a slot through L2 for
// each 64 rows of w, 2 n a slot out. Flops: 2 n k a slot. Limit: memory with few slots an expert:
// one row on 8 experts of n = 1536 makes 192 ctas with 24 KiB under way each. From about 200 slots
// an expert on the limit is the tensor cores. Reached: kernels/NOTES.md.
#include <string>

#include "kernels/cuda/gemm_shapes.h"
#include "kernels/cuda/gemm_tile.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using FewRows = RowsShape<kExpertFewRows>;
using ManyRows = Tile64;
static_assert(ManyRows::kRowsX == kExpertManyRows && ManyRows::kRowsW == FewRows::kRowsW);
static_assert(ManyRows::kThreads == FewRows::kThreads);
constexpr uint32_t kGroupedThreads = FewRows::kThreads;
constexpr uint32_t kGroupedRowsW = FewRows::kRowsW;

// A launch: the call, and how K is cut.
struct GroupedLaunch {
  GroupedGemmParams params;
  GemmSplit split;
};

// The stages of K of a tile.
template <typename Shape>
struct GroupedStages {
  static constexpr uint32_t kCount = kGemmStages;
  static constexpr uint32_t kRowsOfThread =
      (Shape::kRowsX * kGemmChunks + kGroupedThreads - 1) / kGroupedThreads;

  const GroupedGemmParams& params;
  const ExpertTile& tile;
  GemmStages<Shape>& memory;
  uint32_t rows[kRowsOfThread];  // of x, of this thread's copies

  // Finds the rows.
  BATON_DEVICE GroupedStages(const GroupedGemmParams& of, const ExpertTile& at,
                             GemmStages<Shape>& to)
      : params(of), tile(at), memory(to) {
    BATON_UNROLL
    for (uint32_t i = 0; i < kRowsOfThread; ++i) {
      const uint32_t row = (i * kGroupedThreads + simt::thread()) / kGemmChunks;
      const uint32_t slot = tile.first_slot + (simt::guard(row < tile.num_slots) ? row : 0);
      rows[i] = params.slot_rows == nullptr ? slot : params.slot_rows[slot];
    }
  }

  BATON_DEVICE void Copy(uint32_t stage) const {
    const uint32_t k_begin = stage * kGemmStageK;
    const uint32_t slot = stage % kCount;
    CopySlots(k_begin, memory.x[slot]);
    CopyRows<kGroupedRowsW, kGroupedThreads>({params.w + size_t{tile.expert} * params.n * params.k,
                                              params.n, simt::block().x * kGroupedRowsW, params.k},
                                             k_begin, memory.w[slot]);
  }
  BATON_DEVICE void Multiply(uint32_t stage, typename Shape::Sums& sums) const {
    Shape::Multiply(memory, stage % kCount, sums);
  }

 private:
  // As CopyRows, of the tile's slots.
  BATON_DEVICE void CopySlots(uint32_t k_begin, GemmRow* to) const {
    BATON_UNROLL
    for (uint32_t i = 0; i < kRowsOfThread; ++i) {
      const uint32_t at = i * kGroupedThreads + simt::thread();
      const uint32_t row = at / kGemmChunks;
      if (row >= Shape::kRowsX) break;
      const uint32_t chunk = at % kGemmChunks;
      const uint32_t column = k_begin + chunk * kVec;
      const bool inside = simt::guard(row < tile.num_slots && column < params.k);
      const Bf16* from = params.x + (inside ? size_t{rows[i]} * params.k + column : 0);
      simt::cp_async16(&to[row][Swizzled(row, chunk)], from, inside ? 16 : 0);
    }
  }
};

template <typename Shape>
BATON_DEVICE void MultiplyExpert(const GroupedLaunch& launch) {
  const GroupedGemmParams& params = launch.params;
  simt::wait_for_previous();
  if (!simt::guard(simt::block().y < *params.num_tiles)) return;
  const ExpertTile tile = params.tiles[simt::block().y];
  auto& memory = simt::shared<GemmStages<Shape>>();
  typename Shape::Sums totals;
  AddSegments(launch.split, params.k, GroupedStages<Shape>(params, tile, memory), totals);
  GemmParams outputs = {};
  outputs.y_bf16 = params.y + size_t{tile.first_slot} * params.n;
  outputs.m = tile.num_slots;
  outputs.n = params.n;
  Shape::Store(outputs, {0, simt::block().x * kGroupedRowsW}, totals);
}

BATON_KERNEL(kGroupedThreads) GroupedGemm8Kernel(GroupedLaunch launch) {
  MultiplyExpert<FewRows>(launch);
}
BATON_KERNEL(kGroupedThreads) GroupedGemm64Kernel(GroupedLaunch launch) {
  MultiplyExpert<ManyRows>(launch);
}

}  // namespace

const KernelInfo kGroupedGemm8Info = {"GroupedGemm8Kernel", kGroupedThreads,
                                      sizeof(GemmStages<FewRows>)};
const KernelInfo kGroupedGemm64Info = {"GroupedGemm64Kernel", kGroupedThreads,
                                       sizeof(GemmStages<ManyRows>)};

absl::Status CheckGrouped(const char* kernel, const GroupedGemmParams& params) {
  constexpr uint32_t kMaxK = 1u << 20;
  constexpr uint32_t kMaxGridY = 65535;
  if (absl::Status status = CheckDim(kernel, params.k, kMaxK); !status.ok()) return status;
  const bool is_tile = params.tile_rows == kExpertFewRows || params.tile_rows == kExpertManyRows;
  if (is_tile && params.max_tiles <= kMaxGridY) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(kernel) + ": " + std::to_string(params.max_tiles) +
                                    " tiles of " + std::to_string(params.tile_rows) +
                                    " rows; it takes up to 65535 of 8 or 64");
}

absl::Status GroupedGemm(const GroupedGemmParams& params, void* stream) {
  if (absl::Status status = CheckGrouped("GroupedGemm", params); !status.ok()) return status;
  if (params.max_tiles == 0 || params.n == 0) return absl::OkStatus();
  const bool is_few = params.tile_rows == kExpertFewRows;
  const KernelInfo& info = is_few ? kGroupedGemm8Info : kGroupedGemm64Info;
  return simt::launch({.name = "GroupedGemm",
                       .grid = {(params.n - 1) / kGroupedRowsW + 1, params.max_tiles, 1},
                       .num_threads = kGroupedThreads,
                       .shared_bytes = info.shared_bytes,
                       .overlaps = true,
                       .stream = stream},
                      is_few ? GroupedGemm8Kernel : GroupedGemm64Kernel,
                      GroupedLaunch{params, GemmSegments(params.n, params.k)});
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
