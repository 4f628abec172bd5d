// The kind of tokenizer that a tokenizer.json describes. Pure; any thread.
#ifndef BATON_TEXT_TOKENIZER_JSON_SHAPE_H_
#define BATON_TEXT_TOKENIZER_JSON_SHAPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

#include "src/base/status.h"

namespace baton::text {

// The parts of a TokenizerSpec that follow from normalizer, pre_tokenizer and model options.
struct TokenizerShape {
  bool is_spm = false;  // SentencePiece-style; otherwise byte-level
  std::string pre;      // byte-level: the split rule's name
  bool ignore_merges = false;
  bool nfc = false;
  bool add_space_prefix = false;
  bool prefix_at_start_only = false;
  bool prefix_unless_there = false;
  bool marks_spaces_first = false;  // the normalizer does it, so "normalized" added tokens see it
  bool adds_prefix_first = false;   // the normalizer too
  bool byte_fallback = false;
  std::string unk_token;  // empty = none
};

// Unimplemented names the first part that is not built in; InvalidArgument one that is malformed.
// `tree` is TokenizerJson::tree.
StatusOr<TokenizerShape> ReadTokenizerShape(const nlohmann::json& tree);

// The tokens that post_processor puts around a text.
struct AroundText {
  std::optional<uint32_t> before;
  std::optional<uint32_t> after;
};
StatusOr<AroundText> ReadPostProcessor(const nlohmann::json& tree);

// The string member `key` of `object`, or "" when it is absent, null or no string.
std::string StringMember(const nlohmann::json& object, std::string_view key);
// The boolean member `key`, or `otherwise`.
bool BoolMember(const nlohmann::json& object, std::string_view key, bool otherwise);

}  // namespace baton::text

#endif  // BATON_TEXT_TOKENIZER_JSON_SHAPE_H_
