#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "scheduler/itl_objective.h"
#include "src/base/check.h"
#include "src/base/priority.h"

namespace baton::scheduler {

using kv::BlockCopy;
using kv::BlockHandle;
using kv::BlockPool;
using kv::BlockState;
using kv::BlockTable;
using kv::DivideAmongChoices;
using kv::DivideState;
using kv::PrefixIndex;
using kv::PromptBlocks;
using kv::PromptState;
using limits::kMaxLoggedStepTimes;
using limits::kMaxPromptLogRows;

namespace {

bool IsOlder(const Sequence* a, const Sequence* b) {
  return std::pair(a->arrival_us, a->id()) < std::pair(b->arrival_us, b->id());
}

// Preempted ones first, by age: they have waited before. Then by priority.
bool WaitsBefore(const Sequence* a, const Sequence* b) {
  if (a->preempted != b->preempted) return a->preempted;
  if (a->preempted) return IsOlder(a, b);
  return std::pair(a->priority_us, a->id()) < std::pair(b->priority_us, b->id());
}

bool ComesFirst(const Sequence* a, const Sequence* b) {
  return std::pair(a->priority_us, a->id()) < std::pair(b->priority_us, b->id());
}

void EraseFrom(std::vector<Sequence*>* list, Sequence* sequence) {
  const auto found = std::find(list->begin(), list->end(), sequence);
  BATON_CHECK(found != list->end(), "sequence {} is not in its list", sequence->id());
  list->erase(found);
}

// When a prompt with this many tokens left to compute would be due, had it come at `arrival_us` and
// to be served at the aging rate. The arrival of a prompt that waits has its priority in it; that
// of a running prompt has not, so that no other prompt puts it aside.
int64_t PriorityUs(int64_t arrival_us, uint32_t num_left, uint32_t aging_tokens_per_s) {
  return arrival_us + int64_t{num_left} * 1'000'000 / int64_t{aging_tokens_per_s};
}

// A prefill worker's step of short prompts that all end in it may take so many times the target, at
// most such a part of the time that all prompts here take (NOTES.md: "Prompts that end together").
constexpr int64_t kGroupTimes = 4;
constexpr int64_t kGroupShare = 2;

// The time that so many tokens of prompts take.
int64_t BacklogUs(const StepCost& cost, uint64_t num_tokens, uint32_t max_chunk) {
  double us_per_token = 0;
  if (cost.prefill_tokens_per_s() > 0) {
    us_per_token = 1e6 / cost.prefill_tokens_per_s();
  } else {
    StepShape chunk;
    chunk.AddPrefill(0, max_chunk);
    us_per_token = static_cast<double>(cost.PredictUs(chunk)) / max_chunk;
  }
  return static_cast<int64_t>(static_cast<double>(num_tokens) * us_per_token);
}

BatchLimitConfig BatchLimitOf(const SchedulerConfig& config) {
  BatchLimitConfig limit = BatchLimitFor(config.max_running, config.first_cost);
  limit.itl_objective_us = RowsObjectiveUs(config.itl_objective_us);
  return limit;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, BlockPool* pool, PrefixIndex* index,
                     Proposer* proposer)
    : config_(config),
      pool_(pool),
      index_(index),
      proposer_(proposer),
      cost_(config.first_cost, config.output_row_tokens),
      batch_limit_(BatchLimitOf(config)) {
  BATON_CHECK(config.block_size >= 1 && config.max_running >= 1 && config.max_prefilling >= 1 &&
                  config.max_waiting >= 1 && config.max_chunk >= 1 &&
                  config.aging_tokens_per_s >= 1,
              "a limit of the scheduler is 0");
  BATON_CHECK(config.state_blocks == 0 || proposer == nullptr,
              "sequences with a fixed state have no guesses");
  BATON_CHECK(config.checkpoint_tokens % config.block_size == 0,
              "checkpoints each {} tokens of blocks of {}", config.checkpoint_tokens,
              config.block_size);
  // Decode rows never crowd the smallest chunk out of a step.
  BATON_CHECK(config.max_batch_tokens >= config.max_running + config.block_size,
              "{} tokens a step for {} rows and a chunk of {}", config.max_batch_tokens,
              config.max_running, config.block_size);
  plan_.items.reserve(config.max_running + config.max_prefilling);
  plan_.started.reserve(config.max_prefilling);
  plan_.preempted.reserve(config.max_running + config.max_prefilling);
  if (proposer != nullptr) plan_.proposals.reserve(kMaxProposalRows);
  ahead_.items.reserve(config.max_running + config.max_prefilling);
  waiting_.reserve(config.max_waiting + config.max_running);
  prefilling_.reserve(config.max_prefilling);
  decoding_.reserve(config.max_running);
  hits_.reserve(pool->num_blocks());
  if (index == nullptr || config.state_blocks == 0) return;
  const size_t max_items = config.max_running + config.max_prefilling;
  state_hits_.reserve(config.state_blocks);
  plan_.copies.reserve(size_t{config.max_prefilling} * config.state_blocks);
  plan_.checkpoints.reserve(max_items);
  plan_.checkpoint_blocks.reserve(
      std::min<size_t>(pool->num_blocks(), max_items * config.state_blocks));
}

Scheduler::~Scheduler() {
  for (auto& [id, sequence] : sequences_) ReleaseBlocks(sequence.get());
}

// ---- Sequences come and go.

Status Scheduler::AddWaiting(SequenceSpec spec, int64_t now_us) {
  BATON_CHECK(!in_step_, "sequence {} is added during a step", spec.id);
  BATON_RETURN_IF_ERROR(CheckFits(spec));
  if (waiting_.size() >= config_.max_waiting) {
    return ResourceExhausted("{} sequences wait already, the limit is {}", waiting_.size(),
                             config_.max_waiting);
  }
  Enqueue(Insert(std::move(spec), now_us));
  return OkStatus();
}

void Scheduler::AddBound(const SequenceSpec& spec, std::span<const BlockHandle> blocks,
                         std::span<const ChoiceStart> starts, std::vector<BlockCopy>* copies,
                         int64_t now_us) {
  BATON_CHECK(!in_step_, "sequence {} is bound during a step", spec.id);
  const auto num_tokens = static_cast<uint32_t>(spec.tokens.size());
  StartChoices(spec, {blocks, config_.NumUnseenBlocks(num_tokens), now_us}, starts, copies);
  const auto first = sequences_.find(starts.front().id);  // not here: its first token ended it
  if (first == sequences_.end()) return;
  first->second->num_received_tokens = num_tokens;
}

void Scheduler::Fork(SequenceId id, std::span<const ChoiceStart> starts,
                     std::vector<BlockCopy>* copies) {
  BATON_CHECK(!in_step_, "sequence {} is divided during a step", id);
  const auto found = sequences_.find(id);
  BATON_CHECK(found != sequences_.end() && found->second->state == SequenceState::kPromptDone,
              "sequence {} is not at its prompt's end", id);
  Sequence* parent = found->second.get();
  const uint32_t num_released = parent->table.num_released();
  std::vector<BlockHandle> blocks = parent->table.Take();
  const SequenceSpec spec = std::move(parent->spec);
  const std::vector<BlockHandle> state = parent->state_table.Take();
  const uint32_t num_data = BlocksFor(static_cast<uint32_t>(spec.tokens.size())) - num_released;
  blocks.insert(blocks.begin() + num_data, state.begin(), state.end());
  const int64_t arrival_us = parent->arrival_us;
  --num_prompt_done_;
  sequences_.erase(found);
  StartChoices(spec, {blocks, num_released, arrival_us}, starts, copies);
}

void Scheduler::StartChoices(const SequenceSpec& spec, const ComputedPrompt& prompt,
                             std::span<const ChoiceStart> starts, std::vector<BlockCopy>* copies) {
  const std::span<const BlockHandle> blocks = prompt.blocks;
  const uint32_t num_tokens = static_cast<uint32_t>(spec.tokens.size());
  const uint32_t num_data = BlocksFor(num_tokens) - prompt.num_released;
  const uint32_t num_state = config_.state_blocks;
  const uint32_t num_state_spares = num_state * (spec.num_choices - 1);
  BATON_CHECK(blocks.size() >= num_data + num_state + num_state_spares,
              "{} blocks for {} tokens and {} states", blocks.size(), num_tokens, spec.num_choices);
  std::vector<Sequence*> started;
  std::vector<BlockTable*> tables;
  std::vector<BlockTable*> state_tables;
  for (const ChoiceStart& start : starts) {
    if (start.finished) continue;
    SequenceSpec own = spec;
    own.id = start.id;
    own.choice = start.choice;
    own.num_choices = 1;
    started.push_back(Insert(std::move(own), prompt.arrival_us));
    tables.push_back(&started.back()->table);
    state_tables.push_back(&started.back()->state_table);
    AppendTokens(started.back(), {&start.first_token, 1});
    started.back()->num_computed = num_tokens;
  }
  const std::span<const BlockHandle> spare = blocks.subspan(num_data + num_state);
  const PromptState state{blocks.subspan(num_data, num_state), spare.first(num_state_spares),
                          config_.block_size};
  DivideState(state, state_tables, pool_, copies);
  const PromptBlocks data{blocks.first(num_data), spare.subspan(num_state_spares),
                          num_tokens % config_.block_size};
  DivideAmongChoices(data, tables, pool_, copies);
  for (Sequence* sequence : started) {
    sequence->table.PrependReleased(prompt.num_released);
    sequence->num_kept_blocks = prompt.num_released;
    sequence->num_good_blocks = prompt.num_released;
    StartDecoding(sequence);
    KeepFullBlocks(sequence);
  }
}

bool Scheduler::LeavesAtPromptEnd(const Sequence& sequence) const {
  return config_.role == WorkerRole::kPrefill || sequence.spec.num_choices > 1 ||
         sequence.spec.embeds;
}

Sequence* Scheduler::Insert(SequenceSpec spec, int64_t arrival_us) {
  auto sequence = std::make_unique<Sequence>(std::move(spec), config_.block_size);
  sequence->arrival_us = arrival_us;
  // The token after the last computed one is held too, so one more than the limit of KV.
  const uint32_t max_total = sequence->spec.limits.MaxTotalTokens(sequence->spec.num_prompt_tokens);
  sequence->spec.tokens.reserve(max_total + 1);
  sequence->chain.Reserve(max_total + 1);
  sequence->chain.Append(sequence->spec.tokens);
  sequence->table.Reserve(BlocksFor(max_total) +
                          sequence->spec.num_choices * (1 + config_.state_blocks));
  sequence->state_table.Reserve(config_.state_blocks);
  Sequence* raw = sequence.get();
  const bool inserted = sequences_.emplace(raw->id(), std::move(sequence)).second;
  BATON_CHECK(inserted, "sequence {} exists already", raw->id());
  return raw;
}

void Scheduler::Enqueue(Sequence* sequence) {
  sequence->state = SequenceState::kWaiting;
  // Blocks that are cached now are most likely still there when the sequence's turn comes.
  uint32_t num_left = sequence->num_remaining();
  if (index_ != nullptr) {
    num_left -= config_.block_size * index_->MatchWhole(sequence->query(), MaxHits(*sequence));
  }
  const int64_t arrival_us = AgedArrivalUs(sequence->arrival_us, sequence->spec.priority);
  sequence->priority_us = PriorityUs(arrival_us, num_left, config_.aging_tokens_per_s);
  backlog_tokens_ += sequence->num_remaining();
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), sequence, WaitsBefore),
                  sequence);
}

