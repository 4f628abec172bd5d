#include "src/text/byte_letters.h"

#include <array>
#include <cstddef>

namespace baton::text {
namespace {

constexpr uint16_t kFirstStandIn = 0x100;
constexpr size_t kNumLetters = 0x144;  // code points below this one are looked up
constexpr int16_t kNoByte = -1;

constexpr bool IsPrintableLatin1(uint16_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// Both directions of the alphabet.
struct Alphabet {
  std::array<uint16_t, 256> letter{};          // [byte]: code point
  std::array<int16_t, kNumLetters> byte_of{};  // [code point]: byte or kNoByte
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte_of) byte = kNoByte;
  uint16_t next = kFirstStandIn;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const uint16_t letter = IsPrintableLatin1(byte) ? byte : next++;
    alphabet.letter[byte] = letter;
    alphabet.byte_of[letter] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string ByteLetter(uint8_t byte) {
  const uint16_t letter = kAlphabet.letter[byte];
  if (letter < 0x80) return std::string(1, static_cast<char>(letter));
  return {static_cast<char>(0xc0 | (letter >> 6)), static_cast<char>(0x80 | (letter & 0x3f))};
}

std::optional<std::string> BytesOfLetters(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t i = 0; i < token.size(); ++i) {
    uint32_t letter = static_cast<uint8_t>(token[i]);
    if (letter >= 0x80) {
      // Every letter above ASCII has two bytes: U+00A1..U+0143.
      if (letter < 0xc2 || letter > 0xdf || i + 1 >= token.size()) return std::nullopt;
      const uint8_t second = static_cast<uint8_t>(token[++i]);
      if ((second & 0xc0) != 0x80) return std::nullopt;
      letter = (letter & 0x1f) << 6 | (second & 0x3f);
    }
    if (letter >= kNumLetters || kAlphabet.byte_of[letter] == kNoByte) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[letter]));
  }
  return bytes;
}

}  // namespace baton::text
