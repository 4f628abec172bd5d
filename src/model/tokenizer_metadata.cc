#include "src/model/tokenizer_metadata.h"

#include <cmath>
#include <cstring>
#include <string>

#include "src/model/model_config.h"

namespace baton::model {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";
constexpr std::string_view kNamedTemplatePrefix = "tokenizer.chat_template.";

absl::StatusOr<std::vector<std::string_view>> Strings(std::string_view key,
                                                      const GgufValue& value) {
  if (!value.is_array() || value.element_type() != GgufValueType::kString) {
    return InvalidArgument("key \"{}\" is no array of strings", key);
  }
  if (value.count() > kMaxModelVocab) {
    return InvalidArgument("key \"{}\" has {} elements, at most {} are supported", key,
                           value.count(), kMaxModelVocab);
  }
  std::vector<std::string_view> out;
  out.reserve(value.count());  // at least 8 bytes of file each
  GgufStringCursor cursor(value);
  for (auto text = cursor.Next(); text.has_value(); text = cursor.Next()) out.push_back(*text);
  return out;
}

// An array of `count` elements of `type`; null when the key is absent.
absl::StatusOr<const GgufValue*> ArrayOf(const GgufFile& file, std::string_view key,
                                         GgufValueType type, uint64_t count) {
  const GgufValue* value = file.FindValue(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array() || value->element_type() != type || value->count() != count) {
    return InvalidArgument("key \"{}\" must be an array of {} {}, it has {} of {}", key, count,
                           GgufValueTypeName(type), value->count(),
                           GgufValueTypeName(value->element_type()));
  }
  return value;
}

template <typename T>
std::vector<T> CopyArray(const GgufValue& value) {
  std::vector<T> out(value.count());
  if (!out.empty()) std::memcpy(out.data(), value.payload().data(), out.size() * sizeof(T));
  return out;
}

absl::Status ReadScores(const GgufFile& file, TokenizerMetadata& out) {
  BATON_ASSIGN_OR_RETURN(
      const GgufValue* value,
      ArrayOf(file, "tokenizer.ggml.scores", GgufValueType::kFloat32, out.tokens.size()));
  if (value == nullptr) return OkStatus();
  out.scores = CopyArray<float>(*value);
  for (size_t i = 0; i < out.scores.size(); ++i) {
    if (std::isnan(out.scores[i])) return InvalidArgument("score of token {} is NaN", i);
  }
  return OkStatus();
}

absl::Status ReadTokenTypes(const GgufFile& file, TokenizerMetadata& out) {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, ArrayOf(file, "tokenizer.ggml.token_type",
                                                         GgufValueType::kInt32, out.tokens.size()));
  if (value == nullptr) {
    out.token_types.assign(out.tokens.size(), GgufTokenType::kNormal);
    return OkStatus();
  }
  const std::vector<int32_t> types = CopyArray<int32_t>(*value);
  out.token_types.reserve(types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] < 0 || types[i] > 6) {
      return InvalidArgument("token {} has type {}, the types are 0..6", i, types[i]);
    }
    out.token_types.push_back(static_cast<GgufTokenType>(types[i]));
  }
  return OkStatus();
}

