#include "src/base/python_json.h"

#include <charconv>
#include <system_error>

namespace baton {
namespace {

constexpr size_t kDigitsOfDouble = 308;
constexpr std::string_view kLiterals[] = {"NaN", "Infinity", "-Infinity"};

bool IsOfNumber(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

// The end of the string that begins at `begin`, behind its last quote.
size_t EndOfString(std::string_view text, size_t begin) {
  for (size_t at = begin + 1; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return text.size();
}

size_t EndOfNumber(std::string_view text, size_t begin) {
  size_t end = begin;
  while (end < text.size() && IsOfNumber(text[end])) ++end;
  return end;
}

// Python makes infinity of a number that no double holds. Shorter numbers without an exponent fit.
bool IsBeyondDouble(std::string_view number) {
  const bool has_exponent = number.find_first_of("eE") != std::string_view::npos;
  if (number[0] == '"' || (!has_exponent && number.size() < kDigitsOfDouble)) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  // Numbers next to zero are out of range too; they have a negative exponent.
  const bool is_small = number.find("e-") != std::string_view::npos ||
                        number.find("E-") != std::string_view::npos || number.starts_with("0.") ||
                        number.starts_with("-0.");
  return error == std::errc::result_out_of_range && !is_small &&
         end == number.data() + number.size();
}

std::string_view LiteralAt(std::string_view text, size_t at) {
  for (const std::string_view literal : kLiterals) {
    if (text.substr(at, literal.size()) == literal) return literal;
  }
  return "";
}

void AppendFloat(std::string_view literal, std::string& out) {
  out.append("{\"").append(kPythonFloatKey).append("\":\"").append(literal).append("\"}");
}

}  // namespace

std::string PlainJsonOfPython(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    const std::string_view literal = LiteralAt(text, at);
    if (!literal.empty()) {
      AppendFloat(literal, out);
      at += literal.size();
      continue;
    }
    if (text[at] == '"') end = EndOfString(text, at);
    if (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')) end = EndOfNumber(text, at);
    const std::string_view token = text.substr(at, end - at);
    if (IsBeyondDouble(token)) {
      AppendFloat(token[0] == '-' ? "-Infinity" : "Infinity", out);
    } else {
      out.append(token);
    }
    at = end;
  }
  return out;
}

}  // namespace baton
