// AnswerText: what each token of a request adds to the answer that its client reads: content, and
// thoughts where the plan tells them apart. Plain; one thread at a time. The state is a pure
// function of the tokens pushed.
#ifndef BATON_API_ANSWER_TEXT_H_
#define BATON_API_ANSWER_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/api/build_request.h"
#include "src/api/tool_calls.h"
#include "src/api/tool_metrics.h"
#include "src/router/submit.h"
#include "src/text/reasoning_splitter.h"
#include "src/text/tools/tool_parser.h"

namespace baton::api {

// Text that one token adds to its choice. Views are valid until the next Push, and as long as the
// token's own text.
struct TokenText {
  std::string_view reasoning;
  std::string_view content;
  std::span<const ToolCallDelta> tool_calls;
  bool in_reasoning = false;  // the choice has not left its thoughts
  bool in_call = false;       // the choice is within a call, whose text is no content
  bool has_calls = false;     // the choice has called a function
  bool is_call_cut = false;   // of the last token: the choice ended within its last call
  uint32_t offset = 0;        // code points of the tokens before this one, held back or not
};

// The texts of all choices of one request; see the file comment.
class AnswerText {
 public:
  // `num_choices`: computed ones of all prompts, prompt by prompt. `plan` outlives this.
  AnswerText(const AnswerPlan& plan, uint32_t num_choices);

  // Tokens of one choice in order. Text that was held back comes with the last one.
  TokenText Push(const router::TokenOutput& token);

  // Tokens of all choices up to the one with which the thoughts ended, their tags' included. With
  // stop texts or half characters held back that is the token that released the end.
  uint32_t num_reasoning_tokens() const;

 private:
  // Where one choice stands.
  struct Choice {
    std::optional<text::ReasoningSplitter> splitter;  // none: everything is content
    std::unique_ptr<text::ToolParser> parser;         // null: no calls are read
    std::unique_ptr<CallTally> tally;                 // with the parser
    bool is_closed = false;                           // its thoughts have ended
    uint32_t num_reasoning_tokens = 0;
    uint32_t num_code_points = 0;  // of its tokens, and of the prompt that is echoed
  };

  void Split(const router::TokenOutput& token, Choice* choice, TokenText* text);
  // Takes calls, and the thoughts of channels, out of the content.
  void ReadCalls(const router::TokenOutput& token, Choice* choice, TokenText* text);

  const AnswerPlan& plan_;
  std::vector<Choice> choices_;
  // The pieces that Push returned last.
  text::AnswerParts parts_;
  text::ToolParts tool_parts_;
  std::vector<ToolCallDelta> deltas_;
};

// Reason why a choice ended early, in the client's terms: one of its stop texts or of its stop
// token ids; neither for an end-of-generation token, a length, or a choice that goes on.
using StopReason = std::variant<std::monostate, std::string, TokenId>;
StopReason StopReasonOf(const AnswerPlan& plan, const router::TokenOutput& token);

// How a choice ended.
struct ChoiceEnd {
  scheduler::FinishReason finish = scheduler::FinishReason::kNone;
  StopReason stop_reason;
  uint32_t num_tokens = 0;   // sampled by the choice
  bool has_calls = false;    // the choice has called a function
  bool is_call_cut = false;  // a length or a stop of the request ended the last call

  // The choice ended outside of a call, and the client is to answer its calls.
  bool awaits_results() const {
    return has_calls && !is_call_cut && finish == scheduler::FinishReason::kStop;
  }
};
// The end of the choice that `token` belongs to. Before its last token `finish` is kNone.
ChoiceEnd EndOf(const AnswerPlan& plan, const router::TokenOutput& token, const TokenText& text);

// incomplete_details.reason of a choice that the length cut.
inline constexpr std::string_view kCutByLength = "max_output_tokens";
// The choice was to follow a grammar, and its length ended it before the text was whole.
bool IsCutShort(const AnswerPlan& plan, const ChoiceEnd& end);

// Code points of valid UTF-8.
uint32_t CountCodePoints(std::string_view text);

// "stop", "length"; "" for kNone.
std::string_view FinishName(scheduler::FinishReason finish);
// As above, and "tool_calls" where the choice awaits results.
std::string_view FinishName(const ChoiceEnd& end);

}  // namespace baton::api

#endif  // BATON_API_ANSWER_TEXT_H_
