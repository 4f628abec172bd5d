#include "src/api/answer_text.h"

#include <algorithm>

#include "src/text/tokenizer.h"

namespace baton::api {

using router::TokenOutput;
using scheduler::FinishReason;
using text::AnswerParts;
using text::ReasoningSplitter;

AnswerText::AnswerText(const AnswerPlan& plan, uint32_t num_choices)
    : tokenizer_(*plan.model->tokenizer), choices_(num_choices) {
  const size_t num_of_prompt = num_choices / plan.prompts.size();
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].num_code_points = CountCodePoints(plan.prompts[i / num_of_prompt].echo_text);
    if (plan.splits_reasoning) choices_[i].splitter.emplace(plan.opens_reasoning);
  }
}

TokenText AnswerText::Push(const TokenOutput& token) {
  Choice& choice = choices_[token.choice];
  TokenText text;
  text.offset = choice.num_code_points;
  if (choice.splitter.has_value()) {
    Split(token, &choice, &text);
  } else {
    text.content = token.text;
  }
  // Not those of the content: a token's text may be held back for a stop text.
  if (!tokenizer_.IsSpecial(token.token)) {
    choice.num_code_points += CountCodePoints(tokenizer_.TokenBytes(token.token));
  }
  return text;
}

void AnswerText::Split(const TokenOutput& token, Choice* choice, TokenText* text) {
  ReasoningSplitter& splitter = *choice->splitter;
  parts_ = splitter.Push(token.text);
  if (token.finish != FinishReason::kNone) {
    AnswerParts rest = splitter.Flush();
    parts_.reasoning += rest.reasoning;
    parts_.content += rest.content;
  }
  text->reasoning = parts_.reasoning;
  text->content = parts_.content;
  text->in_reasoning = splitter.in_reasoning();
  if (!splitter.opened() || choice->is_closed) return;
  choice->num_reasoning_tokens = token.index + 1;
  choice->is_closed = !splitter.in_reasoning();
}

uint32_t AnswerText::num_reasoning_tokens() const {
  uint32_t sum = 0;
  for (const Choice& choice : choices_) sum += choice.num_reasoning_tokens;
  return sum;
}

StopReason StopReasonOf(const AnswerPlan& plan, const TokenOutput& token) {
  if (token.finish != FinishReason::kStop) return {};
  if (token.stop_idx.has_value()) return plan.stop[*token.stop_idx];
  const bool is_end = plan.model->tokenizer->IsEog(token.token) && !plan.ignore_eos;
  if (is_end) return {};
  return token.token;
}

uint32_t CountCodePoints(std::string_view text) {
  return static_cast<uint32_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  }));
}

bool IsCutShort(const AnswerPlan& plan, const ChoiceEnd& end) {
  return plan.is_constrained && end.finish == scheduler::FinishReason::kLength;
}

std::string_view FinishName(FinishReason finish) {
  if (finish == FinishReason::kStop) return "stop";
  return finish == FinishReason::kLength ? "length" : "";
}

}  // namespace baton::api
