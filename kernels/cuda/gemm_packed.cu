// y = x w^T for few rows of x and packed weights: as gemm_rows.cu, with the bits that it gives of
// the weights in bf16, but a tile of weights is 576 to 1152 bytes where it would be 2048.
//
// Work: as gemm_rows.cu; a lane's digits of a tile lie in 16 bytes (two of them at 8 bits) in the
// order of its fragments, so they need no ldmatrix. Bytes: of w 4.5 to 9 bits a weight once from
// memory; the rest as there. Flops: 2 m n k. Instructions: a shift, a mask, an fma and half of a
// rounding a weight, one more with a minimum, and with what a stage needs besides 5.9 (kQ4_0) to
// 7.3 (kQ4_K, kQ6_K), counted in the machine code. Limit: memory at 8 bits; at 4 bits instructions,
// of which H100's memory leaves 5.6 for a weight of 4.5 bits and H200's 3.9: by that count it would
// be read at 94 and 66 % of what the memory gives. Reached: not yet measured on a GPU.
//
// Stages are small, so there are eight: two ctas an SM then have 32 KiB of weights under way.
#include <string>

#include "kernels/cuda/gemm_spread.h"
#include "kernels/cuda/packed_tile.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kPackedStages = 8;

// [stage] of both operands.
template <PackedFormat kFormat, uint32_t kGroup>
struct PackedShared {
  GemmRow x[kPackedStages][kGroup];
  PackedTile<kFormat> w[kPackedStages][kGemmRowTile / kPackedRows];  // a tile a warp
  uint32_t is_last;  // whether this cta arrived last
};

// A launch: the product, whose w is not used, and the tiles.
struct PackedLaunch {
  GemmLaunch product;
  const std::byte* w;
};

// The stages of K of this cta's rows. What a thread copies lies at the same distance in every
// stage, so places are found once: 32 instructions a stage are one a weight.
template <PackedFormat kFormat, uint32_t kGroup>
class PackedStages {
 public:
  static constexpr uint32_t kCount = kPackedStages;

  BATON_DEVICE PackedStages(const PackedLaunch& launch, PackedShared<kFormat, kGroup>& memory)
      : memory_(memory) {
    const GemmParams& params = launch.product.params;
    const uint32_t rows = simt::block().x * (kGemmRowTile / kPackedRows) + simt::warp();
    // Zeros below the last rows.
    const bool has_rows = simt::guard(rows * kPackedRows < params.n);
    w_bytes_ = has_rows ? 16 : 0;
    w_ = reinterpret_cast<const simt::Vec16*>(launch.w) +
         (has_rows ? size_t{rows} * PackedTilesOfRow(params.k) * kTileVecs : 0) + simt::lane();
    BATON_UNROLL
    for (uint32_t i = 0; i < kXCopies; ++i) {
      const uint32_t at = i * kRowsThreads + simt::thread();
      const uint32_t row = simt::block().z * kGroup + at / kGemmChunks;
      const uint32_t column = at % kGemmChunks * kVec;
      const bool is_row = simt::guard(row < params.m && column < params.k);
      x_[i] = params.x + (is_row ? size_t{row} * params.k + column : 0);
      x_ends_[i] = is_row ? params.k - column : 0;
    }
  }

  BATON_DEVICE void Copy(uint32_t stage) const {
    const uint32_t slot = stage % kCount;
    auto* const tile = reinterpret_cast<simt::Vec16*>(&memory_.w[slot][simt::warp()]);
    const simt::Vec16* const from = w_ + size_t{stage} * kTileVecs;
    BATON_UNROLL
    for (uint32_t i = 0; i < (kTileVecs + simt::kWarpSize - 1) / simt::kWarpSize; ++i) {
      const uint32_t vec = i * simt::kWarpSize + simt::lane();
      if (vec < kTileVecs) simt::cp_async16(tile + vec, from + i * simt::kWarpSize, w_bytes_);
    }
    const uint32_t k_begin = stage * kGemmStageK;
    BATON_UNROLL
    for (uint32_t i = 0; i < kXCopies; ++i) {
      const uint32_t at = i * kRowsThreads + simt::thread();
      if (kGroup * kGemmChunks < kRowsThreads && at >= kGroup * kGemmChunks) break;
      const uint32_t row = at / kGemmChunks;
      const bool inside = simt::guard(k_begin < x_ends_[i]);
      simt::cp_async16(&memory_.x[slot][row][Swizzled(row, at % kGemmChunks)],
                       x_[i] + (inside ? k_begin : 0), inside ? 16 : 0);
    }
  }

  BATON_DEVICE void Multiply(uint32_t stage, RowsSums<kGroup>& sums) const {
    constexpr uint32_t kStepChunks = kGemmStepK / kVec;
    const uint32_t slot = stage % kCount;
    const PackedTile<kFormat>& tile = memory_.w[slot][simt::warp()];
    const LaneDigits<kFormat> digits = DigitsOf(tile, simt::lane());
    BATON_UNROLL
    for (uint32_t step = 0; step < kPackedSteps; step += 2) {
      const simt::FragmentA first = WeightsOf(tile, digits, step);
      const simt::FragmentA second = WeightsOf(tile, digits, step + 1);
      BATON_UNROLL
      for (uint32_t j = 0; j < kGroup / 8; ++j) {
        const simt::Matrices b = LoadTwoSteps(memory_.x[slot], 8 * j, step * kStepChunks);
        simt::mma_bf16_m16n8k16(sums[j], first, simt::FragmentB{{b.regs[0], b.regs[1]}});
        simt::mma_bf16_m16n8k16(sums[j], second, simt::FragmentB{{b.regs[2], b.regs[3]}});
      }
    }
  }

