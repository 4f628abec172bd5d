#include "src/wire/answer_grammar.h"

#include <memory>

#include "gtest/gtest.h"

#include "src/wire/sampling_params.h"

namespace baton::wire {
namespace {

SharedGrammar Regex(const char* text) {
  return std::make_shared<AnswerGrammar>(AnswerGrammar{.kind = GrammarKind::kRegex, .text = text});
}

TEST(AnswerGrammarTest, ParametersCompareTheContentsOfGrammars) {
  SamplingParams a;
  SamplingParams b;
  EXPECT_TRUE(a.grammar == nullptr);
  a.grammar = Regex("[ab]+");
  EXPECT_FALSE(a.grammar == nullptr);
  EXPECT_NE(a, b);
  b.grammar = Regex("[ab]+");
  EXPECT_EQ(a, b);
  b.grammar = Regex("[ab]*");
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace baton::wire
