// EngineCore: the body of an engine's loop, without the thread. Tests call Turn by hand, with their
// own clock. The thread that calls Turn owns everything in it.
//
// One turn: take the inbox -> handle the events -> tick leases and deadlines -> plan a step, run
// it, report its tokens -> publish the snapshot. A step is bounded by the scheduler's target time,
// so that every event is handled within about 100 ms (200 ms while a prompt with log-probabilities
// is computed).
//
// Where the model's steps overlap (README.md) a turn of decode rows begins the step after the one
// that runs, then ends the running one. An event waits until all begun steps have ended.
//
// On the path of a step there is no lock, no allocation in steady state and no formatting; the
// inbox is read once a layer group, for grants.
//
// The parts below do the work. Each part has one duty and knows only parts above it in the list of
// members. EngineCore gives each event to its part and orders the work of a turn.
#ifndef BATON_ENGINE_ENGINE_CORE_H_
#define BATON_ENGINE_ENGINE_CORE_H_

#include <cstdint>

#include "src/engine/block_supply.h"
#include "src/engine/choice_tokens.h"
#include "src/engine/engine_event.h"
#include "src/engine/engine_inbox.h"
#include "src/engine/engine_options.h"
#include "src/engine/engine_report.h"
#include "src/engine/engine_state.h"
#include "src/engine/guide_waits.h"
#include "src/engine/request_ends.h"
#include "src/engine/request_life.h"
#include "src/engine/request_starts.h"
#include "src/engine/session_leases.h"
#include "src/engine/step_runner.h"
#include "src/engine/taken_events.h"
#include "src/engine/transfer_hub.h"
#include "src/engine/transfer_news.h"

namespace baton::engine {

// See the file comment.
class EngineCore {
 public:
  // InvalidArgument naming the number that is outside its range.
  static Status CheckConfig(const EngineConfig& config, const EngineParts& parts);
  // The config was checked; `inbox` outlives the core.
  EngineCore(const EngineConfig& config, const EngineParts& parts, EngineInbox* inbox);

  // One turn. True when there is more to compute at once.
  bool Turn();
  // Waits for events until something is due. The next Turn handles them.
  void Wait() { events_.WaitAndTake(NextDueUs()); }
  // When the next turn is due at the latest, on the engine's clock.
  int64_t NextDueUs() const;

  // Any thread.
  EngineSnapshot Snapshot() const { return report_.Read(); }

  // For tests; the turning thread.
  const kv::BlockPool& pool() const { return state_.pool; }
  // For simulations, which take blocks of the pool for a while.
  kv::BlockPool* mutable_pool() { return &state_.pool; }
  const scheduler::Scheduler& scheduler() const { return state_.scheduler; }

 private:
  void Handle(EngineEvent event);

  EngineState state_;
  BlockSupply supply_;
  TakenEvents events_;
  RequestLife life_;
  GuideWaits guides_;
  ChoiceTokens tokens_;
  TransferNews news_;
  TransferHub hub_;
  SessionLeases leases_;
  RequestEnds ends_;
  RequestStarts starts_;
  StepRunner steps_;
  EngineReport report_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_CORE_H_
