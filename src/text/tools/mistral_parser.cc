#include "src/text/tools/mistral_parser.h"

#include <string_view>
#include <utility>

#include "src/base/ascii_text.h"

namespace baton::text {
namespace {

constexpr size_t kMaxMistralName = 256;
constexpr std::string_view kToolCalls[] = {"[TOOL_CALLS]"};

}  // namespace

MistralParser::MistralParser(const ToolRules& rules)
    : ToolParser(rules), json_(rules), mark_(kToolCalls) {}

void MistralParser::OnByte(char c) {
  switch (place_) {
    case Place::kText:
    case Place::kNext:
      return OnText(c);
    case Place::kOpened:
      return OnOpened(c);
    case Place::kArray:
      return OnArray(c);
    case Place::kJson:
      return OnJson(c);
    case Place::kName:
      return OnName(c);
    case Place::kNameMark:
    case Place::kCallId:
      return OnNameMark(c);
    case Place::kArgsStart:
    case Place::kArgs:
      return OnArgs(c);
  }
}

void MistralParser::OnText(char c) {
  const bool is_separator = place_ == Place::kNext && c == ',' && !mark_.is_inside();
  if (is_separator) return;
  const int found = mark_.Push(c, &released_);
  if (found != MarkMatcher::kNone) {
    markup_ = kToolCalls[0];
    name_.clear();
    has_array_ = has_call_ = false;
    place_ = Place::kOpened;
    return;
  }
  out_.Content(released_);
  const bool is_text = !released_.empty() && !IsJsonBlank(c);
  if (is_text) place_ = Place::kText;
}

void MistralParser::OnOpened(char c) {
  if (c != '{' && !IsNameByte(c)) {
    const bool goes_on = IsJsonBlank(c) || c == '[';
    if (!goes_on) return GiveBack(c);
    markup_.push_back(c);
    if (c == '[') {
      has_array_ = true;
      place_ = Place::kArray;
    }
    return;
  }
  if (c == '{') {
    json_.Start(CallTrust::kMarked);
    place_ = Place::kJson;
    return;
  }
  place_ = Place::kName;
  OnName(c);
}

void MistralParser::OnArray(char c) {
  if (c == '{') {
    json_.Start(CallTrust::kMarked);
    place_ = Place::kJson;
    return;
  }
  const bool is_between = IsJsonBlank(c) || c == ',';
  if (is_between) {
    if (!has_call_) markup_.push_back(c);
  } else if (c == ']' && has_call_) {
    place_ = Place::kNext;
  } else {
    GiveBack(c);
  }
}

void MistralParser::OnJson(char c) {
  const JsonCall::Step step = json_.Push(c, &out_);
  if (step == JsonCall::Step::kMore) return;
  if (!json_.has_begun()) {
    markup_ += json_.TakeHeld();
    place_ = Place::kText;
    out_.Content(std::exchange(markup_, {}));
  } else {
    markup_.clear();
    has_call_ = true;
    const bool goes_on = has_array_ && step == JsonCall::Step::kDone;
    place_ = goes_on ? Place::kArray : Place::kNext;
  }
  if (step == JsonCall::Step::kBroken) OnByte(c);
}

void MistralParser::OnName(char c) {
  if (c == '{') return OnArgs(c);
  if (c == '[') {
    markup_.push_back(c);
    word_.clear();
    place_ = Place::kNameMark;
    return;
  }
  const bool is_name = IsNameByte(c) && name_.size() < kMaxMistralName;
  if (!is_name && !IsJsonBlank(c)) return GiveBack(c);
  markup_.push_back(c);
  if (is_name) name_.push_back(c);
  if (!is_name) place_ = Place::kArgsStart;
}

void MistralParser::OnNameMark(char c) {
  if (place_ == Place::kCallId) {
    if (c != '[' && !IsNameByte(c)) return GiveBack(c);
    markup_.push_back(c);
    word_.clear();
    if (c == '[') place_ = Place::kNameMark;
    return;
  }
  if (c != ']') {
    const bool fits = IsNameByte(c) && word_.size() < kMaxMistralName;
    if (!fits) return GiveBack(c);
    markup_.push_back(c);
    word_.push_back(c);
  } else if (word_ == "ARGS") {
    markup_.push_back(c);
    place_ = Place::kArgsStart;
  } else if (word_ == "CALL_ID") {
    markup_.push_back(c);
    place_ = Place::kCallId;
  } else {
    GiveBack(c);
  }
}

void MistralParser::OnArgs(char c) {
  if (place_ != Place::kArgs) {
    if (IsJsonBlank(c)) {
      markup_.push_back(c);
      return;
    }
    if (c != '{' || name_.empty()) return GiveBack(c);
    BeginArgs();
  }
  if (!nesting_.Push(c)) {
    place_ = Place::kNext;
    return OnByte(c);
  }
  out_.Arguments({&c, 1});
  if (nesting_.is_closed()) place_ = Place::kNext;
}

void MistralParser::BeginArgs() {
  markup_.clear();
  out_.BeginCall(name_);
  nesting_.Reset();
  place_ = Place::kArgs;
}

// `c` cannot stand here: the markup was none, or its end is missing.
void MistralParser::GiveBack(char c) {
  out_.Content(std::exchange(markup_, {}));
  place_ = Place::kText;
  OnText(c);
}

void MistralParser::OnEnd(bool /*is_cut*/) {
  if (place_ == Place::kJson && !json_.has_begun()) markup_ += json_.TakeHeld();
  out_.Content(std::exchange(markup_, {}));
  out_.Content(mark_.Release());
}

}  // namespace baton::text
