#include "src/text/tools/bare_json_parser.h"

#include <span>
#include <string_view>
#include <utility>

namespace baton::text {
namespace {

constexpr std::string_view kPythonTag[] = {"<|python_tag|>"};

}  // namespace

BareJsonParser::BareJsonParser(ToolStyle style, const ToolRules& rules)
    : ToolParser(rules),
      call_(rules),
      mark_(style == ToolStyle::kLlama3 ? std::span<const std::string_view>(kPythonTag)
                                        : std::span<const std::string_view>()) {}

void BareJsonParser::OnByte(char c) {
  switch (place_) {
    case Place::kStart:
    case Place::kArray:
      return OnStart(c);
    case Place::kJson:
      return OnJson(c);
    case Place::kNext:
      return OnNext(c);
    case Place::kText:
      return OnText(c);
  }
}

void BareJsonParser::OnStart(char c) {
  if (mark_.is_inside() || c == '<') return OnText(c);
  if (IsJsonBlank(c)) {
    if (markup_.empty()) return out_.Content({&c, 1});
    markup_.push_back(c);
  } else if (c == '{') {
    BeginObject();
  } else if (c == '[' && place_ == Place::kStart) {
    markup_.push_back(c);
    place_ = Place::kArray;
  } else {
    GiveBack();
    OnText(c);
  }
}

void BareJsonParser::OnJson(char c) {
  const JsonCall::Step step = call_.Push(c, &out_);
  if (step == JsonCall::Step::kMore) return;
  const bool is_taken = step == JsonCall::Step::kDone;
  if (call_.has_begun()) {
    place_ = Place::kNext;
  } else {
    GiveBack();
  }
  if (!is_taken) OnByte(c);
}

void BareJsonParser::OnNext(char c) {
  if (c == '{') return BeginObject();
  const bool is_between = IsJsonBlank(c) || c == ',' || c == ';' || c == ']';
  if (is_between) {
    markup_.push_back(c);
    return;
  }
  // A brace too many; models write it after nested arguments.
  if (c == '}') return;
  markup_.clear();
  place_ = Place::kText;
  OnText(c);
}

void BareJsonParser::OnText(char c) {
  const int found = mark_.Push(c, &released_);
  if (found != MarkMatcher::kNone) {
    markup_ += kPythonTag[0];
    trust_ = CallTrust::kMarked;
    place_ = Place::kStart;
    return;
  }
  if (released_.empty()) return;
  GiveBack();
  out_.Content(released_);
}

void BareJsonParser::BeginObject() {
  call_.Start(trust_);
  place_ = Place::kJson;
}

void BareJsonParser::GiveBack() {
  out_.Content(std::exchange(markup_, {}));
  if (place_ == Place::kJson) out_.Content(call_.TakeHeld());
  place_ = Place::kText;
  trust_ = CallTrust::kUnmarked;
}

void BareJsonParser::OnEnd(bool /*is_cut*/) {
  if (place_ == Place::kNext || (place_ == Place::kJson && call_.has_begun())) return;
  GiveBack();
  out_.Content(mark_.Release());
}

}  // namespace baton::text
