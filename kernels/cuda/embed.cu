// Rows of the embedding table by token id, times a scale.
//
// Work: one cta a row, one thread for eight elements at a time. Bytes: 4 an element and 4 a row.
// Flops: 1 an element. Limit: memory (a few rows: latency). Reached: kernels/NOTES.md.
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kEmbedThreads = 128;

BATON_KERNEL(kEmbedThreads) EmbedKernel(EmbedParams params) {
  simt::wait_for_previous();
  const uint32_t num_groups = params.dim / kVec;
  const uint32_t id = IdOf(params.ids, params.fed, simt::block().x);
  const auto* from = reinterpret_cast<const Vec16*>(params.table) + size_t{id} * num_groups;
  auto* to = reinterpret_cast<Vec16*>(params.out) + size_t{simt::block().x} * num_groups;
  const bool is_known = simt::guard(id < params.num_ids);
  for (uint32_t at = simt::thread(); at < num_groups; at += kEmbedThreads) {
    Vec16 row = {{0, 0, 0, 0}};
    if (is_known) {
      row = from[at];
      BATON_UNROLL
      for (uint32_t w = 0; w < 4; ++w) {
        row.words[w] =
            Pair(Element(row, 2 * w) * params.scale, Element(row, 2 * w + 1) * params.scale);
      }
    }
    to[at] = row;
  }
}

}  // namespace

const KernelInfo kEmbedInfo = {"EmbedKernel", kEmbedThreads, 0};

absl::Status Embed(const EmbedParams& params, void* stream) {
  constexpr uint32_t kMaxDim = 1u << 20;
  if (absl::Status status = CheckDim("Embed", params.dim, kMaxDim); !status.ok()) return status;
  if (params.num_rows == 0) return absl::OkStatus();
  return simt::launch({.name = "Embed",
                       .grid = {params.num_rows, 1, 1},
                       .num_threads = kEmbedThreads,
                       .overlaps = true,
                       .stream = stream},
                      EmbedKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
