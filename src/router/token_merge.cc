#include "src/router/token_merge.h"

#include <utility>

#include "src/base/check.h"

namespace baton::router {

using scheduler::FinishReason;

TokenMerge::TokenMerge(uint32_t num_choices, uint32_t max_tokens)
    : max_tokens_(max_tokens), choices_(num_choices) {}

TokenMerge::Outcome TokenMerge::Add(WorkerToken token, int64_t now_us) {
  if (token.choice >= choices_.size() || token.index >= max_tokens_) return Outcome::kInvalid;
  Choice& choice = choices_[token.choice];
  if (choice.closed) return Outcome::kDuplicate;
  return AddToOpenChoice(choice, Entry{std::move(token), now_us});
}

TokenMerge::Outcome TokenMerge::AddToOpenChoice(Choice& choice, Entry entry) {
  const WorkerToken& token = entry.token;
  const uint32_t next = static_cast<uint32_t>(choice.tokens.size());
  if (token.index < next) {
    const bool is_last = token.index + 1 == next && choice.finish != FinishReason::kNone;
    const FinishReason known = is_last ? choice.finish : FinishReason::kNone;
    const bool equal = choice.tokens[token.index] == token.token && known == token.finish;
    return equal ? Outcome::kDuplicate : Outcome::kMismatch;
  }
  if (choice.finish != FinishReason::kNone) return Outcome::kMismatch;
  if (token.index > next) {
    if (token.index - next > kMaxAhead) return Outcome::kOverflow;
    const auto [at, inserted] = choice.ahead.try_emplace(token.index, entry);
    if (inserted) return Outcome::kAhead;
    const WorkerToken& known = at->second.token;
    const bool equal = known.token == token.token && known.finish == token.finish;
    return equal ? Outcome::kDuplicate : Outcome::kMismatch;
  }
  Append(choice, std::move(entry));
  while (!choice.ahead.empty() && choice.ahead.begin()->first == choice.tokens.size()) {
    if (choice.finish != FinishReason::kNone) return Outcome::kMismatch;
    Append(choice, std::move(choice.ahead.extract(choice.ahead.begin()).mapped()));
  }
  const bool beyond_last = choice.finish != FinishReason::kNone && !choice.ahead.empty();
  return beyond_last ? Outcome::kMismatch : Outcome::kReady;
}

void TokenMerge::Append(Choice& choice, Entry entry) {
  choice.tokens.push_back(entry.token.token);
  choice.finish = entry.token.finish;
  if (choice.finish != FinishReason::kNone) {
    ++num_complete_;
    ++num_finished_;
  }
  choice.pending.push_back(std::move(entry));
  ++num_pending_;
  ++num_known_;
}

TokenMerge::Entry TokenMerge::TakeNext(uint32_t choice_idx) {
  Choice& choice = choices_[choice_idx];
  BATON_DCHECK(!choice.pending.empty(), "choice {} has no token to take", choice_idx);
  Entry entry = std::move(choice.pending.front());
  choice.pending.pop_front();
  --num_pending_;
  return entry;
}

void TokenMerge::DropAhead() {
  for (Choice& choice : choices_) choice.ahead.clear();
}

void TokenMerge::CloseChoice(uint32_t choice_idx) {
  Choice& choice = choices_[choice_idx];
  if (choice.closed) return;
  if (choice.finish == FinishReason::kNone) ++num_complete_;
  choice.closed = true;
  num_pending_ -= choice.pending.size();
  choice.pending.clear();
  choice.ahead.clear();
}

}  // namespace baton::router
