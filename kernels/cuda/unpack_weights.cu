// Packed weights in bf16: a whole matrix, for products of many rows, and rows of the embedding
// table by token id.
//
// Work: Unpack gives a warp a tile: its fragments go through shared memory, so that rows of 128
// bytes leave it. EmbedPacked gives a cta a row, and four threads the sixteen of each tile that
// belong to it. Bytes: 0.56 to 1.13 in and 2 out a weight; a row is read with the 15 beside it.
// Flops: 2 a weight. Limit: memory (an 8B model at 4.5 bits: 18 GB, 4.2 ms on H200, for all its
// layers). Reached: Unpack kernels/NOTES.md; EmbedPacked not timed.
#include "kernels/cuda/packed_tile.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kUnpackThreads = 128;
constexpr uint32_t kUnpackTiles = kUnpackThreads / simt::kWarpSize;  // of a cta
constexpr uint32_t kWordsOfChunk = sizeof(Vec16) / sizeof(uint32_t);

// The tiles of a cta in bf16: [warp][row][chunk], swizzled.
struct UnpackShared {
  GemmRow rows[kUnpackTiles][kPackedRows];
};

template <PackedFormat kFormat>
BATON_DEVICE void UnpackTile(const UnpackParams& params) {
  const uint32_t tiles_of_row = PackedTilesOfRow(params.k);
  const uint32_t at = simt::block().x * kUnpackTiles + simt::warp();
  const uint32_t first_row = at / tiles_of_row * kPackedRows;
  if (!simt::guard(first_row < params.n)) return;
  const uint32_t first_k = at % tiles_of_row * kPackedK;
  const auto& tile = reinterpret_cast<const PackedTile<kFormat>*>(params.w.data)[at];
  GemmRow* const rows = simt::shared<UnpackShared>().rows[simt::warp()];
  const LaneDigits<kFormat> digits = DigitsOf(tile, simt::lane());
  const uint32_t row = simt::lane() / 4;
  BATON_UNROLL
  for (uint32_t step = 0; step < kPackedSteps; ++step) {
    const simt::FragmentA weights = WeightsOf(tile, digits, step);
    BATON_UNROLL
    for (uint32_t pair = 0; pair < 4; ++pair) {
      const uint32_t r = row + pair % 2 * 8;
      const uint32_t chunk = Swizzled(r, 2 * step + pair / 2);
      rows[r][chunk].words[simt::lane() % kWordsOfChunk] = weights.regs[pair];
    }
  }
  simt::sync_warp();
  BATON_UNROLL
  for (uint32_t i = 0; i < kPackedRows * kGemmChunks / simt::kWarpSize; ++i) {
    const uint32_t vec = i * simt::kWarpSize + simt::lane();
    const uint32_t r = vec / kGemmChunks;
    const uint32_t chunk = vec % kGemmChunks;
    const uint32_t column = first_k + chunk * kVec;
    if (!simt::guard(first_row + r < params.n && column < params.k)) continue;
    Bf16* const to = params.out + size_t{first_row + r} * params.k + column;
    *reinterpret_cast<Vec16*>(to) = rows[r][Swizzled(r, chunk)];
  }
}

BATON_KERNEL(kUnpackThreads) UnpackQ40Kernel(UnpackParams params) {
  UnpackTile<PackedFormat::kQ4_0>(params);
}
BATON_KERNEL(kUnpackThreads) UnpackQ41Kernel(UnpackParams params) {
  UnpackTile<PackedFormat::kQ4_1>(params);
}
BATON_KERNEL(kUnpackThreads) UnpackQ4KKernel(UnpackParams params) {
  UnpackTile<PackedFormat::kQ4_K>(params);
}
BATON_KERNEL(kUnpackThreads) UnpackQ80Kernel(UnpackParams params) {
  UnpackTile<PackedFormat::kQ8_0>(params);
}
BATON_KERNEL(kUnpackThreads) UnpackQ6KKernel(UnpackParams params) {
  UnpackTile<PackedFormat::kQ6_K>(params);
}
BATON_KERNEL(kUnpackThreads) UnpackE4m3Kernel(UnpackParams params) {
  UnpackTile<PackedFormat::kE4m3>(params);
}

// The pair of bf16 times scale.
BATON_DEVICE uint32_t Scaled(uint32_t pair, float scale) {
  return Pair(simt::from_bf16({static_cast<uint16_t>(pair)}) * scale,
              simt::from_bf16({static_cast<uint16_t>(pair >> 16)}) * scale);
}

