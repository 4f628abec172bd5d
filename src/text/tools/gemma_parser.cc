#include "src/text/tools/gemma_parser.h"

#include <utility>

namespace baton::text {
namespace {

constexpr size_t kMaxGemmaName = 256;
constexpr size_t kMaxDepth = 64;
constexpr std::string_view kOpenMarks[] = {"<start_function_call>", "<|tool_call>"};
constexpr std::string_view kCloseMarks[] = {"<end_function_call>", "<tool_call|>"};
constexpr std::string_view kQuoteMarks[] = {"<escape>", "<|\"|>"};
constexpr std::string_view kCall = "call:";

std::string_view WithoutLastJsonBlanks(std::string_view text) {
  while (!text.empty() && IsJsonBlank(text.back())) text.remove_suffix(1);
  return text;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  AppendJsonInside(text, &quoted);
  quoted.push_back('"');
  return quoted;
}

}  // namespace

GemmaArguments::GemmaArguments() : quote_(kQuoteMarks) {}

void GemmaArguments::Start(PartsWriter* out) {
  stack_.clear();
  quote_.Release();
  Open('{', out);
}

GemmaArguments::Step GemmaArguments::Push(char c, PartsWriter* out) {
  switch (place_) {
    case Place::kQuoted:
      OnQuoted(c, out);
      return Step::kMore;
    case Place::kJsonText:
      OnJsonText(c, out);
      return Step::kMore;
    case Place::kKey:
      if (quote_.is_inside() || c == '<') return OnMark(c, out);
      return OnKey(c, out);
    case Place::kInKey:
      if (c == ':') {
        AddKey(out);
        return Step::kMore;
      }
      word_.push_back(c);
      return c == '<' ? Step::kBroken : Step::kMore;
    case Place::kColon:
      if (c == ':') AddKey(out);
      return c == ':' || IsJsonBlank(c) ? Step::kMore : Step::kBroken;
    case Place::kValue:
      if (quote_.is_inside() || c == '<') return OnMark(c, out);
      return OnValue(c, out);
    case Place::kWord:
      return OnWord(c, out);
    case Place::kAfter:
      return OnAfter(c, out);
  }
  return Step::kBroken;
}

// A mark that begins a text, in the place of a key or a value.
GemmaArguments::Step GemmaArguments::OnMark(char c, PartsWriter* out) {
  const int found = quote_.Push(c, &released_);
  if (found == MarkMatcher::kNone) return released_.empty() ? Step::kMore : Step::kBroken;
  is_key_ = place_ == Place::kKey;
  if (!is_key_) BeginItem("\"", out);
  word_.clear();
  place_ = Place::kQuoted;
  return Step::kMore;
}

GemmaArguments::Step GemmaArguments::OnKey(char c, PartsWriter* out) {
  if (IsJsonBlank(c) || c == ',') return Step::kMore;
  if (c == '}') return CloseOne(c, out);
  word_.clear();
  if (c == '"') {
    is_key_ = true;
    is_escaped_ = false;
    place_ = Place::kJsonText;
    return Step::kMore;
  }
  word_.push_back(c);
  place_ = Place::kInKey;
  return Step::kMore;
}

GemmaArguments::Step GemmaArguments::OnValue(char c, PartsWriter* out) {
  if (IsJsonBlank(c)) return Step::kMore;
  if (c == '{' || c == '[') return Open(c, out);
  if (c == ']') return CloseOne(c, out);
  if (c == '}' || c == ',') return Step::kBroken;
  word_.clear();
  if (c == '"') {
    is_key_ = false;
    is_escaped_ = false;
    BeginItem("\"", out);
    place_ = Place::kJsonText;
    return Step::kMore;
  }
  BeginItem("", out);
  place_ = Place::kWord;
  return OnWord(c, out);
}

GemmaArguments::Step GemmaArguments::OnWord(char c, PartsWriter* out) {
  if (c == '<') return Step::kBroken;
  if (c != ',' && c != '}' && c != ']') {
    word_.push_back(c);
    return Step::kMore;
  }
  const std::string_view word = WithoutLastJsonBlanks(word_);
  out->Arguments(TypeOfJson(word) != 0 ? std::string(word) : Quoted(word));
  place_ = Place::kAfter;
  return OnAfter(c, out);
}

GemmaArguments::Step GemmaArguments::OnAfter(char c, PartsWriter* out) {
  if (IsJsonBlank(c)) return Step::kMore;
  if (c == ',') {
    place_ = in_object() ? Place::kKey : Place::kValue;
    return Step::kMore;
  }
  return c == '}' || c == ']' ? CloseOne(c, out) : Step::kBroken;
}

void GemmaArguments::OnQuoted(char c, PartsWriter* out) {
  const bool is_end = quote_.Push(c, &released_) != MarkMatcher::kNone;
  if (is_key_) {
    word_ += released_;
  } else {
    std::string escaped;
    AppendJsonInside(released_, &escaped);
    if (is_end) escaped.push_back('"');
    out->Arguments(escaped);
  }
  if (is_end) EndText();
}

void GemmaArguments::OnJsonText(char c, PartsWriter* out) {
  const bool is_end = c == '"' && !is_escaped_;
  is_escaped_ = c == '\\' && !is_escaped_;
  if (!is_key_) {
    out->Arguments({&c, 1});
  } else if (!is_end) {
    word_.push_back(c);
  }
  if (is_end) EndText();
}

void GemmaArguments::EndText() { place_ = is_key_ ? Place::kColon : Place::kAfter; }

GemmaArguments::Step GemmaArguments::Open(char c, PartsWriter* out) {
  if (stack_.size() == kMaxDepth) return Step::kBroken;
  if (!stack_.empty()) BeginItem("", out);
  stack_.push_back(c);
  out->Arguments({&c, 1});
  is_first_ = true;
  place_ = c == '{' ? Place::kKey : Place::kValue;
  return Step::kMore;
}

// Parts an item of an array from the one before it, and writes how it begins.
void GemmaArguments::BeginItem(std::string_view begin, PartsWriter* out) {
  const bool is_later_item = !in_object() && !std::exchange(is_first_, false);
  if (is_later_item) out->Arguments(",");
  out->Arguments(begin);
}

GemmaArguments::Step GemmaArguments::CloseOne(char c, PartsWriter* out) {
  const char opened = stack_.back();
  if ((c == '}') != (opened == '{')) return Step::kBroken;
  stack_.pop_back();
  out->Arguments({&c, 1});
  is_first_ = false;
  place_ = Place::kAfter;
  return stack_.empty() ? Step::kDone : Step::kMore;
}

void GemmaArguments::AddKey(PartsWriter* out) {
  std::string member = std::exchange(is_first_, false) ? "" : ",";
  member += Quoted(WithoutLastJsonBlanks(word_));
  member.push_back(':');
  out->Arguments(member);
  place_ = Place::kValue;
}

GemmaParser::GemmaParser(const ToolRules& rules)
    : ToolParser(rules), open_(kOpenMarks), close_(kCloseMarks) {}

void GemmaParser::OnByte(char c) {
  switch (place_) {
    case Place::kText: {
      const int found = open_.Push(c, &released_);
      out_.Content(released_);
      if (found == MarkMatcher::kNone) return;
      markup_ = kOpenMarks[found];
      name_.clear();
      place_ = Place::kName;
      return;
    }
    case Place::kName:
      return OnName(c);
    case Place::kArguments: {
      const GemmaArguments::Step step = arguments_.Push(c, &out_);
      if (step == GemmaArguments::Step::kMore) return;
      place_ = Place::kClosing;
      if (step == GemmaArguments::Step::kBroken) OnClosing(c);
      return;
    }
    case Place::kClosing:
      return OnClosing(c);
  }
}

void GemmaParser::OnName(char c) {
  const bool has_prefix = name_.size() > kCall.size();
  if (c == '{' && has_prefix) {
    out_.BeginCall(name_.substr(kCall.size()));
    arguments_.Start(&out_);
    place_ = Place::kArguments;
    return;
  }
  name_.push_back(c);
  const std::string_view part = name_;
  const bool fits = part.size() <= kCall.size()
                        ? kCall.starts_with(part)
                        : part.size() < kMaxGemmaName && c != '<' && c != '{' && !IsJsonBlank(c);
  if (fits) return;
  name_.pop_back();
  out_.Content(std::exchange(markup_, {}));
  out_.Content(std::exchange(name_, {}));
  place_ = Place::kText;
  OnByte(c);
}

// After a call, whole or broken: blanks and a brace too many are dropped, other text is content.
void GemmaParser::OnClosing(char c) {
  const bool was_inside = close_.is_inside();
  const int found = close_.Push(c, &released_);
  if (found != MarkMatcher::kNone) {
    place_ = Place::kText;
    return;
  }
  const bool is_text = !released_.empty() && (was_inside || (!IsJsonBlank(c) && c != '}'));
  if (!is_text) return;
  place_ = Place::kText;
  const std::string rest = released_ + close_.Release();
  for (const char byte : rest) OnByte(byte);
}

void GemmaParser::OnEnd(bool /*is_cut*/) {
  if (place_ == Place::kText) return out_.Content(open_.Release());
  if (place_ == Place::kName) {
    out_.Content(markup_);
    out_.Content(name_);
  }
}

}  // namespace baton::text
