// EngineCore: the body of an engine's loop, without the thread, so that tests can turn it by hand
// under their own clock. Everything in it is owned by the thread that calls Turn.
//
// One turn: take the inbox -> handle the events -> tick leases and deadlines -> plan a step, run
// it, report its tokens -> publish the snapshot. A step is bounded by the scheduler's target time,
// so that every event is handled within about 100 ms.
//
// Where the model's steps overlap (README.md) a turn of decode rows begins the step after the one
// that runs, then ends that one. An event waits until a turn has ended all it had begun.
//
// On the path of a step there is no lock, no allocation in steady state and no formatting; the
// inbox is read once a layer group, for grants.
#ifndef BATON_ENGINE_ENGINE_CORE_H_
#define BATON_ENGINE_ENGINE_CORE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"

#include "kvcache/block_pool.h"
#include "kvcache/prefix_index.h"
#include "scheduler/scheduler.h"
#include "src/engine/dest_transfers.h"
#include "src/engine/engine_debug.h"
#include "src/engine/engine_event.h"
#include "src/engine/engine_inbox.h"
#include "src/engine/engine_options.h"
#include "src/engine/engine_snapshot.h"
#include "src/engine/live_request.h"
#include "src/engine/outbox.h"
#include "src/engine/source_transfers.h"
#include "src/engine/speculator.h"
#include "src/engine/step_batch.h"
#include "src/model/sampler.h"

namespace baton::engine {

// See the file comment.
class EngineCore : private TransferOwner, private model::LayerHook {
 public:
  // InvalidArgument naming the number that is outside its range.
  static Status CheckConfig(const EngineConfig& config, const EngineParts& parts);
  // The config was checked; `inbox` outlives the core.
  EngineCore(const EngineConfig& config, const EngineParts& parts, EngineInbox* inbox);
  ~EngineCore() override;

  // One turn. True when there is more to compute at once.
  bool Turn();
  // Waits for events until something is due; they are handled by the next Turn.
  void Wait();
  // When the next turn is due at the latest, on the engine's clock.
  int64_t NextDueUs() const;

  // Any thread.
  EngineSnapshot Snapshot() const { return snapshot_.Read(); }

  // For tests; the turning thread.
  const kv::BlockPool& pool() const { return pool_; }
  // For another user of the pool, as the scheduler allows: simulations take blocks for a while.
  kv::BlockPool* mutable_pool() { return &pool_; }
  const scheduler::Scheduler& scheduler() const { return scheduler_; }

 private:
  // The engine's knowledge of a router's stream.
  struct Session {
    int64_t lease_until_us = 0;
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
  // A source block range that this step fills for good.
  struct StepSeal {
    SourceTransfer* transfer = nullptr;
    uint32_t first_ordinal = 0;
    uint32_t num_ordinals = 0;
  };

  // engine_core.cc: the loop.
  void Handle(EngineEvent event);
  void HandlePeerMessage(const PeerMessage& message);
  void Tick();
  void ExpireRequests();

  // engine_requests.cc: how requests start and end.
  void StartRequestNow(std::unique_ptr<RequestSpec> spec);
  // `num_hit_tokens` came from the prefix cache when the prompt began.
  void ReportRetargeted(const LiveRequest& request, uint32_t num_hit_tokens);
  void RenewLease(SessionId session);
  Status CheckSpec(const RequestSpec& spec) const;
  Status CheckEmbeds(const RequestSpec& spec) const;
  Status Admit(LiveRequest* request);
  // ResourceExhausted at the limit of hand-offs.
  Status CanOpenTransfer() const;
  // Reserves the blocks, in `dest_start_`.
  Status AdmitDest(LiveRequest* request);
  scheduler::SequenceSpec MakeSequenceSpec(const LiveRequest& request, SequenceId id) const;
  void Reject(const RequestSpec& spec, const Status& status);
  // Lets go of everything that the request holds, then ends it.
  void Abandon(LiveRequest* request, RequestState state, const Status& status);
  // The request is over; it holds nothing outside the scheduler.
  // `failed_part`: with kFailed, what failed.
  void End(LiveRequest* request, RequestState state, const Status& status,
           FailedPart failed_part = FailedPart::kNotTold);
  void CancelSession(SessionId session, std::string_view why);
  // `cached_tokens` goes with prefill started.
  void SetState(LiveRequest* request, RequestState state, uint32_t cached_tokens = 0);
  void ReportReserved(LiveRequest* request);  // by dest_start_
  // Sends the same prompt to another decode worker and keeps what is computed. False when nothing
  // is kept.
  bool Retarget(LiveRequest* old, const RequestSpec& spec);
  // A request that decodes here goes on at another worker: hands off the KV of `spec.tokens`. False
  // when this worker has not all of it.
  bool HandOver(LiveRequest* old, const RequestSpec& spec);
  void TakeNewAttempt(LiveRequest* request, const RequestSpec& spec);
  void OnSourceGranted(const RequestKey& key) override;
  void OnSourceDone(const RequestKey& key) override;
  void OnSourceStranded(const RequestKey& key, kv::HandoffOutcome outcome,
                        const Status& status) override;
  void OnDestProgress(const RequestKey& key, uint64_t kv_bytes) override;
  void OnDestVerified(const RequestKey& key, const TransferResult& result) override;
  void OnDestBound(const RequestKey& key, const kv::Seal& seal,
                   std::span<const kv::BlockHandle> blocks) override;
  void OnTransferFailed(const RequestKey& key, kv::HandoffOutcome outcome,
                        const Status& status) override;
  LiveRequest* FindLive(const RequestKey& key) const;

