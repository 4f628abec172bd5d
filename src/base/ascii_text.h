// Questions about the characters of a text. Pure; any thread.
#ifndef BATON_BASE_ASCII_TEXT_H_
#define BATON_BASE_ASCII_TEXT_H_

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"

namespace baton {

// ASCII without blanks and control characters: a header carries such a text as it is.
inline bool IsVisibleAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// Letters and digits of ASCII, '_', '-' and '.': names of such bytes need no quotes anywhere.
inline bool IsNameByte(char c) {
  return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
}

}  // namespace baton

#endif  // BATON_BASE_ASCII_TEXT_H_
