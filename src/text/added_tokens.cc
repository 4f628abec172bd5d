#include "src/text/added_tokens.h"

#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "src/base/quoted_text.h"
#include "src/text/tokenizer_json_shape.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {
namespace {

using Json = nlohmann::json;

bool IsBracketed(std::string_view text, std::string_view begin, std::string_view end) {
  return text.size() > begin.size() + end.size() && text.starts_with(begin) && text.ends_with(end);
}

// Tokens that files forget to mark as special; converters to GGUF take them for control tokens too,
// and the same model must read the same text alike from either file.
bool LooksSpecial(std::string_view text) {
  return text == "<pad>" || text == "<mask>" || IsBracketed(text, "<|", "|>") ||
         IsBracketed(text, "<\uFF5C", "\uFF5C>") || IsBracketed(text, "<unused", ">");
}

AddedToken ReadAddedToken(const Json& entry, uint32_t id, bool is_control) {
  AddedToken token = {.id = id, .text = StringMember(entry, "content")};
  token.is_control = is_control || LooksSpecial(token.text);
  const std::pair<const char*, TokenTrait> traits[] = {{"lstrip", kTakesBlanksBefore},
                                                       {"rstrip", kTakesBlanksAfter},
                                                       {"single_word", kIsWholeWord},
                                                       {"normalized", kIsNormalized}};
  for (const auto& [name, trait] : traits) {
    if (BoolMember(entry, name, false)) token.traits |= trait;
  }
  // Control tokens are found as they are written: a normalizer's prefix would hide some.
  if (token.is_control) token.traits &= ~kIsNormalized;
  return token;
}

bool IsSpecial(const Json& entry) { return BoolMember(entry, "special", false); }

}  // namespace

StatusOr<std::map<uint32_t, AddedToken>> ReadAddedTokens(const Json& tree, const Json& config) {
  std::map<uint32_t, AddedToken> tokens;
  for (const Json& entry : tree.value("added_tokens", Json::array())) {
    const Json id = entry.is_object() && entry.contains("id") ? entry["id"] : Json();
    const bool is_id = id.is_number_unsigned() && id.get<uint64_t>() <= UINT32_MAX;
    if (!is_id || StringMember(entry, "content").empty()) {
      return InvalidArgument("tokenizer.json: added_tokens has an entry without id or content");
    }
    AddedToken token = ReadAddedToken(entry, id.get<uint32_t>(), IsSpecial(entry));
    const auto [known, is_new] = tokens.emplace(token.id, token);
    if (!is_new) {
      return InvalidArgument("tokenizer.json: the tokens {} and {} both have the id {}",
                             QuotedForMessage(known->second.text), QuotedForMessage(token.text),
                             token.id);
    }
  }
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  for (const auto& [key, entry] : decoder.items()) {
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_id = error == std::errc() && end == key.data() + key.size();
    if (!is_id || StringMember(entry, "content").empty()) {
      return InvalidArgument(
          "tokenizer_config.json: added_tokens_decoder has {} without an id or content",
          QuotedForMessage(key));
    }
    const auto known = tokens.find(id);
    // The crate forgets no special token.
    const bool is_special = IsSpecial(entry) || (known != tokens.end() && known->second.is_control);
    tokens.insert_or_assign(id, ReadAddedToken(entry, id, is_special));
  }
  return tokens;
}

std::vector<AddedToken> ReadNamedTokens(const Json& config) {
  std::vector<Json> entries;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                          "cls_token", "mask_token"}) {
    if (config.contains(key)) entries.push_back(config[key]);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json list = config.value(key, Json::array());
    for (const Json& entry : list) entries.push_back(entry);
  }
  std::vector<AddedToken> named;
  for (const Json& entry : entries) {
    AddedToken token = ReadAddedToken(entry, 0, /*is_control=*/true);
    if (entry.is_string()) token.text = entry.get<std::string>();
    if (!token.text.empty()) named.push_back(std::move(token));
  }
  return named;
}

}  // namespace baton::text
