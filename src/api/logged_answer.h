// LoggedAnswer: a whole answer in pieces (answer_writer.h) with one list of log-probabilities in
// it, which is never held as text. One thread.
#ifndef BATON_API_LOGGED_ANSWER_H_
#define BATON_API_LOGGED_ANSWER_H_

#include <algorithm>
#include <cstddef>
#include <string>

#include "src/api/answer_writer.h"
#include "src/api/long_json.h"
#include "src/api/openai_json.h"
#include "src/api/token_log.h"

namespace baton::api {

// See the file comment.
class LoggedAnswer final : public WholeAnswer {
 public:
  // `plan` outlives this.
  explicit LoggedAnswer(const AnswerPlan& plan) : plan_(plan) {}

  // The place where the answer is written next.
  LongJson& out() { return tokens_ == nullptr ? before_ : after_; }
  // An array of `tokens` from `first` on stands here; once. `tokens` outlives this.
  void AddTokens(const TokenLog& tokens, size_t first) {
    before_.json().BeginArray();
    tokens_ = &tokens;
    first_ = token_ = std::min(first, tokens.size());
    after_.json().EndArray();
  }

  std::string Next(size_t num_bytes) override {
    std::string text = before_.Next(num_bytes);
    while (tokens_ != nullptr && token_ < tokens_->size() && text.size() < num_bytes) {
      JsonWriter json;
      WriteChatToken(plan_, tokens_->at(token_), &json);
      if (token_++ > first_) text.push_back(',');
      text += json.Take();
    }
    if (text.size() < num_bytes) text += after_.Next(num_bytes - text.size());
    return text;
  }

 private:
  const AnswerPlan& plan_;
  LongJson before_;
  LongJson after_;                    // what follows the list
  const TokenLog* tokens_ = nullptr;  // null: there is no list
  size_t first_ = 0;
  size_t token_ = 0;  // the next one
};

}  // namespace baton::api

#endif  // BATON_API_LOGGED_ANSWER_H_
