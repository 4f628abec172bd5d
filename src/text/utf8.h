// UTF-8 in pieces: validation, and the lossy decoding that an incremental detokenizer needs. Pure
// except where a class says so; any thread.
#ifndef BATON_TEXT_UTF8_H_
#define BATON_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::text {

// Length of the longest prefix of `text` that is whole valid UTF-8 (RFC 3629: no surrogates, no
// overlong forms); text.size() when all of it is.
size_t ValidUtf8Prefix(std::string_view text);

// Bytes of the character that begins with `lead`, in valid UTF-8.
inline size_t CharacterSize(uint8_t lead) {
  if (lead < 0xc0) return 1;
  if (lead < 0xe0) return 2;
  return lead < 0xf0 ? 3 : 4;
}

// The first character of `text`, which is valid UTF-8 and not empty.
inline std::string_view FirstCharacter(std::string_view text) {
  return text.substr(0, CharacterSize(static_cast<uint8_t>(text.front())));
}
// The last one.
std::string_view LastCharacter(std::string_view text);
// The code point of one character.
uint32_t CodePointOf(std::string_view character);

// Decodes bytes that arrive in pieces of any size. One thread at a time.
// 1. The output of Push and Finish, joined, is valid UTF-8 and does not depend on the pieces.
// 2. Each maximal part of a broken sequence becomes one U+FFFD (Unicode 15, section 3.9, table 3-8;
//    what Python's and Rust's lossy decoders do).
// 3. At most 3 bytes are held back; cost is linear in the bytes pushed.
class Utf8Stream {
 public:
  // Appends to `out` every character that `bytes` completes.
  void Push(std::string_view bytes, std::string* out);
  // Appends U+FFFD if a sequence was left unfinished, and starts over.
  void Finish(std::string* out);

 private:
  void PushByte(uint8_t byte, std::string* out);
  void Start(uint8_t byte, std::string* out);

  uint8_t held_[4] = {};
  uint8_t num_held_ = 0;
  uint8_t num_missing_ = 0;  // continuation bytes still to come
  uint8_t next_min_ = 0x80;  // range of the next one: the second byte's is narrower
  uint8_t next_max_ = 0xbf;
};

// All of `bytes` by Utf8Stream: valid UTF-8.
std::string LossyUtf8(std::string_view bytes);

// `bytes` where they are UTF-8, otherwise each of them by its number, "bytes:\xe3\x81" (with
// backslashes): how OpenAI's completions name tokens that are part of a character.
std::string TextOrBytes(std::string_view bytes);

}  // namespace baton::text

#endif  // BATON_TEXT_UTF8_H_
