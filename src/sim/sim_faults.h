// The faults of a simulation: which kinds there are, how often each happens, and the plan: an
// endless list in which fault number k depends on the seed and k alone, so that any of them can be
// left out without changing the others. Pure.
#ifndef BATON_SIM_SIM_FAULTS_H_
#define BATON_SIM_SIM_FAULTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/sim/sim_draws.h"

namespace baton::sim {

// The kinds of faults.
enum class FaultKind : uint8_t {
  kKill = 0,   // a process is gone and comes back as another life
  kFreeze,     // a process stops and goes on
  kOneWay,     // nothing gets from one process to another
  kTwoWay,     // nor back
  kDelay,      // messages between two processes are late, in order
  kDuplicate,  // data messages come twice, the second time perhaps much later
  kReorder,    // data messages overtake each other
  kBitFlip,    // a bit of a slice is wrong
  kSlowLink,   // a fraction of the bandwidth
  kMemory,     // a worker's pool lacks blocks for a while
  kClockJump,  // a process's clock leaps forward
  kDrain,      // a worker is asked to leave, by its signal or by a router, and starts again
  kFlap,       // a data connection is reset again and again
};
inline constexpr size_t kNumFaultKinds = 13;
// "kill", "freeze", "one-way", "two-way", "delay", "duplicate", "reorder", "flip", "slow",
// "memory", "clock", "drain", "flap".
std::string_view FaultKindName(FaultKind kind);

// How often each kind happens, relative to the others; all 0 = no faults.
using FaultWeights = std::array<double, kNumFaultKinds>;
// "all", "none", or a list such as "kill,freeze=3": kinds with their weights, 1 if not given.
// InvalidArgument naming what is no kind or no weight.
StatusOr<FaultWeights> ParseFaults(std::string_view text);

// The processes of a world by number: routers first, then prefill, then decode workers.
struct ClusterShape {
  uint32_t num_routers = 2;
  uint32_t num_prefill = 2;
  uint32_t num_decode = 3;

  uint32_t num_processes() const { return num_routers + num_prefill + num_decode; }
  uint32_t num_workers() const { return num_prefill + num_decode; }
  bool IsRouter(uint32_t process) const { return process < num_routers; }
  uint32_t Worker(uint32_t process) const { return process - num_routers; }
};

// One fault.
struct SimFault {
  uint32_t index = 0;  // its number in the plan
  FaultKind kind = FaultKind::kKill;
  int64_t after_us = 0;  // the fault before
  int64_t for_us = 0;
  uint32_t a = 0;   // the process it happens to, or one end of the link
  uint32_t b = 0;   // the other end
  double size = 0;  // by kind: a share, a factor, microseconds

  // "17 freeze prefill-0 310 ms".
  std::string ToString(const ClusterShape& shape) const;
};

// "router-0", "prefill-1", "decode-0".
std::string ProcessName(const ClusterShape& shape, uint32_t process);

// See the file comment.
class FaultPlan {
 public:
  // One fault every `gap_us` on average; the sum of `weights` is above 0.
  FaultPlan(uint64_t seed, const FaultWeights& weights, const ClusterShape& shape, int64_t gap_us)
      : seed_(seed), weights_(weights), shape_(shape), gap_us_(gap_us) {}

  SimFault Get(uint32_t index) const;

 private:
  FaultKind DrawKind(loadgen::RandomDraws& draws) const;
  void DrawLink(loadgen::RandomDraws& draws, SimFault* fault) const;
  void DrawSize(loadgen::RandomDraws& draws, SimFault* fault) const;

  const uint64_t seed_;
  const FaultWeights weights_;
  const ClusterShape shape_;
  const int64_t gap_us_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_FAULTS_H_
