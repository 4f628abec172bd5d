// TokenizerMetadata: the tokenizer.ggml.* keys of a GGUF file as plain data, for whoever builds the
// tokenizer (src/text must not know model files). All views point into the GgufFile and are valid
// while it lives. Any thread.
#ifndef BATON_MODEL_TOKENIZER_METADATA_H_
#define BATON_MODEL_TOKENIZER_METADATA_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/gguf.h"

namespace baton::model {

// GGUF has no keys for some things that a tokenizer.json says. `baton convert` writes them under
// keys that begin with this prefix. Other readers skip them.
inline constexpr std::string_view kTokenizerOwnPrefix = "tokenizer.baton.";

// Values of tokenizer.ggml.token_type.
enum class GgufTokenType : int32_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// A chat template stored under a name (tokenizer.chat_template.NAME).
struct NamedTemplate {
  std::string_view name;
  std::string_view text;
};

// The tokenizer of a model file; see the file comment.
struct TokenizerMetadata {
  std::string_view architecture;           // general.architecture; empty when absent
  std::string_view model;                  // "gpt2", "llama"
  std::string_view pre;                    // pre-tokenizer; "default" when absent
  std::vector<std::string_view> tokens;    // [vocab]; index = token id
  std::vector<float> scores;               // [vocab] or empty
  std::vector<GgufTokenType> token_types;  // [vocab]; all kNormal when absent
  std::vector<std::string_view> merges;    // "left right", best first; may be empty
  // Ids are below the number of tokens.
  std::optional<uint32_t> bos_id;
  std::optional<uint32_t> eos_id;
  std::optional<uint32_t> eot_id;
  std::optional<uint32_t> eom_id;
  std::optional<uint32_t> unknown_id;
  std::optional<uint32_t> padding_id;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
  std::optional<bool> remove_extra_whitespaces;
  // Values that only a converted folder has (kTokenizerOwnPrefix); src/text/tokenizer_spec.h has
  // the meanings. Absent = false.
  bool space_prefix_at_start_only = false;
  bool space_prefix_unless_there = false;
  bool user_defined_as_written = false;
  bool marks_spaces_first = false;
  bool adds_prefix_first = false;
  bool nfc = false;
  std::vector<int32_t> token_traits;  // [vocab] or empty
  bool no_token_traits = false;       // empty because the folder has none
  std::optional<bool> ignore_merges;
  std::string_view chat_template;  // empty when absent
  std::vector<NamedTemplate> named_templates;
};

// NotFound for a missing model or token list, and for BPE (model "gpt2") without a list of merges;
// InvalidArgument for an array of another length or type than the tokens need, a token type outside
// 0..6, an id beyond the vocabulary, a NaN score.
absl::StatusOr<TokenizerMetadata> ReadTokenizerMetadata(const GgufFile& file);

}  // namespace baton::model

#endif  // BATON_MODEL_TOKENIZER_METADATA_H_
