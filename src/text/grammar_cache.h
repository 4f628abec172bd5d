// GrammarCache: the grammars of one tokenizer, compiled once while requests use them. Any thread.
//
// 1. The vocabulary is built at the first compilation, by its thread: 0.2 s for 50,000 tokens.
// 2. At most kMaxGrammars are kept, with kMaxTextBytes of text together. The grammar used longest
//    ago goes first. A grammar that does not compile is not kept.
// 3. All grammars of the tokenizer, kept or held by answers alone, have at most 256 MiB of masks; a
//    grammar has at most 4 MiB (hf/src/grammar). A lexer also makes states, at most 50,000 of 1 to
//    2 KiB. When masks and states have more than kMaxBytes at a use, kept grammars without an
//    answer go until they have less. The grammar used last stays. A grammar with an answer stays:
//    its memory would not be freed, and its next use would compile it a second time.
// 4. No lock is held while a grammar compiles. A thread that needs a grammar which another thread
//    compiles waits for the result of that thread, also for its error.
#ifndef BATON_TEXT_GRAMMAR_CACHE_H_
#define BATON_TEXT_GRAMMAR_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/mutex.h"
#include "src/base/status.h"
#include "src/text/grammar.h"
#include "src/text/tokenizer.h"
#include "src/wire/answer_grammar.h"

namespace baton::text {

// See the file comment.
class GrammarCache {
 public:
  static constexpr size_t kMaxGrammars = 64;
  static constexpr size_t kMaxTextBytes = size_t{4} << 20;
  static constexpr uint64_t kMaxBytes = uint64_t{512} << 20;

  using TokenizerSource = std::function<StatusOr<std::shared_ptr<const Tokenizer>>()>;

  explicit GrammarCache(std::shared_ptr<const Tokenizer> tokenizer)
      : source_([tokenizer] { return tokenizer; }) {}
  // `source` is asked once, at the first compilation.
  explicit GrammarCache(TokenizerSource source, uint64_t max_bytes = kMaxBytes)
      : source_(std::move(source)), max_bytes_(max_bytes) {}

  // A tokenizer and its tokens as grammars need them.
  struct Vocabulary {
    std::shared_ptr<const Tokenizer> tokenizer;
    GrammarVocabulary tokens;
  };
  // Builds it when it is not there. The value lives as long as the cache.
  StatusOr<const Vocabulary*> GetVocabulary();

  // The kept grammar, or a new one. Errors as Grammar::Compile; FailedPrecondition when the
  // tokenizer gives no vocabulary.
  StatusOr<Grammar> Compile(wire::GrammarKind kind, std::string_view text);

  // The memory of all grammars, kept or not. Waits for nothing; 0 until the vocabulary is built.
  GrammarMemory memory() const;
  size_t num_grammars();
  // Compilations since the start, failed ones included.
  uint64_t num_compilations();

 private:
  struct Entry {
    wire::GrammarKind kind;
    std::string text;
    Grammar grammar;
  };

  // A compilation under way. Its thread and those that wait for it share it.
  struct Flight {
    const wire::GrammarKind kind;
    const std::string text;
    std::optional<StatusOr<Grammar>> result = std::nullopt;  // guarded by mutex_, set once
  };

  StatusOr<Grammar> CompileAlone(wire::GrammarKind kind, std::string_view text);
  std::optional<Grammar> Find(wire::GrammarKind kind, std::string_view text) BATON_REQUIRES(mutex_);
  void Keep(wire::GrammarKind kind, std::string_view text, const Grammar& grammar);
  // Takes an entry out of kept_; it is freed without the lock.
  std::list<Entry> Take(std::list<Entry>::iterator entry) BATON_REQUIRES(mutex_);
  // Takes out the grammar without an answer that was used longest ago, if it is not the one used
  // last.
  std::list<Entry> TakeOldestUnused() BATON_REQUIRES(mutex_);
  // Gives up kept grammars while all grammars have too much memory.
  void Trim();

  const TokenizerSource source_;
  const uint64_t max_bytes_ = kMaxBytes;
  Mutex build_mutex_;  // held while the vocabulary is built
  std::optional<StatusOr<Vocabulary>> vocabulary_ BATON_GUARDED_BY(build_mutex_);
  std::atomic<const Vocabulary*> built_ = nullptr;  // in vocabulary_
  Mutex mutex_;                                     // held for look-ups
  std::list<Entry> kept_ BATON_GUARDED_BY(mutex_);  // the one used last is in front
  size_t text_bytes_ BATON_GUARDED_BY(mutex_) = 0;  // of kept_
  std::list<std::shared_ptr<Flight>> flights_ BATON_GUARDED_BY(mutex_);
  uint64_t num_compilations_ BATON_GUARDED_BY(mutex_) = 0;
  CondVar landed_;  // a flight has its result
};

}  // namespace baton::text

#endif  // BATON_TEXT_GRAMMAR_CACHE_H_
