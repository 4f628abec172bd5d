// y = x w^T: bf16 operands, fp32 sums on the tensor cores (mma.sync), three stages of cp.async.
//
// Work: a cta makes 64 x 64 outputs with four warps of 32 x 32 (2 x 4 products of 16 x 8), 32 of K
// at a time. Bytes: 2 (m k ceil(n / 64) + n k ceil(m / 64)) through L2, 4 m n out; from memory
// 2 (m + n) k + 4 m n. Flops: 2 m n k. Limit: memory below about m = 256, then the tensor cores.
// Reached: not yet measured on a GPU; expected to be far from cuBLASLt, since the tile is small.
// This is the plain body that proves the path; the segments of K that `--deterministic` needs for
// few rows come with the engine's GEMM.
//
// Shared memory: a stage holds 64 rows x 32 of K of x and of w. A row is 64 bytes, four chunks of
// 16; chunk c of row r lies at c ^ (r / 2 % 4), so the eight rows of an ldmatrix touch 32 different
// banks: rows r and r + 2 share banks otherwise.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

using simt::FragmentA;
using simt::FragmentB;
using simt::FragmentC;
using simt::Matrices;
using simt::Vec16;

constexpr uint32_t kTile = 64;   // rows of x, and of w, a cta
constexpr uint32_t kTileK = 32;  // of K a stage
constexpr uint32_t kStages = 3;
constexpr uint32_t kGemmThreads = 128;
constexpr uint32_t kWarpTile = 32;  // outputs a warp, each way
constexpr uint32_t kStepK = 16;     // of K an mma
constexpr uint32_t kChunks = kTileK / kVec;
static_assert(kGemmThreads / simt::kWarpSize == (kTile / kWarpTile) * (kTile / kWarpTile));
static_assert(kTile * kChunks % kGemmThreads == 0, "every thread copies as much");

// [stage][row][chunk]
struct GemmShared {
  Vec16 x[kStages][kTile][kChunks];
  Vec16 w[kStages][kTile][kChunks];
};
static_assert(sizeof(GemmShared) == 24 * 1024);

// One operand's part in a stage: `rows` rows of k elements, from `first_row` on.
struct Operand {
  const Bf16* data;
  uint32_t rows;
  uint32_t first_row;
};

BATON_DEVICE uint32_t Swizzled(uint32_t row, uint32_t chunk) { return chunk ^ (row / 2 % kChunks); }

// Rows and columns beyond the operand become zero.
BATON_DEVICE void CopyOperand(const Operand& from, uint32_t k, uint32_t k_begin,
                              Vec16 (*to)[kChunks]) {
  BATON_UNROLL
  for (uint32_t i = 0; i < kTile * kChunks / kGemmThreads; ++i) {
    const uint32_t at = i * kGemmThreads + simt::thread();
    const uint32_t row = at / kChunks;
    const uint32_t chunk = at % kChunks;
    const uint32_t column = k_begin + chunk * kVec;
    const bool inside = simt::guard(from.first_row + row < from.rows && column < k);
    const Bf16* source = inside ? from.data + size_t{from.first_row + row} * k + column : from.data;
    simt::cp_async16(&to[row][Swizzled(row, chunk)], source, inside ? 16 : 0);
  }
}

// Copies part `tile` of K into its stage, if there is one; always ends a group.
BATON_DEVICE void CopyStage(const GemmParams& params, GemmShared& memory, uint32_t tile) {
  if (simt::guard(tile * kTileK < params.k)) {
    const uint32_t stage = tile % kStages;
    CopyOperand({params.x, params.m, simt::block().y * kTile}, params.k, tile * kTileK,
                memory.x[stage]);
    CopyOperand({params.w, params.n, simt::block().x * kTile}, params.k, tile * kTileK,
                memory.w[stage]);
  }
  simt::cp_async_commit();
}

// Lane l names row l % 16 and half l / 16 of K: the four matrices of an A fragment.
BATON_DEVICE FragmentA LoadA(const Vec16 (*x)[kChunks], uint32_t row, uint32_t chunk) {
  const uint32_t r = row + simt::lane() % 16;
  const Matrices m = simt::ldmatrix_x4(&x[r][Swizzled(r, chunk + simt::lane() / 16)]);
  return {{m.regs[0], m.regs[1], m.regs[2], m.regs[3]}};
}

// Two B fragments of eight columns each: matrices (n, k), (n, k + 8), (n + 8, k), (n + 8, k + 8).
BATON_DEVICE Matrices LoadTwoB(const Vec16 (*w)[kChunks], uint32_t row, uint32_t chunk) {
  const uint32_t r = row + simt::lane() % 8 + simt::lane() / 16 * 8;
  return simt::ldmatrix_x4(&w[r][Swizzled(r, chunk + simt::lane() / 8 % 2)]);
}

