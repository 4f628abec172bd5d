#include "src/base/size_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace baton {
namespace {

constexpr std::string_view kUnitLetters = "KMGT";  // that are written
constexpr std::string_view kReadLetters = "KMGTPE";

// Shift of a unit such as "", "b", "m", "MB", "MiB"; -1 when unknown.
int UnitShift(std::string_view unit) {
  std::string lower(unit);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower.empty() || lower == "b") return 0;
  const size_t position = kReadLetters.find(static_cast<char>(std::toupper(lower[0])));
  const std::string rest = lower.substr(1);
  const bool is_unit = rest.empty() || rest == "b" || rest == "i" || rest == "ib";
  if (position == std::string_view::npos || !is_unit) return -1;
  return 10 * (static_cast<int>(position) + 1);
}

// The text up to the first character that is no digit and no dot.
size_t NumberLength(std::string_view text) {
  size_t length = 0;
  while (length < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[length])) != 0 || text[length] == '.')) {
    ++length;
  }
  return length;
}

}  // namespace

StatusOr<uint64_t> ParseSize(std::string_view text) {
  const size_t length = NumberLength(text);
  std::string_view unit = text.substr(length);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const int shift = UnitShift(unit);
  long double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + length, value, std::chars_format::fixed);
  if (length == 0 || error != std::errc() || end != text.data() + length || shift < 0) {
    return InvalidArgument(
        "'{}' is not a size; write a number with B, KiB, MiB, GiB or TiB (Ki, Mi, Gi, Ti; K, M, G, "
        "T; all powers of 1024), such as 2GiB",
        text);
  }
  // 64 mantissa bits: exact for every 64-bit count.
  value *= static_cast<long double>(uint64_t{1} << shift);
  if (value > static_cast<long double>(uint64_t{1} << 63)) {
    return InvalidArgument("size '{}' is above 2^63 bytes", text);
  }
  return static_cast<uint64_t>(value);
}

std::string FormatSize(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1023.95 && unit + 1 < static_cast<int>(kUnitLetters.size())) {
    value /= 1024;
    ++unit;
  }
  std::string number = fmt::format("{:.1f}", value);
  if (number.ends_with(".0")) number.resize(number.size() - 2);
  return fmt::format("{} {}iB", number, kUnitLetters[static_cast<size_t>(unit)]);
}

}  // namespace baton
