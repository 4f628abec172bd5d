#include "src/router/answer_log.h"

#include "src/base/check.h"

namespace baton::router {

void AnswerLog::Add(const TokenOutput& token) {
  Kept& kept = tokens_.emplace_back();
  kept.token = token;
  kept.text = token.text;
  if (token.has_logprob) kept.top_logprobs = *token.top_logprobs;
  kept.token.text = {};
  kept.token.top_logprobs = nullptr;
  bytes_ += BytesOf(kept);
}

// As the standard library allocates: a short text lies within its string.
size_t AnswerLog::BytesOf(const Kept& kept) {
  constexpr size_t kInline = 15;
  const size_t text = kept.text.size() > kInline ? kept.text.capacity() + 1 : 0;
  return sizeof(Kept) + text + kept.top_logprobs.capacity() * sizeof(TokenLogprob);
}

void AnswerLog::Finish(const GenerateResult& result) {
  result_ = result;
  const RequestTimings& timings = result_->timings;
  for (const std::string* name :
       {&timings.prefill_worker, &timings.decode_worker, &timings.transport}) {
    bytes_ += name->capacity();
  }
}

const AnswerLog::Kept& AnswerLog::At(uint64_t position) const {
  BATON_CHECK(position >= begin_ && position < end(), "position {} outside [{}, {})", position,
              begin_, end());
  return tokens_[position - begin_];
}

uint32_t AnswerLog::CostAt(uint64_t position) const {
  return 1 + static_cast<uint32_t>(At(position).top_logprobs.size() / 3);
}

void AnswerLog::Deliver(uint64_t position, ResponseSink& sink) const {
  const Kept& kept = At(position);
  TokenOutput token = kept.token;
  token.text = kept.text;
  token.top_logprobs = &kept.top_logprobs;
  sink.OnToken(token);
}

void AnswerLog::DropBefore(uint64_t position) {
  while (begin_ < position && !tokens_.empty()) {
    bytes_ -= BytesOf(tokens_.front());
    tokens_.pop_front();
    ++begin_;
  }
}

}  // namespace baton::router
