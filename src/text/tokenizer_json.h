// tokenizer.json (the file format of Hugging Face's tokenizers) as plain data. Pure; any thread.
#ifndef BATON_TEXT_TOKENIZER_JSON_H_
#define BATON_TEXT_TOKENIZER_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/base/status.h"

namespace baton::text {

// Limits of one file besides its vocabulary and merges (gemma 3: 51,000 values).
inline constexpr size_t kMaxJsonValues = size_t{1} << 20;
inline constexpr size_t kMaxJsonDepth = 64;

// One file. The large lists are taken out of the tree: they would be a million small objects.
struct TokenizerJson {
  std::vector<std::pair<std::string, uint32_t>> vocabulary;  // model.vocab as listed
  bool vocabulary_is_list = false;  // model.vocab is an array (not BPE); its entries are left out
  std::vector<std::string> merges;  // model.merges as "left right", in order
  nlohmann::json tree;              // everything else; an object
};

// InvalidArgument, with the place, for text that is not JSON, a key that is there twice, or an id
// that is no number below 2^32. InvalidArgument too for a merge that is not two tokens or has an
// empty one (joining it would never end). InvalidArgument also for more than kMaxSpecTokens,
// kMaxMerges, kMaxJsonValues or kMaxJsonDepth. Unimplemented for a merge of a token with a space,
// which our form of merges cannot tell apart.
StatusOr<TokenizerJson> ParseTokenizerJson(std::string_view text);

// A small JSON file as a tree, under the same limits; NaN and infinities are read as Python writes
// them (src/base/python_json.h). `name` is for messages.
StatusOr<nlohmann::json> ParseSmallJson(std::string_view text, std::string_view name);

}  // namespace baton::text

#endif  // BATON_TEXT_TOKENIZER_JSON_H_
