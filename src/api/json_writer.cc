#include "src/api/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "fmt/format.h"

#include "src/text/utf8.h"

namespace baton::api {

using text::LossyUtf8;
using text::ValidUtf8Prefix;

namespace {

void AppendEscaped(char c, std::string* out) {
  switch (c) {
    case '"':
      out->append("\\\"");
      return;
    case '\\':
      out->append("\\\\");
      return;
    case '\n':
      out->append("\\n");
      return;
    case '\r':
      out->append("\\r");
      return;
    case '\t':
      out->append("\\t");
      return;
    case '\b':
      out->append("\\b");
      return;
    case '\f':
      out->append("\\f");
      return;
    default:
      break;
  }
  if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
    out->append(fmt::format("\\u{:04x}", static_cast<unsigned>(c)));
  } else {
    out->push_back(c);
  }
}

// True for the usual text, of which nothing is escaped. The loop has no branch, so that it is one
// of vectors.
bool IsPlain(std::string_view text) {
  bool is_plain = true;
  for (const char c : text) {
    is_plain &= (c >= 0x20) & (c < 0x7f) & (c != '"') & (c != '\\');
  }
  return is_plain;
}

// The escape of U+0085, U+2028 or U+2029 at the beginning of `text`; "" where none begins it.
std::string_view LineBreakEscape(std::string_view text) {
  if (text.starts_with("\xc2\x85")) return "\\u0085";
  if (text.starts_with("\xe2\x80\xa8")) return "\\u2028";
  if (text.starts_with("\xe2\x80\xa9")) return "\\u2029";
  return "";
}

// Appends JSON, or the inside of a string of it, with Unicode's line breaks escaped: clients that
// read line by line as Python's str.splitlines does (httpx, so Ollama's) would cut it there.
void AppendAsOneLine(std::string_view json, std::string* out) {
  size_t begin = 0;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] != '\xc2' && json[i] != '\xe2') continue;
    const std::string_view escape = LineBreakEscape(json.substr(i));
    if (escape.empty()) continue;
    out->append(json.substr(begin, i - begin)).append(escape);
    begin = i + (json[i] == '\xc2' ? 2 : 3);
  }
  out->append(json.substr(begin));
}

template <typename T>
std::string Shortest(T value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 64> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), result.ptr);
}

}  // namespace

void JsonWriter::Comma() {
  if (needs_comma_) text_.push_back(',');
  needs_comma_ = true;
}

JsonWriter& JsonWriter::Open(char bracket) {
  Comma();
  text_.push_back(bracket);
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  text_.push_back(bracket);
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Raw(std::string_view value) {
  Comma();
  AppendAsOneLine(value, &text_);
  return *this;
}

JsonWriter& JsonWriter::Word(std::string_view value) {
  Comma();
  text_.append(value);
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view name) {
  String(name);
  text_.push_back(':');
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  return BeginString().AppendString(value).EndString();
}

JsonWriter& JsonWriter::BeginString() {
  Comma();
  text_.push_back('"');
  return *this;
}

JsonWriter& JsonWriter::AppendString(std::string_view part) {
  if (IsPlain(part)) {
    text_.append(part);
    return *this;
  }
  std::string mended;
  if (ValidUtf8Prefix(part) != part.size()) part = mended = LossyUtf8(part);
  std::string escaped;
  for (const char c : part) AppendEscaped(c, &escaped);
  AppendAsOneLine(escaped, &text_);
  return *this;
}

JsonWriter& JsonWriter::EndString() {
  text_.push_back('"');
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) { return Word(fmt::format_int(value).c_str()); }
JsonWriter& JsonWriter::Uint(uint64_t value) { return Word(fmt::format_int(value).c_str()); }
JsonWriter& JsonWriter::Float(float value) { return Word(Shortest(value)); }
JsonWriter& JsonWriter::Double(double value) { return Word(Shortest(value)); }
JsonWriter& JsonWriter::Milli(double value) {
  return Word(Shortest(std::round(value * 1000.0) / 1000.0));
}
JsonWriter& JsonWriter::Bool(bool value) { return Word(value ? "true" : "false"); }
JsonWriter& JsonWriter::Null() { return Word("null"); }

}  // namespace baton::api
