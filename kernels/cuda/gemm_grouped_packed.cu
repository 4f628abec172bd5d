// y = x w^T of each expert for its own rows, of packed weights: as gemm_grouped.cu, with its bits.
//
// Work: a cta takes one tile of at most 8 or 64 slots and 64 rows of its expert's w, a tile of
// packed weights a warp. The weights that digits become are used for all rows of x, so prompts need
// no expert in bf16. Bytes: of w 4.5 to 9 bits a weight for each expert with a slot; the rest as
// there. Flops: 2 n k a slot. Limit: memory or instructions with 8 slots, as gemm_packed.cu; with
// 64 the tensor cores and the 6 to 7 instructions a weight, which 64 rows of x share. Reached: not
// timed.
#include "kernels/cuda/packed_stages.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

// By the rows of x of a tile: 26 to 44 KiB, or 41 to 50 KiB.
template <uint32_t kGroup>
constexpr uint32_t kExpertStages = kGroup == kExpertFewRows ? 8 : 4;

template <PackedFormat kFormat, uint32_t kGroup>
using ExpertMemory = PackedMemory<kFormat, kGroup, kExpertStages<kGroup>>;

// A launch: the call, whose product's w is not used, and how K is cut.
struct GroupedPackedLaunch {
  GroupedPackedParams params;
  GemmSplit split;
};

template <PackedFormat kFormat, uint32_t kGroup>
BATON_DEVICE void MultiplyExpert(const GroupedPackedLaunch& launch) {
  const GroupedGemmParams& params = launch.params.product;
  simt::wait_for_previous();
  if (!simt::guard(simt::block().y < *params.num_tiles)) return;
  const ExpertTile tile = params.tiles[simt::block().y];
  const auto row_of = [&](uint32_t i) -> const Bf16* {
    if (!simt::guard(i < tile.num_slots)) return nullptr;
    const uint32_t slot = tile.first_slot + i;
    const uint32_t row = params.slot_rows == nullptr ? slot : params.slot_rows[slot];
    return params.x + size_t{row} * params.k;
  };
  const PackedOperand w = {
      launch.params.w.data + tile.expert * PackedBytes(kFormat, params.n, params.k), params.n,
      params.k};
  const PackedStages<kFormat, kGroup, kExpertStages<kGroup>> stages(
      w, row_of, simt::shared<ExpertMemory<kFormat, kGroup>>());
  RowsSums<kGroup> totals;
  AddSegments(launch.split, params.k, stages, totals);
  GemmParams outputs = {};
  outputs.y_bf16 = params.y + size_t{tile.first_slot} * params.n;
  outputs.m = tile.num_slots;
  outputs.n = params.n;
  RowsShape<kGroup>::Store(outputs, {0, simt::block().x * kGemmRowTile}, totals);
}

BATON_KERNEL(kRowsThreads) GroupedPacked8Q40Kernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ4_0, 8>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked8Q41Kernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ4_1, 8>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked8Q4KKernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ4_K, 8>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked8Q80Kernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ8_0, 8>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked8Q6KKernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ6_K, 8>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked8E4m3Kernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kE4m3, 8>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked64Q40Kernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ4_0, 64>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked64Q41Kernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ4_1, 64>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked64Q4KKernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ4_K, 64>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked64Q80Kernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ8_0, 64>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked64Q6KKernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kQ6_K, 64>(launch);
}
BATON_KERNEL(kRowsThreads) GroupedPacked64E4m3Kernel(GroupedPackedLaunch launch) {
  MultiplyExpert<PackedFormat::kE4m3, 64>(launch);
}
}  // namespace

// In the order of kPackedFormats, and for each 8 rows, then 64.
const KernelInfo kGroupedPackedInfos[2 * kNumPackedFormats] = {
    {"GroupedPacked8Q40Kernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ4_0, 8>)},
    {"GroupedPacked64Q40Kernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ4_0, 64>)},
    {"GroupedPacked8Q41Kernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ4_1, 8>)},
    {"GroupedPacked64Q41Kernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ4_1, 64>)},
    {"GroupedPacked8Q4KKernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ4_K, 8>)},
    {"GroupedPacked64Q4KKernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ4_K, 64>)},
    {"GroupedPacked8Q80Kernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ8_0, 8>)},
    {"GroupedPacked64Q80Kernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ8_0, 64>)},
    {"GroupedPacked8Q6KKernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ6_K, 8>)},
    {"GroupedPacked64Q6KKernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kQ6_K, 64>)},
    {"GroupedPacked8E4m3Kernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kE4m3, 8>)},
    {"GroupedPacked64E4m3Kernel", kRowsThreads, sizeof(ExpertMemory<PackedFormat::kE4m3, 64>)},
};

namespace {

void (*const kKernels[2 * kNumPackedFormats])(GroupedPackedLaunch) = {
    GroupedPacked8Q40Kernel,  GroupedPacked64Q40Kernel, GroupedPacked8Q41Kernel,
    GroupedPacked64Q41Kernel, GroupedPacked8Q4KKernel,  GroupedPacked64Q4KKernel,
    GroupedPacked8Q80Kernel,  GroupedPacked64Q80Kernel, GroupedPacked8Q6KKernel,
    GroupedPacked64Q6KKernel, GroupedPacked8E4m3Kernel, GroupedPacked64E4m3Kernel,
};

}  // namespace

absl::Status GroupedPacked(const GroupedPackedParams& params, void* stream) {
  const GroupedGemmParams& product = params.product;
  if (absl::Status status = CheckGrouped("GroupedPacked", product); !status.ok()) return status;
  if (absl::Status status = CheckPacked("GroupedPacked", params.w, product.k); !status.ok()) {
    return status;
  }
  if (product.max_tiles == 0 || product.n == 0) return absl::OkStatus();
  const uint32_t at =
      2 * PackedIndex(params.w.format) + (product.tile_rows == kExpertFewRows ? 0 : 1);
  return simt::launch({.name = "GroupedPacked",
                       .grid = {(product.n - 1) / kGemmRowTile + 1, product.max_tiles, 1},
                       .num_threads = kRowsThreads,
                       .shared_bytes = kGroupedPackedInfos[at].shared_bytes,
                       .overlaps = true,
                       .stream = stream},
                      kKernels[at],
                      GroupedPackedLaunch{params, GemmSegments(product.n, product.k)});
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
