// Scheduler: decides what each step of one worker computes. Pure (time is an argument); engine
// thread. One code serves prefill and decode workers.
//
// A step is Plan -> the engine runs it -> Finish; or, where steps overlap, Plan -> (PlanAhead ->
// Finish) -> Finish. Decode rows come first, one for each running sequence; then chunks of prompts
// as far as the token budget and the step's target time allow. Prompts are ordered by work left
// plus arrival (README.md: "Order of prompts"), so a short prompt overtakes a long one and no
// prompt waits for ever. Blocks for a whole prompt are taken when its first chunk is planned, all
// or none. A decode row gets a block when its next token needs one. When no block is free, the
// youngest sequence loses its blocks. It is computed again later, and its output is replayed.
//
// Where every layer has a window a sequence holds the blocks that its rows see. A prompt then takes
// blocks for a window and a chunk, and releases and takes some before each chunk. It loses its own
// where others hold what it released, and none is free.
//
// Where sequences have a fixed state a step may leave checkpoints of it in the prefix index. They
// are made at the last block border before a prompt's last token, at each multiple of
// checkpoint_tokens, and at the first border after a prompt that came by a hand-off. They take
// blocks that no item of the step wanted.
//
// Invariants
//  1. Every sequence that AddWaiting or AddBound accepted leaves by a finished ItemResult, Fork,
//     or Remove; a sequence that could never fit is refused by AddWaiting.
//  2. A plan has at most max_running decode items and max_batch_tokens tokens; every running one
//     is in it. A sequence that awaits has only chunks in it that nothing is sampled after. Guesses
//     (proposer.h) leave room for a block of a prompt, and take no block from another sequence.
//  3. A sequence's tables hold blocks for its state and its item before the plan is returned.
//  4. The oldest sequence that decodes is never preempted for a younger one.
//  5. Between Plan and the Finish that leaves no planned step nothing is added or removed.
//  6. No allocation in Plan and Finish once the queues have reached their size.
#ifndef BATON_SCHEDULER_SCHEDULER_H_
#define BATON_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "kvcache/block_pool.h"
#include "kvcache/block_table.h"
#include "kvcache/prefix_index.h"
#include "scheduler/batch_limit.h"
#include "scheduler/batch_plan.h"
#include "scheduler/proposer.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/sequence.h"
#include "scheduler/step_cost.h"
#include "src/base/status.h"

namespace baton::scheduler {

// See the file comment.
class Scheduler {
 public:
  // `pool` outlives the scheduler. Other users of the pool (reservations) are welcome. `index` (of
  // that pool, outlives the scheduler) finds prompts' beginnings and learns every full block; null
  // = every prompt is computed whole. `proposer` guesses tokens of sequences that decode; null =
  // one token of each in a step.
  Scheduler(const SchedulerConfig& config, kv::BlockPool* pool, kv::PrefixIndex* index = nullptr,
            Proposer* proposer = nullptr);
  // Releases all blocks.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a prompt (and replayed output) to be computed here. OutOfRange: it could never fit in
  // this pool or context (do not retry); ResourceExhausted: the queue is full (retry later).
  Status AddWaiting(SequenceSpec spec, int64_t now_us);

  // Blocks that a hand-off reserves: of the tokens, but for those that no row after them sees
  // (SchedulerConfig::NumUnseenBlocks), and for each choice one and its state's.
  uint32_t BlocksToReserve(uint32_t num_tokens, uint32_t num_choices) const;
  // OK when a reservation may be made now: it could finish (else OutOfRange), the blocks are free,
  // and no preempted or growing sequence needs them (else ResourceExhausted). `num_held` of the
  // blocks are the caller's already.
  Status CanReserve(const SequenceSpec& spec, uint32_t num_held = 0) const;
  // Starts the choices of a prompt that was computed elsewhere. `spec.tokens` are the tokens whose
  // KV lies in `blocks` [BlocksToReserve]: first the blocks of the tokens that rows see, then those
  // of the state, then spare ones. One request reference of each is taken over. Appends the block
  // copies that the engine must make before the next step. Never fails: the room was reserved.
  void AddBound(const SequenceSpec& spec, std::span<const kv::BlockHandle> blocks,
                std::span<const ChoiceStart> starts, std::vector<kv::BlockCopy>* copies,
                int64_t now_us);
  // Starts the choices of a PromptDone sequence of this scheduler (n > 1), as AddBound does; `id`
  // is gone afterwards.
  void Fork(SequenceId id, std::span<const ChoiceStart> starts, std::vector<kv::BlockCopy>* copies);