template <PackedFormat kFormat>
BATON_DEVICE void EmbedRow(const EmbedPackedParams& params) {
  simt::wait_for_previous();
  constexpr uint32_t kThreadsOfTile = 4;
  const uint32_t id = IdOf(params.ids, params.fed, simt::block().x);
  const bool is_known = simt::guard(id < params.num_ids);
  const uint32_t row = id % kPackedRows;
  const uint32_t tiles_of_row = PackedTilesOfRow(params.dim);
  const auto* const tiles = reinterpret_cast<const PackedTile<kFormat>*>(params.table.data) +
                            (is_known ? size_t{id / kPackedRows} * tiles_of_row : 0);
  auto* const to = reinterpret_cast<uint32_t*>(params.out + size_t{simt::block().x} * params.dim);
  for (uint32_t at = simt::thread(); at < tiles_of_row * kThreadsOfTile; at += kUnpackThreads) {
    const PackedTile<kFormat>& tile = tiles[at / kThreadsOfTile];
    const uint32_t t = at % kThreadsOfTile;
    const LaneDigits<kFormat> digits = DigitsOf(tile, row % 8 * 4 + t);
    BATON_UNROLL
    for (uint32_t chunk = 0; chunk < kGemmChunks; ++chunk) {
      const uint32_t column = at / kThreadsOfTile * kPackedK + chunk * kVec + 2 * t;
      if (!simt::guard(column < params.dim)) continue;
      const StepScale scale = ScaleOf(tile, row, chunk / 2);
      const uint32_t lower = WeightPair(digits, chunk / 2, chunk % 2 * 2, scale);
      const uint32_t upper = WeightPair(digits, chunk / 2, chunk % 2 * 2 + 1, scale);
      const uint32_t pair = row < 8 ? lower : upper;
      to[column / 2] = is_known ? Scaled(pair, params.scale) : 0;
    }
  }
}

BATON_KERNEL(kUnpackThreads) EmbedQ40Kernel(EmbedPackedParams params) {
  EmbedRow<PackedFormat::kQ4_0>(params);
}
BATON_KERNEL(kUnpackThreads) EmbedQ41Kernel(EmbedPackedParams params) {
  EmbedRow<PackedFormat::kQ4_1>(params);
}
BATON_KERNEL(kUnpackThreads) EmbedQ4KKernel(EmbedPackedParams params) {
  EmbedRow<PackedFormat::kQ4_K>(params);
}
BATON_KERNEL(kUnpackThreads) EmbedQ80Kernel(EmbedPackedParams params) {
  EmbedRow<PackedFormat::kQ8_0>(params);
}
BATON_KERNEL(kUnpackThreads) EmbedQ6KKernel(EmbedPackedParams params) {
  EmbedRow<PackedFormat::kQ6_K>(params);
}
BATON_KERNEL(kUnpackThreads) EmbedE4m3Kernel(EmbedPackedParams params) {
  EmbedRow<PackedFormat::kE4m3>(params);
}

// In the order of kPackedFormats.
void (*const kUnpackKernels[kNumPackedFormats])(UnpackParams) = {UnpackQ40Kernel, UnpackQ41Kernel,
                                                                 UnpackQ4KKernel, UnpackQ80Kernel,
                                                                 UnpackQ6KKernel, UnpackE4m3Kernel};
void (*const kEmbedKernels[kNumPackedFormats])(EmbedPackedParams) = {
    EmbedQ40Kernel, EmbedQ41Kernel, EmbedQ4KKernel,
    EmbedQ80Kernel, EmbedQ6KKernel, EmbedE4m3Kernel};

}  // namespace

const KernelInfo kUnpackInfos[kNumPackedFormats] = {
    {"UnpackQ40Kernel", kUnpackThreads, sizeof(UnpackShared)},
    {"UnpackQ41Kernel", kUnpackThreads, sizeof(UnpackShared)},
    {"UnpackQ4KKernel", kUnpackThreads, sizeof(UnpackShared)},
    {"UnpackQ80Kernel", kUnpackThreads, sizeof(UnpackShared)},
    {"UnpackQ6KKernel", kUnpackThreads, sizeof(UnpackShared)},
    {"UnpackE4m3Kernel", kUnpackThreads, sizeof(UnpackShared)}};
const KernelInfo kEmbedPackedInfos[kNumPackedFormats] = {
    {"EmbedQ40Kernel", kUnpackThreads, 0}, {"EmbedQ41Kernel", kUnpackThreads, 0},
    {"EmbedQ4KKernel", kUnpackThreads, 0}, {"EmbedQ80Kernel", kUnpackThreads, 0},
    {"EmbedQ6KKernel", kUnpackThreads, 0}, {"EmbedE4m3Kernel", kUnpackThreads, 0}};

absl::Status Unpack(const UnpackParams& params, void* stream) {
  if (absl::Status status = CheckPacked("Unpack", params.w, params.k); !status.ok()) return status;
  if (params.n == 0) return absl::OkStatus();
  const size_t num_tiles = size_t{(params.n - 1) / kPackedRows + 1} * PackedTilesOfRow(params.k);
  const size_t num_ctas = (num_tiles - 1) / kUnpackTiles + 1;
  if (num_ctas > kMaxGridX) return absl::InvalidArgumentError("Unpack: too many weights");
  return simt::launch({.name = "Unpack",
                       .grid = {static_cast<uint32_t>(num_ctas), 1, 1},
                       .num_threads = kUnpackThreads,
                       .shared_bytes = sizeof(UnpackShared),
                       .stream = stream},
                      kUnpackKernels[PackedIndex(params.w.format)], params);
}

absl::Status EmbedPacked(const EmbedPackedParams& params, void* stream) {
  if (absl::Status status = CheckPacked("EmbedPacked", params.table, params.dim); !status.ok()) {
    return status;
  }
  if (params.num_rows == 0) return absl::OkStatus();
  return simt::launch({.name = "EmbedPacked",
                       .grid = {params.num_rows, 1, 1},
                       .num_threads = kUnpackThreads,
                       .overlaps = true,
                       .stream = stream},
                      kEmbedKernels[PackedIndex(params.table.format)], params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
