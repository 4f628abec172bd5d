#include "src/api/answer_text.h"

#include <algorithm>
#include <utility>

#include "src/text/tokenizer.h"

namespace baton::api {

using router::TokenOutput;
using scheduler::FinishReason;
using text::AnswerParts;
using text::CallPiece;
using text::ReasoningSplitter;
using text::Tokenizer;
using text::ToolParser;
using text::ToolParts;

namespace {

// Whether the choice ended before the model had ended it.
bool IsCut(const AnswerPlan& plan, const TokenOutput& token) {
  if (token.finish == FinishReason::kLength) return true;
  return !std::holds_alternative<std::monostate>(StopReasonOf(plan, token));
}

}  // namespace

AnswerText::AnswerText(const AnswerPlan& plan, uint32_t num_choices)
    : plan_(plan), choices_(num_choices) {
  const size_t num_of_prompt = num_choices / plan.prompts.size();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    choice.num_code_points = CountCodePoints(plan.prompts[i / num_of_prompt].echo_text);
    if (plan.splits_reasoning && !plan.has_channels()) {
      choice.splitter.emplace(plan.opens_reasoning);
    }
    if (plan.tools != nullptr) {
      choice.parser = text::ToolParser::Create(plan.tools->style, plan.tools->rules);
      choice.tally = std::make_unique<CallTally>(plan.tool_metrics, plan.tools->style);
    }
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
  if (choice.parser != nullptr) ReadCalls(token, &choice, &text);
  // Not those of the content: a token's text may be held back for a stop text.
  const Tokenizer& tokenizer = *plan_.model->tokenizer;
  if (!tokenizer.IsSpecial(token.token)) {
    choice.num_code_points += CountCodePoints(tokenizer.TokenBytes(token.token));
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

void AnswerText::ReadCalls(const TokenOutput& token, Choice* choice, TokenText* text) {
  ToolParser& parser = *choice->parser;
  tool_parts_ = parser.Push(text->content);
  const bool is_cut = IsCut(plan_, token);
  const bool is_call_cut = is_cut && parser.in_call();  // Flush leaves the call
  if (token.finish != FinishReason::kNone) {
    ToolParts rest = parser.Flush(is_cut);
    tool_parts_.reasoning += rest.reasoning;
    // Where a call is demanded, what was held back is the beginning of a call that was cut.
    const bool drops_rest = plan_.tools->demands_call && is_cut;
    if (!drops_rest) tool_parts_.content += rest.content;
    for (CallPiece& piece : rest.calls) tool_parts_.calls.push_back(std::move(piece));
  }
  if (plan_.has_channels() && plan_.splits_reasoning) {
    text->reasoning = tool_parts_.reasoning;
    text->in_reasoning = parser.in_reasoning();
    const bool thinks = text->in_reasoning || !text->reasoning.empty();
    if (thinks) choice->num_reasoning_tokens = token.index + 1;
  } else {
    tool_parts_.content.insert(0, tool_parts_.reasoning);
  }
  text->content = tool_parts_.content;
  deltas_.clear();
  for (CallPiece& piece : tool_parts_.calls) {
    choice->tally->Add(piece);
    ToolCallDelta& delta = deltas_.emplace_back();
    delta.index = piece.index;
    delta.name = std::move(piece.name);
    delta.arguments = std::move(piece.arguments);
    if (delta.name.empty()) continue;
    delta.id = ToolCallId(plan_.id, token.choice, delta.index, plan_.tools->id_style);
  }
  if (token.finish != FinishReason::kNone) {
    text->is_call_cut = choice->tally->End(is_call_cut) == CallResult::kCut;
  }
  text->tool_calls = deltas_;
  text->in_call = parser.in_call();
  text->has_calls = parser.num_calls() > 0;
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

ChoiceEnd EndOf(const AnswerPlan& plan, const TokenOutput& token, const TokenText& text) {
  if (plan.echo_alone) return {.finish = FinishReason::kLength};
  return {.finish = token.finish,
          .stop_reason = StopReasonOf(plan, token),
          .num_tokens = token.index + 1,
          .has_calls = text.has_calls,
          .is_call_cut = text.is_call_cut};
}

std::string_view FinishName(const ChoiceEnd& end) {
  return end.awaits_results() ? "tool_calls" : FinishName(end.finish);
}

std::string_view FinishName(FinishReason finish) {
  if (finish == FinishReason::kStop) return "stop";
  return finish == FinishReason::kLength ? "length" : "";
}

}  // namespace baton::api
