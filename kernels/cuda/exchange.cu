// Sums and columns of several ranks (exchange_params.h).
//
// AllReduce, work: one thread for eight elements, ctas of 256 threads, at most 64 a rank. Bytes
// over the links a rank: whole 4 (ranks - 1) an element; slices 4 (ranks - 1) / ranks read and 2
// (ranks - 1) / ranks written. Flops: ranks - 1 an element. Limit: few rows by the meeting, a write
// and a look over the links; many rows by the links.
//
// GatherColumns, work: one thread for an element of every row. Bytes over the links: 4 an element
// that is not rank 0's, all written, so nobody waits for them but at the meeting.
//
// Reached: AllReduce of two ranks in one memory kernels/NOTES.md; over links, and GatherColumns,
// not timed.
#include <algorithm>
#include <string>

#include "kernels/cuda/exchange.h"
#include "kernels/cuda/kernel_table.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

// Up to so many bytes of a part every rank adds all of them: 32 rows of 4096. A wrong number costs
// time, never bits.
constexpr size_t kMaxWholeBytes = size_t{512} << 10;

BATON_KERNEL(kExchangeThreads) AllReduceKernel(BATON_MAP_PARAM AllReduceParams params) {
  simt::wait_for_previous();
  AllReduceCta(params);
}

BATON_KERNEL(kExchangeThreads) GatherColumnsKernel(BATON_MAP_PARAM GatherColumnsParams params) {
  simt::wait_for_previous();
  const ExchangeCta cta = ThisExchangeCta(params.ranks);
  const uint32_t meeting = NextMeeting(params.ranks, cta);
  const uint32_t width = ColumnsOfRank(params.num_columns, params.rank_columns, cta.rank);
  const float* const part = params.parts[cta.rank];
  float* const out = params.out + size_t{cta.rank} * params.rank_columns;
  const uint32_t step = simt::grid().x * kExchangeThreads;
  for (size_t row = 0; row < params.num_rows; ++row) {
    uint32_t column = cta.index * kExchangeThreads + simt::thread();
    for (; column < width; column += step) {
      out[row * params.num_columns + column] = part[row * width + column];
    }
  }
  Arrive(params.ranks, cta, meeting);
  if (cta.rank == 0) AwaitAll(params.ranks, cta, meeting);
  KeepMeeting(params.ranks, cta, meeting);
}

absl::Status CheckRanks(const char* kernel, const ExchangeRanks& ranks) {
  const bool is_one = ranks.num_here == 1 && ranks.first_rank < ranks.num_ranks;
  const bool is_all = ranks.num_here == ranks.num_ranks && ranks.first_rank == 0;
  if (ranks.num_ranks >= 1 && ranks.num_ranks <= kMaxRanks && (is_one || is_all)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(std::string(kernel) + ": " + std::to_string(ranks.num_here) +
                                    " ranks from " + std::to_string(ranks.first_rank) + " on, of " +
                                    std::to_string(ranks.num_ranks));
}

// Ctas for `units` threads of one rank. Ranks of one launch are resident together.
simt::LaunchConfig LaunchFor(const char* name, const ExchangeRanks& ranks, size_t units,
                             void* stream) {
  const size_t wanted = (units + kExchangeThreads - 1) / kExchangeThreads;
  const size_t most = kExchangeCtas / ranks.num_here;
  return {.name = name,
          .grid = {static_cast<uint32_t>(std::clamp<size_t>(wanted, 1, most)), 1, ranks.num_here},
          .num_threads = kExchangeThreads,
          .cooperative = ranks.num_here > 1,
          .overlaps = ranks.num_here == 1,
          .stream = stream};
}

}  // namespace

const KernelInfo kAllReduceInfo = {"AllReduceKernel", kExchangeThreads, 0};
const KernelInfo kGatherColumnsInfo = {"GatherColumnsKernel", kExchangeThreads, 0};

absl::Status AllReduce(const AllReduceParams& params, void* stream) {
  if (absl::Status status = CheckRanks("AllReduce", params.ranks); !status.ok()) return status;
  if (params.num_elements % kVec != 0) {
    return absl::InvalidArgumentError("AllReduce: " + std::to_string(params.num_elements) +
                                      " elements are no multiple of 8");
  }
  if (params.num_elements == 0) return absl::OkStatus();
  AllReduceParams chosen = params;
  const bool is_small = params.num_elements * sizeof(float) <= kMaxWholeBytes;
  if (params.path == AllReducePath::kAuto) {
    chosen.path = is_small ? AllReducePath::kWhole : AllReducePath::kSlices;
  }
  const size_t parts = chosen.path == AllReducePath::kSlices ? params.ranks.num_ranks : 1;
  const size_t num_vecs = params.num_elements / kVec;
  return simt::launch(LaunchFor("AllReduce", params.ranks, (num_vecs + parts - 1) / parts, stream),
                      AllReduceKernel, chosen);
}

absl::Status GatherColumns(const GatherColumnsParams& params, void* stream) {
  if (absl::Status status = CheckRanks("GatherColumns", params.ranks); !status.ok()) return status;
  if (params.num_columns == 0 ||
      uint64_t{params.rank_columns} * params.ranks.num_ranks < params.num_columns) {
    return absl::InvalidArgumentError("GatherColumns: " + std::to_string(params.num_columns) +
                                      " columns of " + std::to_string(params.ranks.num_ranks) +
                                      " ranks that have at most " +
                                      std::to_string(params.rank_columns));
  }
  if (params.num_rows == 0) return absl::OkStatus();
  return simt::launch(LaunchFor("GatherColumns", params.ranks, params.rank_columns, stream),
                      GatherColumnsKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