absl::Status ReadIds(const GgufFile& file, TokenizerMetadata& out) {
  struct Row {
    std::string_view key;
    std::optional<uint32_t>* id;
  };
  const Row rows[] = {
      {"tokenizer.ggml.bos_token_id", &out.bos_id},
      {"tokenizer.ggml.eos_token_id", &out.eos_id},
      {"tokenizer.ggml.eot_token_id", &out.eot_id},
      {"tokenizer.ggml.eom_token_id", &out.eom_id},
      {"tokenizer.ggml.unknown_token_id", &out.unknown_id},
      {"tokenizer.ggml.padding_token_id", &out.padding_id},
  };
  for (const Row& row : rows) {
    if (file.FindValue(row.key) == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(const uint64_t id, file.Uint(row.key));
    if (id == UINT32_MAX) continue;  // some converters write -1 as u32 for "none"
    if (id >= out.tokens.size()) {
      return InvalidArgument("key \"{}\" is {}, the tokenizer has {} tokens", row.key, id,
                             out.tokens.size());
    }
    *row.id = static_cast<uint32_t>(id);
  }
  return OkStatus();
}

absl::Status ReadFlags(const GgufFile& file, TokenizerMetadata& out) {
  struct Row {
    std::string_view key;
    std::optional<bool>* flag;
  };
  const Row rows[] = {
      {"tokenizer.ggml.add_bos_token", &out.add_bos},
      {"tokenizer.ggml.add_eos_token", &out.add_eos},
      {"tokenizer.ggml.add_space_prefix", &out.add_space_prefix},
      {"tokenizer.ggml.remove_extra_whitespaces", &out.remove_extra_whitespaces},
  };
  for (const Row& row : rows) {
    if (file.FindValue(row.key) == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(const bool flag, file.BoolOr(row.key, false));
    *row.flag = flag;
  }
  return OkStatus();
}

absl::Status ReadOwnFlags(const GgufFile& file, TokenizerMetadata& out) {
  struct Row {
    std::string_view name;
    bool* flag;
  };
  bool ignore_merges = false;
  const Row rows[] = {
      {"space_prefix_at_start_only", &out.space_prefix_at_start_only},
      {"space_prefix_unless_there", &out.space_prefix_unless_there},
      {"user_defined_as_written", &out.user_defined_as_written},
      {"marks_spaces_first", &out.marks_spaces_first},
      {"adds_prefix_first", &out.adds_prefix_first},
      {"no_token_traits", &out.no_token_traits},
      {"nfc", &out.nfc},
      {"ignore_merges", &ignore_merges},
  };
  for (const Row& row : rows) {
    const std::string key = std::string(kTokenizerOwnPrefix) + std::string(row.name);
    if (file.FindValue(key) == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(*row.flag, file.BoolOr(key, false));
    if (row.flag == &ignore_merges) out.ignore_merges = ignore_merges;
  }
  const std::string key = std::string(kTokenizerOwnPrefix) + "token_traits";
  BATON_ASSIGN_OR_RETURN(const GgufValue* traits,
                         ArrayOf(file, key, GgufValueType::kInt32, out.tokens.size()));
  if (traits != nullptr) out.token_traits = CopyArray<int32_t>(*traits);
  return OkStatus();
}

absl::Status ReadTemplates(const GgufFile& file, TokenizerMetadata& out) {
  BATON_ASSIGN_OR_RETURN(out.chat_template, file.StringOr("tokenizer.chat_template", ""));
  for (const GgufEntry& entry : file.entries()) {
    if (entry.key.substr(0, kNamedTemplatePrefix.size()) != kNamedTemplatePrefix) continue;
    BATON_ASSIGN_OR_RETURN(const std::string_view text, file.String(entry.key));
    out.named_templates.push_back({entry.key.substr(kNamedTemplatePrefix.size()), text});
  }
  return OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerMetadata> ReadTokenizerMetadata(const GgufFile& file) {
  TokenizerMetadata out;
  BATON_ASSIGN_OR_RETURN(out.architecture, file.StringOr("general.architecture", ""));
  BATON_ASSIGN_OR_RETURN(out.model, file.String("tokenizer.ggml.model"));
  BATON_ASSIGN_OR_RETURN(out.pre, file.StringOr("tokenizer.ggml.pre", "default"));
  const GgufValue* tokens = file.FindValue(kTokens);
  if (tokens == nullptr) return NotFound("key \"{}\" is missing", kTokens);
  BATON_ASSIGN_OR_RETURN(out.tokens, Strings(kTokens, *tokens));
  if (const GgufValue* merges = file.FindValue(kMerges); merges != nullptr) {
    BATON_ASSIGN_OR_RETURN(out.merges, Strings(kMerges, *merges));
  } else if (out.model == "gpt2") {
    // Without them every text would be cut into single bytes. An empty list is one of bytes alone.
    return NotFound("key \"{}\" is missing: a tokenizer of model \"gpt2\" (BPE) needs its merges",
                    kMerges);
  }
  BATON_RETURN_IF_ERROR(ReadScores(file, out));
  BATON_RETURN_IF_ERROR(ReadTokenTypes(file, out));
  BATON_RETURN_IF_ERROR(ReadIds(file, out));
  BATON_RETURN_IF_ERROR(ReadFlags(file, out));
  BATON_RETURN_IF_ERROR(ReadOwnFlags(file, out));
  BATON_RETURN_IF_ERROR(ReadTemplates(file, out));
  return out;
}

}  // namespace baton::model
