// Kernels that do nothing but move memory: what bandwidth is measured by, and what makes random
// weights where they are needed. A table of host functions for each body.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_MEMORY_LOOPS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_MEMORY_LOOPS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/simt/types.h"

namespace baton::kernels::gpu_check {

inline constexpr uint32_t kLoopThreads = 256;

// Sixteen bytes at a time, all of them read once.
struct LoopParams {
  const simt::Vec16* from = nullptr;
  simt::Vec16* to = nullptr;
  size_t num_vecs = 0;
  uint32_t num_ctas = 1;  // of kLoopThreads threads that walk over all of it
};

// Random bf16: element i of `to` is RandomElement(params, i).
struct FillParams {
  simt::Vec16* to = nullptr;
  size_t num_vecs = 0;
  uint32_t num_ctas = 1;
  uint32_t seed = 0;
  float mean = 0;
  float spread = 1;  // uniform in [mean - spread, mean + spread)
};

// Gives the same bits on a device and on the host: a hash (the finaliser of SplitMix64), one
// multiplication, one addition, one rounding.
constexpr float RandomUniform(uint32_t seed, uint64_t i) {
  uint64_t x = (uint64_t{seed} << 40 | (i + 1)) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  x ^= x >> 31;
  return static_cast<float>(static_cast<int32_t>(x >> 40) - (1 << 23)) * 0x1p-23f;
}

// One table for each body. Each puts one kernel into the stream.
struct MemoryLoops {
  // to[thread] = the exclusive or of what the thread read, for num_ctas x kLoopThreads threads.
  absl::Status (*read)(const LoopParams& params, void* stream);
  absl::Status (*copy)(const LoopParams& params, void* stream);
  absl::Status (*fill)(const FillParams& params, void* stream);
};

inline namespace gpu {
const MemoryLoops& Loops();
}
inline namespace runner {
const MemoryLoops& Loops();
}

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_MEMORY_LOOPS_H_
