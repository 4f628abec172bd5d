// Small readers of JSON that comes byte by byte. One thread.
#ifndef BATON_TEXT_TOOLS_JSON_BYTES_H_
#define BATON_TEXT_TOOLS_JSON_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::text {

// Blanks of JSON.
inline bool IsJsonBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Appends `text` as the inside of a JSON string: quotes, backslashes and control characters
// escaped.
void AppendJsonInside(std::string_view text, std::string* out);

// The type of `text` as one of JsonTypes (tool_parser.h); 0 where it is no JSON value, or is nested
// deeper than 64.
uint8_t TypeOfJson(std::string_view text);

// Finds the end of an object or array; fed with its first bracket first.
class JsonNesting {
 public:
  // False: `c` cannot stand here, since it begins markup.
  bool Push(char c);
  // The brackets are closed again.
  bool is_closed() const { return depth_ == 0 && !in_string_; }
  void Reset() { *this = {}; }

 private:
  uint32_t depth_ = 0;
  bool in_string_ = false;
  bool is_escaped_ = false;
};

// Decodes a JSON string; fed from the byte after its opening quote. Lone surrogates and broken
// escapes become U+FFFD.
class JsonText {
 public:
  // True: `c` is the closing quote. Appends whole characters to `out`.
  bool Push(char c, std::string* out);
  void Reset() { *this = {}; }

 private:
  void OnUnit(std::string* out);

  bool is_escaped_ = false;
  int num_digits_ = -1;  // of \uXXXX so far; -1 = in none
  uint32_t unit_ = 0;    // their value
  uint32_t high_ = 0;    // a high surrogate that waits for its low one; 0 = none
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_JSON_BYTES_H_
