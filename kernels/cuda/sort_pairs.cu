// A stable counting sort of (row, expert) pairs by expert, and the tiles of the products after it.
//
// Work: one cta an expert. A thread counts, in its consecutive part of the pairs, those of this
// expert and of lower ones; the sums over the cta are where the expert begins and where the thread
// does, so no cta waits for another. The cta that arrives last cuts all experts into tiles. Bytes:
// 8 a pair and expert through L2, 12 a pair and a tile out. Operations: 4 a pair and expert. Limit:
// latency; 16384 pairs of 128 experts read 16 MiB from L2. Instead of one cta that counts all
// experts: the same operations on one SM, 50000 cycles there. Reached: kernels/NOTES.md.
#include <string>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kSortThreads = 128;
constexpr uint32_t kSortWarps = kSortThreads / simt::kWarpSize;

// [warp], of three sums; nobody waits between them.
struct SortShared {
  uint32_t equal[kSortWarps];
  uint32_t lower[kSortWarps];
  uint32_t tiles[kSortWarps];
  uint32_t is_last;  // whether this cta arrived last
};

// The sum of the values of lower threads, and of all.
struct Scan {
  uint32_t before;
  uint32_t total;
};

// `sums`: [warp].
BATON_DEVICE Scan CtaScan(uint32_t value, uint32_t* sums) {
  Scan scan = {0, value};
  BATON_UNROLL
  for (uint32_t step = 1; step < simt::kWarpSize; step *= 2) {
    // `total` is of the aligned group of `step` lanes, `other` of the group beside it.
    const uint32_t other = simt::shfl_xor(scan.total, step);
    if ((simt::lane() & step) != 0) scan.before += other;
    scan.total += other;
  }
  if (simt::lane() == 0) sums[simt::warp()] = scan.total;
  simt::sync_block();
  scan.total = 0;
  for (uint32_t i = 0; i < kSortWarps; ++i) {
    if (i < simt::warp()) scan.before += sums[i];
    scan.total += sums[i];
  }
  return scan;
}

// Numbers [begin, end) of this thread's part of `count`.
struct Part {
  uint32_t begin;
  uint32_t end;
};

BATON_DEVICE Part PartOfThread(uint32_t count) {
  const uint32_t size = (count + kSortThreads - 1) / kSortThreads;
  const uint32_t begin = simt::thread() * size;
  const uint32_t end = begin + size;
  return {begin < count ? begin : count, end < count ? end : count};
}

// Slots [begin, end) of an expert, when all ctas have arrived.
BATON_DEVICE Part SlotsOf(const SortPairsParams& params, uint32_t expert) {
  const bool is_last = expert + 1 == params.num_experts;
  return {params.begins[expert], is_last ? params.num_pairs : params.begins[expert + 1]};
}

BATON_DEVICE uint32_t TilesOf(const SortPairsParams& params, const Part& slots) {
  return (slots.end - slots.begin + params.tile_rows - 1) / params.tile_rows;
}

BATON_DEVICE void CutTiles(const SortPairsParams& params, SortShared& memory) {
  const Part experts = PartOfThread(params.num_experts);
  uint32_t count = 0;
  for (uint32_t e = experts.begin; e < experts.end; ++e)
    count += TilesOf(params, SlotsOf(params, e));
  const Scan scan = CtaScan(count, memory.tiles);
  ExpertTile* tile = params.tiles + scan.before;
  for (uint32_t e = experts.begin; e < experts.end; ++e) {
    const Part slots = SlotsOf(params, e);
    for (uint32_t slot = slots.begin; slot < slots.end; slot += params.tile_rows) {
      const uint32_t left = slots.end - slot;
      *tile++ = {e, slot, left < params.tile_rows ? left : params.tile_rows};
    }
  }
  if (simt::thread() == 0) *params.num_tiles = scan.total;
}

// True in the cta that arrives last; it then sees the begins of all.
BATON_DEVICE bool ArrivesLast(const SortPairsParams& params, SortShared& memory) {
  if (simt::thread() == 0) {
    simt::fence();
    const uint32_t before = simt::atomic_add(params.arrivals, 1);
    simt::fence();
    memory.is_last = before + 1 == params.num_experts ? 1 : 0;
    if (memory.is_last == 1) simt::atomic_exchange(params.arrivals, 0);
  }
  simt::sync_block();
  return memory.is_last == 1;
}

BATON_KERNEL(kSortThreads) SortPairsKernel(SortPairsParams params) {
  simt::wait_for_previous();
  auto& memory = simt::shared<SortShared>();
  const uint32_t expert = simt::block().x;
  const Part pairs = PartOfThread(params.num_pairs);
  uint32_t equal = 0;
  uint32_t lower = 0;
  for (uint32_t i = pairs.begin; i < pairs.end; ++i) {
    equal += params.experts[i] == expert ? 1 : 0;
    lower += params.experts[i] < expert ? 1 : 0;
  }
  const uint32_t begin = CtaScan(lower, memory.lower).total;
  uint32_t slot = begin + CtaScan(equal, memory.equal).before;
  for (uint32_t i = pairs.begin; i < pairs.end; ++i) {
    if (params.experts[i] != expert) continue;
    params.slots[i] = slot;
    params.slot_rows[slot] = i / params.top_k;
    ++slot;
  }
  if (simt::thread() == 0) params.begins[expert] = begin;
  if (ArrivesLast(params, memory)) CutTiles(params, memory);
}

}  // namespace

const KernelInfo kSortPairsInfo = {"SortPairsKernel", kSortThreads, sizeof(SortShared)};

absl::Status SortPairs(const SortPairsParams& params, void* stream) {
  const bool fits = params.num_experts >= 1 && params.num_experts <= kMaxGridX &&
                    params.top_k >= 1 && params.tile_rows >= 1;
  if (!fits) {
    return absl::InvalidArgumentError("SortPairs: " + std::to_string(params.num_experts) +
                                      " experts, top " + std::to_string(params.top_k) +
                                      ", tiles of " + std::to_string(params.tile_rows) +
                                      " rows; each at least 1");
  }
  return simt::launch({.name = "SortPairs",
                       .grid = {params.num_experts, 1, 1},
                       .num_threads = kSortThreads,
                       .shared_bytes = sizeof(SortShared),
                       .overlaps = true,
                       .stream = stream},
                      SortPairsKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
