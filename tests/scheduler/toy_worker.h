// ToyWorker: a Scheduler with a model that needs no arithmetic. "KV" of a token is the token
// itself, written into the slot that the block table names; the next token is a hash of everything
// read back through the table. A block that is shared, copied, freed or reused wrongly changes the
// text.
#ifndef BATON_TESTS_SCHEDULER_TOY_WORKER_H_
#define BATON_TESTS_SCHEDULER_TOY_WORKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/prefix_index.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/toy_plan.h"
#include "tests/scheduler/toy_text.h"

namespace baton::scheduler {

// See the file comment.
class ToyWorker {
 public:
  ToyWorker(const SchedulerConfig& config, uint32_t num_blocks, bool prefix_cache = false)
      : pool_(num_blocks),
        index_(prefix_cache ? std::make_unique<kv::PrefixIndex>(
                                  &pool_, config.block_size, nullptr,
                                  kv::StateLimits{config.state_blocks, num_blocks / 2})
                            : nullptr),
        scheduler_(config, &pool_, index_.get()),
        kv_(num_blocks * config.block_size, -1) {}

  kv::BlockPool& pool() { return pool_; }
  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  // Output so far by (uid.lo, choice); `finished` holds those that ended by themselves.
  std::map<std::pair<uint64_t, uint32_t>, std::vector<TokenId>> outputs;
  std::map<std::pair<uint64_t, uint32_t>, bool> finished;
  // Prompts that ended in the last step and leave by hand-off.
  std::vector<SequenceId> done;
  SequenceId NextId() { return SequenceId(++last_id_); }

  // Microseconds that a step of this shape takes.
  std::function<int64_t(const StepShape&)> cost = [](const StepShape& shape) {
    return 200 + 100 * int64_t{shape.prefill_tokens} + 500 * int64_t{shape.decode_rows};
  };

  SequenceSpec Spec(uint64_t uid, std::vector<TokenId> prompt, SequenceLimits limits,
                    uint32_t num_choices = 1) {
    SequenceSpec spec;
    spec.id = NextId();
    spec.uid = {0, uid};
    spec.num_choices = num_choices;
    spec.num_prompt_tokens = static_cast<uint32_t>(prompt.size());
    spec.tokens = std::move(prompt);
    spec.limits = limits;
    return spec;
  }

  // Plans and runs one step, and up to `max_ahead` that are planned ahead of their tokens; the
  // first plan is copied for the test to look at.
  BatchPlan Step(uint32_t max_ahead = 0) {
    done.clear();
    BatchPlan plan = scheduler_.Plan(now_us_);
    CheckToyPlan(scheduler_, plan);
    Copy(plan.copies);
    for (const SequenceId id : plan.started) num_hit_tokens += scheduler_.Find(id)->num_hit_tokens;
    std::vector<ItemResult> results;
    for (const BatchItem& item : plan.items) results.push_back(Compute(item, {}));
    for (uint32_t n = 0; n < max_ahead && !plan.empty(); ++n) {
      const BatchPlan* const ahead = scheduler_.PlanAhead();
      if (ahead == nullptr) break;
      ++num_ahead;
      std::vector<ItemResult> next;
      for (const BatchItem& item : ahead->items) next.push_back(Compute(item, results));
      Finish(results);
      results = std::move(next);
    }
    Finish(results);
    for (const BatchItem& item : plan.items) {
      if (!item.ends_prompt) continue;
      if (scheduler_.config().role == WorkerRole::kPrefill) {
        done.push_back(item.id);
      } else {
        Divide(item.id);
      }
    }
    EXPECT_TRUE(scheduler_.Audit().ok()) << scheduler_.Audit();
    EXPECT_TRUE(pool_.Audit().ok()) << pool_.Audit();
    return plan;
  }

  // Starts the choices of a prompt whose KV came from elsewhere into `blocks`.
  void Bind(const SequenceSpec& spec, const std::vector<kv::BlockHandle>& blocks) {
    const uint32_t block_size = scheduler_.config().block_size;
    const auto num_tokens = static_cast<uint32_t>(spec.tokens.size());
    const uint32_t num_unseen = scheduler_.config().NumUnseenBlocks(num_tokens);
    for (uint32_t i = num_unseen * block_size; i < num_tokens; ++i) {
      const kv::BlockHandle block = blocks[i / block_size - num_unseen];
      kv_[block.index.value() * block_size + i % block_size] = spec.tokens[i];
    }
    const size_t first = (num_tokens + block_size - 1) / block_size - num_unseen;
    for (size_t i = first; i < first + scheduler_.config().state_blocks; ++i)
      kv_[blocks[i].index.value() * block_size] = ToyState(spec.tokens);
    std::vector<kv::BlockCopy> copies;
    scheduler_.AddBound(spec, blocks, FirstTokens(spec), &copies, now_us_);
    Copy(copies);
  }

  // Tokens of admitted prompts that the prefix index had.
  uint64_t num_hit_tokens = 0;
  // Items whose state is taken to hold no number.
  std::function<bool(const BatchItem&)> is_bad = [](const BatchItem&) { return false; };
  const kv::PrefixStats* prefix_stats() const { return index_ ? &index_->stats() : nullptr; }

  // Steps that were planned ahead, and rows of them that were for nothing.
  uint64_t num_ahead = 0;
  uint64_t num_wasted = 0;

  int64_t now_us() const { return now_us_; }
  void AdvanceUs(int64_t us) { now_us_ += us; }

 private:
  void Finish(const std::vector<ItemResult>& results) {
    const BatchPlan& plan = scheduler_.plan();
    const int64_t elapsed_us = cost(plan.shape);
    now_us_ += plan.empty() ? 1'000 : elapsed_us;
    scheduler_.Finish(results, elapsed_us, now_us_);
    EXPECT_TRUE(scheduler_.Audit().ok()) << scheduler_.Audit();
  }

