// The alphabet of byte-level vocabularies (GPT-2's bytes_to_unicode): each byte is written as one
// visible character. Pure; any thread.
#ifndef BATON_TEXT_BYTE_LETTERS_H_
#define BATON_TEXT_BYTE_LETTERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton::text {

// The letter of `byte` as UTF-8: itself where it is printable Latin-1, else one of U+0100..U+0143.
std::string ByteLetter(uint8_t byte);

// The bytes that a token spells; nothing when a character of it is not a letter of the alphabet.
std::optional<std::string> BytesOfLetters(std::string_view token);

}  // namespace baton::text

#endif  // BATON_TEXT_BYTE_LETTERS_H_
