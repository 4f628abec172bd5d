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
  std::string mended;
  if (ValidUtf8Prefix(part) != part.size()) part = mended = LossyUtf8(part);
  for (const char c : part) AppendEscaped(c, &text_);
  return *this;
}

JsonWriter& JsonWriter::EndString() {
  text_.push_back('"');
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) { return Raw(fmt::format_int(value).c_str()); }
JsonWriter& JsonWriter::Uint(uint64_t value) { return Raw(fmt::format_int(value).c_str()); }
JsonWriter& JsonWriter::Float(float value) { return Raw(Shortest(value)); }
JsonWriter& JsonWriter::Double(double value) { return Raw(Shortest(value)); }
JsonWriter& JsonWriter::Milli(double value) {
  return Raw(Shortest(std::round(value * 1000.0) / 1000.0));
}
JsonWriter& JsonWriter::Bool(bool value) { return Raw(value ? "true" : "false"); }
JsonWriter& JsonWriter::Null() { return Raw("null"); }

}  // namespace baton::api
