#include "src/engine/prompt_ends.h"

#include <span>
#include <utility>

#include "src/base/limits.h"

namespace baton::engine {

using kv::FirstToken;
using limits::kMaxChoices;
using model::SampledToken;
using scheduler::BatchItem;
using scheduler::BatchPlan;
using scheduler::FinishReason;
using scheduler::Sequence;

PromptEnds::PromptEnds(const StepParts& parts, StepWork* work, RowSampler* rows)
    : state_(parts.state),
      life_(parts.life),
      tokens_(parts.tokens),
      sources_(&parts.hub->sources()),
      work_(work),
      rows_(rows) {
  first_tokens_.reserve(kMaxChoices);
}

void PromptEnds::TellProgress(const BatchPlan& plan) {
  constexpr int64_t kProgressGapUs = 100'000;
  int64_t now_us = 0;  // of the first that is told; most steps tell none
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    const SequenceUse& use = work_->uses[i];
    LiveRequest* const request = use.request;
    if (!use.is_prompt || !request->spec.reports_progress || item.sequence->ended) continue;
    if (now_us == 0) now_us = state_->parts.clock->NowUs();
    const bool is_early = now_us - request->progress_told_us < kProgressGapUs;
    const bool is_end = item.first_pos + item.num_tokens >= request->spec.num_prompt_tokens;
    if (is_early && request->progress_told_us > 0 && !is_end) continue;
    request->progress_told_us = now_us;
    TokenEvent event{.session = request->spec.session, .key = request->spec.key};
    event.progress = {.num_tokens = item.first_pos + item.num_tokens,
                      .num_cached = item.sequence->num_hit_tokens,
                      .elapsed_us = now_us - request->prefill_began_us};
    state_->outbox.Add(event, std::span<const TokenLogprob>());
  }
}

void PromptEnds::PoolRows(const BatchPlan& plan) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    const bool has_rows = item.logs_prompt || item.wants_logits;
    if (!has_rows || !item.sequence->spec.embeds || item.sequence->ended) continue;
    model::RowPool& pool = *work_->uses[i].request->pool;
    const uint32_t last = item.num_tokens - 1;
    for (uint32_t token = item.logs_prompt ? 0 : last; token <= last; ++token) {
      pool.Add(item.first_pos + token, work_->batch().HiddenOf(item, i, token));
    }
  }
}

void PromptEnds::Finish(const DonePrompt& done) {
  LiveRequest* const request = done.request;
  if (request->pool.has_value()) return FinishEmbedding(request);
  first_tokens_.clear();
  if (!rows_->SampleFirst(request, done.item, &first_tokens_)) return;
  life_->Reach(request, RequestState::kPrefillDone);
  if (request->source != nullptr) return Seal(request);
  tokens_->Fork(request, first_tokens_);
  if (request->num_open_choices == 0) work_->finished.push_back(request);
}

// The vector stands where a first and last token would.
void PromptEnds::FinishEmbedding(LiveRequest* request) {
  StatusOr<std::vector<float>> vector = request->pool->Vector();
  if (!vector.ok()) {
    work_->NoteFailed(request, vector.status());
    return;
  }
  life_->Reach(request, RequestState::kPrefillDone);
  request->num_open_choices = 0;
  state_->outbox.Add({.session = request->spec.session,
                      .key = request->spec.key,
                      .token = request->spec.tokens.back(),
                      .finish = FinishReason::kLength},
                     *std::move(vector));
  work_->finished.push_back(request);
}

void PromptEnds::Seal(LiveRequest* request) {
  kv::Seal seal;
  for (Choice& choice : request->choices) {
    const SampledToken& sampled = first_tokens_[choice.index];
    FirstToken& first = seal.first_tokens.emplace_back();
    first.choice = choice.index;
    first.token = sampled.token;
    if (sampled.has_logprob) first.logprob = sampled.logprob;
    first.top_logprobs.assign(sampled.top.begin(), sampled.top.begin() + sampled.num_top);
    tokens_->Take(request, &choice, sampled);
  }
  seal.next_output_index = request->num_replayed() + 1;
  seal.num_tokens = static_cast<uint32_t>(request->spec.tokens.size());
  const Sequence* const sequence = state_->scheduler.Find(request->source->sequence);
  seal.num_cached = sequence->num_hit_tokens;
  seal.chain = sequence->chain.Links();
  sources_->FinishPrompt(request->source, std::move(seal), state_->now_us);
}

}  // namespace baton::engine
