// y = x w^T for few rows of x and packed weights: as gemm_rows.cu, with the bits that it gives of
// the weights in bf16, but a tile of weights is 576 to 1152 bytes where it would be 2048.
//
// Work: as gemm_rows.cu; a lane's digits of a tile lie in 16 bytes (two of them at 8 bits) in the
// order of its fragments, so they need no ldmatrix. Bytes: of w 4.5 to 9 bits a weight once from
// memory; the rest as there. Flops: 2 m n k. Instructions: a shift, a mask, an fma and half of a
// rounding a weight; one more with a minimum or for a code. With what a stage needs besides there
// are 5.9 (kQ4_0) to 7.3 (kQ4_K, kQ6_K), counted in the machine code; with more than 32 rows twice.
// Limit: memory at 8 bits. At 4 bits the limit is instructions, by which an H100 would read kQ4_0
// at 94 % of what its memory gives and kQ4_K at 85 [calc]. Reached there up to eight rows: gate_up
// kQ4_0 44 to 50 %, kQ4_K 52, 8 bits 68 to 70; down 41 to 45 and 66 to 67 (kernels/NOTES.md):
// something else binds.
//
// Stages are small, so there are eight: two ctas an SM then have 32 KiB and more under way.
#include "kernels/cuda/gemm_spread.h"
#include "kernels/cuda/packed_stages.h"
#include "kernels/simt/newer_ctas.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kPackedStages = 8;

// A launch: the product, whose w is not used, and the tiles.
struct PackedLaunch {
  GemmLaunch product;
  const std::byte* w;
};

template <PackedFormat kFormat, uint32_t kGroup>
struct PackedRowsShared {
  PackedMemory<kFormat, kGroup, kPackedStages> stages;
  uint32_t is_last;  // whether this cta arrived last
};

template <PackedFormat kFormat, uint32_t kGroup>
BATON_DEVICE void MultiplyPacked(const PackedLaunch& launch) {
  auto& memory = simt::shared<PackedRowsShared<kFormat, kGroup>>();
  const GemmParams& params = launch.product.params;
  const auto row_of = [&params](uint32_t i) {
    const uint32_t row = simt::block().z * kGroup + i;
    return simt::guard(row < params.m) ? params.x + size_t{row} * params.k : nullptr;
  };
  const PackedStages<kFormat, kGroup, kPackedStages> stages({launch.w, params.n, params.k}, row_of,
                                                            memory.stages);
  MultiplyFewRows<kGroup>(launch.product, stages, StoreTail{},
                          {&memory.is_last, &memory.stages.x[0][0][0]});
}

BATON_KERNEL_NEWER(kRowsThreads, 9) PackedRows8Q40Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_0, 8>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 9) PackedRows8Q41Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_1, 8>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 9) PackedRows8Q4KKernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_K, 8>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 9) PackedRows8Q80Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ8_0, 8>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 9) PackedRows8Q6KKernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ6_K, 8>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 9) PackedRows8E4m3Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kE4m3, 8>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 4) PackedRows32Q40Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_0, 32>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 4) PackedRows32Q41Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_1, 32>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 4) PackedRows32Q4KKernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ4_K, 32>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 4) PackedRows32Q80Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ8_0, 32>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 4) PackedRows32Q6KKernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kQ6_K, 32>(launch);
}
BATON_KERNEL_NEWER(kRowsThreads, 4) PackedRows32E4m3Kernel(PackedLaunch launch) {
  MultiplyPacked<PackedFormat::kE4m3, 32>(launch);
}

template <PackedFormat kFormat, uint32_t kGroup>
constexpr uint32_t kShared = sizeof(PackedRowsShared<kFormat, kGroup>);

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
    {"PackedRows32Q6KKernel", kRowsThreads, kShared<PackedFormat::kQ6_K, 32>},
    {"PackedRows8E4m3Kernel", kRowsThreads, kShared<PackedFormat::kE4m3, 8>},
    {"PackedRows32E4m3Kernel", kRowsThreads, kShared<PackedFormat::kE4m3, 32>}};

namespace {

void (*const kKernels[2 * kNumPackedFormats])(PackedLaunch) = {
    PackedRows8Q40Kernel, PackedRows32Q40Kernel, PackedRows8Q41Kernel,  PackedRows32Q41Kernel,
    PackedRows8Q4KKernel, PackedRows32Q4KKernel, PackedRows8Q80Kernel,  PackedRows32Q80Kernel,
    PackedRows8Q6KKernel, PackedRows32Q6KKernel, PackedRows8E4m3Kernel, PackedRows32E4m3Kernel};

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
}  // namespace baton::kernels::cuda
