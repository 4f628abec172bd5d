// GrammarCache: the grammars of one tokenizer, compiled once while requests use them. Any thread.
//
// 1. The vocabulary is built at the first compilation, by its thread: 0.2 s for 50,000 tokens.
// 2. At most kMaxGrammars are kept, of kMaxTextBytes of text together; the one used longest ago
//    goes first. A grammar that does not compile is not kept.
// 3. All grammars of the tokenizer, also those that only answers hold, have at most 256 MiB of
//    masks, each at most 4 (hf/src/grammar). Beside them lexers make states. Where both together
//    have more than kMaxBytes at a use, kept grammars that no answer follows go until they do not;
//    the one used last stays. One that an answer follows would free nothing, and come again beside
//    itself. A lexer has at most 50,000 states of 1 to 2 KiB.
// 4. No lock is held while a grammar compiles. A thread that needs a grammar which another thread
//    compiles waits for that one's result, an error too.
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

  // The kept grammar, or a new one. Errors as Grammar::Compile; what the vocabulary lacks is
  // FailedPrecondition.
  StatusOr<Grammar> Compile(wire::GrammarKind kind, std::string_view text);

  // The memory of all grammars, kept or not. Waits for nothing; 0 until the vocabulary is built.
  GrammarMemory memory() const;
  size_t num_grammars();
  // Compilations since the start, those that failed too.
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
  // Takes out the grammar that was used longest ago of those that nobody follows, if it is not the
  // one used last.
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
