// The Rust library (hf/baton_text.h) as C++ values: handles that free themselves, Status for codes.
// Const calls may run on several threads at once.
#ifndef BATON_TEXT_HF_LIBRARY_H_
#define BATON_TEXT_HF_LIBRARY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"

struct baton_text_bpe;
struct baton_text_template;

namespace baton::text::hf {

// A byte-level BPE vocabulary whose ids have been checked by the caller.
struct BpeVocabulary {
  std::string token_text;            // all tokens, joined
  std::vector<uint32_t> token_ends;  // [num_tokens] end of each in token_text
  std::vector<uint32_t> token_ids;   // [num_tokens]
  std::vector<uint32_t> merges;      // [num_merges][2] left and right id
  std::span<const std::string_view> patterns;
  bool ignore_merges = false;
};

// A byte-level BPE encoder (crate tokenizers).
class Bpe {
 public:
  static StatusOr<Bpe> Create(const BpeVocabulary& vocabulary);

  // Appends the ids of `text` to `out`, which stays unchanged on failure. `text` is valid UTF-8.
  Status Encode(std::string_view text, std::vector<TokenId>* out) const;

 private:
  // Frees the handle.
  struct Free {
    void operator()(baton_text_bpe* bpe) const;
  };
  std::unique_ptr<baton_text_bpe, Free> handle_;
};

// `text`, valid UTF-8, in Unicode's form C (the crate's normalizer NFC).
StatusOr<std::string> Compose(std::string_view text);

// True for a code point that is part of a word: \w of the crate's regular expressions.
bool IsWordCharacter(uint32_t character);

// The input and the limits of one rendering.
struct RenderRequest {
  std::string_view variables_json;  // a JSON object
  uint64_t fuel = 0;                // template instructions
  uint64_t max_output_bytes = 0;
  uint64_t max_memory_bytes = 0;  // held at once
  uint64_t timeout_ms = 0;
  std::optional<int64_t> now_unix_s;  // strftime_now is undefined without it
};

// How a chat template takes the content of a message.
enum class PartsUse : uint8_t {
  kNone = 0,   // as a text
  kReads = 1,  // as a text or as a list of parts
  kNeeds = 2,  // as a list of parts only
};

// A compiled chat template.
class JinjaTemplate {
 public:
  // InvalidArgument when the source is not a template; FailedPrecondition when it cannot be
  // compiled within the limits.
  static StatusOr<JinjaTemplate> Create(std::string_view source);

  // InvalidArgument: the template failed on these variables or called raise_exception (the message
  // is then its own); FailedPrecondition: a limit was reached; Internal: the renderer panicked;
  // Unavailable: earlier renderings that overran hold all threads.
  StatusOr<std::string> Render(const RenderRequest& request) const;

  // Found by reading the source, as the next.
  PartsUse parts_use() const;
  // True if an expression of the template names the variable.
  bool Reads(std::string_view variable) const;

 private:
  // Frees the handle.
  struct Free {
    void operator()(baton_text_template* handle) const;
  };
  std::unique_ptr<baton_text_template, Free> handle_;
};

}  // namespace baton::text::hf

#endif  // BATON_TEXT_HF_LIBRARY_H_
