// Words that several ctas use, fences, spinning, and guards.
//
// Ordering follows C++11: store_release publishes what the thread knows, load_acquire takes what
// was published on its word; atomics alone are relaxed: they publish what the thread knew at its
// last fence, and what they see is known after its next one.
#include <algorithm>

#include "kernels/simt/mutant.h"
#include "kernels/simt/run_state.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

void TouchWord(RunState& run, const uint32_t* word, bool is_write, const void* code) {
  run.Touch({word, sizeof(*word), is_write, code}, /*atomic=*/true);
}

uint32_t ValueAfter(const calls::AtomicRequest& request, uint32_t before) {
  switch (request.op) {
    case calls::AtomicOp::kAdd:
      return before + request.value;
    case calls::AtomicOp::kMax:
      return std::max(before, request.value);
    case calls::AtomicOp::kExchange:
      return request.value;
    case calls::AtomicOp::kCompareSwap:
      return before == request.expected ? request.value : before;
  }
  return before;
}

}  // namespace

uint32_t calls::AtomicUpdate(const AtomicRequest& request, uint32_t* word, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  run.CheckBounds({word, sizeof(*word), false, __builtin_return_address(0)});
  const uint32_t before = *word;
  const uint32_t after = ValueAfter(request, before);
  // A spinning compare-and-swap that changes nothing is a read, and no progress.
  TouchWord(run, word, after != before, __builtin_return_address(0));
  *word = after;
  if (run.options().detect_races) {
    VectorClock& of_word = run.ClockOfWord(word);
    self.since_relaxed.Join(of_word);
    of_word.Join(self.at_fence);
  }
  if (after == before) {
    run.Yield(Waiting::kSpin, site);
  } else {
    run.MaybePreempt();
  }
  return before;
}

void calls::AtomicAdd64(uint64_t* word, uint64_t value, Site site) {
  RunState& run = *RunState::Current();
  run.CountStep(site);
  run.Touch({word, sizeof(*word), true, __builtin_return_address(0)}, /*atomic=*/true);
  *word += value;
  run.MaybePreempt();
}

uint32_t calls::LoadAcquire(const uint32_t* word, Site site) {
  RunState& run = *RunState::Current();
  TouchWord(run, word, false, __builtin_return_address(0));
  run.Yield(Waiting::kSpin, site);
  SimThread& self = run.self();
  if (run.options().detect_races) {
    VectorClock& into = Mutated(site, Mutation::kRelaxed) ? self.since_relaxed : self.clock;
    into.Join(run.ClockOfWord(word));
  }
  return *word;
}

void calls::StoreRelease(uint32_t* word, uint32_t value, Site site) {
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  TouchWord(run, word, true, __builtin_return_address(0));
  *word = value;
  if (run.options().detect_races) {
    VectorClock& of_word = run.ClockOfWord(word);
    of_word = VectorClock();
    if (Mutated(site, Mutation::kRelaxed)) {
      of_word.Join(self.at_fence);
    } else {
      run.Release(self, of_word);
    }
  }
  run.MaybePreempt();
}

void calls::Fence(Site site) {
  if (Mutated(site, Mutation::kDropFence)) return;
  RunState& run = *RunState::Current();
  SimThread& self = run.self();
  if (!run.options().detect_races) return;
  self.clock.Join(self.since_relaxed);
  run.Release(self, self.at_fence);
}

void calls::SpinPause(Site site) { RunState::Current()->Yield(Waiting::kSpin, site); }

bool calls::Guard(bool condition, Site site) {
  RunState::Current()->CountStep(site);
  if (Mutated(site, Mutation::kGuardTrue)) return true;
  return Mutated(site, Mutation::kGuardFalse) ? false : condition;
}

}  // namespace runner
}  // namespace baton::kernels::simt
