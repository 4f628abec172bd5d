// Calls of FunctionGemma, <start_function_call>call:NAME{key:<escape>text<escape>,n:3}
// <end_function_call>, and of Gemma 4, <|tool_call>call:NAME{key:<|"|>text<|"|>,n:3}<tool_call|>.
// One thread.
#ifndef BATON_TEXT_TOOLS_GEMMA_PARSER_H_
#define BATON_TEXT_TOOLS_GEMMA_PARSER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "src/text/tools/json_bytes.h"
#include "src/text/tools/mark_matcher.h"
#include "src/text/tools/tool_parser.h"

namespace baton::text {

// Translates the arguments of one call to JSON, from their '{' on: keys get quotes, marked texts
// become strings, words that are no JSON too.
class GemmaArguments {
 public:
  enum class Step : uint8_t { kMore, kDone, kBroken };

  GemmaArguments();

  // The byte before the next one was '{'.
  void Start(PartsWriter* out);
  Step Push(char c, PartsWriter* out);

 private:
  enum class Place : uint8_t {
    kKey,       // before a key or the end of an object
    kInKey,     // in a key without quotes
    kColon,     // after a quoted key
    kValue,     // before a value or the end of an array
    kQuoted,    // in a marked text
    kJsonText,  // in a text with JSON's quotes
    kWord,      // in a number or a word
    kAfter,     // after a value
  };

  Step OnMark(char c, PartsWriter* out);
  Step OnKey(char c, PartsWriter* out);
  Step OnValue(char c, PartsWriter* out);
  Step OnAfter(char c, PartsWriter* out);
  Step OnWord(char c, PartsWriter* out);
  void OnQuoted(char c, PartsWriter* out);
  void OnJsonText(char c, PartsWriter* out);
  Step Open(char c, PartsWriter* out);
  Step CloseOne(char c, PartsWriter* out);
  void BeginItem(std::string_view begin, PartsWriter* out);
  void EndText();
  void AddKey(PartsWriter* out);
  bool in_object() const { return !stack_.empty() && stack_.back() == '{'; }

  MarkMatcher quote_;
  std::string stack_;  // brackets that are open
  std::string word_;
  std::string released_;
  Place place_ = Place::kKey;
  bool is_key_ = false;      // the text is a key
  bool is_first_ = true;     // nothing stands before the next member or item
  bool is_escaped_ = false;  // in kJsonText
};

// See the file comment.
class GemmaParser final : public ToolParser {
 public:
  explicit GemmaParser(const ToolRules& rules);
  bool in_call() const override { return place_ != Place::kText; }

 private:
  enum class Place : uint8_t { kText, kName, kArguments, kClosing };

  void OnByte(char c) override;
  void OnEnd(bool is_cut) override;
  void OnName(char c);
  void OnClosing(char c);

  MarkMatcher open_;
  MarkMatcher close_;
  GemmaArguments arguments_;
  Place place_ = Place::kText;
  std::string markup_;  // the opening mark
  std::string name_;    // "call:NAME" so far
  std::string released_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_GEMMA_PARSER_H_