  // `before` has the results of the step that feeds the item.
  ItemResult Compute(const BatchItem& item, const std::vector<ItemResult>& before) {
    const Sequence& sequence = *item.sequence;
    std::vector<TokenId> tokens = sequence.spec.tokens;
    const bool is_fed = item.fed_by != kNotFed;
    if (is_fed) tokens.push_back(before.at(item.fed_by).token);
    const uint32_t block_size = scheduler_.config().block_size;
    const uint32_t end = item.first_pos + item.num_tokens;
    std::vector<TokenId> read;
    for (uint32_t pos = 0; pos < end; ++pos) {
      if (pos / block_size >= sequence.table.size()) {
        ADD_FAILURE() << "no block for position " << pos;
        return {};
      }
      const uint32_t window = scheduler_.config().window;
      if (window > 0 && pos + window <= item.first_pos) {  // no row of the item sees it
        read.push_back(tokens.at(pos));
        continue;
      }
      TokenId& slot =
          kv_[sequence.table.indices()[pos / block_size] * block_size + pos % block_size];
      if (pos >= item.first_pos) slot = tokens.at(pos);
      read.push_back(slot);
    }
    EXPECT_EQ(read, std::vector<TokenId>(tokens.begin(), tokens.begin() + end))
        << "the KV of sequence " << item.id.value() << " was overwritten";
    MoveState(item, tokens);
    if (!item.wants_logits || item.ends_prompt) return {.no_numbers = is_bad(item)};
    const TokenId token = ToyNext(read, sequence.spec.choice);
    if (is_fed && before[item.fed_by].finished) {
      ++num_wasted;
      return {token, false};  // whatever it says
    }
    const uint32_t index = static_cast<uint32_t>(tokens.size()) - sequence.spec.num_prompt_tokens;
    return {.token = token,
            .finished = Emit(sequence.spec, sequence.spec.choice, index, token),
            .no_numbers = is_bad(item)};
  }

  static constexpr TokenId kBadState = -7;

  // The state before the item is that of the tokens before it, and becomes that of its own.
  void MoveState(const BatchItem& item, std::span<const TokenId> tokens) {
    ASSERT_EQ(item.sequence->state_table.size(), scheduler_.config().state_blocks);
    for (const uint32_t block : item.sequence->state_table.indices()) {
      TokenId& slot = kv_[block * scheduler_.config().block_size];
      EXPECT_TRUE(item.first_pos == 0 || slot == ToyState(tokens.first(item.first_pos)))
          << "the state of sequence " << item.id.value() << " is another's";
      slot = ToyState(tokens.first(item.first_pos + item.num_tokens));
    }
    if (item.checkpoint == kNoCheckpoint) return;
    const CheckpointPlan& checkpoint = scheduler_.plan().checkpoints[item.checkpoint];
    EXPECT_EQ(scheduler_.plan().items[checkpoint.item].id, item.id);
    EXPECT_EQ(checkpoint.num_tokens % scheduler_.config().block_size, 0u);
    ASSERT_GT(checkpoint.num_tokens, item.first_pos);
    ASSERT_LE(checkpoint.num_tokens, item.first_pos + item.num_tokens);
    for (uint32_t i = 0; i < scheduler_.config().state_blocks; ++i) {
      const uint32_t block =
          scheduler_.plan().checkpoint_blocks[checkpoint.first_block + i].index.value();
      const TokenId state = ToyState(tokens.first(checkpoint.num_tokens));
      kv_[block * scheduler_.config().block_size] = is_bad(item) ? kBadState : state;
    }
  }

  // Records one output token; true when it ends the choice.
  bool Emit(const SequenceSpec& spec, uint32_t choice, uint32_t index, TokenId token) {
    const std::pair key(spec.uid.lo, choice);
    EXPECT_EQ(outputs[key].size(), index) << "an output index is lost or repeated";
    outputs[key].push_back(token);
    const bool ends = spec.limits.After(spec.num_prompt_tokens, index + 1, token == kToyStop) !=
                      FinishReason::kNone;
    if (ends) finished[key] = true;
    return ends;
  }

  std::vector<ChoiceStart> FirstTokens(const SequenceSpec& spec) {
    std::vector<ChoiceStart> starts;
    for (uint32_t choice = 0; choice < spec.num_choices; ++choice) {
      const TokenId token = ToyNext(spec.tokens, choice);
      const bool ends = Emit(spec, choice, 0, token);
      starts.push_back({NextId(), choice, token, ends});
    }
    return starts;
  }

  void Divide(SequenceId id) {
    const std::vector<ChoiceStart> starts = FirstTokens(scheduler_.Find(id)->spec);
    std::vector<kv::BlockCopy> copies;
    scheduler_.Fork(id, starts, &copies);
    Copy(copies);
  }

  void Copy(const std::vector<kv::BlockCopy>& copies) {
    const uint32_t block_size = scheduler_.config().block_size;
    for (const kv::BlockCopy& copy : copies) {
      for (uint32_t i = 0; i < copy.num_tokens; ++i) {
        kv_[copy.to * block_size + i] = kv_[copy.from * block_size + i];
      }
    }
  }

  kv::BlockPool pool_;
  const std::unique_ptr<kv::PrefixIndex> index_;
  Scheduler scheduler_;
  std::vector<TokenId> kv_;  // [block][token]
  int64_t now_us_ = 1'000'000;
  uint64_t last_id_ = 0;
};

}  // namespace baton::scheduler

#endif  // BATON_TESTS_SCHEDULER_TOY_WORKER_H_
