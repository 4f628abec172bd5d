#include "kernels/cuda/kernel_table.h"

namespace baton::cuda {

namespace {

// Constants, not local statics: their guard would be an atomic, which kernels may not use.
const KernelInfo* const kInfos[] = {&kRmsNormInfo,
                                    &kSiluMulInfo,
                                    &kGeluMulInfo,
                                    &kEmbedInfo,
                                    &kGemmRows8Info,
                                    &kGemmRows32Info,
                                    &kGemmTile64Info,
                                    &kGemmTile128Info,
                                    &kGemmPackedInfos[0],
                                    &kGemmPackedInfos[1],
                                    &kGemmPackedInfos[2],
                                    &kGemmPackedInfos[3],
                                    &kGemmPackedInfos[4],
                                    &kGemmPackedInfos[5],
                                    &kGemmPackedInfos[6],
                                    &kGemmPackedInfos[7],
                                    &kGemmPackedInfos[8],
                                    &kGemmPackedInfos[9],
                                    &kUnpackInfos[0],
                                    &kUnpackInfos[1],
                                    &kUnpackInfos[2],
                                    &kUnpackInfos[3],
                                    &kUnpackInfos[4],
                                    &kEmbedPackedInfos[0],
                                    &kEmbedPackedInfos[1],
                                    &kEmbedPackedInfos[2],
                                    &kEmbedPackedInfos[3],
                                    &kEmbedPackedInfos[4],
                                    &kRopeAppendInfo,
                                    &kAttentionPrefillInfos[0],
                                    &kAttentionPrefillInfos[1],
                                    &kAttentionPrefillInfos[2],
                                    &kAttentionDecodeInfos[0],
                                    &kAttentionDecodeInfos[1],
                                    &kAttentionDecodeInfos[2],
                                    &kKvGatherInfo,
                                    &kKvScatterInfo,
                                    &kSampleInfo,
                                    &kRouteInfo,
                                    &kSortPairsInfo,
                                    &kGroupedGemm8Info,
                                    &kGroupedGemm64Info,
                                    &kCombineInfo};
const KernelTable kTable = {.rms_norm = RmsNorm,
                            .silu_mul = SiluMul,
                            .gelu_mul = GeluMul,
                            .embed = Embed,
                            .gemm_bf16 = GemmBf16,
                            .gemm_packed = GemmPacked,
                            .unpack = Unpack,
                            .embed_packed = EmbedPacked,
                            .rope_append = RopeAppend,
                            .attention_prefill = AttentionPrefill,
                            .attention_decode = AttentionDecode,
                            .kv_gather = KvGather,
                            .kv_scatter = KvScatter,
                            .sample = Sample,
                            .route = Route,
                            .sort_pairs = SortPairs,
                            .grouped_gemm = GroupedGemm,
                            .combine = Combine,
                            .infos = kInfos,
                            .num_infos = sizeof(kInfos) / sizeof(kInfos[0])};

}  // namespace

const KernelTable& BATON_BODY::Kernels() { return kTable; }

}  // namespace baton::cuda
