#include "src/sim/sim_client.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "src/base/xxh3.h"
#include "src/sim/sim_draws.h"

namespace baton::sim {

using engine::RequestKey;
using engine::RequestSpec;
using model::SampledToken;
using model::SamplerState;
using router::ChoiceText;
using router::GenerateRequest;
using router::GenerateResult;
using router::HttpStatusOf;
using router::RequestError;
using router::RequestTimings;
using router::TokenOutput;
using scheduler::FinishReason;
using scheduler::SequenceLimits;

namespace {

// The key of a client's request in SimClientDesk::asked.
RequestKey AskedKey(uint64_t number) { return {.uid = {0, number}, .attempt = 1}; }

}  // namespace

SimClient::SimClient(const SimRequest& spec, SimClientDesk* desk,
                     std::function<void(SimClient&)> on_end)
    : number_(spec.number),
      desk_(desk),
      on_end_(std::move(on_end)),
      model_(spec.request.model),
      params_(spec.request.sampling),
      num_prompt_(static_cast<uint32_t>(spec.request.prompt.size())) {
  if (desk_->has_no_faults) NoteAsked(spec.request);
  SimPrefix prefix(desk_->has_states, desk_->window);
  for (const TokenId token : spec.request.prompt) prefix.Append(token);
  choices_.reserve(spec.request.num_choices);
  for (uint32_t i = 0; i < spec.request.num_choices; ++i) {
    choices_.push_back({prefix, SamplerState(params_, spec.request.prompt, params_.max_tokens),
                        ChoiceText(*model_->tokenizer, spec.request.stop, params_.min_tokens)});
  }
}

void SimClient::NoteAsked(const GenerateRequest& request) const {
  RequestSpec order;
  order.key = AskedKey(number_);
  order.tenant = request.tenant;
  order.tokens.assign(request.prompt.begin(), request.prompt.end());
  order.num_prompt_tokens = num_prompt_;
  desk_->asked.Note(order);
}

void SimClient::Note(uint64_t a, uint64_t b) {
  const uint64_t time = static_cast<uint64_t>(desk_->now_us());
  desk_->digest =
      SplitMix(desk_->digest ^ SplitMix(time + SplitMix(number_ + SplitMix(a + SplitMix(b)))));
}

void SimClient::OnToken(const TokenOutput& token) {
  if (end_ == SimEnd::kLost) return;  // nobody listens
  ++desk_->num_tokens;
  ++num_seen_;
  Hear();
  const uint64_t place = uint64_t{token.choice} << 32 | token.index;
  Note(place, Xxh3Hash64(token.text) + static_cast<uint64_t>(token.token) +
                  (static_cast<uint64_t>(token.finish) << 32));
  if (end_ != SimEnd::kNone) {
    return desk_->violate("two ends", fmt::format("request {}: a token after its end", number_));
  }
  if (token.choice >= choices_.size()) {
    return desk_->violate("order", fmt::format("request {}: choice {}", number_, token.choice));
  }
  Choice& choice = choices_[token.choice];
  if (token.index != choice.state.num_output() || choice.finish != FinishReason::kNone) {
    return desk_->violate(
        "order", fmt::format("request {} choice {}: index {} instead of {}{}", number_,
                             token.choice, token.index, choice.state.num_output(),
                             choice.finish == FinishReason::kNone ? "" : ", after its end"));
  }
  Check(choice, token);
}

FinishReason SimClient::FinishAfter(const Choice& choice, TokenId token) const {
  const std::vector<TokenId>& stops = params_.stop_token_ids;
  const bool is_stop = (!params_.ignore_eos && token == kSimEos) ||
                       std::find(stops.begin(), stops.end(), token) != stops.end();
  const SequenceLimits limits{.max_tokens = params_.max_tokens, .max_context = kSimMaxContext};
  return limits.After(num_prompt_, choice.state.num_output(), is_stop);
}

void SimClient::Check(Choice& choice, const TokenOutput& token) {
  choice.prefix.FillLogits(desk_->logits);
  SampledToken expected;
  const Status status = desk_->sampler.Sample(
      {.params = &params_, .state = &choice.state, .choice = token.choice, .logits = desk_->logits},
      expected);
  const auto wrong = [&](std::string what) {
    desk_->violate("wrong token", fmt::format("request {} choice {} index {}: {}", number_,
                                              token.choice, token.index, what));
  };
  if (!status.ok()) return wrong(status.ToString());
  choice.prefix.Append(expected.token);
  choice.state.Append(expected.token);
  if (token.token != expected.token) {
    return wrong(fmt::format("token {} instead of {}", token.token, expected.token));
  }
  const FinishReason finish = FinishAfter(choice, expected.token);
  const std::string_view text = choice.text.Push(expected.token, finish == FinishReason::kStop,
                                                 finish != FinishReason::kNone);
  choice.finish = choice.text.stopped() ? FinishReason::kStop : finish;
  if (token.text != text) {
    return wrong(fmt::format("text \"{}\" instead of \"{}\"", token.text, text));
  }
  if (token.finish != choice.finish) {
    return wrong(fmt::format("finish {} instead of {}", static_cast<int>(token.finish),
                             static_cast<int>(choice.finish)));
  }
  CheckLogprobs(expected, token);
}

void SimClient::CheckLogprobs(const SampledToken& expected, const TokenOutput& token) {
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  bool same = token.has_logprob == expected.has_logprob;
  if (same && expected.has_logprob) {
    same = bits(token.logprob) == bits(expected.logprob) && token.top_logprobs != nullptr &&
           std::equal(token.top_logprobs->begin(), token.top_logprobs->end(), expected.top.begin(),
                      expected.top.begin() + expected.num_top);
  }
  if (same) return;
  desk_->violate("wrong token", fmt::format("request {} choice {} index {}: other logprobs",
                                            number_, token.choice, token.index));
}

// The first asking of a prompt in its tenant finds nothing. A request that a fault made be computed
// again finds its own KV, so only runs without faults are judged here; with faults its worker is,
// which knows all that it was ever asked for (AskedPrefixes).
void SimClient::CheckCached(const RequestTimings& timings) {
  if (!desk_->has_no_faults || timings.cached_tokens == 0 || timings.resumes > 0) return;
  if (desk_->asked.MayBeHeld(AskedKey(number_))) return;
  desk_->violate("foreign prefix",
                 fmt::format("request {}: {} cached tokens of a prompt that its tenant asked once",
                             number_, timings.cached_tokens));
}

void SimClient::OnFinished(const GenerateResult& result) {
  if (end_ == SimEnd::kLost) return;  // nobody listens
  CheckCached(result.timings);
  Note(~uint64_t{0}, result.num_completion_tokens);
  num_resumes_ = result.timings.resumes;
  const bool all_done = std::all_of(choices_.begin(), choices_.end(), [](const Choice& choice) {
    return choice.finish != FinishReason::kNone;
  });
  uint32_t num_tokens = 0;
  for (const Choice& choice : choices_) num_tokens += choice.state.num_output();
  if (!all_done || result.num_completion_tokens != num_tokens ||
      result.num_prompt_tokens != num_prompt_) {
    desk_->violate(
        "wrong token",
        fmt::format("request {}: finished with {} of {} tokens, prompt {} of {}{}", number_,
                    result.num_completion_tokens, num_tokens, result.num_prompt_tokens, num_prompt_,
                    all_done ? "" : ", a choice has no end"));
  }
  End(SimEnd::kFinished);
}

void SimClient::OnFailed(const RequestError& error) {
  if (end_ == SimEnd::kLost) return;  // nobody listens
  Note(~uint64_t{0} - 1, static_cast<uint64_t>(error.code));
  error_ = error.code;
  const int http_status = HttpStatusOf(error.code);
  refused_ = num_seen_ == 0 && (http_status == 429 || http_status == 503);
  retry_after_us_ = int64_t{std::max(1u, error.retry_after_s)} * 1'000'000;
  End(SimEnd::kFailed);
}

void SimClient::Hear() {
  const int64_t now_us = desk_->now_us();
  const int64_t silence_us = now_us - (heard_us_ > 0 ? heard_us_ : asked_us);
  longest_silence_us_ = std::max(longest_silence_us_, silence_us);
  if (desk_->max_silence_us > 0 && silence_us > desk_->max_silence_us) {
    desk_->violate("silent", fmt::format("request {} ({}) heard nothing for {} ms", number_,
                                         spec.uid, silence_us / 1000));
  }
  heard_us_ = now_us;
}

void SimClient::OnRouterDied() {
  Note(~uint64_t{0} - 2, 0);
  End(SimEnd::kLost);
}

void SimClient::End(SimEnd end) {
  if (end_ != SimEnd::kNone) {
    return desk_->violate("two ends", fmt::format("request {} ended twice", number_));
  }
  end_ = end;
  desk_->asked.Forget(AskedKey(number_));
  on_end_(*this);
}

}  // namespace baton::sim