// [16 rows][8 columns] of a warp's products.
using Sums = FragmentC[kWarpTile / 16][kWarpTile / 8];

BATON_DEVICE void MultiplyStage(const GemmShared& memory, uint32_t stage, Sums& sums) {
  const uint32_t row = simt::warp() / 2 * kWarpTile;
  const uint32_t column = simt::warp() % 2 * kWarpTile;
  BATON_UNROLL
  for (uint32_t step = 0; step < kTileK / kStepK; ++step) {
    FragmentA a[kWarpTile / 16];
    BATON_UNROLL
    for (uint32_t i = 0; i < kWarpTile / 16; ++i) {
      a[i] = LoadA(memory.x[stage], row + 16 * i, 2 * step);
    }
    BATON_UNROLL
    for (uint32_t j = 0; j < kWarpTile / 16; ++j) {
      const Matrices b = LoadTwoB(memory.w[stage], column + 16 * j, 2 * step);
      BATON_UNROLL
      for (uint32_t i = 0; i < kWarpTile / 16; ++i) {
        simt::mma_bf16_m16n8k16(sums[i][2 * j], a[i], FragmentB{{b.regs[0], b.regs[1]}});
        simt::mma_bf16_m16n8k16(sums[i][2 * j + 1], a[i], FragmentB{{b.regs[2], b.regs[3]}});
      }
    }
  }
}

BATON_DEVICE void StoreSums(const GemmParams& params, const Sums& sums) {
  const uint32_t lane = simt::lane();
  const uint32_t row = simt::block().y * kTile + simt::warp() / 2 * kWarpTile + lane / 4;
  const uint32_t column = simt::block().x * kTile + simt::warp() % 2 * kWarpTile + lane % 4 * 2;
  BATON_UNROLL
  for (uint32_t i = 0; i < kWarpTile / 16; ++i) {
    BATON_UNROLL
    for (uint32_t j = 0; j < kWarpTile / 8; ++j) {
      BATON_UNROLL
      for (uint32_t v = 0; v < 4; ++v) {
        const uint32_t r = row + 16 * i + v / 2 * 8;
        const uint32_t c = column + 8 * j + v % 2;
        if (simt::guard(r < params.m && c < params.n)) {
          params.y[size_t{r} * params.n + c] = sums[i][j].values[v];
        }
      }
    }
  }
}

BATON_KERNEL(kGemmThreads) GemmBf16Kernel(GemmParams params) {
  auto& memory = simt::shared<GemmShared>();
  Sums sums;
  BATON_UNROLL
  for (auto& row : sums) {
    BATON_UNROLL
    for (FragmentC& c : row) c = {{0.0f, 0.0f, 0.0f, 0.0f}};
  }
  const uint32_t num_tiles = (params.k + kTileK - 1) / kTileK;
  BATON_UNROLL
  for (uint32_t tile = 0; tile < kStages - 1; ++tile) CopyStage(params, memory, tile);
  for (uint32_t tile = 0; tile < num_tiles; ++tile) {
    // The own copies of this tile have landed; behind the barrier everyone's have, and everyone has
    // read the tile before, whose stage is filled next.
    simt::cp_async_wait<kStages - 2>();
    simt::sync_block();
    CopyStage(params, memory, tile + kStages - 1);
    MultiplyStage(memory, tile % kStages, sums);
  }
  StoreSums(params, sums);
}

}  // namespace

const KernelInfo kGemmBf16Info = {"GemmBf16Kernel", kGemmThreads, sizeof(GemmShared)};

absl::Status GemmBf16(const GemmParams& params, void* stream) {
  constexpr uint32_t kMaxK = 1u << 20;
  constexpr uint32_t kMaxGridY = 65535;
  if (absl::Status status = CheckDim("GemmBf16", params.k, kMaxK); !status.ok()) return status;
  if (params.m == 0 || params.n == 0) return absl::OkStatus();
  const uint32_t row_tiles = (params.m + kTile - 1) / kTile;
  if (row_tiles > kMaxGridY) return absl::InvalidArgumentError("GemmBf16: too many rows");
  return simt::launch({.name = "GemmBf16",
                       .grid = {(params.n + kTile - 1) / kTile, row_tiles, 1},
                       .num_threads = kGemmThreads,
                       .shared_bytes = sizeof(GemmShared),
                       .stream = stream},
                      GemmBf16Kernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
