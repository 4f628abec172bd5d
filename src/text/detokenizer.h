// Token ids to text, one at a time. One thread at a time; the state is a pure function of the
// tokens pushed.
#ifndef BATON_TEXT_DETOKENIZER_H_
#define BATON_TEXT_DETOKENIZER_H_

#include <string>
#include <utility>
#include <vector>

#include "src/base/ids.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

namespace baton::text {

// The text of one stream of tokens.
// 1. Everything returned, joined, equals Tokenizer::Decode of all tokens pushed, when they begin a
//    text; tokens that continue one (an answer after its prompt) keep their leading space.
// 2. Each return is valid UTF-8: never a part of a character. At most 3 bytes are held back.
// 3. Push costs the token's bytes; nothing is decoded twice.
class Detokenizer {
 public:
  // `tokenizer` outlives this. skip_special leaves control and unknown tokens out. `begins_text`:
  // the space that SentencePiece-style models put before a text is taken off again.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special, bool begins_text = false)
      : tokenizer_(tokenizer), skip_special_(skip_special), at_start_(begins_text) {}

  // The special tokens that have text in spite of skip_special.
  void ShowSpecial(std::vector<TokenId> shown) { shown_ = std::move(shown); }

  // The text that `id` completes, often empty. An id outside the vocabulary gives none: check it
  // with Tokenizer::IsValid where it comes in.
  std::string Push(TokenId id);
  // Returns what is held back, as U+FFFD, when no token follows. Then starts over.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_;               // no bytes so far, and the text begins here
  std::vector<TokenId> shown_;  // a few
  Utf8Stream stream_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_DETOKENIZER_H_
