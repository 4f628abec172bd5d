// The limits of this machine, measured at start, so that every rate has its limit beside it. Call
// it from one thread while the pool is idle; other load on the machine lowers what it finds.
#ifndef BATON_KERNELS_CPU_MACHINE_LIMITS_H_
#define BATON_KERNELS_CPU_MACHINE_LIMITS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace baton::kernels {

// Rates of `num_threads` threads together; 0 = not known.
struct MachineLimits {
  double read_gb_per_s;     // reading a buffer far larger than the caches, prefetched ahead
  double cache_gb_per_s;    // reading 4 MiB that were just read
  double fp32_gflop_per_s;  // independent fma on registers, 2 operations each
  double int16_gop_per_s;   // vpmaddwd + vpaddd (or vpdpwssd) on registers, 2 operations a product
};

// How much a measurement may cost.
struct LimitEffort {
  size_t read_bytes;  // of the buffer that is read; memory it needs meanwhile
  int repeats;        // of each short run, of which the best counts
  // Set by another thread: no run begins any more, and the rates are of the runs so far. Null: all.
  const std::atomic<bool>* stops = nullptr;
};
inline constexpr LimitEffort kThoroughLimits{size_t{256} << 20, 64};  // about 1.3 seconds
inline constexpr LimitEffort kQuickLimits{size_t{64} << 20, 12};      // about 70 ms

// `isa` can run here.
MachineLimits MeasureLimits(device::ThreadPool& pool, Isa isa, const LimitEffort& effort);

// The loops that are timed: `rounds` times `ops_per_round` operations, on registers only.
struct PeakLoop {
  double ops_per_round;
  float (*run)(uint64_t rounds);
};
PeakLoop Avx2Fp32Loop();
PeakLoop Avx2Int16Loop();
PeakLoop Avx512Fp32Loop();
PeakLoop Avx512Int16Loop();

}  // namespace baton::kernels

#endif  // BATON_KERNELS_CPU_MACHINE_LIMITS_H_
