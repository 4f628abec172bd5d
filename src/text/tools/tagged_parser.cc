#include "src/text/tools/tagged_parser.h"

#include <span>
#include <utility>

#include "src/base/trimmed_text.h"

namespace baton::text {
namespace {

constexpr size_t kMaxNameBytes = 256;
// The first of each list is looked for in every style.
constexpr std::string_view kTextMarks[] = {"<tool_call>", "<function="};
constexpr std::string_view kFunctionMark[] = {"<function="};
constexpr std::string_view kClosingMarks[] = {"</tool_call>", "<tool_call>", "<function="};
constexpr std::string_view kBetweenMarks[] = {"<parameter=", "</function>", "</tool_call>"};
constexpr std::string_view kValueEnd[] = {"</parameter>"};

using Marks = std::span<const std::string_view>;

bool EndsName(char c) { return c == '<' || c == '\n' || c == '\r'; }

// The words that Python writes for three values of JSON.
std::string_view JsonWordOf(std::string_view text) {
  if (text == "True") return "true";
  if (text == "False") return "false";
  return text == "None" ? "null" : text;
}

// A value as JSON: its own text where that is JSON of an allowed type, else a string.
std::string ValueAsJson(std::string_view text, uint8_t types) {
  std::string_view word = Trimmed(text);
  if ((types & kJsonText) == 0) word = JsonWordOf(word);
  const uint8_t type = TypeOfJson(word);
  const bool is_allowed = type != 0 && (types == 0 || (types & type) != 0);
  const bool takes_text = types == 0 || (types & kJsonText) != 0;
  // A quoted text is the model's own text, quotes included, where texts are allowed.
  const bool is_quoted = type == kJsonText && (types & kJsonText) != 0;
  if ((is_allowed && !is_quoted) || (type != 0 && !takes_text)) return std::string(word);
  std::string quoted = "\"";
  AppendJsonInside(text, &quoted);
  quoted.push_back('"');
  return quoted;
}

}  // namespace

XmlCall::XmlCall(const ToolRules& rules)
    : rules_(rules), between_(kBetweenMarks), value_end_(kValueEnd) {}

void XmlCall::Start() {
  place_ = Place::kName;
  name_.clear();
  num_parameters_ = 0;
}

XmlCall::Step XmlCall::Push(char c, PartsWriter* out) {
  switch (place_) {
    case Place::kName:
      return OnName(c, out);
    case Place::kBetween:
      return OnBetween(c, out);
    case Place::kKey:
      return OnKey(c, out);
    case Place::kValue:
      OnValue(c, out);
      return Step::kMore;
  }
  return Step::kBroken;
}

XmlCall::Step XmlCall::OnName(char c, PartsWriter* out) {
  if (c != '>') {
    if (EndsName(c) || name_.size() == kMaxNameBytes) return Step::kBroken;
    name_.push_back(c);
    return Step::kMore;
  }
  if (name_.empty()) return Step::kBroken;
  function_ = rules_.Find(name_);
  out->BeginCall(name_);
  out->Arguments("{");
  place_ = Place::kBetween;
  return Step::kMore;
}

XmlCall::Step XmlCall::OnBetween(char c, PartsWriter* out) {
  const int found = between_.Push(c, &released_);
  if (found == MarkMatcher::kNone) return Step::kMore;
  if (found == 0) {
    key_.clear();
    place_ = Place::kKey;
    return Step::kMore;
  }
  out->Arguments("}");
  return found == 1 ? Step::kFunctionEnd : Step::kCallEnd;
}

XmlCall::Step XmlCall::OnKey(char c, PartsWriter* out) {
  if (c != '>') {
    key_.push_back(c);
    return Step::kMore;
  }
  types_ = 0;
  if (function_ != nullptr) {
    for (const auto& [name, types] : function_->parameters) {
      if (name == key_) types_ = types;
    }
  }
  std::string begin = num_parameters_++ == 0 ? "\"" : ", \"";
  AppendJsonInside(key_, &begin);
  begin += "\": ";
  streams_ = types_ == kJsonText;
  if (streams_) begin.push_back('"');
  out->Arguments(begin);
  value_.clear();
  at_value_start_ = true;
  holds_break_ = false;
  const bool is_json = believes_strings_ && (types_ & kJsonText) == 0;
  strings_ = is_json ? Strings::kBefore : Strings::kNotWatched;
  value_at_mark_.reset();
  after_mark_.clear();
  place_ = Place::kValue;
  return Step::kMore;
}

void XmlCall::OnValue(char c, PartsWriter* out) {
  if (value_at_mark_.has_value()) after_mark_.push_back(c);
  const int found = value_end_.Push(c, &released_);
  AddToValue(released_, out);
  for (const char byte : released_) WatchString(byte);
  const bool is_inside = strings_ == Strings::kInside || strings_ == Strings::kEscaped;
  if (found != MarkMatcher::kNone && !is_inside) {
    if (value_at_mark_.has_value() && TypeOfJson(Trimmed(value_)) == 0) return EndAtFirstMark(out);
    EndValue(out);
    place_ = Place::kBetween;
  } else if (found != MarkMatcher::kNone) {
    if (!value_at_mark_.has_value()) value_at_mark_ = value_.size();
    AddToValue(kValueEnd[0], out);
    strings_ = Strings::kInside;
  } else if (strings_ == Strings::kNotWatched && value_at_mark_.has_value()) {
    EndAtFirstMark(out);
  }
}

// A line break or another control character stands in no string of JSON.
void XmlCall::WatchString(char c) {
  switch (strings_) {
    case Strings::kNotWatched:
      return;
    case Strings::kBefore:
      if (IsJsonBlank(c)) return;
      strings_ = c == '{' || c == '[' || c == '"' ? Strings::kOutside : Strings::kNotWatched;
      if (c == '"') strings_ = Strings::kInside;
      return;
    case Strings::kOutside:
      if (c == '"') strings_ = Strings::kInside;
      return;
    case Strings::kInside:
    case Strings::kEscaped:
      if (static_cast<unsigned char>(c) < 0x20) {
        strings_ = Strings::kNotWatched;
      } else if (strings_ == Strings::kEscaped) {
        strings_ = Strings::kInside;
      } else if (c == '"') {
        strings_ = Strings::kOutside;
      } else if (c == '\\') {
        strings_ = Strings::kEscaped;
      }
      return;
  }
}

// The closing tag in what seemed to be a string ended the value. The text after it is read again.
void XmlCall::EndAtFirstMark(PartsWriter* out) {
  believes_strings_ = false;
  value_.resize(*value_at_mark_);
  value_at_mark_.reset();
  value_end_.Release();
  EndValue(out);
  unread_ = std::exchange(after_mark_, {});
  place_ = Place::kBetween;
}

bool XmlCall::EndText(PartsWriter* out) {
  if (place_ != Place::kValue || !value_at_mark_.has_value()) return false;
  EndAtFirstMark(out);
  return true;
}

void XmlCall::AddToValue(std::string_view text, PartsWriter* out) {
  for (const char c : text) {
    const bool is_first_break = std::exchange(at_value_start_, false) && c == '\n';
    if (is_first_break) continue;
    std::string part;
    if (std::exchange(holds_break_, c == '\n')) part.push_back('\n');
    if (c != '\n') part.push_back(c);
    if (!streams_) {
      value_ += part;
      continue;
    }
    std::string escaped;
    AppendJsonInside(part, &escaped);
    out->Arguments(escaped);
  }
}

void XmlCall::EndValue(PartsWriter* out) {
  if (streams_) {
    out->Arguments("\"");
  } else {
    out->Arguments(ValueAsJson(value_, types_));
  }
}

TaggedParser::TaggedParser(ToolStyle style, const ToolRules& rules)
    : ToolParser(rules),
      json_(rules),
      xml_(rules),
      text_marks_(Marks(kTextMarks).first(style == ToolStyle::kQwen3Coder ? 2 : 1)),
      function_mark_(kFunctionMark),
      closing_marks_(Marks(kClosingMarks).first(style == ToolStyle::kQwen3Coder ? 3 : 2)) {}

void TaggedParser::OnByte(char c) {
  switch (place_) {
    case Place::kText:
      return OnText(c);
    case Place::kOpened:
      return OnOpened(c);
    case Place::kJson:
      return OnJson(c);
    case Place::kXml:
      return OnXml(c);
    case Place::kClosing:
      return OnClosing(c);
  }
}

void TaggedParser::OnText(char c) {
  const int found = text_marks_.Push(c, &released_);
  out_.Content(released_);
  if (found == MarkMatcher::kNone) return;
  markup_ = kTextMarks[found];
  if (found == 0) {
    place_ = Place::kOpened;
  } else {
    BeginXml();
  }
}

void TaggedParser::OnOpened(char c) {
  if (function_mark_.is_inside() || c == '<') {
    const int found = function_mark_.Push(c, &released_);
    if (found != MarkMatcher::kNone) {
      markup_ += kFunctionMark[0];
      BeginXml();
    } else if (!released_.empty()) {
      // The bytes after "<tool_call>" may begin another mark.
      const std::string rest = released_ + function_mark_.Release();
      GiveBack({});
      for (const char byte : rest) OnText(byte);
    }
  } else if (IsJsonBlank(c)) {
    markup_.push_back(c);
  } else if (c == '{') {
    json_.Start(CallTrust::kMarked);
    place_ = Place::kJson;
  } else {
    GiveBack({});
    OnText(c);
  }
}

void TaggedParser::OnJson(char c) {
  const JsonCall::Step step = json_.Push(c, &out_);
  if (step == JsonCall::Step::kMore) return;
  if (json_.has_begun()) {
    place_ = Place::kClosing;
  } else {
    GiveBack(json_.TakeHeld());
  }
  if (step == JsonCall::Step::kBroken) OnByte(c);
}

void TaggedParser::OnXml(char c) {
  switch (xml_.Push(c, &out_)) {
    case XmlCall::Step::kMore:
      // Read again once in an answer at most: after that no string is believed.
      for (const char byte : xml_.TakeUnread()) OnByte(byte);
      return;
    case XmlCall::Step::kFunctionEnd:
      place_ = Place::kClosing;
      return;
    case XmlCall::Step::kCallEnd:
      place_ = Place::kText;
      return;
    case XmlCall::Step::kBroken:
      GiveBack(xml_.held());
      return OnText(c);
  }
}

void TaggedParser::OnClosing(char c) {
  const bool was_inside = closing_marks_.is_inside();
  const int found = closing_marks_.Push(c, &released_);
  if (found == 0) {
    out_.DropBlanks();
    place_ = Place::kText;
  } else if (found == 1) {
    markup_ = kClosingMarks[1];
    place_ = Place::kOpened;
  } else if (found == 2) {
    markup_ = kClosingMarks[2];
    BeginXml();
  } else if (!was_inside && c == '{') {
    markup_.clear();
    json_.Start(CallTrust::kMarked);
    place_ = Place::kJson;
  } else if (!released_.empty()) {
    // A bracket too many belongs to the call; any other text means that its end was left out.
    const bool is_junk = !was_inside && (c == '}' || c == ']' || c == ',');
    if (is_junk) return;
    out_.Content(released_);
    const bool is_over = was_inside || !IsJsonBlank(c);
    if (is_over && !closing_marks_.is_inside()) place_ = Place::kText;
  }
}

void TaggedParser::BeginXml() {
  xml_.Start();
  place_ = Place::kXml;
}

void TaggedParser::GiveBack(std::string_view more) {
  out_.Content(std::exchange(markup_, {}));
  out_.Content(more);
  place_ = Place::kText;
}

void TaggedParser::OnEnd(bool is_cut) {
  // A text that was cut may have gone on with the rest of the string.
  if (place_ == Place::kXml && !is_cut && xml_.EndText(&out_)) {
    for (const char byte : xml_.TakeUnread()) OnByte(byte);
  }
  switch (place_) {
    case Place::kText:
      return out_.Content(text_marks_.Release());
    case Place::kOpened:
      return GiveBack(function_mark_.Release());
    case Place::kJson:
      if (!json_.has_begun()) GiveBack(json_.TakeHeld());
      return;
    case Place::kXml:
      if (!xml_.has_begun()) GiveBack(xml_.held());
      return;
    case Place::kClosing:
      return;
  }
}

}  // namespace baton::text
