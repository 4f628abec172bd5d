// AnswerLog: everything that one request's sink was told, kept so that it can be told again to any
// number of readers, each at its own pace. Pure; owned by the router's thread.
//
// Invariants
//  1. Positions count all tokens that were ever added, from 0; [begin, end) can be delivered.
//  2. A delivery at a position gives what was added there, to the bit.
//  3. bytes() covers what is kept: tokens, their texts and alternatives, the names in the result.
#ifndef BATON_ROUTER_ANSWER_LOG_H_
#define BATON_ROUTER_ANSWER_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "src/router/submit.h"

namespace baton::router {

// See the file comment.
class AnswerLog {
 public:
  void Add(const TokenOutput& token);
  // The good end; nothing is added after it.
  void Finish(const GenerateResult& result);

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return begin_ + tokens_.size(); }
  const std::optional<GenerateResult>& result() const { return result_; }
  size_t bytes() const { return bytes_; }

  // Tells `sink` the token at `position`, which is in [begin, end).
  void Deliver(uint64_t position, ResponseSink& sink) const;
  // The cost of that delivery, about: 1 for a token without alternatives.
  uint32_t CostAt(uint64_t position) const;
  // Forgets what lies before `position`, at most up to the end.
  void DropBefore(uint64_t position);

 private:
  // A TokenOutput that owns what it refers to.
  struct Kept {
    TokenOutput token;  // its views and pointers are set when it is delivered
    std::string text;
    std::vector<TokenLogprob> top_logprobs;
  };
  static size_t BytesOf(const Kept& kept);
  const Kept& At(uint64_t position) const;

  std::deque<Kept> tokens_;
  uint64_t begin_ = 0;
  size_t bytes_ = 0;
  std::optional<GenerateResult> result_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ANSWER_LOG_H_
