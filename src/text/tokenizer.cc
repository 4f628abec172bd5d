#include "src/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/quoted_text.h"
#include "src/text/bpe_encoder.h"
#include "src/text/byte_letters.h"
#include "src/text/hf_library.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/spm_encoder.h"
#include "src/text/utf8.h"

namespace baton::text {

using limits::kMaxEncodeBytes;

namespace {

// The longest in use has 256 bytes.
constexpr size_t kMaxTokenBytes = 4096;

// Control tokens that end a turn or a text whatever the file's eos_token_id says (the list that
// llama.cpp's llama-vocab.cpp keeps).
constexpr std::array<std::string_view, 18> kEogTexts = {
    "<|eot_id|>",    "<|im_end|>",      "<|end|>",         "<|return|>",
    "<|call|>",      "<|flush|>",       "<|calls|>",       "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>",      "<EOT>",           "_<EOT>",
    "[EOT]",         "[EOS]",           "<|end_of_text|>", "<end_of_utterance>",
    "<turn|>",       "<|tool_response>"};

bool IsSpecialType(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

// The bytes of an ordinary or byte token of a SentencePiece-style vocabulary.
std::string SpmBytes(std::string_view token, TokenType type) {
  const int byte = type == TokenType::kByte ? ByteOfToken(token) : -1;
  return byte >= 0 ? std::string(1, static_cast<char>(byte)) : WithPlainSpaces(token);
}

Status CheckCounts(const TokenizerSpec& spec) {
  const size_t num_tokens = spec.tokens.size();
  if (num_tokens == 0 || num_tokens > kMaxSpecTokens) {
    return InvalidArgument("tokenizer.ggml.tokens has {} entries, outside [1, {}]", num_tokens,
                           kMaxSpecTokens);
  }
  if (!spec.token_types.empty() && spec.token_types.size() != num_tokens) {
    return InvalidArgument("tokenizer.ggml.token_type has {} entries for {} tokens",
                           spec.token_types.size(), num_tokens);
  }
  if (!spec.scores.empty() && spec.scores.size() != num_tokens) {
    return InvalidArgument("tokenizer.ggml.scores has {} entries for {} tokens", spec.scores.size(),
                           num_tokens);
  }
  if (!spec.token_traits.empty() && spec.token_traits.size() != num_tokens) {
    return InvalidArgument("tokenizer.baton.token_traits has {} entries for {} tokens",
                           spec.token_traits.size(), num_tokens);
  }
  for (size_t id = 0; id < spec.token_traits.size(); ++id) {
    if (spec.token_traits[id] < 0 || spec.token_traits[id] > kAllTokenTraits) {
      return InvalidArgument("tokenizer.baton.token_traits[{}] is {}, outside [0, {}]", id,
                             spec.token_traits[id], kAllTokenTraits);
    }
  }
  if (spec.merges.size() > kMaxMerges) {
    return InvalidArgument("tokenizer.ggml.merges has {} entries, more than {}", spec.merges.size(),
                           kMaxMerges);
  }
  return OkStatus();
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

// `text` with U+2581 for every space.
std::string WithMarkedSpaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == ' ') {
      out.append(kSpmSpace);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

Status CheckTokens(const TokenizerSpec& spec) {
  absl::flat_hash_map<std::string_view, size_t> first;
  first.reserve(spec.tokens.size());
  size_t num_bytes = 0;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& token = spec.tokens[id];
    if (token.size() > kMaxTokenBytes) {
      return InvalidArgument("tokenizer.ggml.tokens[{}] has {} bytes, more than {}", id,
                             token.size(), kMaxTokenBytes);
    }
    // Positions in the joined text have 32 bits.
    num_bytes += token.size();
    if (num_bytes > kMaxSpecTextBytes) {
      return InvalidArgument("tokenizer.ggml.tokens has more than {} bytes", kMaxSpecTextBytes);
    }
    if (ValidUtf8Prefix(token) != token.size()) {
      return InvalidArgument("tokenizer.ggml.tokens[{}] is not UTF-8", id);
    }
    // Converters leave some unused entries empty.
    if (token.empty()) continue;
    const auto [entry, inserted] = first.emplace(token, id);
    if (!inserted) {
      return InvalidArgument("tokenizer.ggml.tokens[{}] and [{}] are both {}", entry->second, id,
                             QuotedForMessage(token));
    }
  }
  return OkStatus();
}

// The type of each token. One whose text ends a turn is a control token, as in llama.cpp: some
// converters mark it wrongly, and then users could end the model's turn, or the model could not.
StatusOr<std::vector<TokenType>> ReadTypes(const TokenizerSpec& spec) {
  std::vector<TokenType> types(spec.tokens.size(), TokenType::kNormal);
  for (size_t id = 0; id < types.size(); ++id) {
    const int32_t type = spec.token_types.empty() ? 0 : spec.token_types[id];
    if (type < 0 || type > static_cast<int32_t>(TokenType::kByte)) {
      return InvalidArgument("tokenizer.ggml.token_type[{}] is {}, outside [0, 6]", id, type);
    }
    // 0 is "undefined": nothing is known against it.
    if (type != 0) types[id] = static_cast<TokenType>(type);
    if (types[id] != TokenType::kControl && IsEogText(spec.tokens[id])) {
      types[id] = TokenType::kControl;
    }
    if (spec.tokens[id].empty()) types[id] = TokenType::kUnused;
  }
  return types;
}

void WarnOfUnmarked(const TokenizerSpec& spec, std::span<const TokenType> types) {
  for (size_t id = 0; id < types.size(); ++id) {
    if (types[id] != TokenType::kControl) continue;
    const int32_t type = spec.token_types.empty() ? 0 : spec.token_types[id];
    if (type == static_cast<int32_t>(TokenType::kControl)) continue;
    BATON_LOG_WARN("token {} {} is not marked as a control token; it is taken as one", id,
                   QuotedForMessage(spec.tokens[id]));
  }
}

StatusOr<std::optional<TokenId>> CheckedId(const std::optional<uint32_t>& id, const char* key,
                                           size_t vocab_size) {
  if (!id) return std::optional<TokenId>();
  if (*id >= vocab_size) {
    return InvalidArgument("tokenizer.ggml.{} is {}, but there are {} tokens", key, *id,
                           vocab_size);
  }
  return std::optional<TokenId>(static_cast<TokenId>(*id));
}

// The tokens that a spec names, and what ends a generation.
struct SpecialIds {
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> pad;
  bool add_bos = false;
  bool add_eos = false;
  std::vector<TokenId> eog;  // ascending
};

StatusOr<SpecialIds> ReadSpecialIds(const TokenizerSpec& spec, std::span<const TokenType> types,
                                    bool default_add_bos) {
  const size_t size = types.size();
  SpecialIds ids;
  BATON_ASSIGN_OR_RETURN(ids.bos, CheckedId(spec.bos_id, "bos_token_id", size));
  BATON_ASSIGN_OR_RETURN(ids.eos, CheckedId(spec.eos_id, "eos_token_id", size));
  BATON_ASSIGN_OR_RETURN(ids.pad, CheckedId(spec.pad_id, "padding_token_id", size));
  BATON_ASSIGN_OR_RETURN(const auto eot, CheckedId(spec.eot_id, "eot_token_id", size));
  BATON_ASSIGN_OR_RETURN(const auto eom, CheckedId(spec.eom_id, "eom_token_id", size));
  BATON_RETURN_IF_ERROR(CheckedId(spec.unk_id, "unknown_token_id", size).status());
  ids.add_bos = spec.add_bos.value_or(default_add_bos && ids.bos.has_value());
  ids.add_eos = spec.add_eos.value_or(false);
  if (ids.add_bos && !ids.bos) {
    return InvalidArgument("tokenizer.ggml.add_bos_token is set, but there is no bos_token_id");
  }
  if (ids.add_eos && !ids.eos) {
    return InvalidArgument("tokenizer.ggml.add_eos_token is set, but there is no eos_token_id");
  }

  bool has_return = false;
  bool has_call = false;
  for (size_t id = 0; id < size; ++id) {
    if (types[id] != TokenType::kControl) continue;
    has_return |= spec.tokens[id] == "<|return|>";
    has_call |= spec.tokens[id] == "<|call|>";
  }
  const auto named = std::array{ids.eos, eot, eom};
  for (size_t id = 0; id < size; ++id) {
    const auto token = static_cast<TokenId>(id);
    bool ends = std::find(named.begin(), named.end(), token) != named.end();
    if (types[id] == TokenType::kControl && IsEogText(spec.tokens[id])) {
      // In the harmony format <|end|> ends one message of several in a turn.
      ends |= !(has_return && has_call && spec.tokens[id] == "<|end|>");
    }
    if (ends) ids.eog.push_back(token);
  }
  return ids;
}

// The default of add_bos, the split rule and more, by the kind of tokenizer.
StatusOr<PreTokenizer> PreTokenizerOf(const TokenizerSpec& spec) {
  if (spec.model == "llama" || spec.model == kGemma4Model) {
    return PreTokenizer{.default_add_bos = true};
  }
  if (spec.model == "gpt2") return FindPreTokenizer(spec.pre);
  return Unimplemented(
      "tokenizer.ggml.model {} is not supported; this build has \"gpt2\" (byte-level BPE), "
      "\"llama\" and \"gemma4\" (SentencePiece-style BPE)",
      QuotedForMessage(spec.model));
}

}  // namespace

bool IsEogText(std::string_view text) {
  return std::find(kEogTexts.begin(), kEogTexts.end(), text) != kEogTexts.end();
}

StatusOr<std::vector<TokenId>> EogTokensOf(const TokenizerSpec& spec) {
  BATON_ASSIGN_OR_RETURN(const PreTokenizer pre_tokenizer, PreTokenizerOf(spec));
  BATON_RETURN_IF_ERROR(CheckCounts(spec));
  BATON_ASSIGN_OR_RETURN(const std::vector<TokenType> types, ReadTypes(spec));
  BATON_ASSIGN_OR_RETURN(SpecialIds ids,
                         ReadSpecialIds(spec, types, pre_tokenizer.default_add_bos));
  return std::move(ids.eog);
}

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerSpec& spec) {
  BATON_ASSIGN_OR_RETURN(const PreTokenizer pre_tokenizer, PreTokenizerOf(spec));
  const bool is_gemma4 = spec.model == kGemma4Model;
  const bool is_spm = spec.model == "llama" || is_gemma4;
  BATON_RETURN_IF_ERROR(CheckCounts(spec));
  BATON_RETURN_IF_ERROR(CheckTokens(spec));
  BATON_ASSIGN_OR_RETURN(const std::vector<TokenType> types, ReadTypes(spec));
  WarnOfUnmarked(spec, types);
  auto tokenizer = std::unique_ptr<Tokenizer>(new Tokenizer);
  tokenizer->is_spm_ = is_spm;
  tokenizer->literals_in_plain_ = is_spm && !is_gemma4 && !spec.user_defined_as_written;
  tokenizer->prefix_unless_there_ = spec.space_prefix_unless_there;
  tokenizer->nfc_ = spec.nfc;
  tokenizer->marks_spaces_first_ = is_spm && spec.marks_spaces_first;
  if (is_spm && spec.add_space_prefix.value_or(!is_gemma4)) {
    tokenizer->space_prefix_ =
        spec.space_prefix_at_start_only ? SpacePrefix::kAtStart : SpacePrefix::kAfterSpecials;
    tokenizer->adds_prefix_first_ = spec.adds_prefix_first;
  }
  BATON_RETURN_IF_ERROR(tokenizer->SetVocabulary(spec, types));
  BATON_ASSIGN_OR_RETURN(SpecialIds ids,
                         ReadSpecialIds(spec, types, pre_tokenizer.default_add_bos));
  tokenizer->bos_id_ = ids.bos;
  tokenizer->eos_id_ = ids.eos;
  tokenizer->pad_id_ = ids.pad;
  tokenizer->add_bos_ = ids.add_bos;
  tokenizer->add_eos_ = ids.add_eos;
  for (const TokenId id : ids.eog) tokenizer->flags_[id].eog = true;
  tokenizer->eog_ids_ = std::move(ids.eog);
  if (is_spm) {
    BATON_ASSIGN_OR_RETURN(tokenizer->encoder_, CreateSpmEncoder(spec, types));
  } else {
    BATON_ASSIGN_OR_RETURN(tokenizer->encoder_, CreateBpeEncoder(spec, types, pre_tokenizer));
  }
  return tokenizer;
}

Status Tokenizer::SetVocabulary(const TokenizerSpec& spec, std::span<const TokenType> types) {
  flags_.resize(spec.tokens.size());
  ends_.reserve(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& token = spec.tokens[id];
    flags_[id].special = IsSpecialType(types[id]);
    const bool is_literal = flags_[id].special || types[id] == TokenType::kUserDefined;
    const bool user_defined = types[id] == TokenType::kUserDefined;
    const int32_t traits = spec.token_traits.empty() ? 0 : spec.token_traits[id];
    const TokenId token_id = static_cast<TokenId>(id);
    if (user_defined && (traits & kIsNormalized) != 0) {
      BATON_ASSIGN_OR_RETURN(const std::string literal, NormalizedLiteral(token));
      BATON_RETURN_IF_ERROR(normalized_tokens_.Add(literal, token_id, user_defined, traits));
      // With the space that the normalizer put before it: a text's own space is in it, too.
      AppendToken(is_spm_ ? WithPlainSpaces(literal) : literal);
      continue;
    }
    if (is_literal && !token.empty()) {
      // The spelling that Encode looks for.
      const std::string literal = literals_in_plain_ ? WithPlainSpaces(token) : token;
      BATON_RETURN_IF_ERROR(special_tokens_.Add(literal, token_id, user_defined, traits));
    }
    if (is_literal) {
      AppendToken(user_defined && is_spm_ ? WithPlainSpaces(token) : token);
    } else if (is_spm_) {
      AppendToken(SpmBytes(token, types[id]));
    } else {
      // A token with a character outside the alphabet stands for itself.
      AppendToken(BytesOfLetters(token).value_or(token));
    }
  }
  special_tokens_.Seal();
  normalized_tokens_.Seal();
  return OkStatus();
}

StatusOr<std::string> Tokenizer::NormalizedLiteral(std::string_view token) const {
  std::string literal(token);
  if (nfc_) {
    BATON_ASSIGN_OR_RETURN(literal, hf::Compose(token));
  }
  if (marks_spaces_first_) literal = WithMarkedSpaces(literal);
  if (adds_prefix_first_) literal.insert(0, kSpmSpace);
  return literal;
}

void Tokenizer::AppendToken(std::string_view bytes) {
  bytes_.append(bytes);
  ends_.push_back(static_cast<uint32_t>(bytes_.size()));
}

StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                                 const EncodeOptions& options) const {
  if (text.size() > kMaxEncodeBytes) {
    return InvalidArgument("the text has {} bytes, more than {}", text.size(), kMaxEncodeBytes);
  }
  if (const size_t valid = ValidUtf8Prefix(text); valid != text.size()) {
    return InvalidArgument("the text is not UTF-8 at byte {}", valid);
  }
  const SpecialScope scope =
      options.parse_special ? SpecialScope::kAll : SpecialScope::kUserDefined;
  std::string plain;
  if (literals_in_plain_ && text.find(kSpmSpace) != std::string_view::npos) {
    // The space that U+2581 becomes is ordinary text, which BreakLookAlikes has not seen.
    plain = WithPlainSpaces(text, fmt::format("{0}{0} {0}", options.guard));
    text = plain;
  }
  std::string bare;
  std::vector<size_t> guards;
  if (!options.guard.empty()) {
    bare = TakeOut(text, options.guard, &guards);
    text = bare;
  }
  std::vector<TokenId> ids;
  if (options.add_special && add_bos_) ids.push_back(*bos_id_);
  // Whether the next piece gets the space that SentencePiece puts before a text.
  bool wants_space = space_prefix_ != SpacePrefix::kNever;
  SpecialCuts cuts(special_tokens_, text, scope, guards);
  for (bool found = true; found;) {
    found = cuts.Next();
    if (!cuts.piece().empty()) {
      BATON_RETURN_IF_ERROR(EncodePiece(cuts.piece(), wants_space, &ids));
    }
    if (found) ids.push_back(cuts.id());
    wants_space = space_prefix_ == SpacePrefix::kAfterSpecials;
  }
  if (options.add_special && add_eos_) ids.push_back(*eos_id_);
  return ids;
}

