#include "src/base/hex.h"

#include <charconv>

#include "absl/strings/escaping.h"
#include "fmt/format.h"

namespace baton {

std::string HexFromBytes(std::span<const uint8_t> bytes) {
  return HexFromBytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string HexFromBytes(std::string_view bytes) {
  return absl::BytesToHexString({bytes.data(), bytes.size()});
}

std::optional<std::vector<uint8_t>> BytesFromHex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* const digits = text.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, bytes[i], 16).ptr != digits + 2) return std::nullopt;
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
