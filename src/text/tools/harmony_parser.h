// Answers of gpt-oss, which are messages in channels: "analysis" is thoughts, "final" and
// "commentary" are content, and a message to "functions.NAME" is a call. One thread.
#ifndef BATON_TEXT_TOOLS_HARMONY_PARSER_H_
#define BATON_TEXT_TOOLS_HARMONY_PARSER_H_

#include <cstdint>
#include <string>

#include "src/text/tools/mark_matcher.h"
#include "src/text/tools/tool_parser.h"

namespace baton::text {

// A message is a header, "<|message|>", a body and "<|end|>", "<|call|>" or "<|return|>". The
// prompt ends within the first header. Text that has no header at all is content.
class HarmonyParser final : public ToolParser {
 public:
  explicit HarmonyParser(const ToolRules& rules);
  bool in_call() const override { return place_ == Place::kBody && body_ == Body::kCall; }
  bool in_reasoning() const override { return place_ == Place::kBody && body_ == Body::kThoughts; }

 private:
  enum class Place : uint8_t { kHeader, kBody };
  enum class Body : uint8_t { kContent, kThoughts, kCall };

  void OnByte(char c) override;
  void OnEnd(bool is_cut) override;
  void OnMark(int mark);
  void AddBytes(const std::string& bytes);
  void BeginBody();
  void EndBody();

  MarkMatcher marks_;
  Place place_ = Place::kHeader;
  Body body_ = Body::kContent;
  bool is_first_ = true;  // no mark yet
  bool is_empty_ = true;  // the body
  std::string header_;
  std::string released_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_HARMONY_PARSER_H_
