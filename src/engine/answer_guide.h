// AnswerGuide: which tokens may come next in one choice whose answer follows a grammar.
// AnswerGuides: the thread that computes masks beside the forward pass.
//
// 1. A mask is a pure function of the grammar, the tokenizer and the output tokens: a guide that
//    takes the tokens of another worker's answer goes on as that one would.
// 2. The mask of a token is begun when the token before it is accepted, on the thread of
//    AnswerGuides. A caller that needs a mask which nobody has begun computes it itself. So no
//    mask waits for a full queue.
// 3. An error of a guide stays: each later mask gives it again.
//
// A grammar compiles with its first mask. The router has compiled it before, within
// text::GrammarLimits; a step that needs the mask first waits so long at most.
#ifndef BATON_ENGINE_ANSWER_GUIDE_H_
#define BATON_ENGINE_ANSWER_GUIDE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "src/base/bounded_queue.h"
#include "src/base/ids.h"
#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/base/thread.h"
#include "src/text/grammar_cache.h"
#include "src/wire/answer_grammar.h"

namespace baton::engine {

class AnswerGuides;
class GuideState;

// See the file comment. One thread; the insides are shared with that of AnswerGuides.
class AnswerGuide {
 public:
  // Takes the next output token and begins the mask of the one after it.
  void Accept(TokenId token);

  // Bits of the tokens that may come next: bit i % 32 of words[i / 32]. Valid until Accept. Waits
  // where it is not computed yet. InvalidArgument: the grammar does not compile.
  // FailedPrecondition: no token can follow, or the work is above the limits.
  StatusOr<std::span<const uint32_t>> Mask();

 private:
  friend class AnswerGuides;
  AnswerGuide(AnswerGuides* guides, std::shared_ptr<GuideState> state)
      : guides_(guides), state_(std::move(state)) {}

  AnswerGuides* guides_;
  std::shared_ptr<GuideState> state_;
};

// See the file comment. Outlives its guides.
class AnswerGuides {
 public:
  // More guides than choices that run at once.
  static constexpr size_t kMaxQueued = 4 * limits::kMaxRunning;

  // How long a mask took, with the compilation of its grammar where there was one. Called by the
  // thread that computed it; must not block.
  using OnMask = std::function<void(int64_t took_us)>;

  // `grammars` outlives it. `on_mask` may be empty.
  explicit AnswerGuides(text::GrammarCache* grammars, OnMask on_mask = nullptr);
  ~AnswerGuides() { Stop(); }
  // Ends the thread after the mask that it computes; from then on callers compute all masks
  // themselves. Idempotent.
  void Stop();

  // A guide after `tokens` of output, and the mask of the next token is begun. Any thread.
  std::unique_ptr<AnswerGuide> Follow(const wire::SharedGrammar& grammar,
                                      std::span<const TokenId> tokens);

 private:
  friend class AnswerGuide;
  friend class GuideState;
  void Begin(const std::shared_ptr<GuideState>& state);

  text::GrammarCache* const grammars_;
  const OnMask on_mask_;
  BoundedQueue<std::shared_ptr<GuideState>> queue_{kMaxQueued};
  Thread thread_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ANSWER_GUIDE_H_
