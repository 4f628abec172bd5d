#include "src/sim/sim_runner.h"

#include <algorithm>
#include <set>
#include <vector>

#include "fmt/format.h"

#include "src/base/thread.h"

namespace baton::sim {
namespace {

// The search of Shrink: runs shorter candidates and keeps those that break the same promise.
class Shrinker {
 public:
  Shrinker(const SimOptions& options, uint32_t max_runs) : best_(options), max_runs_(max_runs) {
    best_.stop_at_first = true;
  }

  std::optional<ShrunkRun> Search() {
    if (!Try(best_)) return std::nullopt;
    // Events after the broken promise did not cause it.
    SimOptions until = best_;
    until.num_requests = std::max<uint64_t>(1, violation_.num_requests);
    until.only_faults = applied_;
    Try(until);
    FewerRequests();
    FewerFaults();
    FewerRequests();
    return ShrunkRun{best_, violation_, num_runs_};
  }

 private:
  // True, and `candidate` is the best, when it breaks the same kind of promise.
  bool Try(const SimOptions& candidate) {
    if (num_runs_ >= max_runs_) return false;
    ++num_runs_;
    SimWorld world(candidate);
    const SimReport report = world.Run();
    if (report.ok()) return false;
    const SimViolation& violation = report.first_violations.front();
    if (!violation_.kind.empty() && violation.kind != violation_.kind) return false;
    violation_ = violation;
    best_ = candidate;
    applied_ = {world.applied_faults().begin(), world.applied_faults().end()};
    return true;
  }

  void FewerRequests() {
    uint64_t step = best_.num_requests / 2;
    while (step >= 1) {
      SimOptions fewer = best_;
      fewer.num_requests -= step;
      const bool still = fewer.num_requests >= 1 && Try(fewer);
      if (!still || step >= best_.num_requests) step /= 2;
    }
  }

  // Delta debugging (Zeller and Hildebrandt, 2002), by leaving out ever smaller parts.
  void FewerFaults() {
    size_t part = std::max<size_t>(1, applied_.size() / 2);
    while (true) {
      bool any = false;
      for (size_t begin = 0; begin < applied_.size();) {
        std::vector<uint32_t> kept(applied_.begin(), applied_.end());
        const size_t end = std::min(begin + part, kept.size());
        kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(begin),
                   kept.begin() + static_cast<std::ptrdiff_t>(end));
        SimOptions fewer = best_;
        fewer.only_faults = std::set<uint32_t>(kept.begin(), kept.end());
        if (Try(fewer)) {
          any = true;
        } else {
          begin = end;
        }
        if (num_runs_ >= max_runs_) return;
      }
      if (part == 1 && !any) return;
      part = std::max<size_t>(1, part / 2);
    }
  }

  SimOptions best_;
  const uint32_t max_runs_;
  uint32_t num_runs_ = 0;
  SimViolation violation_;
  std::set<uint32_t> applied_;
};

}  // namespace

SimOptions WorldOptions(const SimOptions& options, uint32_t num_worlds, uint32_t world) {
  SimOptions own = options;
  if (num_worlds == 1) return own;
  own.seed = StreamSeed(options.seed, DrawPurpose::kWorld, 1 + world);
  own.num_requests =
      options.num_requests * (world + 1) / num_worlds - options.num_requests * world / num_worlds;
  return own;
}

SimReport RunSimulation(const SimOptions& options, uint32_t num_worlds) {
  std::vector<SimReport> reports(num_worlds);
  const auto run = [&](uint32_t world) {
    SimWorld simulated(WorldOptions(options, num_worlds, world));
    reports[world] = simulated.Run();
  };
  {
    std::vector<Thread> threads;
    for (uint32_t world = 1; world < num_worlds; ++world) {
      threads.emplace_back(fmt::format("sim-{}", world), [&run, world] { run(world); });
    }
    run(0);
  }
  SimReport total;
  for (const SimReport& report : reports) total.Add(report);
  total.seed = options.seed;
  return total;
}

std::optional<ShrunkRun> Shrink(const SimOptions& options, uint32_t max_runs) {
  return Shrinker(options, max_runs).Search();
}

std::string ReplayArguments(const SimOptions& options) {
  std::string line = fmt::format(
      "--seed {} --requests {} --prefill {} --decode {} --routers {} --blocks {} --max-output {} "
      "--step-us {} --requests-per-fault {}",
      options.seed, options.num_requests, options.shape.num_prefill, options.shape.num_decode,
      options.shape.num_routers, options.num_blocks, options.max_output, options.step_us,
      options.requests_per_fault);
  // A trace has its own times, and is one world; the caller names its file.
  if (options.trace == nullptr) line += fmt::format(" --jobs 1 --rate {}", options.rate);
  std::string faults;
  for (size_t i = 0; i < kNumFaultKinds; ++i) {
    if (options.faults[i] <= 0) continue;
    if (!faults.empty()) faults += ',';
    faults += fmt::format("{}={}", FaultKindName(static_cast<FaultKind>(i)), options.faults[i]);
  }
  if (options.has_states) line += " --states";
  if (options.window > 0) line += fmt::format(" --window {}", options.window);
  line += " --faults " + (faults.empty() ? "none" : faults);
  if (options.only_faults) {
    line += fmt::format(" --only-faults '{}'", fmt::join(*options.only_faults, ","));
  }
  return line;
}

}  // namespace baton::sim
