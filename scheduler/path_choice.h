// PathChoice: whether the decode worker computes a prompt that a prefill worker beside it could
// compute, by what both ways are predicted to cost (--mode adaptive). Pure; any thread.
//
// The unit is a second that a client waits. A pair costs the time until the decode worker has the
// prompt's KV. The decode worker alone costs that time as well, and once more its own computing
// for each stream that runs there: every one of them gets its next tokens so much later.
//
//   pair  = wait + max(compute, cross)
//   local = (wait + compute) x (1 + step / chunk) + streams x compute
//
// `chunk` is what a step with decode rows leaves for a prompt.
//
// Where both workers compute on cores that they lend each other, a prompt takes the same cores on
// either way, and the worker that computes at that time waits:
//
//   pair  = wait' + max(compute', cross) + (streams + prompts of decode) x compute
//   local = (wait' + compute') x (1 + step / chunk) + streams x compute' + prompts x compute
//
// With a dash: as long as it takes on the worker's own part of the cores, where the other worker
// has something to compute. `prompts` wait at the prefill worker, `prompts of decode` at the other
// one. So two workers of one host are no two machines: a queue at one is no reason to use the
// other.
//
// The decode worker is taken when local < pair x (1 - kPathMargin). NOTES.md, "Pair or decode
// worker", has an example.
#ifndef BATON_SCHEDULER_PATH_CHOICE_H_
#define BATON_SCHEDULER_PATH_CHOICE_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "scheduler/route_policy.h"

namespace baton::scheduler {

// The local path must cost less than the pair by this share of the pair's cost. Measured speeds are
// averages of some nine steps and differ by a tenth between equal workers: equal predictions stay
// with the pair, which disturbs no stream.
inline constexpr double kPathMargin = 0.125;

// Predicted times of a prefill worker with a decode worker, in seconds.
struct PairTimes {
  double wait_s = 0;         // for the prompts before it
  double compute_s = 0;      // tokens that the prefill worker's cache lacks
  double cross_s = 0;        // KV that the decode worker lacks, over the link; while it is computed
  uint32_t num_waiting = 0;  // prompts before it

  double TotalS() const { return wait_s + std::max(compute_s, cross_s); }
};

// Predicted times of the decode worker alone, in seconds, and what runs there.
struct LocalTimes {
  double wait_s = 0;        // for the prompts before it
  double compute_s = 0;     // tokens that its cache lacks, in steps without decode rows
  double at_prefill_s = 0;  // the same tokens at the speed of the pair's prefill worker
  double step_s = 0;        // a step with its decode rows alone; 0 = not measured
  double block_s = 0;       // to compute one block of a prompt: the least chunk of a step
  uint32_t num_streams = 0;
  uint32_t num_waiting = 0;  // prompts before it
};

// Both ways.
struct PathTimes {
  PairTimes pair;
  LocalTimes local;
  // The prefill worker's part of the cores that both compute on, in (0, 1); the decode worker has
  // the rest. The times above are those on all of them. 0 = each worker has cores of its own.
  double prefill_share = 0;
};

// Seconds that clients wait for a prompt that the pair computes.
double PairCostS(const PathTimes& times);
// Seconds that clients wait for a prompt at the decode worker; infinite where its chunks would make
// running streams miss the objective of gaps. `itl_objective_us`: 0 = there is none.
double LocalCostS(const PathTimes& times, int64_t itl_objective_us);

// Why the decode worker is to compute the prompt: what the pair loses most time by, kPrefillQueue,
// kSlowLink, kDecodeHit or kFasterDecode. Nothing: the pair is to.
std::optional<RouteReason> ReasonForLocal(const PathTimes& times, int64_t itl_objective_us);

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_PATH_CHOICE_H_
