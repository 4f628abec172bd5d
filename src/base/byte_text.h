// Bytes as text. Pure; any thread.
#ifndef BATON_BASE_BYTE_TEXT_H_
#define BATON_BASE_BYTE_TEXT_H_

#include <cstddef>
#include <span>
#include <string_view>

namespace baton {

// Characters of the same memory.
inline std::string_view AsChars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace baton

#endif  // BATON_BASE_BYTE_TEXT_H_
