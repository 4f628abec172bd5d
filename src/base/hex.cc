#include "src/base/hex.h"

#include <charconv>

#include "fmt/format.h"

namespace baton {
namespace {

int DigitValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string HexFromBytes(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::string HexFromBytes(std::string_view bytes) {
  return HexFromBytes({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

std::optional<std::vector<uint8_t>> BytesFromHex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() / 2);
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = DigitValue(text[i]);
    const int low = DigitValue(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<uint8_t>(high * 16 + low));
  }
  return bytes;
}

std::string HexFromU64(uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<uint64_t> U64FromHex(std::string_view text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value, 16);
  if (text.empty() || text.size() > 16 || error != std::errc() || next != end) return std::nullopt;
  return value;
}

}  // namespace baton
