#include "kernels/cpu/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "src/base/clock.h"
#include "src/device/aligned_buffer.h"

namespace baton::kernels {

using device::AlignedBuffer;
using device::ThreadPool;

namespace {

// Read in pieces, each timed on its own: 16 MiB take about a millisecond, and the next visit to a
// piece finds it evicted by the others.
constexpr size_t kPieceBytes = size_t{16} * 1024 * 1024;
constexpr size_t kCachedBytes = size_t{4} * 1024 * 1024;

// The best of many short runs, in units of work per second: interference only ever slows a run
// down.
template <typename Body>
double BestRate(double work, const LimitEffort& effort, const Body& body) {
  double best = 0;
  for (int i = 0; i < effort.repeats; ++i) {
    if (effort.stops != nullptr && effort.stops->load(std::memory_order_relaxed)) break;
    const int64_t start_us = SystemClock().NowUs();
    body(i);
    const int64_t us = std::max<int64_t>(1, SystemClock().NowUs() - start_us);
    best = std::max(best, work / (static_cast<double>(us) * 1e-6));
  }
  return best;
}

// Sums `bytes` from `begin` on in `streams` parts side by side, with a prefetch in each.
uint64_t SumStreams(const std::byte* begin, size_t bytes, size_t streams) {
  constexpr size_t kAhead = 2560;
  const size_t words = bytes / 8 / streams;
  const auto* p = reinterpret_cast<const uint64_t*>(begin);
  uint64_t sums[8] = {};
  for (size_t i = 0; i < words; i += 8) {
    for (size_t stream = 0; stream < streams; ++stream) {
      const uint64_t* line = p + stream * words + i;
      __builtin_prefetch(line + kAhead / 8);
      for (int word = 0; word < 8; ++word) sums[word] += line[word];
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

// Sums pieces of `piece_bytes` of the buffer, as one stream a thread and as four; the better one
// counts. A Zen 3 core reads 15 GB/s in one stream and 28 in four, a Zen 5 core 45 and 33. 0: there
// is no memory for the buffer, which is no reason to end a worker.
double ReadRate(ThreadPool& pool, size_t piece_bytes, size_t buffer_bytes,
                const LimitEffort& effort) {
  absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Allocate(buffer_bytes);
  if (!buffer.ok()) return 0;
  std::memset(buffer->data(), 1, buffer_bytes);
  std::atomic<uint64_t> sink{0};
  constexpr uint32_t kTasks = 64;
  double best = 0;
  for (const size_t streams : {1, 4}) {
    const double rate = BestRate(static_cast<double>(piece_bytes), effort, [&](int repeat) {
      const std::byte* piece = buffer->data() + repeat * piece_bytes % buffer_bytes;
      pool.Run(kTasks, [&](uint32_t task, uint32_t) {
        const size_t task_bytes = piece_bytes / kTasks;
        sink += SumStreams(piece + task_bytes * task, task_bytes, streams);
      });
    });
    best = std::max(best, rate);
  }
  return best;
}

double PeakRate(ThreadPool& pool, const PeakLoop& loop, const LimitEffort& effort) {
  constexpr uint64_t kRounds = 100'000;
  std::atomic<int> sink{0};
  const uint32_t threads = pool.num_threads();
  return BestRate(loop.ops_per_round * kRounds * threads, effort, [&](int) {
    pool.Run(threads, [&](uint32_t, uint32_t) { sink += static_cast<int>(loop.run(kRounds)); });
  });
}

// Without a loop of its own instruction set: plain C++ on 4-lane vectors.
float PlainFp32(uint64_t rounds) {
  using F32x4 = float __attribute__((vector_size(16)));
  F32x4 sums[8] = {};
  const F32x4 factor = {1.5f, 0.5f, 0.25f, 2.0f};
  for (uint64_t i = 0; i < rounds; ++i) {
    for (F32x4& sum : sums) sum = sum * factor + factor;
  }
  float total = 0;
  for (const F32x4& sum : sums) total += sum[0];
  return total > 0 ? 1.0f : 0.0f;
}

}  // namespace

MachineLimits MeasureLimits(ThreadPool& pool, Isa isa, const LimitEffort& effort) {
  PeakLoop fp32 = {8 * 4 * 2, PlainFp32};
  PeakLoop int16 = fp32;
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) {
    fp32 = Avx2Fp32Loop();
    int16 = Avx2Int16Loop();
  } else if (isa == Isa::kAvx512) {
    fp32 = Avx512Fp32Loop();
    int16 = Avx512Int16Loop();
  }
#endif
  return {ReadRate(pool, kPieceBytes, effort.read_bytes, effort) * 1e-9,
          ReadRate(pool, kCachedBytes, kCachedBytes, effort) * 1e-9,
          PeakRate(pool, fp32, effort) * 1e-9, PeakRate(pool, int16, effort) * 1e-9};
}

}  // namespace baton::kernels
