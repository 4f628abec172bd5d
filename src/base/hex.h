// Bytes as lower-case hexadecimal text and back. Pure; any thread.
#ifndef BATON_BASE_HEX_H_
#define BATON_BASE_HEX_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

// Two digits a byte.
std::string HexFromBytes(std::span<const uint8_t> bytes);
std::string HexFromBytes(std::string_view bytes);

// The bytes, or nothing when the length is odd or a character is no hexadecimal digit.
std::optional<std::vector<uint8_t>> BytesFromHex(std::string_view text);

// 16 digits, and back; nothing unless 1..16 digits.
std::string HexFromU64(uint64_t value);
std::optional<uint64_t> U64FromHex(std::string_view text);

}  // namespace baton

#endif  // BATON_BASE_HEX_H_