  // Whether the next token of a sequence cannot be sampled yet: for instance, its grammar is being
  // compiled. Other sequences go on meanwhile. Nothing when it is not here, or its prompt is done.
  // Not during a step.
  void SetAwaiting(SequenceId id, bool awaits);

  // Stops a sequence that decodes: it keeps its blocks, is planned no more, and leaves by Remove.
  // For KV that moves to another worker. False when it is not decoding (it may have lost its
  // blocks).
  bool Hold(SequenceId id);
  // A sequence computed values that are no numbers: the index forgets its blocks, so that no other
  // prompt finds them. Nothing when the sequence is not here.
  void ForgetComputed(SequenceId id);
  // Drops a sequence and its request references; false when it is not here. Not during a step.
  bool Remove(SequenceId id);
  // Nothing when it is not here. Valid until the sequence leaves.
  const Sequence* Find(SequenceId id) const;

  // Decides the next step. O(running + prompts considered).
  const BatchPlan& Plan(int64_t now_us);
  const BatchPlan& plan() const { return plan_; }  // the planned step; valid until Finish
  // Decides the step after the planned one before the planned one's tokens are known, so that it
  // can begin while the planned one runs. Call it between Plan and Finish, at most once. Decode
  // rows go on at their next position, each fed with the token that the planned step gives it
  // (BatchItem::fed_by). Rows that will be at their limit do not go on. Null where the step may
  // have to be another one: a prompt waits or is being computed, a sequence is not in the planned
  // step, or a row needs a block that is not free. Finish then makes this step the planned one. A
  // sequence that finished by then stays until its end, and its result there is ignored.
  const BatchPlan* PlanAhead();
  // Takes the results of the step, parallel to the plan's items. `elapsed_us` = measured time of
  // the step, 0 = do not learn from it. Finished sequences are gone afterwards.
  void Finish(std::span<const ItemResult> results, int64_t elapsed_us, int64_t now_us);

  // True while some sequence waits, prefills or decodes. If Plan is empty all the same, every one
  // of them waits for blocks that others hold (hand-offs, reservations), or awaits: wait for an
  // event.
  bool HasWork() const;
  SchedulerLoad Load() const;
  const StepCost& cost() const { return cost_; }
  const SchedulerConfig& config() const { return config_; }
  // Calls visit(const Sequence&) for every sequence, in no order.
  template <typename Visitor>
  void ForEachSequence(Visitor&& visit) const {
    for (const auto& [id, sequence] : sequences_) visit(*sequence);
  }
  // Checks the invariants that can be checked between steps. O(sequences); tests and debug builds.
  Status Audit() const;

 private:
  using List = std::vector<Sequence*>;

  uint32_t BlocksFor(uint32_t num_tokens) const {
    return (num_tokens + config_.block_size - 1) / config_.block_size;
  }
  // True when the sequence leaves at prompt end instead of decoding in place.
  bool LeavesAtPromptEnd(const Sequence& sequence) const;
  // Blocks for the choices that a prompt is divided among here, beside those of its tokens.
  uint32_t NumSpares(const SequenceSpec& spec) const;
  // Places of a prompt's table at its end, and blocks that it holds at most, both but its state's.
  uint32_t NumPlaces(const SequenceSpec& spec) const;
  uint32_t MaxPromptBlocks(const SequenceSpec& spec) const;
  // Places of a prompt's table for its next chunk and, up to MaxPromptBlocks, those after it.
  uint32_t PlacesToHave(const SequenceSpec& spec, uint32_t num_released) const;
  Status CheckFits(const SequenceSpec& spec) const;
  // Blocks kept back from new prompts and reservations, for sequences that decode.
  uint32_t GrowthReserve() const;

  Sequence* Insert(SequenceSpec spec, int64_t arrival_us);
  // Takes a sequence out of its list and the counters; its blocks stay.
  void Unlist(Sequence* sequence);
  void Erase(Sequence* sequence);
  void Enqueue(Sequence* sequence);
  void StartDecoding(Sequence* sequence);
  void StartChoices(const SequenceSpec& spec, const ComputedPrompt& prompt,
                    std::span<const ChoiceStart> starts, std::vector<kv::BlockCopy>* copies);

