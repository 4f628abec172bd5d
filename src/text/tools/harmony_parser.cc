#include "src/text/tools/harmony_parser.h"

#include <string_view>
#include <utility>

#include "src/text/tools/json_bytes.h"

namespace baton::text {
namespace {

constexpr size_t kMaxHeaderBytes = 512;
enum HarmonyMark { kStart, kChannel, kMessage, kConstrain, kEnd, kCallEnd, kReturn };
constexpr std::string_view kHarmonyMarks[] = {"<|start|>",     "<|channel|>", "<|message|>",
                                              "<|constrain|>", "<|end|>",     "<|call|>",
                                              "<|return|>"};
constexpr std::string_view kFunctions = "functions.";

// The word of `header` after `mark`, up to a blank or another mark; "" without the mark.
std::string_view WordAfter(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + mark.size());
  size_t size = 0;
  while (size < header.size() && header[size] != '<' && !IsJsonBlank(header[size])) ++size;
  return header.substr(0, size);
}

}  // namespace

HarmonyParser::HarmonyParser(const ToolRules& rules) : ToolParser(rules), marks_(kHarmonyMarks) {}

void HarmonyParser::OnByte(char c) {
  const int mark = marks_.Push(c, &released_);
  AddBytes(released_);
  if (mark != MarkMatcher::kNone) OnMark(mark);
}

void HarmonyParser::AddBytes(const std::string& bytes) {
  if (bytes.empty()) return;
  if (place_ == Place::kHeader) {
    header_ += bytes;
    // A header is short. Text without one comes from a model that does not know channels.
    const bool is_text = is_first_ && header_.find_first_not_of(" \t\r\n") == 0 &&
                         !std::string_view(header_).starts_with("to=") &&
                         !std::string_view("to=").starts_with(header_) &&
                         !std::string_view("assistant").starts_with(header_) &&
                         !std::string_view(header_).starts_with("assistant");
    if (!is_text && header_.size() <= kMaxHeaderBytes) return;
    place_ = Place::kBody;
    body_ = Body::kContent;
    out_.Content(std::exchange(header_, {}));
    return;
  }
  is_empty_ = false;
  if (body_ == Body::kCall) out_.Arguments(bytes);
  if (body_ == Body::kThoughts) out_.Reasoning(bytes);
  if (body_ == Body::kContent) out_.Content(bytes);
}

void HarmonyParser::OnMark(int mark) {
  is_first_ = false;
  if (place_ == Place::kBody) {
    EndBody();
    place_ = Place::kHeader;
    header_.clear();
  }
  if (mark == kMessage) return BeginBody();
  if (mark == kChannel || mark == kConstrain) {
    header_ += kHarmonyMarks[mark];
  } else {
    header_.clear();
  }
}

void HarmonyParser::BeginBody() {
  const std::string_view to = WordAfter(header_, "to=");
  place_ = Place::kBody;
  is_empty_ = true;
  body_ = WordAfter(header_, "<|channel|>") == "analysis" ? Body::kThoughts : Body::kContent;
  if (to.starts_with(kFunctions) && to.size() > kFunctions.size()) {
    body_ = Body::kCall;
    out_.BeginCall(std::string(to.substr(kFunctions.size())));
  }
  header_.clear();
}

void HarmonyParser::EndBody() {
  if (body_ == Body::kCall && is_empty_) out_.Arguments("{}");
}

void HarmonyParser::OnEnd(bool is_cut) {
  AddBytes(marks_.Release());
  if (place_ == Place::kBody) {
    if (!is_cut) EndBody();  // a call that was cut may have had arguments
    return;
  }
  // A header that was cut off says nothing; text without a mark is content.
  if (is_first_) out_.Content(header_);
}

}  // namespace baton::text
