#include "kernels/simt/mutant.h"

#include <set>
#include <tuple>

#include "src/base/check.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

// The active mutant and the recorded sites of one operating-system thread.
struct MutantState {
  std::optional<Mutant> active;
  bool recording = false;
  // Keyed by the literal's address, which is quick; Found() merges equal names.
  std::set<std::tuple<const char*, int, Mutation>> met;
};

MutantState& State() {
  static thread_local MutantState state;
  return state;
}

}  // namespace

const char* MutationName(Mutation mutation) {
  switch (mutation) {
    case Mutation::kDropSyncBlock:
      return "sync_block dropped";
    case Mutation::kDropSyncWarp:
      return "sync_warp dropped";
    case Mutation::kDropShuffle:
      return "shuffle gives the own value";
    case Mutation::kDropCopy:
      return "copy dropped";
    case Mutation::kDropCommit:
      return "commit dropped";
    case Mutation::kWaitForFewer:
      return "wait for one group fewer";
    case Mutation::kDropProduct:
      return "product dropped";
    case Mutation::kDropArrive:
      return "arrive dropped";
    case Mutation::kSkipWait:
      return "wait skipped";
    case Mutation::kRelaxed:
      return "relaxed";
    case Mutation::kDropFence:
      return "fence dropped";
    case Mutation::kGuardTrue:
      return "guard always true";
    case Mutation::kGuardFalse:
      return "guard always false";
  }
  return "unknown";
}

ScopedMutant::ScopedMutant(const Mutant& mutant) {
  BATON_CHECK(!State().active.has_value(), "one mutant at a time");
  State().active = mutant;
}

ScopedMutant::~ScopedMutant() { State().active.reset(); }

MutantRecorder::MutantRecorder() {
  State().recording = true;
  State().met.clear();
}

MutantRecorder::~MutantRecorder() { State().recording = false; }

std::vector<Mutant> MutantRecorder::Found() const {
  std::set<std::tuple<std::string, int, Mutation>> merged(State().met.begin(), State().met.end());
  std::vector<Mutant> mutants;
  mutants.reserve(merged.size());
  for (const auto& [file, line, mutation] : merged) mutants.push_back({file, line, mutation});
  return mutants;
}

bool Mutated(Site site, Mutation mutation) {
  MutantState& state = State();
  if (state.recording) state.met.emplace(site.file, site.line, mutation);
  return state.active.has_value() && state.active->line == site.line &&
         state.active->mutation == mutation && state.active->file == site.file;
}

}  // namespace runner
}  // namespace baton::kernels::simt
