// Checks that hold for every tokenizer spec that a reader accepted.
#ifndef BATON_TESTS_FUZZ_TOKENIZER_CHECKS_H_
#define BATON_TESTS_FUZZ_TOKENIZER_CHECKS_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/tokenizer.h"
#include "src/text/tokenizer_spec.h"
#include "src/text/utf8.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

// Ids are of the vocabulary, specials come only when they may, and the text decodes to UTF-8.
inline void CheckEncode(const text::Tokenizer& tokenizer, std::string_view text,
                        const text::EncodeOptions& options) {
  const auto ids = tokenizer.Encode(text, options);
  if (!ids.ok()) return CheckRefusal(ids.status());
  const bool may_be_special = options.add_special || options.parse_special;
  for (const TokenId id : *ids) {
    BATON_CHECK(tokenizer.IsValid(id), "token {} of {}", id, tokenizer.vocab_size());
    BATON_CHECK(may_be_special || !tokenizer.IsSpecial(id), "text became special token {}", id);
  }
  const auto back = tokenizer.Decode(*ids, false);
  BATON_CHECK(back.ok(), "{}", back.status().ToString());
  BATON_CHECK(text::ValidUtf8Prefix(*back) == back->size(), "decoded to broken UTF-8");
}

// The spec survives the wire, and the tokenizer of it refuses or keeps its promises.
inline void CheckTokenizerSpec(const text::TokenizerSpec& spec, std::string_view text) {
  const std::string bytes = spec.Serialize();
  const auto parsed = text::TokenizerSpec::Parse(bytes);
  if (parsed.ok()) {
    BATON_CHECK(parsed->Serialize() == bytes, "{} bytes did not come back", bytes.size());
  } else {
    CheckRefusal(parsed.status());
  }
  const auto tokenizer = text::Tokenizer::Create(spec);
  if (!tokenizer.ok()) return CheckRefusal(tokenizer.status());
  BATON_CHECK((*tokenizer)->vocab_size() == spec.tokens.size(), "{} of {} tokens",
              (*tokenizer)->vocab_size(), spec.tokens.size());
  CheckEncode(**tokenizer, text, {});
  CheckEncode(**tokenizer, text, {.add_special = true, .parse_special = true});
  // Some tokens of the vocabulary as a text.
  std::string own;
  for (size_t id = 0; id < spec.tokens.size() && own.size() < 2000; id += 1 + id / 8) {
    own += (*tokenizer)->TokenBytes(static_cast<TokenId>(id));
  }
  own.resize(text::ValidUtf8Prefix(own));
  CheckEncode(**tokenizer, own, {});
}

}  // namespace baton::fuzz

#endif  // BATON_TESTS_FUZZ_TOKENIZER_CHECKS_H_
