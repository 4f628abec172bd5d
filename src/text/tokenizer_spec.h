// The parts of a tokenizer, as a model file's metadata tells them. Plain data: the model reader
// fills it, and workers send it to the router as bytes. Tokenizer::Create checks it and builds from
// it. Any thread.
#ifndef BATON_TEXT_TOKENIZER_SPEC_H_
#define BATON_TEXT_TOKENIZER_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/limits.h"
#include "src/base/status.h"

namespace baton::text {

// Kinds of vocabulary entries, with the numbers of tokenizer.ggml.token_type.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,      // stands for what cannot be encoded
  kControl = 3,      // from templates only, never from user text
  kUserDefined = 4,  // cut out of any text before it is split
  kUnused = 5,
  kByte = 6,
};

// How a special token is found, and what it takes with it: bits of TokenizerSpec::token_traits,
// after the flags of tokenizer.json's added_tokens.
enum TokenTrait : int32_t {
  kTakesBlanksBefore = 1,  // lstrip: white space before it vanishes
  kTakesBlanksAfter = 2,   // rstrip
  kIsWholeWord = 4,        // single_word: not found beside a letter or digit
  kIsNormalized = 8,       // found in normalized text, after all that are not; user-defined only
  // One character that model.vocab lacks: its bytes where it is not found. User-defined only.
  kIsFoundOnly = 16,
};
inline constexpr int32_t kAllTokenTraits = 31;

// A chat template under a name of its own, e.g. "tool_use".
struct NamedChatTemplate {
  std::string name;
  std::string source;
  friend bool operator==(const NamedChatTemplate&, const NamedChatTemplate&) = default;
};

// The tokenizer.* metadata of one model, unchecked. Absent optional keys are nullopt or empty.
struct TokenizerSpec {
  std::string model;                 // tokenizer.ggml.model: "gpt2" (byte-level BPE), "llama" ...
  std::string pre;                   // tokenizer.ggml.pre: names the split rule
  std::vector<std::string> tokens;   // [vocab_size], id = position; UTF-8
  std::vector<float> scores;         // [vocab_size] or empty
  std::vector<int32_t> token_types;  // [vocab_size] or empty = all normal; values of TokenType
  std::vector<std::string> merges;   // "left right", rank = position
  std::optional<uint32_t> bos_id;    // begin of text
  std::optional<uint32_t> eos_id;    // end of text
  std::optional<uint32_t> eot_id;    // end of turn
  std::optional<uint32_t> eom_id;    // end of message
  std::optional<uint32_t> unk_id;    // unknown
  std::optional<uint32_t> pad_id;    // padding
  std::optional<bool> add_bos;       // put bos before a text encoded with specials
  std::optional<bool> add_eos;       // put eos after it
  std::optional<bool> add_space_prefix;  // a space before the text; SentencePiece-style only
  // The space goes before the whole text only, not after each special token too.
  bool space_prefix_at_start_only = false;
  // A text that begins with a space gets no second one.
  bool space_prefix_unless_there = false;
  // User-defined tokens are found as they are written: one of U+2581 is not found in spaces. Absent
  // in GGUF files, where SentencePiece's rule holds: the two are the same.
  bool user_defined_as_written = false;
  // The normalizer does this before tokens with kIsNormalized are looked for: it writes U+2581 for
  // spaces, and puts the one of add_space_prefix before the text.
  bool marks_spaces_first = false;
  bool adds_prefix_first = false;
  std::vector<int32_t> token_traits;  // [vocab_size] or empty = none; bits of TokenTrait
  // A piece that is a token as a whole is not merged; absent: as `pre` says.
  std::optional<bool> ignore_merges;
  bool nfc = false;           // text is brought to Unicode's form C
  std::string chat_template;  // tokenizer.chat_template, Jinja; empty = none
  std::vector<NamedChatTemplate> named_templates;

  // The template named "tool_use", which writes requests with tools as in transformers; "" = none.
  std::string ToolTemplate() const;

  // A compact, versioned form (SmolLM2: 0.6 MiB): the bytes of a spec are the same in every build.
  std::string Serialize() const;

  // Serialize(); InvalidArgument: it has more than limits::kMaxSpecBytes.
  StatusOr<std::string> SerializeUpToLimit() const;

  // Serialize() for a worker's hello. InvalidArgument: a router would not take these bytes, more
  // than limits::kMaxSpecBytes or what Parse refuses.
  StatusOr<std::string> SerializeForHello() const;

  // Inverse of Serialize for bytes from a peer: Parse(Serialize()) equals the spec, also when the
  // spec itself is not usable. InvalidArgument, naming the byte position, for anything else and for
  // specs above the limits below; never holds more than kMaxSpecTextBytes of text.
  static StatusOr<TokenizerSpec> Parse(std::string_view bytes);

  friend bool operator==(const TokenizerSpec&, const TokenizerSpec&) = default;
};

// A spec's tokens are a vocabulary. The largest in use have 280,147 merges.
inline constexpr size_t kMaxSpecTokens = limits::kMaxVocabTokens;
inline constexpr size_t kMaxMerges = size_t{1} << 21;
// All strings of a spec together; the largest in use have about 8 MiB.
inline constexpr size_t kMaxSpecTextBytes = size_t{64} << 20;

// Sets token_traits as the tokenizer.json files of Phi-3 and Phi-3.5 say: the tokens of a chat and
// </s> take the blanks after them. `spec`: of a GGUF file, which cannot say so.
void SetPhi3Traits(TokenizerSpec& spec);

// XXH3-64 of `bytes`, those of Serialize(): equal for equal specs, whatever the process or machine.
// Part of numerics_id, so it covers the templates too.
uint64_t TokenizerSpecId(std::string_view bytes);

}  // namespace baton::text

#endif  // BATON_TEXT_TOKENIZER_SPEC_H_
