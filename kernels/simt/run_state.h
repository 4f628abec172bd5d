// One launch on the runner: its ctas, threads, and the scheduler that switches between them. Used
// by the sources of this folder only. Everything belongs to the operating-system thread of Run.
//
// Invariants: (1) a thread that is neither ready nor active waits for something that names its
// site; (2) after the first fault no thread runs again; (3) clocks advance only at releases.
#ifndef BATON_KERNELS_SIMT_RUN_STATE_H_
#define BATON_KERNELS_SIMT_RUN_STATE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"

#include "kernels/simt/arena.h"
#include "kernels/simt/clock.h"
#include "kernels/simt/fiber.h"
#include "kernels/simt/pending_work.h"
#include "kernels/simt/run_options.h"
#include "kernels/simt/runner_calls.h"
#include "kernels/simt/shadow.h"
#include "kernels/simt/site.h"
#include "kernels/simt/types.h"
#include "src/base/split_mix.h"

namespace baton::kernels::simt {
inline namespace runner {

// Loads, stores and guards of one thread in one launch; beyond, it will not end.
inline constexpr uint64_t kMaxSteps = uint64_t{1} << 24;

// The reason why a thread waits; kNothing while it is ready or active.
enum class Waiting : uint8_t {
  kNothing,
  kSyncBlock,
  kWarp,
  kWarpgroup,
  kMbarrier,
  kSpin,
  kReturned
};

// The warp-wide operations; all lanes of a mask must meet in the same one.
enum class WarpOp : uint8_t { kSync, kShuffle, kLoadMatrices, kLoadTransposed, kMultiply };

struct Cta;

// One simulated thread.
struct SimThread {
  Cta* cta = nullptr;
  uint32_t index = 0;
  Fiber fiber;
  std::byte* stack_top = nullptr;
  // The reason and the place of the wait; for kWarp also with whom, and its operands (on its
  // stack).
  Waiting waiting = Waiting::kNothing;
  Site site;
  WarpOp warp_op = WarpOp::kSync;
  uint32_t mask = 0;
  const void* in = nullptr;
  void* out = nullptr;
  const void* code = nullptr;  // where in the program the warp operation was called
  // Asynchronous copies, oldest first, and how many groups were committed.
  std::deque<PendingCopy> copies;
  uint32_t num_commits = 0;
  // The products of its warpgroup in the same way, and whether wgmma_fence came after the last
  // wait.
  std::vector<SumsInFlight> sums;
  std::vector<OperandInFlight> operands;
  uint32_t num_product_commits = 0;
  bool has_fenced_sums = false;
  VectorClock clock;
  VectorClock at_fence;       // published by relaxed atomics after the last fence
  VectorClock since_relaxed;  // seen by relaxed atomics, known after the next fence
  uint64_t num_steps = 0;
  bool has_waited = true;  // for the kernel before: false until then in a launch that overlaps
};

// The lanes of one mask that have arrived at a warp-wide operation.
struct Rendezvous {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  SimThread* first = nullptr;
};

// One mbarrier.
struct BarrierState {
  uint32_t index = 0;  // in its cta, for clocks
  uint32_t expected = 0;
  uint32_t pending = 0;
  int64_t bytes = 0;  // expected less landed
  uint64_t phase = 0;
  bool visible_to_copies = false;
  VectorClock gathering;
  VectorClock completed;
  Site init;
  std::deque<PendingCopy> flights;
};

// Four warps that multiply together.
struct Warpgroup {
  std::vector<SimThread*> met;          // threads that wait for the others in a wgmma
  std::deque<PendingProduct> products;  // oldest first
};

// A cta that is resident.
struct Cta {
  uint32_t id = 0;
  Dim3 position;
  std::byte* shared = nullptr;
  std::vector<std::unique_ptr<SimThread>> threads;
  std::vector<std::vector<Rendezvous>> warps;
  std::vector<Warpgroup> warpgroups;
  VectorClock fenced;  // what was known at a fence_proxy_async
  std::unordered_map<const void*, BarrierState> barriers;
  uint32_t num_at_sync = 0;
  const SimThread* first_at_sync = nullptr;  // of those
  uint32_t num_returned = 0;
};

// The launch that the calling operating-system thread is in.
class RunState {
 public:
  RunState(const LaunchConfig& config, const calls::KernelCall& call);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  // Null outside launches.
  static RunState* Current();
  absl::Status Execute();

  const LaunchConfig& config() const { return config_; }
  const RunOptions& options() const { return options_; }
  SimThread& self() { return *active_; }
  RunStats& stats() { return stats_; }
  Arena& arena() { return arena_; }

  // Called by the active thread.
  void Block(Waiting waiting, Site site);  // until MakeReady
  void Yield(Waiting waiting, Site site);  // lets others go first
  void MaybePreempt();                     // after a primitive, in the shuffled order
  [[noreturn]] void Fail(const char* kind, const std::string& message);
  [[noreturn]] void Misuse(Site site, const std::string& message);
  void CountStep(Site site);
  void CountStep(const Access& access);

  void MakeReady(SimThread& thread);
  void NoteProgress() { idle_turns_ = 0; }
  // Makes ready all threads of the range in the order of this run.
  void MakeReadyInOrder(std::vector<SimThread*> threads);
  // Fails unless the bytes belong to the active thread; true if they lie in device memory.
  bool CheckBounds(const Access& access);
  // CheckBounds and, if races are looked for, CheckRace as the active thread.
  void Touch(const Access& access, bool atomic = false);
  // Fails when the access, made as `self`, conflicts with an earlier one that `known`, or the
  // active thread, does not know of.
  void CheckRace(const Access& access, Epoch self);
  void CheckRace(const Access& access, Epoch self, const VectorClock& known);
  // The epoch of the last write to a byte of device memory.
  Epoch LastWrite(const void* address) const { return shadow_.LastWrite(address); }

  // Publishes what the thread knows, then lets its clock go on.
  void Release(SimThread& thread, VectorClock& into);
  // The clock that goes with a word used by atomics.
  VectorClock& ClockOfWord(const void* word) { return word_clocks_[word]; }
  uint64_t Random() { return SplitMix(random_ += kSplitMixStep); }
  bool LandsNow();
  // Moves the bytes of a copy.
  static void Land(const PendingCopy& copy);
  static void LandTile(const PendingCopy& copy);
  bool LandOneFlight();

  // For the fault handler: the running thread's stack, or null; and what then becomes of it.
  std::byte* ActiveStackTop() const;
  [[noreturn]] void FaultInThread(const void* address, const void* code);

 private:
  static void ThreadMain();
  bool IsOnDevice(const Access& access);  // CheckBounds itself
  // Fails for an access to device memory that the kernel before may be making too.
  void CheckOverlap(const Access& access);
  bool IsAtItsEnd() { return ++self().num_steps > kMaxSteps; }
  [[noreturn]] void FailWithoutEnd(const std::string& place);
  void StartCta(uint32_t id, std::byte* shared);
  void FinishCta(Cta* cta);
  SimThread* NextReady();
  void ReturnFromKernel();
  void Deadlock();
  std::string WhoWaitsWhere() const;
  std::string NameOf(Epoch epoch) const;

  LaunchConfig config_;
  calls::KernelCall call_;
  RunOptions options_;
  Arena& arena_;
  Shadow& shadow_;
  FiberStacks& stacks_;
  RunStats stats_;
  uint64_t random_;
  std::vector<uint32_t> waiting_ctas_;  // ids, next one last
  std::vector<std::unique_ptr<Cta>> ctas_;
  std::deque<SimThread*> ready_;
  SimThread* active_ = nullptr;
  // An access of it is looked at, or a report written: by functions that may have been compiled
  // with a kernel.
  bool is_checking_ = false;
  Fiber scheduler_;
  uint64_t idle_turns_ = 0;
  uint32_t num_live_ = 0;
  absl::Status outcome_;
  std::unordered_map<const void*, VectorClock> word_clocks_;
};

// "copy_kernel.cu:31" of a return address, or its offset in the program where the line is unknown.
std::string DescribeCode(const void* code);
// "copy_kernel.cu:31".
std::string DescribeSite(Site site);

// While it lives, a memory fault of a simulated thread becomes a fault of its launch.
class FaultHandler {
 public:
  FaultHandler();
  ~FaultHandler();
  FaultHandler(const FaultHandler&) = delete;
  FaultHandler& operator=(const FaultHandler&) = delete;
};

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_RUN_STATE_H_
