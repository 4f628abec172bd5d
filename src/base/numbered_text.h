// Sentences with numbers that the compiler puts in, so that a limit and its sentence cannot differ:
//   inline constexpr std::string_view kExpected =
//       kNumberedText<"an array of at most {} objects", limits::kMaxTools>;
// Each "{}" takes the next number; a text with more or fewer of them does not compile. Any thread.
#ifndef BATON_BASE_NUMBERED_TEXT_H_
#define BATON_BASE_NUMBERED_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton {

// A string literal as a template argument.
template <size_t kSize>
struct TextLiteral {
  constexpr TextLiteral(const char (&text)[kSize]) {  // implicit: literals become arguments
    for (size_t i = 0; i < kSize; ++i) chars[i] = text[i];
  }
  char chars[kSize] = {};
};

// The characters of one numbered text.
template <TextLiteral kText, uint64_t... kNumbers>
struct NumberedText {
  char chars[sizeof(kText.chars) + 20 * sizeof...(kNumbers)] = {};
  size_t size = 0;
  size_t num_places = 0;  // how many "{}" the text has

  constexpr NumberedText() {
    constexpr size_t kNumNumbers = sizeof...(kNumbers);
    const uint64_t numbers[kNumNumbers + 1] = {kNumbers..., 0};
    constexpr size_t kSize = sizeof(kText.chars) - 1;
    for (size_t i = 0; i < kSize; ++i) {
      const bool is_place = kText.chars[i] == '{' && i + 1 < kSize && kText.chars[i + 1] == '}';
      if (is_place) {
        if (num_places < kNumNumbers) Add(numbers[num_places]);
        ++num_places;
        ++i;
      } else {
        chars[size++] = kText.chars[i];
      }
    }
  }

  constexpr void Add(uint64_t number) {
    if (number >= 10) Add(number / 10);
    chars[size++] = static_cast<char>('0' + number % 10);
  }
};

// NumberedText that the program keeps.
template <TextLiteral kText, uint64_t... kNumbers>
inline constexpr NumberedText<kText, kNumbers...> kNumberedChars = {};

template <TextLiteral kText, uint64_t... kNumbers>
requires(kNumberedChars<kText, kNumbers...>.num_places ==
         sizeof...(kNumbers)) inline constexpr std::string_view kNumberedText = {
    kNumberedChars<kText, kNumbers...>.chars, kNumberedChars<kText, kNumbers...>.size};

}  // namespace baton

#endif  // BATON_BASE_NUMBERED_TEXT_H_
