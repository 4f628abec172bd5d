// How launches of this operating-system thread run on the runner: in which order, when copies land,
// which tensor-core arithmetic. A test runs a kernel under several of them and asks for equal bits.
#ifndef BATON_KERNELS_SIMT_RUN_OPTIONS_H_
#define BATON_KERNELS_SIMT_RUN_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace runner {

// Which of the threads that could go on goes on. kShuffled also changes threads in the middle.
enum class Order : uint8_t { kAscending, kDescending, kShuffled };

// When an asynchronous copy reads its source and writes its target, and a wgmma its tiles: at the
// call; as late as the waits allow; or one or the other for each of them, by the seed.
enum class Landing : uint8_t { kEarliest, kLatest, kMixed };

// The arithmetic of mma and wgmma: the published bits of Hopper; those of Ampere, which has no
// wgmma; or one fp32 chain without subnormal numbers (for whole models).
enum class TensorMath : uint8_t { kHopperBits, kAmpereBits, kFloat };

// Sixteen rows of a [16][k] by eight columns b [8][k], added to c [16][8] (tensor_core.h).
void MultiplyBf16(TensorMath math, const Bf16 (*a)[16], const Bf16 (*b)[16], float (*c)[8]);

// Shared memory that a cta can have on sm_90 and sm_100, and on sm_80; kLeastSharedBytes elsewhere.
inline constexpr uint32_t kHopperSharedBytes = 227 * 1024;
inline constexpr uint32_t kAmpereSharedBytes = 163 * 1024;

// One way to run a kernel.
struct RunOptions {
  Order order = Order::kAscending;
  Landing landing = Landing::kEarliest;
  TensorMath tensor_math = TensorMath::kHopperBits;
  uint32_t max_shared_bytes = kHopperSharedBytes;  // what kernels choose by, and may ask for
  bool detect_races = true;
  uint32_t max_resident_ctas = 4;  // at least 1; a cooperative launch has all of them
  bool locate_code = true;         // run addr2line for a report; 50 ms, once a fault
  uint64_t seed = 1;
};

// "descending latest seed 7": for messages.
std::string Describe(const RunOptions& options);

// Each order with each landing, `num_shuffles` seeds of the shuffled order from `seed` on.
std::vector<RunOptions> AllOrders(uint32_t num_shuffles, uint64_t seed = 1);

// The counts of a launch.
struct RunStats {
  uint64_t num_launches = 0;
  uint64_t num_switches = 0;
  uint64_t num_accesses = 0;  // loads and stores looked at, in shared and global memory
  uint64_t num_mma = 0;
  uint64_t num_wgmma = 0;
  uint32_t most_shared_bytes = 0;  // that one of them asked for
};

// How the launches of this thread run from now on.
void SetRunOptions(const RunOptions& options);

// Replaces the options of this thread's launches for its lifetime.
class ScopedRunOptions {
 public:
  explicit ScopedRunOptions(const RunOptions& options);
  ~ScopedRunOptions();
  ScopedRunOptions(const ScopedRunOptions&) = delete;
  ScopedRunOptions& operator=(const ScopedRunOptions&) = delete;

 private:
  RunOptions previous_;
};

const RunOptions& CurrentRunOptions();
// Sums over the launches of this thread since it started.
const RunStats& TotalRunStats();

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_RUN_OPTIONS_H_