Status Tokenizer::EncodePiece(std::string_view piece, bool wants_space,
                              std::vector<TokenId>* ids) const {
  std::string composed;
  if (nfc_ && !IsAscii(piece)) {
    BATON_ASSIGN_OR_RETURN(composed, hf::Compose(piece));
    piece = composed;
  }
  if (normalized_tokens_.empty()) return EncodeOrdinary(piece, wants_space, ids);
  std::string marked;
  if (marks_spaces_first_) {
    marked = WithMarkedSpaces(piece);
    if (adds_prefix_first_ && wants_space) marked.insert(0, kSpmSpace);
    piece = marked;
  }
  bool wants_inner = wants_space && !adds_prefix_first_;
  SpecialCuts cuts(normalized_tokens_, piece, SpecialScope::kUserDefined);
  for (bool found = true; found;) {
    found = cuts.Next();
    if (!cuts.piece().empty()) {
      BATON_RETURN_IF_ERROR(EncodeOrdinary(cuts.piece(), wants_inner, ids));
    }
    if (found) ids->push_back(cuts.id());
    wants_inner = space_prefix_ == SpacePrefix::kAfterSpecials && !adds_prefix_first_;
  }
  return OkStatus();
}

Status Tokenizer::EncodeOrdinary(std::string_view text, bool wants_space,
                                 std::vector<TokenId>* ids) const {
  const bool needs_plain = is_spm_ && text.find(kSpmSpace) != std::string_view::npos;
  if (!needs_plain && !wants_space) return encoder_->Encode(text, ids);
  std::string plain = needs_plain ? WithPlainSpaces(text) : std::string(text);
  if (wants_space && !(prefix_unless_there_ && plain.front() == ' ')) plain.insert(0, 1, ' ');
  return encoder_->Encode(plain, ids);
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  if (!IsValid(id)) return {};
  const size_t begin = id == 0 ? 0 : ends_[id - 1];
  return std::string_view(bytes_).substr(begin, ends_[id] - begin);
}

std::string_view Tokenizer::BytesAtStart(TokenId id) const {
  std::string_view bytes = TokenBytes(id);
  const bool has_prefix = space_prefix_ != SpacePrefix::kNever && !IsSpecial(id) &&
                          !bytes.empty() && bytes.front() == ' ';
  if (has_prefix) bytes.remove_prefix(1);
  return bytes;
}

StatusOr<std::string> Tokenizer::Decode(std::span<const TokenId> tokens, bool skip_special) const {
  std::string text;
  Utf8Stream stream;
  bool at_start = true;
  for (const TokenId id : tokens) {
    if (!IsValid(id)) {
      return InvalidArgument("token {} is outside the vocabulary of {}", id, vocab_size());
    }
    if (skip_special && IsSpecial(id)) continue;
    const std::string_view bytes = at_start ? BytesAtStart(id) : TokenBytes(id);
    at_start = at_start && TokenBytes(id).empty();
    stream.Push(bytes, &text);
  }
  stream.Finish(&text);
  return text;
}

}  // namespace baton::text