  void PlanDecode();
  // Gives the sequence the block that its next token needs; false when it lost its own instead.
  bool EnsureBlock(Sequence* sequence);
  // Adds guesses to the planned decode rows, as far as tokens and free blocks allow.
  void PlanProposals();
  // Blocks for as many of `num_tokens` guesses as are to be had; returns how many fit.
  uint32_t FitProposals(Sequence* sequence, uint32_t num_tokens);
  Sequence* YoungestHolder() const;
  void Preempt(Sequence* sequence);
  void PlanPrefill();
  // The first waiting prompt that may be admitted; null when there is none.
  Sequence* FirstWaiting() const;
  void MarkAwaiting(Sequence* sequence, bool awaits);
  // The next prompt to work on: admits a waiting one when it comes first and fits.
  Sequence* NextPrompt(size_t* next_prefilling);
  // Gives a waiting prompt its blocks. False, and nothing changed, when it does not fit now.
  bool Admit(Sequence* sequence);
  // False when it was refused before and nothing has come since that could change that.
  bool MayFit(const Sequence& sequence);
  // Gives a prompt the blocks that its next chunk needs. False when they are not to be had.
  bool SlideWindow(Sequence* sequence, uint32_t num_tokens);
  // scheduler_prefixes.cc: the prefix index.
  // Blocks of its tokens that the index may give.
  uint32_t MaxHits(const Sequence& sequence) const;
  PrefixHits FindHits(const Sequence& sequence) const;
  // Takes the hits. `state_hits_` holds the blocks of the state after them.
  void TakeHits(Sequence* sequence, uint32_t num_blocks);
  // Gives the sequence its state blocks, and the state of its hits.
  void TakeState(Sequence* sequence, bool copies);
  // Releases the blocks that no later row of the sequence sees (NumBlocksToRelease). The index
  // keeps what it has of them, for other sequences.
  void ReleaseUnseen(Sequence* sequence);
  // Offers blocks that have become full to the index.
  void KeepFullBlocks(Sequence* sequence);
  // Offers these, and again those that have left the index meanwhile.
  void Offer(Sequence* sequence);
  void ReleaseBlocks(Sequence* sequence);  // offers them a last time
  // The sequence's states are for the index.
  bool KeepsStates(const Sequence& sequence) const;
  // Tokens of a prompt up to its second checkpoint from here: an item makes one at most. UINT32_MAX
  // where it has no second one.
  uint32_t TokensToSecondCheckpoint(const Sequence& sequence) const;
  // After which token of the item the state is to be kept; 0 = after none.
  uint32_t CheckpointOf(const BatchItem& item) const;
  void PlanCheckpoints();
  // Tells the index of the state that the item's step left.
  void KeepState(const BatchItem& item, Sequence* sequence);
  // The index keeps none of the blocks after the sequence's last good one, nor any later ones.
  void ForgetKept(Sequence* sequence);
  static void AppendTokens(Sequence* sequence, std::span<const TokenId> tokens);
  // Tokens of the prompt that still fit in this step, 0 = none.
  uint32_t ChunkFor(const Sequence& sequence) const;
  static bool LogsChunk(const Sequence& sequence);
  void AddChunk(Sequence* sequence, uint32_t num_tokens);
  void FinishItem(const BatchItem& item, const ItemResult& result);
  // The sequence will be at its limit once the planned step has given it a token.
  bool EndsInPlannedStep(const Sequence& sequence) const;
  void DropAhead();

  const SchedulerConfig config_;
  kv::BlockPool* const pool_;
  kv::PrefixIndex* const index_;
  Proposer* const proposer_;
  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  List waiting_;     // preempted ones by age, then the others by priority
  List prefilling_;  // by priority
  List decoding_;    // ready and running, by age: the first max_running run
  uint32_t num_prompt_done_ = 0;
  uint32_t num_awaiting_ = 0;
  uint64_t backlog_tokens_ = 0;  // of waiting_ and prefilling_
  uint64_t num_preemptions_ = 0;
  bool blocked_ = false;  // the first waiting prompt found no blocks in the last plan
  AdmitRefusal refused_;
  bool in_step_ = false;
  std::vector<kv::BlockHandle> hits_;        // of the prompt being admitted
  std::vector<kv::BlockHandle> state_hits_;  // the state after them
  BatchPlan plan_;
  BatchPlan ahead_;  // the step after plan_; empty when that is not decided
  StepCost cost_;
  BatchLimit batch_limit_;
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_SCHEDULER_H_
