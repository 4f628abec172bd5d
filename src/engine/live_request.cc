#include "src/engine/live_request.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace baton::engine {

using scheduler::FinishReason;

std::string_view RequestStateName(RequestState state) {
  static constexpr std::string_view kNames[] = {
      "accepted", "reserved",       "prefill started", "prefill done", "granted",
      "verified", "decode started", "first step done", "stranded",     "handed off",
      "finished", "rejected",       "failed",          "cancelled"};
  return kNames[static_cast<size_t>(state)];
}

Choice::Choice(const RequestSpec& spec, uint32_t choice_idx)
    : index(choice_idx),
      sampler(spec.sampling, std::span<const TokenId>(spec.tokens).first(spec.num_prompt_tokens),
              spec.sampling.max_tokens) {
  for (size_t i = spec.num_prompt_tokens; i < spec.tokens.size(); ++i) {
    sampler.Append(spec.tokens[i]);
  }
}

LiveRequest::LiveRequest(RequestSpec request_spec, int64_t now_us)
    : spec(std::move(request_spec)),
      accepted_us(now_us),
      deadline_us(now_us + spec.deadline_us),
      num_open_choices(spec.num_choices) {
  choices.reserve(spec.num_choices);
  for (uint32_t i = 0; i < spec.num_choices; ++i) choices.emplace_back(spec, i);
}

Status LiveRequest::FollowGrammar(AnswerGuides* guides, const AnswerGuide::OnReady& on_ready) {
  const auto replayed = std::span<const TokenId>(spec.tokens).subspan(spec.num_prompt_tokens);
  for (Choice& choice : choices) {
    BATON_ASSIGN_OR_RETURN(choice.guide, guides->Follow(spec.sampling.grammar, replayed, on_ready));
    if (spec.kind == RequestKind::kSource) break;
  }
  return OkStatus();
}

FinishReason LiveRequest::After(const Choice& choice, TokenId token,
                                std::span<const TokenId> eog) const {
  const auto holds = [token](std::span<const TokenId> tokens) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  };
  // Nothing follows the end of a text that has a grammar.
  const bool ignores_eog = spec.sampling.ignore_eos && !spec.sampling.grammar;
  const bool is_stop = (!ignores_eog && holds(eog)) || holds(spec.sampling.stop_token_ids);
  return limits.After(spec.num_prompt_tokens, choice.sampler.num_output(), is_stop);
}

LiveRequest* LiveRequests::Add(std::unique_ptr<LiveRequest> request) {
  LiveRequest* const raw = request.get();
  const RequestUid uid = raw->spec.key.uid;
  const bool is_new = requests_.try_emplace(uid, std::move(request)).second;
  BATON_CHECK(is_new, "request {} is live already", uid);
  return raw;
}

void LiveRequests::Erase(LiveRequest* request) {
  if (request->prompt_sequence != SequenceId()) EraseSequence(request->prompt_sequence);
  for (const Choice& choice : request->choices) {
    if (choice.sequence != SequenceId()) EraseSequence(choice.sequence);
  }
  requests_.erase(request->spec.key.uid);
}

LiveRequest* LiveRequests::Find(const RequestUid& uid) const {
  const auto it = requests_.find(uid);
  return it == requests_.end() ? nullptr : it->second.get();
}

const SequenceUse* LiveRequests::FindSequence(SequenceId id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

}  // namespace baton::engine
