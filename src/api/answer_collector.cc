#include "src/api/answer_collector.h"

#include <algorithm>
#include <numeric>

namespace baton {

AnswerCollector::AnswerCollector(uint32_t num_choices, bool keep_tokens,
                                 const std::string& echo_text)
    : keep_tokens_(keep_tokens), choices_(num_choices) {
  for (CollectedChoice& choice : choices_) {
    choice.text = echo_text;
    choice.num_code_points = CountCodePoints(echo_text);
  }
}

void AnswerCollector::Add(const TokenOutput& token) {
  CollectedChoice& choice = choices_[token.choice];
  if (keep_tokens_) {
    choice.tokens.push_back({token.token, token.logprob,
                             token.has_logprob ? *token.top_logprobs : std::vector<TokenLogprob>(),
                             choice.num_code_points});
  }
  choice.text.append(token.text);
  choice.num_code_points += CountCodePoints(token.text);
  ++choice.num_tokens;
  choice.sum_logprob += token.logprob;
  if (token.finish != FinishReason::kNone) choice.finish = token.finish;
}

std::vector<uint32_t> AnswerCollector::Best(uint32_t count) const {
  std::vector<uint32_t> order(choices_.size());
  std::iota(order.begin(), order.end(), 0u);
  if (count >= order.size()) return order;
  const auto mean = [this](uint32_t idx) {
    const CollectedChoice& choice = choices_[idx];
    return choice.sum_logprob / std::max(choice.num_tokens, 1u);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return mean(a) > mean(b); });
  order.resize(count);
  return order;
}

uint32_t CountCodePoints(std::string_view text) {
  return static_cast<uint32_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  }));
}

std::string_view FinishName(FinishReason finish) {
  if (finish == FinishReason::kStop) return "stop";
  return finish == FinishReason::kLength ? "length" : "";
}

}  // namespace baton
