// The table of operations of one instruction set, and all bodies it is made of. Included by one
// translation unit per instruction set after its simd_*.h header.
#ifndef BATON_KERNELS_CPU_OP_TABLE_H_
#define BATON_KERNELS_CPU_OP_TABLE_H_

#include "kernels/cpu/attention.h"
#include "kernels/cpu/element_ops.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/latent_append.h"
#include "kernels/cpu/matmul_float.h"
#include "kernels/cpu/quantize_a16.h"
#include "kernels/cpu/rope_append.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/short_conv.h"
#include "kernels/cpu/tables.h"
#include "kernels/embed.h"
#include "kernels/ops.h"
#include "kernels/route.h"

namespace baton::kernels::BATON_ISA {

constexpr Ops MakeOps(Isa isa, std::string_view name) {
  return {
      .isa = isa,
      .name = name,
      .arithmetic = kFusedMulAdd ? "a16.fma.1" : "a16.muladd.1",
      .embed = EmbedRows,
      .rms_norm = RmsNorm,
      .head_norm = HeadNorm,
      .scale = Scale,
      .softcap = Softcap,
      .relu_squared = ReluSquared,
      .quantize_a16 = QuantizeA16,
      .matmul = MatMul,
      .silu_mul = SiluMul,
      .gelu_mul = GeluMul,
      .clamped_swiglu = ClampedSwiglu,
      .route = RouteRows,
      .combine = Combine,
      .add_bias = AddBias,
      .rope_append = RopeAppend,
      .attention = Attention,
      .latent_append = LatentAppend,
      .conv_append = ConvAppend,
      .short_conv = ShortConv,
      .gated_delta = GatedDelta,
      .sigmoid_mul = SigmoidMul,
      .attention_scratch_bytes = AttentionScratchBytes,
  };
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_OP_TABLE_H_
