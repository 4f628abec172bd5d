#include "src/api/answer_collector.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace baton::api {

using router::RequestError;
using router::TokenOutput;
using scheduler::FinishReason;

AnswerCollector::AnswerCollector(const AnswerPlan& plan, uint32_t num_choices)
    : plan_(plan),
      texts_(plan, num_choices),
      num_of_prompt_(num_choices / static_cast<uint32_t>(plan.prompts.size())),
      choices_(num_choices),
      prompt_logs_(plan.prompts.size()),
      embeddings_(plan.embeds ? plan.prompts.size() : 0) {
  for (uint32_t i = 0; i < num_choices; ++i) choices_[i].text = plan.prompts[PromptOf(i)].echo_text;
}

bool AnswerCollector::Add(const TokenOutput& token) {
  if (failure_) return true;
  if (plan_.echo_alone && plan_.logs_prompt()) {
    choices_[token.choice].end = EndOf(plan_, token, {});
    return true;
  }
  RequestError error;
  if (!room_.AddToken(&error)) {
    failure_ = std::move(error);
    choices_ = {};
    prompt_logs_ = {};
    embeddings_ = {};
    room_ = {};
    return false;
  }
  CollectedChoice& choice = choices_[token.choice];
  const TokenText text = texts_.Push(token);
  if (plan_.logprobs) {
    std::span<const TokenLogprob> top;
    if (token.has_logprob) top = *token.top_logprobs;
    choice.tokens.Add({token.token, token.logprob, top, text.offset});
  }
  choice.text.append(text.content);
  choice.reasoning.append(text.reasoning);
  for (const ToolCallDelta& delta : text.tool_calls) {
    if (!delta.name.empty()) choice.tool_calls.push_back({delta.id, delta.name, ""});
    choice.tool_calls.back().arguments += delta.arguments;
  }
  ++choice.num_tokens;
  choice.sum_logprob += token.logprob;
  if (token.finish != FinishReason::kNone) {
    choice.end = EndOf(plan_, token, text);
  }
  return true;
}

size_t AnswerCollector::num_bytes() const {
  constexpr size_t kBytesOfLogprob = 64;  // of a token or an alternative to one
  size_t bytes = 0;
  for (const CollectedChoice& choice : choices_) {
    bytes += choice.text.size() + choice.reasoning.size();
    for (const ToolCall& call : choice.tool_calls) bytes += call.arguments.size();
    if (choice.tokens.empty()) continue;
    const size_t num_entries = 1 + choice.tokens.at(0).top_logprobs.size();
    bytes += choice.tokens.size() * num_entries * kBytesOfLogprob;
  }
  for (const std::vector<float>& vector : embeddings_) {
    bytes += vector.size() * kJsonBytesOfElement;
  }
  for (const auto& log : prompt_logs_) {
    if (log == nullptr) continue;
    const size_t num_copies = plan_.logs_echo ? plan_.num_choices : 1;
    bytes += num_copies * (log->rows.size() + log->top.size()) * kBytesOfLogprob;
  }
  return bytes;
}

std::vector<uint32_t> AnswerCollector::Best(uint32_t count) const {
  std::vector<uint32_t> order(choices_.size());
  std::iota(order.begin(), order.end(), 0u);
  if (count >= num_of_prompt_) return order;
  const auto mean = [this](uint32_t idx) {
    const CollectedChoice& choice = choices_[idx];
    return choice.sum_logprob / std::max(choice.num_tokens, 1u);
  };
  std::vector<uint32_t> best;
  for (auto first = order.begin(); first != order.end(); first += num_of_prompt_) {
    std::stable_sort(first, first + num_of_prompt_,
                     [&](uint32_t a, uint32_t b) { return mean(a) > mean(b); });
    best.insert(best.end(), first, first + count);
  }
  return best;
}

}  // namespace baton::api