 private:
  static constexpr uint32_t kTileVecs = sizeof(PackedTile<kFormat>) / sizeof(simt::Vec16);
  static_assert(sizeof(PackedTile<kFormat>) == PackedTileBytes(kFormat));
  static constexpr uint32_t kXCopies =
      (kGroup * kGemmChunks + kRowsThreads - 1) / kRowsThreads;  // of a thread

  PackedShared<kFormat, kGroup>& memory_;
  // Of this thread in the first stage: of its warp's tile, and of x.
  const simt::Vec16* w_;
  uint32_t w_bytes_;
  const Bf16* x_[kXCopies];
  uint32_t x_ends_[kXCopies];  // what is left of K behind it; 0 below the last row
};

template <PackedFormat kFormat, uint32_t kGroup>
BATON_DEVICE void MultiplyPacked(const PackedLaunch& launch) {
  auto& memory = simt::shared<PackedShared<kFormat, kGroup>>();
  MultiplyFewRows<kGroup>(launch.product, PackedStages<kFormat, kGroup>(launch, memory),
                          memory.is_last);
}

BATON_KERNEL(kRowsThreads) PackedRows8Q40Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_0, 8>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows8Q41Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_1, 8>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows8Q4KKernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_K, 8>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows8Q80Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ8_0, 8>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows8Q6KKernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ6_K, 8>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows32Q40Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_0, 32>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows32Q41Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_1, 32>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows32Q4KKernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_K, 32>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows32Q80Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ8_0, 32>(launch);
}
BATON_KERNEL(kRowsThreads) PackedRows32Q6KKernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ6_K, 32>(launch);
}

template <PackedFormat kFormat, uint32_t kGroup>
constexpr uint32_t kShared = sizeof(PackedShared<kFormat, kGroup>);

}  // namespace

// In the order of kPackedFormats, and for each 8 rows, then 32.
const KernelInfo kGemmPackedInfos[2 * kNumPackedFormats] = {
    {"PackedRows8Q40Kernel", kRowsThreads, kShared<PackedFormat::kQ4_0, 8>},
    {"PackedRows32Q40Kernel", kRowsThreads, kShared<PackedFormat::kQ4_0, 32>},
    {"PackedRows8Q41Kernel", kRowsThreads, kShared<PackedFormat::kQ4_1, 8>},
    {"PackedRows32Q41Kernel", kRowsThreads, kShared<PackedFormat::kQ4_1, 32>},
    {"PackedRows8Q4KKernel", kRowsThreads, kShared<PackedFormat::kQ4_K, 8>},
    {"PackedRows32Q4KKernel", kRowsThreads, kShared<PackedFormat::kQ4_K, 32>},
    {"PackedRows8Q80Kernel", kRowsThreads, kShared<PackedFormat::kQ8_0, 8>},
    {"PackedRows32Q80Kernel", kRowsThreads, kShared<PackedFormat::kQ8_0, 32>},
    {"PackedRows8Q6KKernel", kRowsThreads, kShared<PackedFormat::kQ6_K, 8>},
    {"PackedRows32Q6KKernel", kRowsThreads, kShared<PackedFormat::kQ6_K, 32>}};

namespace {

void (*const kKernels[2 * kNumPackedFormats])(PackedLaunch) = {
    PackedRows8Q40Kernel, PackedRows32Q40Kernel, PackedRows8Q41Kernel, PackedRows32Q41Kernel,
    PackedRows8Q4KKernel, PackedRows32Q4KKernel, PackedRows8Q80Kernel, PackedRows32Q80Kernel,
    PackedRows8Q6KKernel, PackedRows32Q6KKernel};

}  // namespace

absl::Status GemmPacked(const PackedGemmParams& params, void* stream) {
  const GemmParams& product = params.product;
  if (absl::Status status = CheckGemm("GemmPacked", product); !status.ok()) return status;
  if (absl::Status status = CheckPacked("GemmPacked", params.w, product.k); !status.ok()) {
    return status;
  }
  if (product.m == 0 || product.n == 0) return absl::OkStatus();
  if (absl::Status status = CheckSpread("GemmPacked", product); !status.ok()) return status;
  const bool is_few =
      product.path == GemmPath::kAuto ? product.m <= 8 : product.path == GemmPath::kRows8;
  if (!is_few && product.path != GemmPath::kAuto && product.path != GemmPath::kRows32) {
    return absl::InvalidArgumentError("GemmPacked: tiles take weights in bf16");
  }
  const uint32_t at = 2 * PackedIndex(params.w.format) + (is_few ? 0 : 1);
  const PackedLaunch launch = {{product, GemmSegments(product.n, product.k)}, params.w.data};
  const uint32_t shared_bytes = kGemmPackedInfos[at].shared_bytes;
  return simt::launch(is_few ? RowsConfig<8>("GemmPacked", launch.product, shared_bytes, stream)
                             : RowsConfig<32>("GemmPacked", launch.product, shared_bytes, stream),
                      kKernels[at], launch);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
