// ChoiceTokens: gives choices their tokens, and starts the sequences that decode them. A token that
// a choice takes is reported here, and only here. Engine thread.
#ifndef BATON_ENGINE_CHOICE_TOKENS_H_
#define BATON_ENGINE_CHOICE_TOKENS_H_

#include <span>
#include <vector>

#include "src/engine/engine_state.h"

namespace baton::engine {

// See the file comment.
class ChoiceTokens {
 public:
  // `state` outlives it.
  explicit ChoiceTokens(EngineState* state);

  // Appends a choice's next token, decides whether it was its last, and reports it. `told` is what
  // the report says beside it.
  void Take(LiveRequest* request, Choice* choice, const model::SampledToken& sampled,
            const TokenEvent& told = {});
  // The prompt's sequence goes on as the only choice.
  void TakeSequence(LiveRequest* request, Choice* choice);

  // Gives each choice its first token, in `first_tokens` by choice, and the blocks of the prompt:
  // the prompt's sequence ends, and one sequence for each choice that goes on begins.
  void Fork(LiveRequest* request, std::span<const model::SampledToken> first_tokens);
  // Forks a prompt that another worker computed. Takes over one request reference of each
  // block; the first ones hold the prompt's KV, the rest are spare.
  void Bind(LiveRequest* request, std::span<const model::SampledToken> first_tokens,
            std::span<const kv::BlockHandle> blocks);

 private:
  // Takes the first tokens and lists in `starts_` how the choices go on.
  void Start(LiveRequest* request, std::span<const model::SampledToken> first_tokens);
  void CopyBlocks();

  EngineState* const state_;
  std::vector<scheduler::ChoiceStart> starts_;
  std::vector<kv::BlockCopy> copies_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_CHOICE_TOKENS_H_
