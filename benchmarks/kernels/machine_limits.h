// What this machine can do at best, measured at start, so that every kernel's rate has its limit
// beside it. One call takes about a second; call it from one thread while nothing else runs.
#ifndef BATON_BENCHMARKS_KERNELS_MACHINE_LIMITS_H_
#define BATON_BENCHMARKS_KERNELS_MACHINE_LIMITS_H_

#include <cstdint>

#include "kernels/ops.h"

namespace baton {

// Rates of `num_threads` threads together.
struct MachineLimits {
  double read_gb_per_s;     // reading a buffer far larger than the caches, prefetched ahead
  double cache_gb_per_s;    // reading 4 MiB that were just read
  double fp32_gflop_per_s;  // independent fma on registers, 2 operations each
  double int16_gop_per_s;   // vpmaddwd + vpaddd (or vpdpwssd) on registers, 2 operations a product
};

MachineLimits MeasureLimits(ThreadPool& pool, Isa isa);

// The loops that are timed: `rounds` times `ops_per_round` operations, on registers only.
struct PeakLoop {
  double ops_per_round;
  float (*run)(uint64_t rounds);
};
PeakLoop Avx2Fp32Loop();
PeakLoop Avx2Int16Loop();
PeakLoop Avx512Fp32Loop();
PeakLoop Avx512Int16Loop();

}  // namespace baton

#endif  // BATON_BENCHMARKS_KERNELS_MACHINE_LIMITS_H_
