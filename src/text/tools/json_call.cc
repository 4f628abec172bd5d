#include "src/text/tools/json_call.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace baton::text {

void JsonCall::Start(CallTrust trust) {
  trust_ = trust;
  place_ = Place::kKey;
  key_.clear();
  name_.clear();
  arguments_.clear();
  held_ = "{";
  has_name_ = has_arguments_ = has_begun_ = false;
}

JsonCall::Step JsonCall::Push(char c, PartsWriter* out) {
  const Step step = OnByte(c, out);
  if (has_begun_) {
    held_.clear();
  } else if (step != Step::kBroken) {
    held_.push_back(c);
  }
  return step;
}

JsonCall::Step JsonCall::OnByte(char c, PartsWriter* out) {
  switch (place_) {
    case Place::kKey:
      return OnKeyPlace(c, out);
    case Place::kInKey:
      if (!text_.Push(c, &key_)) return Step::kMore;
      place_ = Place::kColon;
      return trust_ == CallTrust::kUnmarked && !has_begun_ && !KnowsKey() ? Step::kBroken
                                                                          : Step::kMore;
    case Place::kColon:
      if (c == ':') place_ = Place::kValue;
      return c == ':' || IsJsonBlank(c) ? Step::kMore : Step::kBroken;
    case Place::kValue:
      return OnValue(c, out);
    case Place::kInName:
      if (!text_.Push(c, &name_)) return Step::kMore;
      has_name_ = !name_.empty();
      place_ = Place::kKey;
      if (trust_ == CallTrust::kUnmarked && rules_.Find(name_) == nullptr) return Step::kBroken;
      TryBegin(out);
      return has_name_ ? Step::kMore : Step::kBroken;
    case Place::kArgs:
    case Place::kArgsText:
      return OnArguments(c, out);
    case Place::kWord:
      return OnWord(c, out);
    case Place::kSkip:
      return OnSkipped(c, out);
  }
  return Step::kBroken;
}

JsonCall::Step JsonCall::OnKeyPlace(char c, PartsWriter* out) {
  if (IsJsonBlank(c) || c == ',') return Step::kMore;
  if (c == '}') return Close(out);
  if (c != '"') return Step::kBroken;
  key_.clear();
  text_.Reset();
  place_ = Place::kInKey;
  return Step::kMore;
}

JsonCall::Step JsonCall::OnValue(char c, PartsWriter* out) {
  if (IsJsonBlank(c)) return Step::kMore;
  text_.Reset();
  nesting_.Reset();
  if (key_ == "name" && !has_name_) {
    place_ = Place::kInName;
    return c == '"' ? Step::kMore : Step::kBroken;
  }
  const bool is_arguments = !has_arguments_ && (key_ == "arguments" || key_ == "parameters");
  if (!is_arguments) {
    place_ = Place::kSkip;
    return OnSkipped(c, out);
  }
  if (c == '{') {
    place_ = Place::kArgs;
  } else if (c == '"') {
    place_ = Place::kArgsText;
  } else {
    word_.clear();
    place_ = Place::kWord;
    return OnWord(c, out);
  }
  has_arguments_ = true;
  TryBegin(out);
  if (c == '{') OnArguments(c, out);
  return Step::kMore;
}

JsonCall::Step JsonCall::OnArguments(char c, PartsWriter* out) {
  if (place_ == Place::kArgsText) {
    std::string decoded;
    if (text_.Push(c, &decoded)) place_ = Place::kKey;
    AddArguments(decoded, out);
    return Step::kMore;
  }
  if (!nesting_.Push(c)) return Step::kBroken;
  AddArguments({&c, 1}, out);
  if (nesting_.is_closed()) place_ = Place::kKey;
  return Step::kMore;
}

// null, which models write for functions without arguments; any other word breaks the call.
JsonCall::Step JsonCall::OnWord(char c, PartsWriter* out) {
  constexpr std::string_view kNull = "null";
  word_.push_back(c);
  if (!kNull.starts_with(word_)) return Step::kBroken;
  if (word_ != kNull) return Step::kMore;
  has_arguments_ = true;
  place_ = Place::kKey;
  TryBegin(out);
  AddArguments("{}", out);
  return Step::kMore;
}

JsonCall::Step JsonCall::OnSkipped(char c, PartsWriter* out) {
  if (nesting_.is_closed() && c == '}') return Close(out);
  if (nesting_.is_closed() && c == ',') {
    place_ = Place::kKey;
    return Step::kMore;
  }
  return nesting_.Push(c) ? Step::kMore : Step::kBroken;
}

JsonCall::Step JsonCall::Close(PartsWriter* out) {
  if (!has_name_ || has_begun_) return Step::kDone;
  has_arguments_ = true;
  TryBegin(out);
  AddArguments("{}", out);
  return Step::kDone;
}

bool JsonCall::KnowsKey() const {
  constexpr std::array<std::string_view, 5> kKeys = {"name", "arguments", "parameters", "type",
                                                     "id"};
  return std::find(kKeys.begin(), kKeys.end(), key_) != kKeys.end();
}

bool JsonCall::TryBegin(PartsWriter* out) {
  if (has_begun_ || !has_name_ || !has_arguments_) return has_begun_;
  has_begun_ = true;
  out->BeginCall(name_);
  if (!arguments_.empty()) out->Arguments(arguments_);
  return true;
}

void JsonCall::AddArguments(std::string_view text, PartsWriter* out) {
  if (has_begun_) {
    out->Arguments(text);
  } else {
    arguments_.append(text);
  }
}

}  // namespace baton::text
