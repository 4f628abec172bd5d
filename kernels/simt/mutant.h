// Faults injected into a kernel at run time: one call of a primitive, named by its place in the
// source, misbehaves. A test suite that does not notice is too weak there, or the call is not
// needed. State belongs to the operating-system thread.
#ifndef BATON_KERNELS_SIMT_MUTANT_H_
#define BATON_KERNELS_SIMT_MUTANT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/simt/site.h"

namespace baton::simt {
inline namespace runner {

// What a call does instead of its work.
enum class Mutation : uint8_t {
  kDropSyncBlock,
  kDropSyncWarp,
  kDropShuffle,   // returns the caller's own value
  kDropCopy,      // cp_async16 and bulk_copy move nothing (a bulk copy still arrives)
  kDropCommit,    // the copies join the next group
  kWaitForFewer,  // cp_async_wait<N> waits as N + 1
  kDropArrive,    // mbar_arrive and mbar_arrive_expect
  kSkipWait,      // mbar_wait and wait_for_previous
  kRelaxed,       // load_acquire and store_release order nothing
  kDropFence,     // fence and mbar_fence_init
  kGuardTrue,
  kGuardFalse,
};

// "sync_block dropped", ...
const char* MutationName(Mutation mutation);

// One fault: this mutation of the calls at this line.
struct Mutant {
  std::string file;  // as the compiler spells it
  int line = 0;
  Mutation mutation = Mutation::kDropSyncBlock;

  bool operator==(const Mutant&) const = default;
};

// Makes launches of this thread run the mutant for its lifetime.
class ScopedMutant {
 public:
  explicit ScopedMutant(const Mutant& mutant);
  ~ScopedMutant();
  ScopedMutant(const ScopedMutant&) = delete;
  ScopedMutant& operator=(const ScopedMutant&) = delete;
};

// Collects the mutants of every call that launches of this thread meet during its lifetime.
class MutantRecorder {
 public:
  MutantRecorder();
  ~MutantRecorder();
  MutantRecorder(const MutantRecorder&) = delete;
  MutantRecorder& operator=(const MutantRecorder&) = delete;

  // By file, line, mutation.
  std::vector<Mutant> Found() const;
};

// True when the call at `site` must misbehave so. For the runner.
bool Mutated(Site site, Mutation mutation);

}  // namespace runner
}  // namespace baton::simt

#endif  // BATON_KERNELS_SIMT_MUTANT_H_
