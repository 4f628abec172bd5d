// Runs of simulations: several worlds side by side, and the search for the shortest run that still
// breaks a promise.
#ifndef BATON_SIM_SIM_RUNNER_H_
#define BATON_SIM_SIM_RUNNER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "src/sim/sim_world.h"

namespace baton::sim {

// Runs `num_worlds` >= 1 worlds on as many threads, each with its share of the requests and a seed
// of its own (one world: the seed itself). The report depends on the options alone.
SimReport RunSimulation(const SimOptions& options, uint32_t num_worlds);
// The options of one of them.
SimOptions WorldOptions(const SimOptions& options, uint32_t num_worlds, uint32_t world);

// A shortest failing run.
struct ShrunkRun {
  SimOptions options;
  SimViolation violation;
  uint32_t num_runs = 0;  // that it took to find
};
// Shrinks one world's options that break a promise: fewer requests, then fewer faults, then fewer
// requests again. It goes on as long as the same kind of promise breaks, for at most `max_runs`
// runs. Nothing when the options break none.
std::optional<ShrunkRun> Shrink(const SimOptions& options, uint32_t max_runs);

// The arguments of `baton sim` that repeat the run of one world.
std::string ReplayArguments(const SimOptions& options);

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_RUNNER_H_
