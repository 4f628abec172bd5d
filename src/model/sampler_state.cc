#include "src/model/sampler_state.h"

#include <bit>

#include "src/base/check.h"

namespace baton::model {

using wire::SamplingParams;

namespace {

// Fibonacci hashing: consecutive ids spread over the table.
size_t SlotOf(TokenId token, size_t num_slots) {
  const uint32_t hash = static_cast<uint32_t>(token) * 2654435769u;
  return (hash >> 7) & (num_slots - 1);
}

}  // namespace

SamplerState::SamplerState(const SamplingParams& params, std::span<const TokenId> prompt,
                           uint32_t max_output)
    : keeps_tokens_(params.has_penalties()) {
  if (!keeps_tokens_) return;
  const size_t most = prompt.size() + max_output;
  seen_.reserve(most);
  slots_.assign(std::bit_ceil(2 * most + 1), 0);
  for (TokenId token : prompt) Find(token);
}

void SamplerState::Append(TokenId token) {
  ++num_output_;
  if (keeps_tokens_) ++Find(token).num_output;
}

SamplerState::Seen& SamplerState::Find(TokenId token) {
  size_t slot = SlotOf(token, slots_.size());
  while (slots_[slot] != 0) {
    Seen& entry = seen_[slots_[slot] - 1];
    if (entry.token == token) return entry;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  BATON_CHECK(seen_.size() < seen_.capacity(), "{} tokens appended, room for {}", seen_.size() + 1,
              seen_.capacity());
  seen_.push_back({token, 0});
  slots_[slot] = static_cast<uint32_t>(seen_.size());
  return seen_.back();
}

}  // namespace baton::model
