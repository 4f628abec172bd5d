// The split rules of byte-level BPE models, by the name in tokenizer.ggml.pre. Pure; any thread.
#ifndef BATON_TEXT_PRE_TOKENIZER_H_
#define BATON_TEXT_PRE_TOKENIZER_H_

#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::text {

// How a text is cut into pieces before merging, and what else the name implies.
struct PreTokenizer {
  // Oniguruma patterns; each cuts the pieces of the former. Matches and what lies between them are
  // pieces.
  std::span<const std::string_view> patterns;
  bool ignore_merges = false;    // a piece that is a token as a whole is taken as it is
  bool default_add_bos = false;  // when tokenizer.ggml.add_bos_token is absent
};

// The rule called `name`. An empty name or "default" is the gpt-2 rule (logged as a warning: such a
// file does not say how it was trained). Unimplemented, naming the rules that there are, otherwise.
StatusOr<PreTokenizer> FindPreTokenizer(std::string_view name);

// The name of the rule with exactly these patterns; Unimplemented, quoting a pattern, otherwise.
StatusOr<std::string_view> FindRuleByPatterns(std::span<const std::string> patterns);

// The patterns that "digits one by one", and byte-level splitting without a pattern of its own,
// stand for.
extern const std::string_view kSingleDigitPattern;
extern const std::string_view kGpt2Pattern;

}  // namespace baton::text

#endif  // BATON_TEXT_PRE_TOKENIZER_H_