void Scheduler::StartDecoding(Sequence* sequence) {
  const SequenceLimits& limits = sequence->spec.limits;
  BATON_CHECK(limits.After(sequence->spec.num_prompt_tokens, sequence->num_output_tokens(),
                           /*is_stop=*/false) == FinishReason::kNone,
              "sequence {} with {} + {} tokens is at its end", sequence->id(),
              sequence->spec.num_prompt_tokens, sequence->num_output_tokens());
  sequence->table.SetState(pool_, BlockState::kBound);
  sequence->state_table.SetState(pool_, BlockState::kBound);
  sequence->state = SequenceState::kReady;
  decoding_.insert(std::upper_bound(decoding_.begin(), decoding_.end(), sequence, IsOlder),
                   sequence);
}

void Scheduler::Unlist(Sequence* sequence) {
  switch (sequence->state) {
    case SequenceState::kWaiting:
      backlog_tokens_ -= sequence->num_remaining();
      return EraseFrom(&waiting_, sequence);
    case SequenceState::kPrefilling:
      backlog_tokens_ -= sequence->num_remaining();
      return EraseFrom(&prefilling_, sequence);
    case SequenceState::kPromptDone:
      --num_prompt_done_;
      return;
    case SequenceState::kReady:
    case SequenceState::kRunning:
      return EraseFrom(&decoding_, sequence);
  }
}

