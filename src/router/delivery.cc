#include "src/router/delivery.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/limits.h"
#include "src/base/log.h"

namespace baton::router {

using limits::kMaxPendingTokens;
using obs::RequestEvent;
using scheduler::FinishReason;

namespace {

// A vector comes where one was asked for, of the model's size, and holds numbers.
bool HasItsVector(const RouterRequest& request, const WorkerToken& token) {
  const uint32_t size = request.spec.embeds ? request.spec.model->embedding_size : 0;
  return token.embedding.size() == size &&
         std::all_of(token.embedding.begin(), token.embedding.end(),
                     [](float value) { return std::isfinite(value); });
}

}  // namespace

void Delivery::TakeToken(RouterRequest& request, WorkerToken token, int64_t now_us) {
  const uint32_t vocab_size = request.spec.model->vocab_size;
  if (token.token < 0 || static_cast<uint32_t>(token.token) >= vocab_size) {
    BATON_LOG_ERROR("request {}: token {} is outside the vocabulary of {}", request.uid,
                    token.token, vocab_size);
    return table_->EndBad(request, ErrorCode::kWorkerFailed);
  }
  if (!HasItsVector(request, token)) {
    BATON_LOG_ERROR("request {}: an event with a vector of {} elements, {} are expected",
                    request.uid, token.embedding.size(),
                    request.spec.embeds ? request.spec.model->embedding_size : 0);
    return table_->EndBad(request, ErrorCode::kWorkerFailed);
  }
  if (token.index == 0) request.lifetime.Mark(RequestEvent::kFirstToken, now_us);
  // This is before the worker's own word of it, which comes after the token, maybe the last one.
  if (token.index == 1) request.lifetime.Mark(RequestEvent::kFirstStepEnded, now_us);
  request.moved_us = now_us;
  switch (request.merge.Add(std::move(token), now_us)) {
    case TokenMerge::Outcome::kDuplicate:
      return;
    case TokenMerge::Outcome::kAhead:
      request.heard_us = now_us;
      return;
    case TokenMerge::Outcome::kMismatch:
      BATON_LOG_ERROR("request {}: two workers sent unequal tokens", request.uid);
      state_->metrics->kv_chain_mismatch_total->Add();
      return table_->EndBad(request, ErrorCode::kChainMismatch);
    case TokenMerge::Outcome::kOverflow:
    case TokenMerge::Outcome::kInvalid:
      BATON_LOG_ERROR("request {}: a worker sent a token outside the request", request.uid);
      return table_->EndBad(request, ErrorCode::kWorkerFailed);
    case TokenMerge::Outcome::kReady:
      request.kv_hold.Grow();
      request.heard_us = now_us;
      break;
  }
  if (request.merge.num_pending() > kMaxPendingTokens) {
    return table_->EndBad(request, ErrorCode::kSlowClient);
  }
  Deliver(request);
}

void Delivery::TakePromptToken(RouterRequest& request, const WorkerToken& token, int64_t now_us) {
  if (!request.AwaitsPromptLog()) return;
  if (request.prompt_log == nullptr) request.prompt_log = std::make_shared<PromptLogprobs>();
  PromptLogprobs& log = *request.prompt_log;
  request.moved_us = now_us;
  request.heard_us = now_us;
  if (token.prompt_pos != log.rows.size() + 1) return;
  const wire::Prompt& prompt = request.spec.prompt;
  if (token.prompt_pos >= prompt.size() || token.token != prompt[token.prompt_pos]) {
    BATON_LOG_ERROR("request {}: a worker told of token {} at position {} of the prompt",
                    request.uid, token.token, token.prompt_pos);
    return table_->EndBad(request, ErrorCode::kWorkerFailed);
  }
  const uint32_t vocab_size = request.spec.model->vocab_size;
  for (const TokenLogprob& top : token.top_logprobs) {
    if (top.token >= 0 && static_cast<uint32_t>(top.token) < vocab_size) log.top.push_back(top);
  }
  log.rows.push_back({token.logprob, token.rank, static_cast<uint32_t>(log.top.size())});
  if (log.rows.size() + 1 < prompt.size()) return;
  request.spec.sampling.prompt_logprobs.reset();
  request.sink->OnPromptLogprobs(std::exchange(request.prompt_log, nullptr));
  Deliver(request);
}

// Nothing waits for it: a slow client misses some. A prompt that is computed again after a fault is
// told of from where it was.
void Delivery::TakeProgress(RouterRequest& request, const WorkerToken& token, int64_t now_us) {
  const auto total = static_cast<uint32_t>(request.spec.prompt.size());
  const uint32_t processed = std::min(token.progress.num_tokens, total);
  const bool is_wanted = request.spec.reports_progress && request.num_delivered == 0;
  if (!is_wanted || processed <= request.told.num_tokens) return;
  request.heard_us = now_us;
  if (request.pause.BeginIfSlow(request.sink->buffered_bytes(), now_us)) {
    return table_->timers().LookAtAll();
  }
  if (request.told.num_tokens == 0) request.told.began_us = now_us - token.progress.elapsed_us;
  request.told.num_tokens = processed;
  request.sink->OnProgress({.total = total,
                            .cache = std::min(token.progress.num_cached, processed),
                            .processed = processed,
                            .time_ms = (now_us - request.told.began_us) / 1000});
}

// The decode worker's first token may come before the prefill worker's last word.
void Delivery::TellPromptEnd(RouterRequest& request) {
  const auto total = static_cast<uint32_t>(request.spec.prompt.size());
  const bool is_due = request.spec.reports_progress && request.num_delivered == 0;
  if (!is_due || request.told.num_tokens == total) return;
  const bool has_begun = request.told.num_tokens > 0;
  request.told.num_tokens = total;
  request.sink->OnProgress(
      {.total = total,
       .cache = request.cached_tokens,
       .processed = total,
       .time_ms = has_begun ? (state_->now_us - request.told.began_us) / 1000 : 0});
}

void Delivery::Accept(RouterRequest& request, int64_t now_us) {
  request.accepted = true;
  if (std::exchange(request.is_counted, true)) return;
  if (request.spec.is_own()) return;
  state_->registry.Find(request.decode.lease)->refusals.num_refusals = 0;
  waiting_->OnTaken(request, now_us);
}

void Delivery::Deliver(RouterRequest& request) {
  if (!request.accepted || request.pause.on() || request.AwaitsPromptLog()) return;
  for (uint32_t choice = 0; choice < request.spec.num_choices; ++choice) {
    while (DeliverNext(request, choice)) {
    }
  }
  if (request.num_finished == request.spec.num_choices) table_->EndGood(request);
}

bool Delivery::DeliverNext(RouterRequest& request, uint32_t choice) {
  if (!request.merge.HasNext(choice)) return false;
  if (request.pause.BeginIfSlow(request.sink->buffered_bytes(), state_->now_us)) {
    table_->timers().LookAtAll();
    return false;
  }
  TokenMerge::Entry entry = request.merge.TakeNext(choice);
  // A token that came before the one that it follows is seen with that one.
  int64_t& last_us = request.last_token_us[choice];
  entry.arrived_us = std::max(entry.arrived_us, last_us);
  if (request.spec.embeds) request.sink->OnEmbedding(std::move(entry.token.embedding));
  TellPromptEnd(request);
  const WorkerToken& token = entry.token;
  ChoiceText& text = request.texts[choice];

  TokenOutput output;
  output.choice = choice;
  output.index = token.index;
  output.token = token.token;
  // A token that ends the choice is not part of its text.
  output.text = text.Push(token.token, token.finish == FinishReason::kStop,
                          token.finish != FinishReason::kNone);
  output.finish = text.stopped() ? FinishReason::kStop : token.finish;
  output.stop_idx = text.stop_idx();
  output.has_logprob = token.has_logprob;
  output.logprob = token.logprob;
  output.top_logprobs = &token.top_logprobs;
  output.arrived_us = entry.arrived_us;
  if (output.finish != FinishReason::kNone) {
    request.finished[choice] = output.finish;
    ++request.num_finished;
    output.is_last = request.num_finished == request.spec.num_choices;
    request.merge.CloseChoice(choice);
  }

  if (!request.spec.is_own()) {
    if (last_us != 0) {
      const int64_t gap_us = entry.arrived_us - last_us;
      request.notes.CountGap(gap_us, token.index);
      request.gaps.Count(gap_us, state_->config.objective.itl_us);
      request.metrics->inter_token_latency_seconds->Observe(static_cast<double>(gap_us) * 1e-6);
    }
    // The prompt counts with the first token, so that both counters are of the same requests.
    if (request.num_delivered == 0) {
      request.metrics->CountPrompt(request.spec.prompt.size(), request.cached_tokens);
    }
    if (request.spec.has_tokens()) request.metrics->generation_tokens_total->Add();
  }
  last_us = entry.arrived_us;
  request.lifetime.Mark(RequestEvent::kLastToken, entry.arrived_us);
  request.lifetime.CountStep(token.index, token.step_us);
  request.guesses.num_proposed += token.num_proposed;
  request.guesses.num_accepted += token.step_row > 0 ? 1 : 0;
  request.guesses.state = token.guess_state;
  ++request.num_delivered;
  request.sink->OnToken(output);
  return true;
}

bool Delivery::DeliverIfComplete(RouterRequest& request) {
  if (!request.merge.complete() || request.AwaitsPromptLog()) return false;
  request.accepted = true;
  Deliver(request);
  return true;
}

}  // namespace baton::router
