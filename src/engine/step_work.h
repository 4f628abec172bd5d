// StepWork: the step that an engine runs: its rows, the requests that they work for, and what came
// of them. Shared by the parts of StepRunner; all memory is taken at construction. Engine thread.
#ifndef BATON_ENGINE_STEP_WORK_H_
#define BATON_ENGINE_STEP_WORK_H_

#include <array>
#include <cstddef>
#include <vector>

#include "src/engine/choice_tokens.h"
#include "src/engine/engine_state.h"
#include "src/engine/guide_waits.h"
#include "src/engine/request_ends.h"
#include "src/engine/request_life.h"
#include "src/engine/step_batch.h"
#include "src/engine/taken_events.h"
#include "src/engine/transfer_hub.h"

namespace baton::engine {

// The parts of an engine that its steps act upon; all outlive the steps.
struct StepParts {
  EngineState* state = nullptr;
  TakenEvents* events = nullptr;
  RequestLife* life = nullptr;
  GuideWaits* guides = nullptr;
  ChoiceTokens* tokens = nullptr;
  TransferHub* hub = nullptr;
  RequestEnds* ends = nullptr;
};

// A prompt that this step completed, and the plan item that did.
struct DonePrompt {
  LiveRequest* request = nullptr;
  size_t item = 0;
};

// A request that cannot go on, and why.
struct FailedRequest {
  LiveRequest* request = nullptr;
  Status status;
};

// See the file comment.
struct StepWork {
  explicit StepWork(const EngineState& state);

  std::array<StepBatch, 2> batches;
  size_t current = 0;             // of batches, the planned step's
  std::vector<SequenceUse> uses;  // parallel to the plan's items
  std::vector<scheduler::ItemResult> results;
  std::vector<DonePrompt> done_prompts;
  std::vector<LiveRequest*> finished;  // all their choices are
  std::vector<FailedRequest> failed;   // no token could be sampled; each request once

  StepBatch& batch() { return batches[current]; }
  StepBatch& next_batch() { return batches[1 - current]; }
  // Notes that a request cannot go on; its first error counts. It ends after the step.
  void NoteFailed(LiveRequest* request, Status status);
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_STEP_WORK_H_
