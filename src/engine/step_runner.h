// StepRunner: runs the steps of the device one after another: plan, lower, compute, sample, finish.
// Where the model's steps overlap (README.md) it begins the next step before it ends the running
// one. Engine thread.
//
// Invariants
//  1. While a step is in flight no request and no block may come or go: Settle first.
//  2. In steady state a step takes no lock but the inbox's, allocates nothing and formats nothing.
//  3. Requests that a step ends or fails do so after its tokens are in the outbox.
#ifndef BATON_ENGINE_STEP_RUNNER_H_
#define BATON_ENGINE_STEP_RUNNER_H_

#include <cstdint>
#include <vector>

#include "src/engine/prompt_ends.h"
#include "src/engine/prompt_seals.h"
#include "src/engine/row_sampler.h"
#include "src/engine/step_work.h"

namespace baton::engine {

// See the file comment.
class StepRunner {
 public:
  explicit StepRunner(const StepParts& parts);
  // Waits for the step in flight and drops its tokens.
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Runs one step, or ends the one in flight. False when there is nothing to compute.
  bool Run();
  // True while a step was begun and has not ended.
  bool in_flight() const { return in_flight_; }
  // Waits for all begun steps, so that requests and blocks may come and go.
  void Settle();

 private:
  // False when there is nothing to compute.
  bool Plan();
  void Lower(const scheduler::BatchPlan& plan);
  // Finds the requests of the plan's sequences. A sequence that has ended has no request any more.
  void TakeUses(const scheduler::BatchPlan& plan);
  void NotePlanned(const scheduler::BatchPlan& plan);
  // Computes the planned step by Forward.
  void Compute();
  void Begin(StepBatch* step);
  // Begins the step after the planned one, which runs, unless other work may come first.
  void BeginNext();
  // Waits for the step that runs; the next one, if it was begun, runs then.
  void End();
  void Finish();
  // Drops states that hold a value that is no number. Then a request without logits in this step
  // fails.
  void JudgeStates(const scheduler::BatchPlan& plan);
  // Does the work that waits for the end of all steps that were begun.
  void EndRequests();
  void Measure(const scheduler::BatchPlan& plan, int64_t elapsed_us);

  const StepParts parts_;
  EngineState* const state_;
  StepWork work_;
  RowSampler rows_;
  PromptSeals seals_;
  PromptEnds prompts_;
  std::vector<LiveRequest*> first_steps_;  // requests whose first decode step this is
  device::CoreShare::Place place_;         // of the engine thread
  bool in_flight_ = false;                 // the planned step was begun, and has not ended
  int64_t began_us_ = 0;                   // of the planned step
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_STEP_RUNNER_H_
