// Print: formatted text to a C stream, without exceptions.
#ifndef BATON_BASE_PRINT_H_
#define BATON_BASE_PRINT_H_

#include <cstdio>
#include <string>
#include <utility>

#include "fmt/format.h"

namespace baton {

// fmt::print throws where a disk is full or a descriptor is closed; here std::ferror(stream) is
// true then, and that is all.
template <typename... Args>
void Print(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stream);
}

// To stdout.
template <typename... Args>
void Print(fmt::format_string<Args...> format, Args&&... args) {
  Print(stdout, format, std::forward<Args>(args)...);
}

}  // namespace baton

#endif  // BATON_BASE_PRINT_H_
