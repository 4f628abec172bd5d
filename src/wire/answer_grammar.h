// AnswerGrammar: the form that an answer must have, as plain data. The API checks and fills it, the
// router carries it, and the worker that samples compiles it and masks by it. Any thread.
#ifndef BATON_WIRE_ANSWER_GRAMMAR_H_
#define BATON_WIRE_ANSWER_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace baton::wire {

// Workers whose number equals the router's give equal masks for equal grammars and tokens. A change
// of the grammar engine, or of what a field below means, raises it. 0 = a worker without grammars.
inline constexpr uint32_t kAnswerGrammarVersion = 1;

// The kind of a grammar's text. The numbers in common.proto are one higher.
enum class GrammarKind : uint8_t {
  kJsonObject = 0,    // any JSON object; the text is empty
  kSchemaStrict = 1,  // a JSON Schema; a keyword that cannot be enforced is refused
  kSchemaLoose = 2,   // a JSON Schema; such keywords are dropped and listed by the compiler
  kRegex = 3,         // a regular expression that the whole answer matches
  kChoice = 4,        // a JSON array of texts, one of which is the answer
  kLark = 5,          // a grammar in llguidance's form of Lark, or in GBNF
  // A JSON object in one of two forms, whose schemas are loose. vLLM's {"structures": [{"begin",
  // "schema", "end"}], "triggers": [...]}: free text in which each trigger begins a tag. xgrammar's
  // {"format": {"type": ...}}: a tree of texts, tags, sequences and choices.
  kStructuralTag = 6,
};
inline constexpr uint32_t kNumGrammarKinds = 7;

// The text that may stand before the one that follows the grammar.
enum class GrammarStart : uint8_t {
  kFirstToken = 0,  // nothing: the grammar holds from the first token
  // The prompt ends within thoughts. Any text may come; the grammar holds after "</think>".
  kAfterThoughts = 1,
  // The model may begin with "<think>", then as above; else the grammar holds from the first token.
  kMayThink = 2,
};
inline constexpr uint32_t kNumGrammarStarts = 3;

// See the file comment. A mask is a pure function of this value, the model's tokenizer and the
// output tokens so far; so every worker that replays the tokens goes on with equal masks.
struct AnswerGrammar {
  GrammarKind kind = GrammarKind::kJsonObject;
  GrammarStart start = GrammarStart::kFirstToken;
  std::string text;  // by kind; UTF-8, at most limits::kMaxGrammarBytes

  friend bool operator==(const AnswerGrammar&, const AnswerGrammar&) = default;
};

// A grammar or none, shared by all copies of a request's parameters. It compares by contents.
class SharedGrammar {
 public:
  SharedGrammar() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): null is no grammar
  SharedGrammar(std::shared_ptr<const AnswerGrammar> grammar) : grammar_(std::move(grammar)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): as std::make_shared gives it
  SharedGrammar(std::shared_ptr<AnswerGrammar> grammar) : grammar_(std::move(grammar)) {}

  const AnswerGrammar* get() const { return grammar_.get(); }
  const AnswerGrammar& operator*() const { return *grammar_; }
  const AnswerGrammar* operator->() const { return grammar_.get(); }
  explicit operator bool() const { return grammar_ != nullptr; }

  friend bool operator==(const SharedGrammar& a, const SharedGrammar& b) {
    if (a.grammar_ == b.grammar_) return true;
    return a.grammar_ != nullptr && b.grammar_ != nullptr && *a.grammar_ == *b.grammar_;
  }
  friend bool operator==(const SharedGrammar& a, std::nullptr_t) { return a.grammar_ == nullptr; }

 private:
  std::shared_ptr<const AnswerGrammar> grammar_;
};

}  // namespace baton::wire

#endif  // BATON_WIRE_ANSWER_GRAMMAR_H_
