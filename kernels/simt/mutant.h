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

namespace baton::kernels::simt {
inline namespace runner {

// The wrong thing that a call does instead of its work.
enum class Mutation : uint8_t {
  kDropSyncBlock,
  kDropSyncWarp,
  kDropShuffle,   // returns the caller's own value
  kDropCopy,      // cp_async16, bulk_copy and tensor_copy move nothing (the latter still arrive)
  kDropCommit,    // the copies, or products, join the next group
  kWaitForFewer,  // cp_async_wait<N> and wgmma_wait<N> wait as N + 1
  kDropProduct,   // a wgmma leaves the sums as they are
  kDropArrive,    // mbar_arrive and mbar_arrive_expect
  kSkipWait,      // mbar_wait and wait_for_previous
  kRelaxed,       // load_acquire and store_release order nothing
  kDropFence,     // fence, mbar_fence_init, fence_proxy_async and wgmma_fence
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
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_MUTANT_H_
