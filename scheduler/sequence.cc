#include "scheduler/sequence.h"

#include <algorithm>

namespace baton::scheduler {

std::string_view SequenceStateName(SequenceState state) {
  switch (state) {
    case SequenceState::kWaiting:
      return "waiting";
    case SequenceState::kPrefilling:
      return "prefilling";
    case SequenceState::kPromptDone:
      return "prompt_done";
    case SequenceState::kReady:
      return "ready";
    case SequenceState::kRunning:
      return "running";
  }
  return "unknown";
}

FinishReason SequenceLimits::After(uint32_t num_prompt_tokens, uint32_t num_output_tokens,
                                   bool is_stop) const {
  if (is_stop) return FinishReason::kStop;
  const bool full = num_prompt_tokens + num_output_tokens >= MaxTotalTokens(num_prompt_tokens);
  return full ? FinishReason::kLength : FinishReason::kNone;
}

uint32_t SequenceLimits::MaxTotalTokens(uint32_t num_prompt_tokens) const {
  const uint64_t wanted = uint64_t{num_prompt_tokens} + max_tokens;
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, max_context));
}

}  // namespace baton::scheduler
