#include "src/base/quoted_text.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "fmt/format.h"

namespace baton {
namespace {

uint8_t ByteAt(std::string_view text, size_t at) {
  return at < text.size() ? static_cast<uint8_t>(text[at]) : 0;
}

bool IsContinuation(uint8_t byte) { return (byte & 0xc0) == 0x80; }

// Bytes of the control character or separator at `at`; 0 = none: C0, DEL, C1 (U+0080..9F), U+2028,
// U+2029 and the marks that turn the direction of text (U+200E, U+200F, U+202A..E, U+2066..9).
size_t ControlSize(std::string_view text, size_t at) {
  const uint8_t first = ByteAt(text, at);
  const uint8_t second = ByteAt(text, at + 1);
  const uint8_t third = ByteAt(text, at + 2);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && second >= 0x80 && second < 0xa0) return 2;
  if (first != 0xe2) return 0;
  const bool is_80 =
      second == 0x80 && (third == 0x8e || third == 0x8f || (third >= 0xa8 && third <= 0xae));
  const bool is_81 = second == 0x81 && third >= 0xa6 && third <= 0xa9;
  return is_80 || is_81 ? 3 : 0;
}

}  // namespace

std::string LineForMessage(std::string_view text, size_t max_bytes) {
  size_t end = std::min(text.size(), max_bytes);
  while (end > 0 && end < text.size() && IsContinuation(ByteAt(text, end))) --end;
  std::string line;
  for (size_t at = 0; at < end;) {
    const size_t control = ControlSize(text.substr(0, end), at);
    line.push_back(control > 0 ? ' ' : text[at]);
    at += std::max<size_t>(control, 1);
  }
  if (end < text.size()) line += "...";
  return line;
}

std::string QuotedForMessage(std::string_view bytes) {
  constexpr size_t kMaxShown = 80;
  const bool cut = bytes.size() > kMaxShown;
  const std::string shown(bytes.substr(0, kMaxShown));
  return fmt::format("\"{}{}\"", absl::CHexEscape(shown), cut ? "..." : "");
}

}  // namespace baton
