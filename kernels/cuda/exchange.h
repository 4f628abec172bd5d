// How ctas of several ranks meet and add. Included by kernels only.
#ifndef BATON_KERNELS_CUDA_EXCHANGE_H_
#define BATON_KERNELS_CUDA_EXCHANGE_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/exchange_params.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

inline constexpr uint32_t kExchangeThreads = 256;
// Some 20 s on a GPU, where a look at a flag takes most of a microsecond: a rank that failed never
// comes. Nor does one whose work the host has not put into its stream yet, so a process that is
// stopped for longer between the launches of two ranks fails too.
inline constexpr uint32_t kMaxExchangeSpins = 1u << 25;

// One cta of a rank.
struct ExchangeCta {
  uint32_t rank;
  uint32_t index;
};

BATON_DEVICE ExchangeCta ThisExchangeCta(const ExchangeRanks& ranks) {
  return {ranks.first_rank + simt::block().z, simt::block().x};
}

// The number of the cta's next meeting. Call it after wait_for_previous.
BATON_DEVICE uint32_t NextMeeting(const ExchangeRanks& ranks, const ExchangeCta& cta) {
  return ranks.flags[cta.rank]->met[cta.index] + 1;
}

// Call it once, after the last meeting.
BATON_DEVICE void KeepMeeting(const ExchangeRanks& ranks, const ExchangeCta& cta,
                              uint32_t meeting) {
  if (simt::thread() == 0) ranks.flags[cta.rank]->met[cta.index] = meeting;
}

// Tells every rank that this cta came, and with it all that its rank did before.
BATON_DEVICE void Arrive(const ExchangeRanks& ranks, const ExchangeCta& cta, uint32_t meeting) {
  simt::sync_block();
  const uint32_t peer = simt::thread();
  if (peer >= ranks.num_ranks) return;
  simt::store_release_system(&ranks.flags[peer]->arrived[cta.index][cta.rank], meeting);
}

// Returns once the ctas of this index of all ranks have come. A rank may have gone on to the next
// meeting, so its flag may be ahead.
BATON_DEVICE void AwaitAll(const ExchangeRanks& ranks, const ExchangeCta& cta, uint32_t meeting) {
  const uint32_t peer = simt::thread();
  if (peer < ranks.num_ranks) {
    const uint32_t* const flag = &ranks.flags[cta.rank]->arrived[cta.index][peer];
    for (uint32_t spins = 0; static_cast<int32_t>(simt::load_acquire_system(flag) - meeting) < 0;
         ++spins) {
      if (spins == kMaxExchangeSpins) simt::give_up();
      simt::spin_pause();
    }
  }
  simt::sync_block();
}

// Eight sums, those of vector `at`; what all ranks have is asked for at once.
BATON_DEVICE simt::Vec16 AddParts(const AllReduceParams& params, size_t at) {
  simt::Vec16 halves[kMaxRanks][2];
  BATON_UNROLL
  for (uint32_t rank = 0; rank < kMaxRanks; ++rank) {
    if (rank >= params.ranks.num_ranks) continue;
    const auto* const part = reinterpret_cast<const simt::Vec16*>(params.parts[rank]);
    halves[rank][0] = part[2 * at];
    halves[rank][1] = part[2 * at + 1];
  }
  float sums[kVec];
  BATON_UNROLL
  for (float& sum : sums) sum = -0.0f;  // changes no value that is added to it
  BATON_UNROLL
  for (uint32_t rank = 0; rank < kMaxRanks; ++rank) {
    if (rank >= params.ranks.num_ranks) continue;
    BATON_UNROLL
    for (uint32_t i = 0; i < kVec; ++i) {
      sums[i] += std::bit_cast<float>(halves[rank][i / 4].words[i % 4]);
    }
  }
  simt::Vec16 result;
  BATON_UNROLL
  for (uint32_t w = 0; w < 4; ++w) result.words[w] = Pair(sums[2 * w], sums[2 * w + 1]);
  return result;
}

// The sums of vectors [begin, end) that this cta has of them, to the outs of ranks
// [first, first + count).
BATON_DEVICE void ReduceRange(const AllReduceParams& params, size_t begin, size_t end,
                              uint32_t first, uint32_t count) {
  const size_t step = size_t{simt::grid().x} * kExchangeThreads;
  size_t at = begin + size_t{simt::block().x} * kExchangeThreads + simt::thread();
  for (; at < end; at += step) {
    const simt::Vec16 sums = AddParts(params, at);
    for (uint32_t rank = first; rank < first + count; ++rank) {
      reinterpret_cast<simt::Vec16*>(params.outs[rank])[at] = sums;
    }
  }
}

// The whole exchange of one cta, after wait_for_previous, with a path that was chosen.
BATON_DEVICE void AllReduceCta(const AllReduceParams& params) {
  const ExchangeRanks& ranks = params.ranks;
  const ExchangeCta cta = ThisExchangeCta(ranks);
  uint32_t meeting = NextMeeting(ranks, cta);
  Arrive(ranks, cta, meeting);
  AwaitAll(ranks, cta, meeting);
  const size_t num_vecs = params.num_elements / kVec;
  if (params.path == AllReducePath::kWhole) {
    ReduceRange(params, 0, num_vecs, cta.rank, 1);
  } else {
    const size_t slice = (num_vecs + ranks.num_ranks - 1) / ranks.num_ranks;
    const size_t begin = slice * cta.rank;
    const size_t end = begin + slice < num_vecs ? begin + slice : num_vecs;
    ReduceRange(params, begin, end, 0, ranks.num_ranks);
    ++meeting;
    Arrive(ranks, cta, meeting);
    AwaitAll(ranks, cta, meeting);
  }
  KeepMeeting(ranks, cta, meeting);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_EXCHANGE_H_
