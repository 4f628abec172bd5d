#include "src/text/tools/json_bytes.h"

#include <utility>

#include "src/text/tools/tool_parser.h"

namespace baton::text {
namespace {

constexpr int kMaxNesting = 64;

void AppendCodePoint(uint32_t code, std::string* out) {
  const auto add = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | (code >> 6));
    add(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    add(0xe0 | (code >> 12));
    add(0x80 | ((code >> 6) & 0x3f));
    add(0x80 | (code & 0x3f));
  } else {
    add(0xf0 | (code >> 18));
    add(0x80 | ((code >> 12) & 0x3f));
    add(0x80 | ((code >> 6) & 0x3f));
    add(0x80 | (code & 0x3f));
  }
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

int HexValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Walks over one JSON value.
class JsonWalk {
 public:
  explicit JsonWalk(std::string_view text) : text_(text) {}

  uint8_t TypeOfAll() {
    SkipBlanks();
    const uint8_t type = Value(0);
    SkipBlanks();
    return at_ == text_.size() ? type : 0;
  }

 private:
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void SkipBlanks() {
    while (at_ < text_.size() && IsJsonBlank(text_[at_])) ++at_;
  }
  bool Digits() {
    const size_t from = at_;
    while (IsDigit(Peek())) ++at_;
    return at_ > from;
  }

  uint8_t Value(int depth) {
    if (depth > kMaxNesting) return 0;
    switch (Peek()) {
      case '"':
        return String() ? kJsonText : 0;
      case '{':
        return Members(depth, '}') ? kJsonObject : 0;
      case '[':
        return Members(depth, ']') ? kJsonArray : 0;
      case 't':
        return TakeWord("true") ? kJsonBool : 0;
      case 'f':
        return TakeWord("false") ? kJsonBool : 0;
      case 'n':
        return TakeWord("null") ? kJsonNull : 0;
      default:
        return Number() ? kJsonNumber : 0;
    }
  }

  bool String() {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\' && !Escape()) return false;
    }
    return false;
  }
  bool Escape() {
    const char c = Peek();
    ++at_;
    if (c != 'u') return c != '\0' && std::string_view("\"\\/bfnrt").find(c) != std::string::npos;
    for (int i = 0; i < 4; ++i) {
      if (HexValue(Peek()) < 0) return false;
      ++at_;
    }
    return true;
  }
  bool Number() {
    Take('-');
    if (!Take('0') && !Digits()) return false;
    if (Take('.') && !Digits()) return false;
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      return Digits();
    }
    return true;
  }
  bool Members(int depth, char end) {
    ++at_;
    SkipBlanks();
    if (Take(end)) return true;
    while (true) {
      SkipBlanks();
      if (end == '}' && !Name()) return false;
      if (Value(depth + 1) == 0) return false;
      SkipBlanks();
      if (Take(end)) return true;
      if (!Take(',')) return false;
    }
  }
  bool Name() {
    if (Peek() != '"' || !String()) return false;
    SkipBlanks();
    if (!Take(':')) return false;
    SkipBlanks();
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

void AppendJsonInside(std::string_view text, std::string* out) {
  constexpr std::string_view kFrom = "\b\f\n\r\t\"\\";
  constexpr std::string_view kTo = "bfnrt\"\\";
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const size_t at = kFrom.find(c);
    const auto byte = static_cast<unsigned char>(c);
    if (at != std::string_view::npos) {
      out->append({'\\', kTo[at]});
    } else if (byte < 0x20) {
      out->append("\\u00").append({kHex[byte >> 4], kHex[byte & 15]});
    } else {
      out->push_back(c);
    }
  }
}

uint8_t TypeOfJson(std::string_view text) { return JsonWalk(text).TypeOfAll(); }

bool JsonNesting::Push(char c) {
  if (in_string_) {
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (c == '\\') {
      is_escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
    return true;
  }
  if (c == '<') return false;
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  if ((c == '}' || c == ']') && depth_ > 0) --depth_;
  return true;
}

bool JsonText::Push(char c, std::string* out) {
  if (num_digits_ >= 0) {
    const int value = HexValue(c);
    if (value >= 0) {
      unit_ = unit_ * 16 + static_cast<uint32_t>(value);
      if (++num_digits_ == 4) OnUnit(out);
      return false;
    }
    // The escape is broken; what ends it is text, and may be the closing quote.
    num_digits_ = -1;
    if (std::exchange(high_, 0) != 0) AppendCodePoint(0xfffd, out);
    AppendCodePoint(0xfffd, out);
  }
  if (is_escaped_) {
    is_escaped_ = false;
    if (c == 'u') {
      num_digits_ = 0;
      unit_ = 0;
      return false;
    }
  } else if (c == '\\') {
    is_escaped_ = true;
    return false;
  } else {
    if (std::exchange(high_, 0) != 0) AppendCodePoint(0xfffd, out);
    if (c == '"') return true;
    out->push_back(c);
    return false;
  }
  if (std::exchange(high_, 0) != 0) AppendCodePoint(0xfffd, out);
  constexpr std::string_view kFrom = "bfnrt";
  constexpr std::string_view kTo = "\b\f\n\r\t";
  const size_t at = kFrom.find(c);
  out->push_back(at == std::string_view::npos ? c : kTo[at]);
  return false;
}

void JsonText::OnUnit(std::string* out) {
  num_digits_ = -1;
  const bool is_low = unit_ >= 0xdc00 && unit_ < 0xe000;
  const uint32_t high = std::exchange(high_, 0);
  if (high != 0 && is_low) {
    return AppendCodePoint(0x10000 + ((high - 0xd800) << 10) + (unit_ - 0xdc00), out);
  }
  if (high != 0) AppendCodePoint(0xfffd, out);
  if (unit_ >= 0xd800 && unit_ < 0xdc00) {
    high_ = unit_;
  } else {
    AppendCodePoint(is_low ? 0xfffd : unit_, out);
  }
}

}  // namespace baton::text
