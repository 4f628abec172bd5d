// LiveRequest: one request that an engine works on, from acceptance to its terminal state; and
// LiveRequests, which finds it. Engine thread.
#ifndef BATON_ENGINE_LIVE_REQUEST_H_
#define BATON_ENGINE_LIVE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"

#include "src/engine/answer_guide.h"
#include "src/engine/choice_guesses.h"
#include "src/engine/engine_types.h"
#include "src/engine/source_transfers.h"
#include "src/model/row_pool.h"
#include "src/model/sampler_state.h"
#include "src/wire/guess_state.h"

namespace baton::engine {

// One of the n answers to a request.
struct Choice {
  Choice(const RequestSpec& spec, uint32_t choice_idx);

  uint32_t index = 0;           // 0..n-1
  SequenceId sequence;          // that decodes it; 0 = none (yet, or any more)
  model::SamplerState sampler;  // its num_output() is the output index of the next token
  bool finished = false;
  // Null without a grammar. At a prefill worker the first choice has the only one: the first tokens
  // of all choices have one mask.
  std::unique_ptr<AnswerGuide> guide;
  std::unique_ptr<ChoiceGuesses> guesses;  // null until it decodes where tokens are guessed
  wire::GuessState guess_state = wire::GuessState::kOff;  // of the step being run
};

// See the file comment.
struct LiveRequest {
  LiveRequest(RequestSpec request_spec, int64_t now_us);

  // OK to decode this many more, or why the choice ends after the token it just got.
  scheduler::FinishReason After(const Choice& choice, TokenId token,
                                std::span<const TokenId> eog) const;
  // Gives the choices their guides, after the output that is replayed. Once. ResourceExhausted as
  // AnswerGuides::Follow; the request must end then.
  Status FollowGrammar(AnswerGuides* guides, const AnswerGuide::OnReady& on_ready);
  uint32_t num_replayed() const {
    return static_cast<uint32_t>(spec.tokens.size()) - spec.num_prompt_tokens;
  }

  RequestSpec spec;
  scheduler::SequenceLimits limits;
  RequestState state = RequestState::kAccepted;  // the furthest one reached
  int64_t accepted_us = 0;
  int64_t deadline_us = 0;           // absolute
  SequenceId prompt_sequence;        // that computes the prompt; 0 = not (any more)
  SourceTransfer* source = nullptr;  // when this worker hands the prompt off; lives with it
  std::vector<Choice> choices;
  uint32_t num_open_choices = 0;
  uint32_t num_logged =
      1;  // tokens of the prompt whose log-probabilities were told; the first has none
  std::optional<model::RowPool> pool;  // of kEmbed
  int64_t prefill_began_us = 0;        // since kPrefillStarted
  int64_t progress_told_us = 0;        // the last PrefillProgress; 0 = none
};

// The request, and the choice of it, that a sequence works for.
struct SequenceUse {
  LiveRequest* request = nullptr;
  // The prompt of all choices, when the sequence is the prompt's; else one choice.
  uint32_t choice = 0;
  bool is_prompt = false;
};

// The live requests of an engine, by name and by sequence.
class LiveRequests {
 public:
  LiveRequest* Add(std::unique_ptr<LiveRequest> request);
  // Nothing of the request is found any more; pointers to it are void.
  void Erase(LiveRequest* request);
  LiveRequest* Find(const RequestUid& uid) const;

  void AddSequence(SequenceId id, const SequenceUse& use) { sequences_[id] = use; }
  void EraseSequence(SequenceId id) { sequences_.erase(id); }
  const SequenceUse* FindSequence(SequenceId id) const;

  uint32_t size() const { return static_cast<uint32_t>(requests_.size()); }
  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    for (const auto& [uid, request] : requests_) visit(*request);
  }

 private:
  // Ordered: what ends many requests ends them in the same order in every run.
  absl::btree_map<RequestUid, std::unique_ptr<LiveRequest>> requests_;
  absl::flat_hash_map<SequenceId, SequenceUse> sequences_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_LIVE_REQUEST_H_