void Scheduler::Erase(Sequence* sequence) {
  MarkAwaiting(sequence, false);
  Unlist(sequence);
  ReleaseBlocks(sequence);
  sequences_.erase(sequence->id());
}

bool Scheduler::Hold(SequenceId id) {
  BATON_CHECK(!in_step_, "sequence {} is held during a step", id);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  Sequence* const sequence = found->second.get();
  const bool decodes =
      sequence->state == SequenceState::kReady || sequence->state == SequenceState::kRunning;
  if (!decodes) return false;
  MarkAwaiting(sequence, false);
  Unlist(sequence);
  sequence->state = SequenceState::kPromptDone;
  ++num_prompt_done_;
  return true;
}

void Scheduler::SetAwaiting(SequenceId id, bool awaits) {
  BATON_CHECK(!in_step_, "sequence {} is marked during a step", id);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence* const sequence = found->second.get();
  if (sequence->state != SequenceState::kPromptDone) MarkAwaiting(sequence, awaits);
}

void Scheduler::MarkAwaiting(Sequence* sequence, bool awaits) {
  if (sequence->awaits == awaits) return;
  sequence->awaits = awaits;
  awaits ? ++num_awaiting_ : --num_awaiting_;
}

bool Scheduler::Remove(SequenceId id) {
  BATON_CHECK(!in_step_, "sequence {} is removed during a step", id);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  Erase(found->second.get());
  return true;
}

