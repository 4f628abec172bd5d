// AnswerGuide: which tokens may come next in one choice whose answer follows a grammar.
// AnswerGuides: the threads that compute masks beside the forward pass.
//
// 1. A mask is a pure function of the grammar, the tokenizer and the output tokens: a guide that
//    takes the tokens of another worker's answer goes on as that one would.
// 2. The first mask compiles the grammar and replays the output: up to text::GrammarLimits, 2 s.
//    One thread does nothing else, so that no other mask waits for a compilation. At most
//    kMaxQueued guides wait for it.
// 3. A later mask is begun when the token before it is accepted, on a second thread. IsReady
//    computes one that nobody has begun, unless one of this guide has taken kSlowMaskUs. So an
//    engine thread waits for no compilation and for no slow mask.
// 4. An error of a guide stays: each later mask gives it again.
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

// See the file comment. One thread; the insides are shared with those of AnswerGuides.
class AnswerGuide {
 public:
  // A thread of AnswerGuides calls it when a mask is there for which IsReady did not wait. It may
  // post a message, and nothing else. No call comes after the end of the guide.
  using OnReady = std::function<void()>;

  ~AnswerGuide();

  // Takes the next output token and begins the mask of the one after it.
  void Accept(TokenId token);

  // Whether Mask returns at once: the mask is there, or an error. Waits at most `wait_us` for it,
  // and computes it where the file comment says so. When false, OnReady is called once.
  bool IsReady(int64_t wait_us);

  // Bits of the tokens that may come next: bit i % 32 of words[i / 32]. Valid until Accept. Waits
  // where it is not computed yet. InvalidArgument: the grammar does not compile.
  // FailedPrecondition: no token can follow, or the work is above the limits. Internal: the library
  // panicked. Unavailable: it has no thread for the compilation.
  StatusOr<std::span<const uint32_t>> Mask();

 private:
  friend class AnswerGuides;
  AnswerGuide(AnswerGuides* guides, std::shared_ptr<GuideState> state)
      : guides_(guides), state_(std::move(state)) {}

  AnswerGuides* guides_;
  std::shared_ptr<GuideState> state_;
};

// The end of a request whose mask failed. FailedPrecondition: by its grammar, at every worker. A
// panic stays Internal and a lack of threads Unavailable: another worker may serve the request.
Status GuideFailure(const Status& mask);

// See the file comment. Outlives its guides.
class AnswerGuides {
 public:
  // Each thread's queue holds so many: more guides than choices that run at once.
  static constexpr size_t kMaxQueued = 4 * limits::kMaxRunning;
  // A guide with such a mask is not asked on the engine thread any more.
  static constexpr int64_t kSlowMaskUs = 2'000;

  // How long a mask took, with the compilation of its grammar where there was one. Called by the
  // thread that computed it; must not block.
  using OnMask = std::function<void(int64_t took_us)>;

  // `grammars` outlives it. `on_mask` may be empty.
  explicit AnswerGuides(text::GrammarCache* grammars, OnMask on_mask = nullptr);
  ~AnswerGuides() { Stop(); }
  // Ends the threads after the masks that they compute; from then on callers compute all masks
  // themselves. Idempotent.
  void Stop();

  // A guide after `tokens` of output, and the mask of the next token is begun. Any thread.
  // ResourceExhausted: kMaxQueued guides wait for their first mask.
  StatusOr<std::unique_ptr<AnswerGuide>> Follow(const wire::SharedGrammar& grammar,
                                                std::span<const TokenId> tokens,
                                                AnswerGuide::OnReady on_ready = nullptr);

 private:
  friend class AnswerGuide;
  friend class GuideState;
  using Queue = BoundedQueue<std::shared_ptr<GuideState>>;

  // False: the queue is full, or closed.
  bool Begin(const std::shared_ptr<GuideState>& state);
  static void Work(Queue* queue);

  text::GrammarCache* const grammars_;
  const OnMask on_mask_;
  Queue first_masks_{kMaxQueued};
  Queue later_masks_{kMaxQueued};
  Thread grammar_thread_;
  Thread mask_thread_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ANSWER_GUIDE_H_
