// The CUDA kernels that a device offers, as a table of host functions; one table for each body of
// the same sources (kernels/simt): `gpu::Kernels()` in a build with CUDA, `runner::Kernels()` for
// tests on this processor.
//
// Each function checks its shapes, puts one kernel into the stream and returns: OK, InvalidArgument
// naming the shape that no kernel takes, or Internal when the launch is refused. Pointers are to
// device memory, aligned to 16 bytes, and overlap only where said. Rows of size zero do nothing.
// A row's bits depend on that row's inputs and on the weights only. Any thread.
#ifndef BATON_KERNELS_CUDA_KERNEL_TABLE_H_
#define BATON_KERNELS_CUDA_KERNEL_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/conv_params.h"
#include "kernels/cuda/delta_params.h"
#include "kernels/cuda/exchange_params.h"
#include "kernels/cuda/experts_params.h"
#include "kernels/cuda/gate_params.h"
#include "kernels/cuda/gemm_params.h"
#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/sample_params.h"
#include "kernels/simt/types.h"
#include "kvcache/kv_slices.h"

namespace baton::kernels::cuda {

using simt::Bf16;

inline constexpr uint32_t kMaxNormDim = 16384;

// residual += x, rounded to bf16; out = residual / sqrt(mean(residual^2) + eps) * weight. Given
// x_weight, x / sqrt(mean(x^2) + eps) * x_weight in fp32 is added instead of x. `dim` is a multiple
// of 8 in [8, kMaxNormDim].
struct RmsNormParams {
  const Bf16* x;       // [num_rows][dim]
  Bf16* residual;      // [num_rows][dim], read and written
  const Bf16* weight;  // [dim]
  Bf16* out;           // [num_rows][dim]
  uint32_t num_rows;
  uint32_t dim;
  float eps;
  const Bf16* x_weight = nullptr;  // [dim], null for none
};

// With it, an id is the index of an id that an earlier kernel wrote to `fed`.
inline constexpr uint32_t kFedId = uint32_t{1} << 31;

// out[i] = table[ids[i]] * scale, the product in fp32, then rounded to bf16; a row of zeros for an
// id that is not below `num_ids`. `dim` is a multiple of 8, at least 8.
struct EmbedParams {
  const Bf16* table;    // [num_ids][dim]
  const uint32_t* ids;  // [num_rows]
  Bf16* out;            // [num_rows][dim]
  uint32_t num_rows;
  uint32_t num_ids;
  uint32_t dim;
  float scale = 1.0f;
  const uint32_t* fed = nullptr;  // as long as any kFedId index of `ids` needs
};

// A quantised matrix of a packed format, [PackedBytes(format, n, k)], aligned to 16 bytes, as
// PackWeights and PackFp8 give it; its scales are finite and none of its codes is a NaN.
struct PackedMatrixView {
  const std::byte* data;
  PackedFormat format;
};

// GemmBf16 of the matrix that `w` is once unpacked, with the same bits, for at most
// kGemmMaxSpreadRows rows. `path` is not one of tiles; `k` is a multiple of 32.
struct PackedGemmParams {
  GemmParams product;  // its w is not used
  PackedMatrixView w;  // [n][k]
};

// GroupedGemm of the experts that `w` are once unpacked, with the same bits. `k` is a multiple
// of 32.
struct GroupedPackedParams {
  GroupedGemmParams product;  // its w is not used
  PackedMatrixView w;         // of each expert [n][k], PackedBytes apart
};

// out = the weights of `w` in bf16, row-major. `k` is a multiple of 32.
struct UnpackParams {
  PackedMatrixView w;
  Bf16* out;  // [n][k]
  uint32_t n;
  uint32_t k;
};

// Embed of the table that `table` is once unpacked. `dim` is a multiple of 32.
struct EmbedPackedParams {
  PackedMatrixView table;  // [num_ids][dim]
  const uint32_t* ids;     // [num_rows]
  Bf16* out;               // [num_rows][dim]
  uint32_t num_rows;
  uint32_t num_ids;
  uint32_t dim;
  float scale = 1.0f;
  const uint32_t* fed = nullptr;  // as EmbedParams
};

// The resources of a cta that a kernel needs.
struct KernelInfo {
  const char* name;
  uint32_t max_threads;
  uint32_t shared_bytes;
};

// The functions of one body. `stream` is a cudaStream_t, null for the default one.
struct KernelTable {
  absl::Status (*rms_norm)(const RmsNormParams& params, void* stream);
  absl::Status (*silu_mul)(const GateMulParams& params, void* stream);
  absl::Status (*gelu_mul)(const GateMulParams& params, void* stream);
  absl::Status (*sigmoid_mul)(const SigmoidMulParams& params, void* stream);
  absl::Status (*embed)(const EmbedParams& params, void* stream);
  absl::Status (*gemm_bf16)(const GemmParams& params, void* stream);
  absl::Status (*gemm_gated)(const GatedGemmParams& params, void* stream);
  absl::Status (*gemm_rope)(const RopeGemmParams& params, void* stream);
  absl::Status (*gemm_sum)(const SumGemmParams& params, void* stream);
  absl::Status (*gemm_packed)(const PackedGemmParams& params, void* stream);
  absl::Status (*unpack)(const UnpackParams& params, void* stream);
  absl::Status (*embed_packed)(const EmbedPackedParams& params, void* stream);
  absl::Status (*rope_append)(const RopeAppendParams& params, void* stream);
  absl::Status (*short_conv)(const ShortConvParams& params, void* stream);
  absl::Status (*delta_inputs)(const DeltaParams& params, void* stream);
  absl::Status (*delta_scan)(const DeltaParams& params, void* stream);
  absl::Status (*delta_gate)(const DeltaParams& params, void* stream);
  absl::Status (*clear_blocks)(const ClearBlocksParams& params, void* stream);
  absl::Status (*attention_prefill)(const AttentionParams& params, void* stream);
  absl::Status (*attention_decode)(const AttentionParams& params, void* stream);
  absl::Status (*kv_gather)(const kv::KvSlicesParams& params, void* stream);
  absl::Status (*kv_scatter)(const kv::KvSlicesParams& params, void* stream);
  absl::Status (*sample)(const SampleParams& params, void* stream);
  absl::Status (*route)(const RouteParams& params, void* stream);
  absl::Status (*sort_pairs)(const SortPairsParams& params, void* stream);
  absl::Status (*grouped_gemm)(const GroupedGemmParams& params, void* stream);
  absl::Status (*grouped_packed)(const GroupedPackedParams& params, void* stream);
  absl::Status (*combine)(const CombineParams& params, void* stream);
  absl::Status (*all_reduce)(const AllReduceParams& params, void* stream);
  absl::Status (*gather_columns)(const GatherColumnsParams& params, void* stream);
  // Whether this build has code for the current device; FailedPrecondition with CUDA's words.
  absl::Status (*check_code)();
  // Whether the current device has wgmma. Not what it computes: CheckWgmma.
  bool (*has_wgmma)();
  // Shared memory of a cta of the current device. Kernels that need more are not chosen: all but
  // attention_prefill have another with the same bits.
  uint32_t (*max_shared_bytes)();
  // Whether attention_prefill takes such blocks on the current device. attention_decode does on
  // every device, with the same bits: AttentionPlanLimits::has_prefill.
  bool (*has_prefill)(uint32_t head_dim, KvElement element);
  // Whether attention_decode has room there for the kernel of few splits:
  // AttentionPlanLimits::num_spread_ctas.
  bool (*has_spread)(uint32_t head_dim, KvElement element);
  const KernelInfo* const* infos;  // [num_infos]
  uint32_t num_infos;
};

inline namespace gpu {
const KernelTable& Kernels();
}
inline namespace runner {
const KernelTable& Kernels();
}

// One body of each kernel, defined by its source.
inline namespace BATON_BODY {
absl::Status RmsNorm(const RmsNormParams& params, void* stream);
absl::Status SiluMul(const GateMulParams& params, void* stream);
absl::Status GeluMul(const GateMulParams& params, void* stream);
absl::Status SigmoidMul(const SigmoidMulParams& params, void* stream);
absl::Status Embed(const EmbedParams& params, void* stream);
absl::Status GemmBf16(const GemmParams& params, void* stream);
absl::Status GemmGated(const GatedGemmParams& params, void* stream);
absl::Status GemmRope(const RopeGemmParams& params, void* stream);
absl::Status GemmSum(const SumGemmParams& params, void* stream);
absl::Status CheckCode();
bool HasWgmma();
uint32_t MaxSharedBytes();
bool HasPrefill(uint32_t head_dim, KvElement element);
bool HasSpread(uint32_t head_dim, KvElement element);
absl::Status GemmPacked(const PackedGemmParams& params, void* stream);
absl::Status Unpack(const UnpackParams& params, void* stream);
absl::Status EmbedPacked(const EmbedPackedParams& params, void* stream);
absl::Status RopeAppend(const RopeAppendParams& params, void* stream);
absl::Status ShortConv(const ShortConvParams& params, void* stream);
absl::Status AttentionPrefill(const AttentionParams& params, void* stream);
absl::Status AttentionDecode(const AttentionParams& params, void* stream);
absl::Status KvGather(const kv::KvSlicesParams& params, void* stream);
absl::Status KvScatter(const kv::KvSlicesParams& params, void* stream);
absl::Status Sample(const SampleParams& params, void* stream);
absl::Status Route(const RouteParams& params, void* stream);
absl::Status SortPairs(const SortPairsParams& params, void* stream);
absl::Status GroupedGemm(const GroupedGemmParams& params, void* stream);
absl::Status GroupedPacked(const GroupedPackedParams& params, void* stream);
absl::Status Combine(const CombineParams& params, void* stream);
absl::Status AllReduce(const AllReduceParams& params, void* stream);
absl::Status GatherColumns(const GatherColumnsParams& params, void* stream);
extern const KernelInfo kRmsNormInfo;
extern const KernelInfo kSiluMulInfo;
extern const KernelInfo kGeluMulInfo;
extern const KernelInfo kSigmoidMulInfo;
extern const KernelInfo kEmbedInfo;
extern const KernelInfo kGemmNarrowInfos[3];   // 8 rows of x, 32, 64
extern const KernelInfo kGatedNarrowInfos[2];  // 8 rows of x, 32
extern const KernelInfo kGatedRowsInfos[2];
extern const KernelInfo kRopedNarrowInfos[2];
extern const KernelInfo kNormedNarrowInfos[3];  // sum; with a norm gates, rope
extern const KernelInfo kRopedRowsInfos[2];
extern const KernelInfo kGemmRows8Info;
extern const KernelInfo kGemmRows32Info;
extern const KernelInfo kGemmTile64Info;
extern const KernelInfo kGemmTile128Info;
extern const KernelInfo kGemmWgmmaInfos[3];                       // 128 rows of w a tile, 192, 256
extern const KernelInfo kGemmPackedInfos[2 * kNumPackedFormats];  // of each format 8 rows, 32
extern const KernelInfo kUnpackInfos[kNumPackedFormats];
extern const KernelInfo kEmbedPackedInfos[kNumPackedFormats];
extern const KernelInfo kRopeAppendInfos[2];  // bf16, fp8
extern const KernelInfo kShortConvInfo;
extern const KernelInfo kAttentionPrefillInfos[6];  // head_dim 64, 128, 256 of bf16; of fp8
extern const KernelInfo kAttentionWgmmaInfos[6];    // as kAttentionPrefillInfos
// head_dim 64, 128, 256 of bf16; of fp8; with fewer warps the same ones, but not 64 of fp8.
inline constexpr uint32_t kNumAttentionDecode = 11;
extern const KernelInfo kAttentionDecodeInfos[kNumAttentionDecode];
extern const KernelInfo kAttentionSpreadInfos[6];  // as kAttentionPrefillInfos
extern const KernelInfo kKvSlicesInfos[4];         // gather, then scatter: of one memory, of ranks
extern const KernelInfo kSampleInfo;
extern const KernelInfo kRouteInfos[2];  // by logits, by scores
extern const KernelInfo kSortPairsInfo;
extern const KernelInfo kGroupedGemm8Info;
extern const KernelInfo kGroupedGemm64Info;
extern const KernelInfo kGroupedPackedInfos[2 * kNumPackedFormats];  // of each format 8 rows, 64
extern const KernelInfo kCombineInfo;
extern const KernelInfo kAllReduceInfo;
extern const KernelInfo kGatherColumnsInfo;
}  // namespace BATON_BODY

// The part of a table that the transports of kvcache/ move slices with.
inline kv::SliceKernels SliceKernelsOf(const KernelTable& table) {
  return {table.kv_gather, table.kv_scatter};
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_KERNEL_TABLE_H_
