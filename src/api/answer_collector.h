// AnswerCollector: gathers the tokens of a request whose answer is sent whole. Plain; one thread at
// a time.
#ifndef BATON_API_ANSWER_COLLECTOR_H_
#define BATON_API_ANSWER_COLLECTOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/api/answer_budget.h"
#include "src/api/answer_text.h"
#include "src/api/build_request.h"
#include "src/api/token_log.h"
#include "src/api/tool_calls.h"
#include "src/router/submit.h"

namespace baton::api {

// One choice.
struct CollectedChoice {
  std::string text;       // the echoed prompt included
  std::string reasoning;  // thoughts
  std::vector<ToolCall> tool_calls;
  ChoiceEnd end;
  TokenLog tokens;  // only with logprobs
  uint32_t num_tokens = 0;
  double sum_logprob = 0;
};

// See the file comment.
class AnswerCollector {
 public:
  // `num_choices`: computed ones of all prompts, prompt by prompt. `plan` outlives this.
  AnswerCollector(const AnswerPlan& plan, uint32_t num_choices);

  // Takes the room of the answer, which goes back with this, or when it is full. Without one,
  // tokens take none.
  void Keep(AnswerRoom room) { room_ = std::move(room); }

  // False: the token has found no room, as failure() says. All that was collected is given up, and
  // later tokens are ignored (true).
  bool Add(const router::TokenOutput& token);
  void SetPromptLog(uint32_t prompt, std::shared_ptr<const router::PromptLogprobs> logprobs) {
    if (!failure_) prompt_logs_[prompt] = std::move(logprobs);
  }
  void SetEmbedding(uint32_t prompt, std::vector<float> embedding) {
    if (!failure_) embeddings_[prompt] = std::move(embedding);
  }
  // By prompt; only where the plan embeds.
  const std::vector<std::vector<float>>& embeddings() const { return embeddings_; }
  const router::RequestError* failure() const { return failure_ ? &*failure_ : nullptr; }
  // The failure, if there is one, is why the request was cancelled; else `error` stays.
  const router::RequestError& FailureOr(const router::RequestError& error) const {
    return failure_ && error.code == router::ErrorCode::kCancelled ? *failure_ : error;
  }

  const CollectedChoice& choice(uint32_t idx) const { return choices_[idx]; }
  // The log-probabilities of a prompt; null: it has none.
  const router::PromptLogprobs* PromptLogOf(uint32_t prompt) const {
    return prompt_logs_[prompt].get();
  }
  // Which prompt a choice belongs to.
  uint32_t PromptOf(uint32_t idx) const { return idx / num_of_prompt_; }
  // The `count` choices of highest mean log-probability of each prompt, best first; all in their
  // own order when every one is returned.
  std::vector<uint32_t> Best(uint32_t count) const;
  uint32_t num_reasoning_tokens() const { return texts_.num_reasoning_tokens(); }
  // About how many the answer has, as JSON.
  size_t num_bytes() const;

 private:
  const AnswerPlan& plan_;
  AnswerText texts_;
  const uint32_t num_of_prompt_;  // computed choices of one prompt
  std::vector<CollectedChoice> choices_;
  std::vector<std::shared_ptr<const router::PromptLogprobs>> prompt_logs_;  // by prompt
  std::vector<std::vector<float>> embeddings_;                              // by prompt
  AnswerRoom room_;
  std::optional<router::RequestError> failure_;
};

}  // namespace baton::api

#endif  // BATON_API_ANSWER_COLLECTOR_H_
