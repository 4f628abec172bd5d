// Calls between "<tool_call>" and "</tool_call>": JSON objects (Hermes, Qwen 2.5 and 3) or
// "<function=NAME><parameter=KEY>VALUE</parameter></function>" (Qwen3-Coder, Qwen 3.5, Nemotron 3).
// One thread.
#ifndef BATON_TEXT_TOOLS_TAGGED_PARSER_H_
#define BATON_TEXT_TOOLS_TAGGED_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "src/text/tools/json_call.h"
#include "src/text/tools/mark_matcher.h"
#include "src/text/tools/tool_parser.h"

namespace baton::text {

// Reads what follows "<function=": the name, then parameters whose values become JSON by the types
// of their schema. A parameter that is a text streams; other values are given when they end. A
// closing tag within a string of such a JSON value is a part of the string. Where the string turns
// out to be none, the closing tag was one, and no later string of the answer is believed.
class XmlCall {
 public:
  enum class Step : uint8_t { kMore, kFunctionEnd, kCallEnd, kBroken };

  explicit XmlCall(const ToolRules& rules);

  void Start();
  Step Push(char c, PartsWriter* out);
  bool has_begun() const { return place_ != Place::kName; }
  // The bytes of a name that has not ended.
  const std::string& held() const { return name_; }
  // No text follows. True: a value has ended now, and there are bytes to take.
  bool EndText(PartsWriter* out);
  // Takes the bytes that must be read again, after the end of a value that was found late.
  std::string TakeUnread() { return std::exchange(unread_, {}); }

 private:
  enum class Place : uint8_t { kName, kBetween, kKey, kValue };

  Step OnName(char c, PartsWriter* out);
  Step OnBetween(char c, PartsWriter* out);
  Step OnKey(char c, PartsWriter* out);
  void OnValue(char c, PartsWriter* out);
  void AddToValue(std::string_view text, PartsWriter* out);
  void EndValue(PartsWriter* out);
  void EndAtFirstMark(PartsWriter* out);
  void WatchString(char c);

  const ToolRules& rules_;
  const ToolShape* function_ = nullptr;
  Place place_ = Place::kName;
  MarkMatcher between_;
  MarkMatcher value_end_;
  std::string name_;
  std::string key_;
  std::string value_;  // of a parameter that is no text
  std::string released_;
  uint8_t types_ = 0;
  bool streams_ = false;         // the value is a text
  bool at_value_start_ = false;  // one line break after the tag is no part of the value
  bool holds_break_ = false;     // nor is one before the closing tag

  // Strings of a value that is JSON. They are watched from its first byte, unless that begins none.
  enum class Strings : uint8_t { kNotWatched, kBefore, kOutside, kInside, kEscaped };
  Strings strings_ = Strings::kNotWatched;
  bool believes_strings_ = true;         // false: one of this answer was none
  std::optional<size_t> value_at_mark_;  // bytes of `value_` before a closing tag in a string
  std::string after_mark_;               // the text after that tag
  std::string unread_;
  uint32_t num_parameters_ = 0;
};

// kQwen3Coder also takes "<function=" without "<tool_call>" before it.
class TaggedParser final : public ToolParser {
 public:
  TaggedParser(ToolStyle style, const ToolRules& rules);
  bool in_call() const override { return place_ != Place::kText; }

 private:
  enum class Place : uint8_t {
    kText,
    kOpened,  // after "<tool_call>": blanks, and perhaps a part of "<function="
    kJson,
    kXml,
    kClosing,  // after a call: blanks and "</tool_call>"
  };

  void OnByte(char c) override;
  void OnEnd(bool is_cut) override;
  void OnText(char c);
  void OnOpened(char c);
  void OnJson(char c);
  void OnXml(char c);
  void OnClosing(char c);
  void BeginXml();
  void GiveBack(std::string_view more);

  JsonCall json_;
  XmlCall xml_;
  MarkMatcher text_marks_;
  MarkMatcher function_mark_;
  MarkMatcher closing_marks_;
  Place place_ = Place::kText;
  std::string markup_;  // since "<tool_call>", before a call has begun
  std::string released_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_TAGGED_PARSER_H_
