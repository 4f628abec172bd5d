// Norms of q and k, rotary embedding, and the append of K and V to the blocks, in one pass.
//
// Work: head_dim / 8 lanes a head, each with eight elements: four from 4j on and four from
// head_dim / 2 + 4j on, so that a lane has both halves of its pairs in either style. A cta has 128
// threads: 16, 8 or 4 heads of one row. Bytes: 4 an element, the table once a row from L2. Flops: 6
// an element, 10 with norms. Limit: memory (few rows: latency). Reached: kernels/NOTES.md.
// Order of a norm: a lane adds its squares ascending by fma, a head its lanes by the tree
// head_dim / 16, ..., 2, 1. It depends on head_dim only.
// Fp8 (kv_fp8.h): K and V rounded to bf16 as above, then to codes. The lanes of a head agree on its
// largest magnitude by the same tree of shuffles; one more for each half of the head puts dims i
// and i + 8 of sixteen into one lane, which stores four codes at once. Bytes: 3 an element of K and
// V.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/rope_lanes.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

// By value, as the kernels take it: a reference costs two registers.
template <KvElement kElement>
BATON_DEVICE void Append(RopeAppendParams params) {
  simt::wait_for_previous();
  const uint32_t lanes = params.kv.head_dim / kVec;
  const uint32_t heads_a_cta = kRopeThreads / lanes;
  const uint32_t num_heads = params.num_heads + 2 * params.kv.num_kv_heads;
  const uint32_t ctas_a_row = (num_heads + heads_a_cta - 1) / heads_a_cta;
  const uint32_t head = simt::block().x % ctas_a_row * heads_a_cta + simt::thread() / lanes;
  const uint32_t row = simt::block().x / ctas_a_row;
  const uint32_t sequence = params.sequences[row];
  if (simt::guard(sequence == kPaddingRow)) return;
  AppendHead<kElement>(params, {row, sequence, params.positions[row], head, simt::thread() % lanes,
                                simt::guard(head < num_heads)});
}

BATON_KERNEL(kRopeThreads) RopeAppendKernel(RopeAppendParams params) {
  Append<KvElement::kBf16>(params);
}
BATON_KERNEL(kRopeThreads) RopeAppendFp8Kernel(RopeAppendParams params) {
  Append<KvElement::kFp8>(params);
}

}  // namespace

const KernelInfo kRopeAppendInfos[2] = {{"RopeAppendKernel", kRopeThreads, 0},
                                        {"RopeAppendFp8Kernel", kRopeThreads, 0}};

absl::Status RopeAppend(const RopeAppendParams& params, void* stream) {
  if (absl::Status status = CheckKvShape("RopeAppend", params.kv, params.num_heads); !status.ok()) {
    return status;
  }
  if (params.num_rows == 0) return absl::OkStatus();
  const uint64_t heads_a_cta = kRopeThreads / (params.kv.head_dim / kVec);
  const uint64_t num_heads = params.num_heads + uint64_t{2} * params.kv.num_kv_heads;
  const uint64_t ctas = (num_heads + heads_a_cta - 1) / heads_a_cta * params.num_rows;
  if (ctas > kMaxGridX) {
    return absl::InvalidArgumentError("RopeAppend: " + std::to_string(params.num_rows) +
                                      " rows are too many for one grid");
  }
  return simt::launch({.name = "RopeAppend",
                       .grid = {static_cast<uint32_t>(ctas), 1, 1},
                       .num_threads = kRopeThreads,
                       .overlaps = true,
                       .stream = stream},
                      params.kv.element == KvElement::kFp8 ? RopeAppendFp8Kernel : RopeAppendKernel,
                      params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
