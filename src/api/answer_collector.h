// AnswerCollector: gathers the tokens of a request whose answer is sent whole. Plain; one thread at
// a time.
#ifndef BATON_API_ANSWER_COLLECTOR_H_
#define BATON_API_ANSWER_COLLECTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/api/build_request.h"
#include "src/router/submit.h"

namespace baton {

// One token with its log-probability and where its text begins.
struct CollectedToken {
  TokenId token = 0;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;
  uint32_t text_offset = 0;  // code points of the choice's text before it
};

// One choice.
struct CollectedChoice {
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::vector<CollectedToken> tokens;  // only with logprobs
  uint32_t num_code_points = 0;        // of `text`
  uint32_t num_tokens = 0;
  double sum_logprob = 0;
};

// See the file comment.
class AnswerCollector {
 public:
  // `num_choices`: computed ones. `keep_tokens`: the answer has log-probabilities.
  AnswerCollector(uint32_t num_choices, bool keep_tokens, const std::string& echo_text);

  void Add(const TokenOutput& token);

  const CollectedChoice& choice(uint32_t idx) const { return choices_[idx]; }
  // The `count` choices of highest mean log-probability, best first; all in their own order when
  // every one is returned.
  std::vector<uint32_t> Best(uint32_t count) const;

 private:
  const bool keep_tokens_;
  std::vector<CollectedChoice> choices_;
};

// Code points of valid UTF-8.
uint32_t CountCodePoints(std::string_view text);

// "stop", "length"; "" for kNone.
std::string_view FinishName(FinishReason finish);

}  // namespace baton

#endif  // BATON_API_ANSWER_COLLECTOR_H_
