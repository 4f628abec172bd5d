// Grammars that an answer must follow: JSON schemas, regular expressions, choices, Lark, GBNF and
// structural tags. A grammar says after each token which tokens may come next.
//
// Vocabulary and Grammar are immutable values that share their insides: any thread, cheap to copy.
// A GrammarState belongs to one thread at a time.
//
// 1. A state is a pure function of (grammar, tokens taken): replaying an answer's tokens on another
//    worker gives the same masks.
// 2. No text of a grammar makes a control token possible: only tokens with text, and the tokens
//    that end a generation where the text is whole.
// 3. Every call is bounded in work. A mask that would take more is FailedPrecondition with the
//    reason, never a hang.
#ifndef BATON_TEXT_GRAMMAR_H_
#define BATON_TEXT_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/ids.h"
#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/text/tokenizer.h"
#include "src/wire/answer_grammar.h"

struct baton_grammar;
struct baton_grammar_state;
struct baton_grammar_vocabulary;

namespace baton::text {

// Limits of one compilation.
struct GrammarLimits {
  size_t max_text_bytes = limits::kMaxGrammarBytes;
  uint64_t max_values = 100'000;              // JSON values of a schema or a choice
  uint64_t max_enum_values = 10'000;          // values of all enums; texts of a choice
  uint64_t max_refs = 1'000;                  // different targets of $ref
  uint64_t max_depth = 64;                    // nesting of schemas
  size_t max_memory_bytes = size_t{1} << 30;  // held at once while compiling
  uint64_t timeout_ms = 2'000;                // processor time
};

// Memory of all grammars of one vocabulary, those included that only answers hold.
struct GrammarMemory {
  uint64_t mask_bytes = 0;   // of masks that lexers keep for all answers; 256 MiB at most
  uint64_t lexer_bytes = 0;  // of states that lexers have made; 50,000 a lexer at most

  uint64_t total() const { return mask_bytes + lexer_bytes; }
};

// The tokens of one model in the form that grammars need, built once for each tokenizer (about
// 0.1 s and 20 MiB for 50,000 tokens).
class GrammarVocabulary {
 public:
  // InvalidArgument when no token of the tokenizer ends a generation.
  static StatusOr<GrammarVocabulary> Create(const Tokenizer& tokenizer);

  size_t vocab_size() const { return vocab_size_; }
  // Now; never waits for a compilation or a mask.
  GrammarMemory memory() const;
  // 32-bit words of a mask over the vocabulary.
  size_t num_mask_words() const { return (vocab_size_ + 31) / 32; }

 private:
  friend class Grammar;
  std::shared_ptr<baton_grammar_vocabulary> handle_;
  size_t vocab_size_ = 0;
};

// A compiled grammar over one vocabulary.
class Grammar {
 public:
  // InvalidArgument: the text is not such a grammar; a schema's message begins with the place, as
  // "#/properties/a/type: ...". FailedPrecondition: a limit was reached. Internal: the compiler
  // panicked. Unavailable: earlier compilations that overran hold all threads; try later.
  static StatusOr<Grammar> Compile(const GrammarVocabulary& vocabulary, wire::GrammarKind kind,
                                   std::string_view text, const GrammarLimits& limits = {});

  // Places of a loose schema's keywords that are not enforced.
  const std::vector<std::string>& ignored() const { return ignored_; }
  // Whether a copy of this object or a state has the grammar too.
  bool is_shared() const { return handle_.use_count() > 1; }

 private:
  friend class GrammarState;
  std::shared_ptr<baton_grammar> handle_;
  std::vector<std::string> ignored_;
};

// Where one answer stands in its grammar.
class GrammarState {
 public:
  static StatusOr<GrammarState> Create(const Grammar& grammar);

  // Takes tokens from the front of `tokens` while the grammar allows them, and returns how many.
  StatusOr<size_t> Accept(std::span<const TokenId> tokens);

  // Sets bit i % 32 of words[i / 32] when token i may come next, and clears it otherwise. `words`
  // has GrammarVocabulary::num_mask_words() words or more; those past the vocabulary become 0.
  // FailedPrecondition when no token can follow or the work is above the limits; `words` is then
  // unchanged.
  Status FillMask(std::span<uint32_t> words);

 private:
  // Frees the handle.
  struct Free {
    void operator()(baton_grammar_state* state) const;
  };
  std::shared_ptr<baton_grammar> grammar_;  // what is_shared counts
  std::unique_ptr<baton_grammar_state, Free> handle_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_GRAMMAR_H_
