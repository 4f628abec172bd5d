// Prompt: the tokens of a prompt, shared by all who hold it and changed by nobody. A copy shares
// the tokens; so the router, its shadow runs and an answer keep one list in memory. Any thread.
#ifndef BATON_WIRE_PROMPT_H_
#define BATON_WIRE_PROMPT_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/ids.h"

namespace baton::wire {

// See the file comment. It is a range of tokens and converts to a span of them.
class Prompt {
 public:
  using value_type = TokenId;
  using const_iterator = std::vector<TokenId>::const_iterator;
  using iterator = const_iterator;

  Prompt() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): the list is the prompt
  Prompt(std::vector<TokenId> tokens)
      : tokens_(std::make_shared<const std::vector<TokenId>>(std::move(tokens))) {}

  size_t size() const { return tokens_ == nullptr ? 0 : tokens_->size(); }
  bool empty() const { return size() == 0; }
  const TokenId* data() const { return tokens_ == nullptr ? nullptr : tokens_->data(); }
  const_iterator begin() const { return tokens_ == nullptr ? const_iterator() : tokens_->begin(); }
  const_iterator end() const { return tokens_ == nullptr ? const_iterator() : tokens_->end(); }
  TokenId operator[](size_t idx) const { return (*tokens_)[idx]; }  // idx < size()

  friend bool operator==(const Prompt& a, const Prompt& b) {
    return a.tokens_ == b.tokens_ || std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::shared_ptr<const std::vector<TokenId>> tokens_;  // null = none
};

}  // namespace baton::wire

#endif  // BATON_WIRE_PROMPT_H_
