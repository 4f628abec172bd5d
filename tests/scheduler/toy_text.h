// The output of a toy model: each token is a hash of everything before it.
#ifndef BATON_TESTS_SCHEDULER_TOY_TEXT_H_
#define BATON_TESTS_SCHEDULER_TOY_TEXT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/sequence.h"
#include "src/base/xxh3.h"

namespace baton::scheduler {

inline constexpr TokenId kToyStop = 0;
// A prompt that begins with this token is never answered by the stop token.
inline constexpr TokenId kToyChatty = 1'000;

// The token that the toy model says after these tokens; 1 in 24 is the stop token. Choices differ
// by a salt.
inline TokenId ToyNext(const std::vector<TokenId>& tokens, uint32_t choice) {
  const uint64_t hash = Xxh3Hash64(tokens.data(), tokens.size() * sizeof(TokenId), choice);
  if (tokens.front() == kToyChatty) return static_cast<TokenId>(1 + hash % 23);
  return static_cast<TokenId>(hash % 24);
}

// The whole output of one choice, computed without any scheduler.
inline std::vector<TokenId> ToyOutput(std::vector<TokenId> tokens, uint32_t choice,
                                      const SequenceLimits& limits) {
  const auto num_prompt = static_cast<uint32_t>(tokens.size());
  std::vector<TokenId> output;
  FinishReason reason = FinishReason::kNone;
  while (reason == FinishReason::kNone) {
    output.push_back(ToyNext(tokens, choice));
    tokens.push_back(output.back());
    reason =
        limits.After(num_prompt, static_cast<uint32_t>(output.size()), output.back() == kToyStop);
  }
  return output;
}

// The fixed state of a sequence of these tokens.
inline TokenId ToyState(std::span<const TokenId> tokens) {
  uint32_t state = 17;
  for (const TokenId token : tokens) state = state * 31 + static_cast<uint32_t>(token) + 1;
  return static_cast<TokenId>(state);
}

}  // namespace baton::scheduler

#endif  // BATON_TESTS_SCHEDULER_TOY_TEXT_H_