  // engine_guides.cc: masks of requests with a grammar. Nothing to do for those without.
  Status FollowGrammar(LiveRequest* request);  // ResourceExhausted: too many wait for theirs
  bool HasMask(AnswerGuide* guide);            // of the next token; waits as guide_wait_us_ allows
  // Lets the scheduler sample the request's sequences as soon as their masks are there. The error
  // of a guide that cannot go on: the request must end.
  Status AwaitMasks(LiveRequest* request);
  void AwaitMasksOrEnd(LiveRequest* request);

  // engine_step.cc: one step.
  bool RunStep();
  // False when there is nothing to compute.
  bool PlanStep();
  // The planned step, by Forward.
  void Compute();
  void Begin(StepBatch* step);
  // Begins the step after the planned one, which runs, unless something else may come first.
  void BeginNext();
  // Waits for the step that runs; the next one, if it was begun, runs then.
  void EndStep();
  // Waits for all that was begun, so that requests and blocks may come and go.
  void Settle();
  StepBatch& batch() { return batches_[current_]; }
  void LowerPlan(const scheduler::BatchPlan& plan);
  // Finds the requests that the plan's sequences work for. A sequence that has ended works for
  // nobody any more.
  void TakeUses(const scheduler::BatchPlan& plan);
  void AskForTokens(const scheduler::BatchPlan& plan, StepBatch* step) const;
  void NotePlanned(const scheduler::BatchPlan& plan);
  void NoteSeals(const scheduler::BatchItem& item, const SequenceUse& use);
  void SealHits();
  void OnLayerStored(uint32_t layer) override;
  void TakeGrants();
  void FinishStep();
  // Does the work that waits for the end of all steps that were begun.
  void EndRequests();
  void TellProgress(const scheduler::BatchPlan& plan);
  void LogPrompts(const scheduler::BatchPlan& plan);
  void PoolRows(const scheduler::BatchPlan& plan);
  void SampleAll(const scheduler::BatchPlan& plan);
  // Keeps no state that holds what is no number. A request without logits in this step fails.
  void JudgeStates(const scheduler::BatchPlan& plan);
  void NoteFailed(LiveRequest* request, Status status);
  // The model gave no number to sample from: in which layer the request's state holds none, if any.
  Status NoNumberError(const LiveRequest& request, const Choice& choice) const;
  // The token of plan item `item` after `row` of its guesses into `sampled_`; false, and the
  // request is noted as failed, when nothing can be chosen.
  bool Sample(LiveRequest* request, const Choice& choice, size_t item, uint32_t row = 0);
  Status SampleHere(const LiveRequest& request, const Choice& choice, size_t item, uint32_t row);
  // The choice's next token, and those after it as long as the item's guesses are right.
  scheduler::ItemResult TakeTokens(const scheduler::BatchItem& item, size_t idx, Choice* choice);
  // The prompt's sequence goes on as the only choice.
  void BecomeChoice(LiveRequest* request, Choice* choice);
  // Appends a choice's next token, decides whether it was its last, and reports it. `told` is what
  // the report says beside it.
  void TakeToken(LiveRequest* request, Choice* choice, const model::SampledToken& sampled,
                 const TokenEvent& told = {});
  void FinishPrompt(const DonePrompt& done);
  void FinishEmbedding(LiveRequest* request);
  void SealPrompt(LiveRequest* request);
  // Takes `first_tokens_` and lists in `starts_` how the choices go on.
  void StartChoices(LiveRequest* request);
  void CopyBlocks();

  // engine_report.cc: numbers for others.
  void Publish();
  void AnswerDebug(DebugQuery* query) const;
  void MeasureStep(const scheduler::BatchPlan& plan, int64_t elapsed_us);

  const EngineConfig config_;
  const EngineParts parts_;
  EngineInbox* const inbox_;
  const kv::KvView kv_view_;
  kv::BlockPool pool_;
  std::unique_ptr<kv::PrefixIndex> prefix_index_;  // null when it is switched off
  Speculator speculator_;
  scheduler::Scheduler scheduler_;
  model::Sampler sampler_;
  SourceTransferSet sources_;
  DestTransferSet dests_;
  RequestTable requests_;
  absl::btree_map<SessionId, Session> sessions_;  // of live requests
  absl::flat_hash_map<Incarnation, kv::TransportKind> peers_;
  Outbox outbox_;
  std::array<StepBatch, 2> batches_;
  size_t current_ = 0;      // of batches_, the planned step's
  bool in_flight_ = false;  // the planned step was begun, and has not ended
  int64_t step_began_us_ = 0;
  bool draining_ = false;
  uint64_t last_sequence_id_ = 0;
  int64_t now_us_ = 0;         // of this turn
  DestStart dest_start_;       // of the request being admitted
  int64_t guide_wait_us_ = 0;  // that this turn may still wait for masks

  // The state of the step being run.
  std::vector<EngineEvent> pending_;  // taken, not handled
  size_t num_scanned_ = 0;            // of `pending_`, for grants
  std::vector<SequenceUse> uses_;     // parallel to the plan's items
  std::vector<StepSeal> seals_;
  std::vector<StepSeal> hit_seals_;  // blocks that were found whole in the prefix index
  std::vector<scheduler::ItemResult> results_;
  std::vector<LiveRequest*> first_steps_;  // their first decode step is this one
  std::vector<DonePrompt> done_prompts_;
  std::vector<LiveRequest*> finished_;  // all their choices are
  std::vector<FailedRequest> failed_;   // no token could be sampled
  std::vector<scheduler::ChoiceStart> starts_;
  std::vector<kv::BlockCopy> copies_;
  std::vector<model::SampledToken> first_tokens_;  // of the prompt being finished, by choice
  model::SampledToken sampled_;
  EngineSnapshot numbers_;  // counters, and what Publish fills in
  SnapshotCell<EngineSnapshot> snapshot_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_CORE_H_
