// The exchanges between the ranks of a model whose matrices are divided among several devices
// (tensor parallelism). Ranks give one another sums of the parts that each has, and columns that
// each has some of. Included through kernel_table.h.
//
// Each rank launches the same exchanges in the same order, in a stream of its own device; or one
// launch computes all ranks, where they share one device. A rank that waits for another gives up
// after some 20 s (exchange.h), which its device reports as a failed kernel.
#ifndef BATON_KERNELS_CUDA_EXCHANGE_PARAMS_H_
#define BATON_KERNELS_CUDA_EXCHANGE_PARAMS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/simt/types.h"

namespace baton::kernels::cuda {

inline constexpr uint32_t kMaxRanks = 8;
// The most ctas of a rank. All are resident: each meets the ctas of its index of the other ranks.
inline constexpr uint32_t kExchangeCtas = 64;

// Where the ctas of a rank meet those of the others; zero before the first exchange. A meeting's
// number is one more than that of the one before, modulo 2^32.
struct ExchangeFlags {
  uint32_t arrived[kExchangeCtas][kMaxRanks];  // number of the last meeting that each rank came to
  uint32_t met[kExchangeCtas];                 // of the last one of this rank's own cta
};

// The ranks that exchange. All devices of the other ranks can reach a rank's memory.
struct ExchangeRanks {
  uint32_t num_ranks;   // in [1, kMaxRanks]
  uint32_t first_rank;  // of those that this launch computes
  uint32_t num_here;    // of those: 1, or num_ranks
  ExchangeFlags* flags[kMaxRanks];
};

// Whether each rank adds all parts by itself, or a slice of the elements for all ranks, which moves
// 2 / num_ranks of the bytes and takes another meeting. kAuto chooses by size; the bits are the
// same.
enum class AllReducePath : uint8_t { kAuto, kWhole, kSlices };

// No rank adds before all have come. Parts may be written again once the rank has left the next
// AllReduce: two buffers in turn do.
//
// outs[r] = ((parts[0] + parts[1]) + parts[2]) + ... in fp32, rounded to bf16 once, for every rank
// r: equal bits at all of them.
struct AllReduceParams {
  ExchangeRanks ranks;
  const float* parts[kMaxRanks];  // [num_elements]
  simt::Bf16* outs[kMaxRanks];    // [num_elements]
  size_t num_elements;            // a multiple of 8
  AllReducePath path = AllReducePath::kAuto;
};

// out = the columns of all ranks beside one another: rank r has those from r * rank_columns on, at
// most rank_columns of them. Each writes its own into rank 0's memory, and rank 0 leaves once all
// have: `out` is free when the first rank comes.
struct GatherColumnsParams {
  ExchangeRanks ranks;
  const float* parts[kMaxRanks];  // [num_rows][columns of the rank]
  float* out;                     // [num_rows][num_columns]
  uint32_t num_rows;
  uint32_t num_columns;
  uint32_t rank_columns;
};

// Columns of rank `rank`.
constexpr uint32_t ColumnsOfRank(uint32_t num_columns, uint32_t rank_columns, uint32_t rank) {
  const uint64_t first = uint64_t{rank} * rank_columns;
  if (first >= num_columns) return 0;
  const uint64_t left = num_columns - first;
  return static_cast<uint32_t>(left < rank_columns ? left : rank_columns);
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_EXCHANGE_PARAMS_H_
