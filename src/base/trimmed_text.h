// Text without the blanks around it. Pure; any thread.
#ifndef BATON_BASE_TRIMMED_TEXT_H_
#define BATON_BASE_TRIMMED_TEXT_H_

#include <cstddef>
#include <string_view>

namespace baton {

// `text` without the characters of `blanks` at its begin and its end.
constexpr std::string_view Trimmed(std::string_view text, std::string_view blanks = " \t\r\n") {
  const size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return text.substr(0, 0);
  return text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

}  // namespace baton

#endif  // BATON_BASE_TRIMMED_TEXT_H_
