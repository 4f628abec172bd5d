// The added tokens of a Hugging Face folder, from tokenizer.json and tokenizer_config.json. Pure;
// any thread.
#ifndef BATON_TEXT_ADDED_TOKENS_H_
#define BATON_TEXT_ADDED_TOKENS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/base/status.h"

namespace baton::text {

// A token that is looked for in a text as a whole, before the text is split.
struct AddedToken {
  uint32_t id = 0;
  std::string text;
  bool is_control = false;  // the file says so, or its text looks like one
  int32_t traits = 0;       // bits of TokenTrait; never kIsNormalized for a control token
};

// The added tokens by id. An entry of tokenizer_config.json's added_tokens_decoder overrules that
// of tokenizer.json's added_tokens, as in transformers. `tree` is TokenizerJson::tree.
// InvalidArgument for an entry without id or content, and for an id that is there twice.
StatusOr<std::map<uint32_t, AddedToken>> ReadAddedTokens(const nlohmann::json& tree,
                                                         const nlohmann::json& config);

// The tokens that tokenizer_config.json calls special (bos_token, additional_special_tokens ...):
// the text and the traits of each; the id is 0.
std::vector<AddedToken> ReadNamedTokens(const nlohmann::json& config);

}  // namespace baton::text

#endif  // BATON_TEXT_ADDED_TOKENS_H_
