// The vocabulary of ToyModel as texts, for grammars: id 0 ends a generation, the others are one
// character each.
#ifndef BATON_TESTS_ENGINE_TOY_GRAMMARS_H_
#define BATON_TESTS_ENGINE_TOY_GRAMMARS_H_

#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/engine/answer_guide.h"
#include "src/text/grammar_cache.h"
#include "src/text/tokenizer.h"
#include "src/wire/answer_grammar.h"
#include "tests/engine/toy_model.h"

namespace baton::engine {

inline std::shared_ptr<const text::Tokenizer> ToyTokenizer() {
  text::TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  spec.tokens = {"<eos>"};
  for (char c = 'a'; c <= 'z'; ++c) spec.tokens.emplace_back(1, c);
  for (char c = 'A'; c <= 'Z'; ++c) spec.tokens.emplace_back(1, c);
  for (char c = '0'; c <= '9'; ++c) spec.tokens.emplace_back(1, c);
  spec.tokens.emplace_back(",");
  spec.token_types.assign(spec.tokens.size(), static_cast<int32_t>(text::TokenType::kNormal));
  spec.token_types.front() = static_cast<int32_t>(text::TokenType::kControl);
  spec.eos_id = 0;
  return std::shared_ptr<const text::Tokenizer>(text::Tokenizer::Create(spec).value());
}
static_assert(1 + 26 + 26 + 10 + 1 == kToyVocab);

inline std::string TextOf(std::span<const TokenId> tokens) {
  static const std::shared_ptr<const text::Tokenizer> tokenizer = ToyTokenizer();
  std::string text;
  for (const TokenId token : tokens) {
    if (token != 0) text += tokenizer->TokenBytes(token);
  }
  return text;
}

inline wire::SharedGrammar GrammarOf(wire::GrammarKind kind, std::string text) {
  return std::make_shared<wire::AnswerGrammar>(
      wire::AnswerGrammar{.kind = kind, .text = std::move(text)});
}

// A cache and the guides over it.
struct ToyGrammars {
  text::GrammarCache cache{ToyTokenizer()};
  AnswerGuides guides{&cache};
};

// Grammars of a model whose vocabulary is not there until the test says so: their compilation lasts
// as long as the test wants.
struct SlowGrammars {
  ~SlowGrammars() { Release(); }
  void Release() {
    if (!std::exchange(released, true)) release.set_value();
  }

  bool released = false;
  std::promise<void> release;
  text::GrammarCache cache{
      [done = release.get_future().share()]() -> StatusOr<std::shared_ptr<const text::Tokenizer>> {
        done.wait();
        return ToyTokenizer();
      }};
  AnswerGuides guides{&cache};
};

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_TOY_GRAMMARS_H_