const Sequence* Scheduler::Find(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

// ---- A step.

const BatchPlan& Scheduler::Plan(int64_t now_us) {
  (void)now_us;  // priorities are fixed times: nothing is reordered by waiting
  BATON_CHECK(!in_step_, "a step is planned before the last one is finished");
  plan_.num_log_rows = 0;
  plan_.items.clear();
  plan_.started.clear();
  plan_.preempted.clear();
  plan_.proposals.clear();
  plan_.copies.clear();
  plan_.shape = {};
  PlanDecode();
  PlanProposals();
  PlanPrefill();
  PlanCheckpoints();
  plan_.predicted_us = cost_.PredictUs(plan_.shape);
  in_step_ = !plan_.items.empty();
  return plan_;
}

void Scheduler::PlanDecode() {
  // Oldest first, and the youngest loses its blocks: what is planned already is never a victim.
  size_t i = 0;
  while (i < decoding_.size()) {
    Sequence* sequence = decoding_[i];
    if (sequence->awaits || plan_.items.size() >= config_.max_running) {
      sequence->state = SequenceState::kReady;
      ++i;
      continue;
    }
    if (!EnsureBlock(sequence)) continue;  // it left the list
    sequence->state = SequenceState::kRunning;
    sequence->planned = true;
    plan_.shape.AddDecode(sequence->num_computed);
    plan_.items.push_back({.id = sequence->id(),
                           .sequence = sequence,
                           .first_pos = sequence->num_computed,
                           .num_tokens = 1,
                           .is_decode = true,
                           .wants_logits = true});
    ++i;
  }
}

bool Scheduler::EnsureBlock(Sequence* sequence) {
  if (sequence->table.size() >= BlocksFor(sequence->num_computed + 1)) return true;
  while (!sequence->table.Grow(pool_, 1, BlockState::kBound, sequence->spec.uid)) {
    Sequence* victim = YoungestHolder();
    Preempt(victim);
    if (victim == sequence) return false;
  }
  return true;
}

void Scheduler::PlanProposals() {
  if (proposer_ == nullptr || plan_.items.empty()) return;
  proposer_->BeginStep(plan_.shape.decode_rows, !waiting_.empty() || !prefilling_.empty());
  uint32_t room = std::min(kMaxProposalRows,
                           config_.max_batch_tokens - config_.block_size - plan_.num_tokens());
  for (BatchItem& item : plan_.items) {
    Sequence* const sequence = sequences_.find(item.id)->second.get();
    // A guess is followed by one more token, which may be the sequence's last.
    const uint32_t limit =
        std::min({room, kMaxProposals, sequence->MaxKvTokens() - sequence->num_tokens()});
    if (limit == 0) continue;
    const size_t begin = plan_.proposals.size();
    proposer_->Propose(*sequence, limit, &plan_.proposals);
    const auto num_guessed = static_cast<uint32_t>(plan_.proposals.size() - begin);
    BATON_CHECK(num_guessed <= limit, "{} guesses of at most {}", num_guessed, limit);
    const uint32_t num_tokens = FitProposals(sequence, num_guessed);
    plan_.proposals.resize(begin + num_tokens);
    item.proposed = std::span<const TokenId>(plan_.proposals).subspan(begin);
    item.num_tokens += num_tokens;
    plan_.shape.AddProposals(item.first_pos + 1, num_tokens);
    room -= num_tokens;
  }
}

// Wrong guesses leave their KV in the sequence's own last blocks, beyond what is computed: its next
// step writes them anew. Nobody loses a block for a guess, and none is taken that a prompt waits
// for.
uint32_t Scheduler::FitProposals(Sequence* sequence, uint32_t num_tokens) {
  const uint32_t num_sure = sequence->num_computed + 1;
  while (!blocked_ && sequence->table.size() < BlocksFor(num_sure + num_tokens) &&
         pool_->num_available() > GrowthReserve() &&
         sequence->table.Grow(pool_, 1, BlockState::kBound, sequence->spec.uid)) {
  }
  return std::min(num_tokens, sequence->table.size() * config_.block_size - num_sure);
}

Sequence* Scheduler::YoungestHolder() const {
  Sequence* youngest = decoding_.empty() ? nullptr : decoding_.back();
  for (Sequence* sequence : prefilling_) {
    if (youngest == nullptr || IsOlder(youngest, sequence)) youngest = sequence;
  }
  BATON_CHECK(youngest != nullptr, "no sequence holds a block");
  return youngest;
}

void Scheduler::Preempt(Sequence* sequence) {
  BATON_CHECK(!sequence->planned, "sequence {} is in the plan already", sequence->id());
  Unlist(sequence);
  ReleaseBlocks(sequence);
  sequence->num_computed = 0;
  sequence->num_hit_tokens = 0;
  sequence->num_kept_blocks = 0;
  sequence->num_good_blocks = 0;
  sequence->preempted = true;
  ++sequence->num_preemptions;
  ++num_preemptions_;
  plan_.preempted.push_back(sequence->id());
  Enqueue(sequence);
}

void Scheduler::PlanPrefill() {
  for (Sequence* sequence : prefilling_) {
    sequence->priority_us =
        PriorityUs(sequence->arrival_us, sequence->num_remaining(), config_.aging_tokens_per_s);
  }
  std::sort(prefilling_.begin(), prefilling_.end(), ComesFirst);
  blocked_ = false;
  size_t next_prefilling = 0;
  while (plan_.items.size() < config_.max_running + config_.max_prefilling) {
    Sequence* sequence = NextPrompt(&next_prefilling);
    if (sequence == nullptr) return;
    const uint32_t num_tokens = ChunkFor(*sequence);
    if (num_tokens == 0 && sequence->awaits) continue;
    if (num_tokens == 0) return;
    if (SlideWindow(sequence, num_tokens)) {
      AddChunk(sequence, num_tokens);
    } else {
      Preempt(sequence);
      --next_prefilling;
      blocked_ = true;  // until the next step
    }
  }
}

// A prompt that awaits gets blocks while there is more of it than its last one, and while half of
// the prompts that hold blocks do not await.
Sequence* Scheduler::FirstWaiting() const {
  if (num_awaiting_ == 0) return waiting_.empty() ? nullptr : waiting_.front();
  const auto num_held = static_cast<size_t>(std::count_if(
      prefilling_.begin(), prefilling_.end(), [](const Sequence* s) { return s->awaits; }));
  const bool has_room = 2 * num_held < config_.max_prefilling;
  const auto first = std::find_if(waiting_.begin(), waiting_.end(), [&](const Sequence* s) {
    return !s->awaits || (has_room && s->num_remaining() > config_.block_size);
  });
  return first == waiting_.end() ? nullptr : *first;
}

Sequence* Scheduler::NextPrompt(size_t* next_prefilling) {
  Sequence* running =
      *next_prefilling < prefilling_.size() ? prefilling_[*next_prefilling] : nullptr;
  Sequence* waiting = FirstWaiting();
  const bool waiting_first = waiting != nullptr && (running == nullptr || waiting->preempted ||
                                                    ComesFirst(waiting, running));
  if (waiting_first && !blocked_ && prefilling_.size() < config_.max_prefilling &&
      ChunkFor(*waiting) > 0) {
    if (Admit(waiting)) {
      // In front of those that come later, so that the order of prefilling_ is that of this step.
      prefilling_.insert(prefilling_.begin() + static_cast<std::ptrdiff_t>(*next_prefilling),
                         waiting);
      ++*next_prefilling;
      return waiting;
    }
    blocked_ = true;
  }
  if (running != nullptr) ++*next_prefilling;
  return running;
}

bool Scheduler::Admit(Sequence* sequence) {
  if (!MayFit(*sequence)) return false;
  const PrefixHits hits = FindHits(*sequence);
  const uint32_t num_released = config_.NumBlocksToRelease(hits.num_blocks * config_.block_size);
  const uint32_t need = PlacesToHave(sequence->spec, num_released) - hits.num_blocks;
  const uint32_t least = need + GrowthReserve();
  const uint32_t num_left = pool_->num_available() - hits.num_idle;
  // A checkpoint is copied while there is room for it and the copy, else the sequence takes it.
  const bool copies = num_left >= least + config_.state_blocks;
  const bool has_state = config_.state_blocks > 0 && hits.num_blocks > 0;
  if (!copies && (!has_state || num_left < least)) {
    refused_ = {sequence->id(), int64_t{pool_->num_available()} - GrowthReserve(), hits.num_blocks,
                index_ == nullptr ? 0 : index_->stats().num_changes()};
    return false;
  }
  refused_ = {};
  TakeHits(sequence, hits.num_blocks);
  const uint32_t num_hits = sequence->table.size();
  TakeState(sequence, copies);
  const bool grown = sequence->table.Grow(pool_, need, BlockState::kComputing, sequence->spec.uid);
  BATON_CHECK(grown, "{} blocks are free, {} are not to be had", pool_->num_available(), need);
  EraseFrom(&waiting_, sequence);
  sequence->num_kept_blocks = num_hits;
  sequence->num_good_blocks = num_hits;
  sequence->num_hit_tokens = num_hits * config_.block_size;
  sequence->num_computed = sequence->num_hit_tokens;
  backlog_tokens_ -= sequence->num_hit_tokens;
  if (index_ != nullptr) index_->CountQuery(sequence->num_tokens(), sequence->num_hit_tokens);
  sequence->state = SequenceState::kPrefilling;
  if (sequence->num_preemptions == 0) plan_.started.push_back(sequence->id());
  return true;
}

void Scheduler::AppendTokens(Sequence* sequence, std::span<const TokenId> tokens) {
  sequence->spec.tokens.insert(sequence->spec.tokens.end(), tokens.begin(), tokens.end());
  sequence->chain.Append(tokens);
}

// The next chunk has prompt tokens whose successors' log-probabilities are wanted.
bool Scheduler::LogsChunk(const Sequence& sequence) {
  return sequence.spec.logs_prompt && sequence.num_computed < sequence.spec.num_prompt_tokens;
}

uint32_t Scheduler::ChunkFor(const Sequence& sequence) const {
  const bool mixed = plan_.shape.decode_rows > 0;
  const bool logs = LogsChunk(sequence);
  const uint32_t room = config_.max_batch_tokens - plan_.num_tokens();
  uint32_t limit = std::min({sequence.num_remaining(), config_.max_chunk, room});
  if (logs) limit = std::min(limit, kMaxPromptLogRows - plan_.num_log_rows);
  if (sequence.awaits) {
    // The last chunk is that of the token to sample; the ones before it end with a block.
    limit =
        std::min(limit, (sequence.num_remaining() - 1) / config_.block_size * config_.block_size);
  }
  if (config_.checkpoint_tokens > 0 && KeepsStates(sequence)) {
    limit = std::min(limit, TokensToSecondCheckpoint(sequence) - 1);
  }
  if (limit == 0) return 0;
  const int64_t target_us = mixed ? config_.MixedStepUs() : config_.target_step_us;
  const uint32_t fit = cost_.MaxChunk(
      plan_.shape, {.first_pos = sequence.num_computed,
                    .limit = limit,
                    .logs = logs,
                    .layers_us = target_us,
                    .total_us = mixed ? target_us : kMaxLoggedStepTimes * target_us});
  if (fit == sequence.num_remaining()) return fit;
  const bool may_join = limit == sequence.num_remaining() && !logs &&
                        config_.role == WorkerRole::kPrefill &&
                        std::ranges::all_of(plan_.items, &BatchItem::wants_logits);
  if (may_join) {
    StepShape alone;
    alone.AddPrefill(sequence.num_computed, limit);
    StepShape group = plan_.shape;
    group.AddPrefill(sequence.num_computed, limit);
    const int64_t share_us = BacklogUs(cost_, backlog_tokens_, config_.max_chunk) / kGroupShare;
    const int64_t group_us = std::min(share_us, kGroupTimes * target_us);
    const bool is_short = cost_.PredictUs(alone) <= target_us;
    if (is_short && cost_.PredictUs(group) <= group_us) return limit;
  }
  // Chunks end at block boundaries, so that each one fills its blocks and they can be sealed.
  const uint32_t aligned = fit / config_.block_size * config_.block_size;
  if (aligned > 0) return aligned;
  // One block of one prompt is computed in every step, however much decodes.
  return plan_.shape.prefill_tokens == 0 ? std::min(limit, config_.block_size) : 0;
}

void Scheduler::AddChunk(Sequence* sequence, uint32_t num_tokens) {
  const bool is_last = num_tokens == sequence->num_remaining();
  sequence->planned = true;
  plan_.shape.AddPrefill(sequence->num_computed, num_tokens);
  const bool logs = LogsChunk(*sequence);
  if (logs) {
    plan_.num_log_rows += num_tokens;
    plan_.shape.logit_rows += num_tokens;
  } else if (is_last) {
    ++plan_.shape.logit_rows;
  }
  plan_.items.push_back({.id = sequence->id(),
                         .sequence = sequence,
                         .first_pos = sequence->num_computed,
                         .num_tokens = num_tokens,
                         .wants_logits = is_last,
                         .ends_prompt = is_last && LeavesAtPromptEnd(*sequence),
                         .logs_prompt = logs});
}

bool Scheduler::EndsInPlannedStep(const Sequence& sequence) const {
  return sequence.spec.limits.After(sequence.spec.num_prompt_tokens,
                                    sequence.num_output_tokens() + 1,
                                    /*is_stop=*/false) != FinishReason::kNone;
}

const BatchPlan* Scheduler::PlanAhead() {
  BATON_CHECK(in_step_ && ahead_.items.empty(), "there is no step to plan after");
  if (!waiting_.empty() || !prefilling_.empty() || !plan_.proposals.empty()) return nullptr;
  uint32_t item = 0;  // decode rows of the planned step are in the order of decoding_
  for (Sequence* sequence : decoding_) {
    if (!sequence->planned) {
      DropAhead();
      return nullptr;
    }
    const uint32_t fed_by = item++;
    if (sequence->ended || EndsInPlannedStep(*sequence)) continue;
    const uint32_t position = sequence->num_computed + 1;
    const bool has_block = sequence->table.size() >= BlocksFor(position + 1) ||
                           sequence->table.Grow(pool_, 1, BlockState::kBound, sequence->spec.uid);
    if (!has_block) {
      DropAhead();
      return nullptr;
    }
    const BatchItem next = {.id = sequence->id(),
                            .sequence = sequence,
                            .first_pos = position,
                            .num_tokens = 1,
                            .is_decode = true,
                            .wants_logits = true,
                            .fed_by = fed_by};
    if (KeepsStates(*sequence) && CheckpointOf(next) != 0) {  // Plan makes it
      DropAhead();
      return nullptr;
    }
    sequence->planned_ahead = true;
    ahead_.shape.AddDecode(position);
    ahead_.items.push_back(next);
  }
  if (ahead_.items.empty()) return nullptr;
  ahead_.predicted_us = cost_.PredictUs(ahead_.shape);
  return &ahead_;
}

void Scheduler::DropAhead() {
  for (const BatchItem& item : ahead_.items) {
    sequences_.find(item.id)->second->planned_ahead = false;
  }
  ahead_.items.clear();
  ahead_.shape = {};
}

void Scheduler::Finish(std::span<const ItemResult> results, int64_t elapsed_us, int64_t now_us) {
  BATON_CHECK(results.size() == plan_.items.size(), "{} results for {} items", results.size(),
              plan_.items.size());
  cost_.Measure(plan_.shape, elapsed_us);
  if (plan_.shape.prefill_tokens == 0 && plan_.proposals.empty()) {  // guesses are no streams
    batch_limit_.Measure(plan_.shape.decode_rows, elapsed_us, now_us);
  }
  for (size_t i = 0; i < results.size(); ++i) FinishItem(plan_.items[i], results[i]);
  // The index keeps what it took.
  for (const BlockHandle block : plan_.checkpoint_blocks) pool_->DropRequestRef(block);
  plan_.checkpoint_blocks.clear();
  plan_.checkpoints.clear();
  plan_.items.clear();  // the sequences they point to may be gone
  plan_.proposals.clear();
  plan_.started.clear();
  plan_.preempted.clear();
  std::swap(plan_.items, ahead_.items);
  plan_.shape = std::exchange(ahead_.shape, {});
  plan_.predicted_us = ahead_.predicted_us;
  for (const BatchItem& item : plan_.items) {
    Sequence* const sequence = sequences_.find(item.id)->second.get();
    sequence->planned = true;
    sequence->planned_ahead = false;
  }
  in_step_ = !plan_.items.empty();
}

void Scheduler::FinishItem(const BatchItem& item, const ItemResult& result) {
  const auto found = sequences_.find(item.id);
  BATON_CHECK(found != sequences_.end(), "sequence {} left during its step", item.id);
  Sequence* sequence = found->second.get();
  if (sequence->ended) return Erase(sequence);
  sequence->planned = false;
  if (result.retry) {
    BATON_CHECK(item.wants_logits && !item.ends_prompt && !sequence->planned_ahead,
                "sequence {} cannot take its step again", item.id);
    return MarkAwaiting(sequence, true);
  }
  const auto num_proposed = static_cast<uint32_t>(item.proposed.size());
  BATON_CHECK(result.num_accepted <= num_proposed, "{} of {} guesses are accepted",
              result.num_accepted, num_proposed);
  AppendTokens(sequence, item.proposed.first(result.num_accepted));
  sequence->num_computed += item.num_tokens - num_proposed + result.num_accepted;
  if (result.no_numbers) {
    ForgetKept(sequence);
  } else {
    KeepFullBlocks(sequence);
    KeepState(item, sequence);
  }
  if (!item.is_decode) backlog_tokens_ -= item.num_tokens;
  if (item.ends_prompt) {
    EraseFrom(&prefilling_, sequence);
    sequence->state = SequenceState::kPromptDone;
    ++num_prompt_done_;
    return;
  }
  if (!item.wants_logits) return;
  if (result.finished) {
    sequence->ended = sequence->planned_ahead;
    return sequence->ended ? void() : Erase(sequence);
  }
  AppendTokens(sequence, {&result.token, 1});
  if (!item.is_decode) {
    EraseFrom(&prefilling_, sequence);
    return StartDecoding(sequence);
  }
  BATON_CHECK(sequence->num_tokens() < sequence->MaxKvTokens() + 1,
              "sequence {} has {} tokens of at most {} and goes on", sequence->id(),
              sequence->num_tokens(), sequence->MaxKvTokens() + 1);
  ReleaseUnseen(sequence);
}

// ---- Reports.

bool Scheduler::HasWork() const {
  return !waiting_.empty() || !prefilling_.empty() || !decoding_.empty();
}

SchedulerLoad Scheduler::Load() const {
  SchedulerLoad load;
  load.num_waiting = static_cast<uint32_t>(waiting_.size());
  load.num_prefilling = static_cast<uint32_t>(prefilling_.size());
  load.num_prompt_done = num_prompt_done_;
  load.num_awaiting = num_awaiting_;
  load.num_running = static_cast<uint32_t>(decoding_.size());
  load.backlog_tokens = backlog_tokens_;
  load.num_preemptions = num_preemptions_;
  if (config_.role != WorkerRole::kPrefill) load.batch_limit = batch_limit_.limit();
  load.backlog_us = BacklogUs(cost_, backlog_tokens_, config_.max_chunk);
  return load;
}

Status Scheduler::Audit() const {
  uint64_t backlog = 0;
  uint32_t num_awaiting = 0;
  size_t listed = num_prompt_done_;
  for (const auto& [id, sequence] : sequences_) {
    num_awaiting += sequence->awaits ? 1 : 0;
    const bool holds = sequence->state != SequenceState::kWaiting;
    if (holds == sequence->table.empty()) {
      return Internal("sequence {} is {} and holds {} blocks", id,
                      SequenceStateName(sequence->state), sequence->table.size());
    }
    if (sequence->state_table.size() != (holds ? config_.state_blocks : 0)) {
      return Internal("sequence {} is {} and holds {} blocks of its state, {} is all of it", id,
                      SequenceStateName(sequence->state), sequence->state_table.size(),
                      config_.state_blocks);
    }
    for (uint32_t i = sequence->table.num_released(); i < sequence->table.size(); ++i) {
      if (pool_->IsCurrent(sequence->table.handles()[i])) continue;
      return Internal("sequence {} holds block {}, which is another's or free", id, i);
    }
    if (sequence->table.size() * uint64_t{config_.block_size} < sequence->num_computed) {
      return Internal("sequence {} computed {} tokens into {} blocks", id, sequence->num_computed,
                      sequence->table.size());
    }
    const bool in_backlog =
        sequence->state == SequenceState::kWaiting || sequence->state == SequenceState::kPrefilling;
    if (in_backlog) backlog += sequence->num_remaining();
  }
  listed += waiting_.size() + prefilling_.size() + decoding_.size();
  if (listed != sequences_.size()) {
    return Internal("{} sequences are listed, {} exist", listed, sequences_.size());
  }
  if (backlog != backlog_tokens_) {
    return Internal("{} tokens are to be computed, the counter says {}", backlog, backlog_tokens_);
  }
  if (num_awaiting != num_awaiting_) {
    return Internal("{} sequences await, the counter says {}", num_awaiting, num_awaiting_);
  }
  if (!std::is_sorted(decoding_.begin(), decoding_.end(), IsOlder) ||
      !std::is_sorted(waiting_.begin(), waiting_.end(), WaitsBefore)) {
    return Internal("a list of sequences is out of order");
  }
  return OkStatus();
}

}  // namespace baton::scheduler
