// Text to token ids and back, as the model was trained. Immutable after Create: every const call
// may run on several threads at once.
//
// 1. User text never yields control or unknown tokens: they are not in the vocabulary that text is
//    merged in. Only parse_special, add_special and templates (chat_encoder.h) give them.
// 2. User-defined tokens are cut out of any text; at one place the longest wins, and the first
//    place wins over later ones. Those with kIsNormalized are cut out of the normalized text that
//    the others leave.
// 3. Bytes without a token (SmolLM2 lacks eight control characters' and planes' bytes) yield
//    nothing, as in the models' own tokenizers. Otherwise Decode(Encode(text)) == text, but for
//    three things: blanks that a special token takes are gone, characters come back in form C
//    where the file asks for it, and SentencePiece-style models cannot tell all texts apart. There
//    U+2581 comes back as a space, and after a user-defined token the space that they put there
//    stays.
#ifndef BATON_TEXT_TOKENIZER_H_
#define BATON_TEXT_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/text/piece_encoder.h"
#include "src/text/special_tokens.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {

// The rules for turning a text into tokens.
struct EncodeOptions {
  bool add_special = false;    // bos before and eos after, as the model file asks
  bool parse_special = false;  // control tokens spelled in the text become those tokens
  // Taken out of the text; control tokens do not form across it (SpecialTokens::BreakLookAlikes).
  std::string_view guard = {};
};

// Whether a control token of this text ends a generation in every model, whatever its files say
// (but for <|end|> in the harmony format).
bool IsEogText(std::string_view text);

// Tokenizer::eog_ids of the tokenizer that Create makes of `spec`, in a hundredth of the time.
// Errors as of Create, but for tokens and merges, which it does not look at.
StatusOr<std::vector<TokenId>> EogTokensOf(const TokenizerSpec& spec);

// Where SentencePiece-style models put a space that the text does not have.
enum class SpacePrefix : uint8_t {
  kNever,
  kAtStart,        // before the whole text
  kAfterSpecials,  // and after each special token
};

// The vocabulary of one model.
class Tokenizer {
 public:
  // Checks the whole spec and builds from it (0.1 s per 50,000 merges). InvalidArgument for a spec
  // that contradicts itself, Unimplemented for a kind of tokenizer that is not built in; the
  // message names the metadata key and the value.
  static StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerSpec& spec);

  // InvalidArgument for text that is not UTF-8 or above limits::kMaxEncodeBytes.
  StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                        const EncodeOptions& options = {}) const;

  // The text of `tokens`: their bytes joined, broken UTF-8 as U+FFFD, without the space that the
  // model puts before a text. skip_special leaves control and unknown tokens out. InvalidArgument
  // names the first id outside the vocabulary.
  StatusOr<std::string> Decode(std::span<const TokenId> tokens, bool skip_special) const;

  // The bytes that a token stands for, not necessarily whole characters; control tokens give their
  // name. Empty for ids outside the vocabulary. Valid as long as the tokenizer.
  std::string_view TokenBytes(TokenId id) const;

  // TokenBytes without the space that the model puts before a text: for the first token with bytes.
  std::string_view BytesAtStart(TokenId id) const;

  bool IsValid(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < flags_.size(); }
  // Control or unknown; false for ids outside the vocabulary.
  bool IsSpecial(TokenId id) const { return IsValid(id) && flags_[id].special; }
  // Ends a generation; false for ids outside the vocabulary.
  bool IsEog(TokenId id) const { return IsValid(id) && flags_[id].eog; }
  // All tokens that end a generation, ascending.
  std::span<const TokenId> eog_ids() const { return eog_ids_; }

  size_t vocab_size() const { return flags_.size(); }
  std::optional<TokenId> bos_id() const { return bos_id_; }
  std::optional<TokenId> eos_id() const { return eos_id_; }
  std::optional<TokenId> pad_id() const { return pad_id_; }
  // Whether texts with specials begin with bos / end with eos.
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }
  const SpecialTokens& special_tokens() const { return special_tokens_; }

 private:
  // Facts about one token that Encode, Decode and the samplers ask for.
  struct Flags {
    bool special = false;
    bool eog = false;
  };

  Tokenizer() = default;
  Status SetVocabulary(const TokenizerSpec& spec, std::span<const TokenType> types);
  void AppendToken(std::string_view bytes);
  // The spelling of a token with kIsNormalized in normalized text.
  StatusOr<std::string> NormalizedLiteral(std::string_view token) const;
  // Encodes text without a special token as written in it, with a space before it when
  // `wants_space`.
  Status EncodePiece(std::string_view piece, bool wants_space, std::vector<TokenId>* ids) const;
  // Encodes normalized text with no special token in it.
  Status EncodeOrdinary(std::string_view text, bool wants_space, std::vector<TokenId>* ids) const;

  std::string bytes_;           // all tokens' bytes, joined
  std::vector<uint32_t> ends_;  // [vocab_size] end of each in bytes_
  std::vector<Flags> flags_;    // [vocab_size]
  std::vector<TokenId> eog_ids_;
  std::optional<TokenId> bos_id_;
  std::optional<TokenId> eos_id_;
  std::optional<TokenId> pad_id_;
  bool is_spm_ = false;             // spaces are written as U+2581
  bool literals_in_plain_ = false;  // special tokens hold plain spaces, and so must the text
  bool prefix_unless_there_ = false;
  bool nfc_ = false;
  bool marks_spaces_first_ = false;
  bool adds_prefix_first_ = false;
  SpacePrefix space_prefix_ = SpacePrefix::kNever;
  bool add_bos_ = false;
  bool add_eos_ = false;
  SpecialTokens special_tokens_;
  SpecialTokens normalized_tokens_;  // found in normalized text
  std::unique_ptr<PieceEncoder> encoder_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOKENIZER_H_
