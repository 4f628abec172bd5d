// Calls of Mistral's models after "[TOOL_CALLS]": an array of JSON objects (to Nemo and Small 3.1),
// or NAME[ARGS]{..}, NAME[CALL_ID]ID[ARGS]{..} and NAME{..} (later ones). One thread.
#ifndef BATON_TEXT_TOOLS_MISTRAL_PARSER_H_
#define BATON_TEXT_TOOLS_MISTRAL_PARSER_H_

#include <string>

#include "src/text/tools/json_call.h"
#include "src/text/tools/mark_matcher.h"
#include "src/text/tools/tool_parser.h"

namespace baton::text {

// See the file comment.
class MistralParser final : public ToolParser {
 public:
  explicit MistralParser(const ToolRules& rules);
  bool in_call() const override { return place_ != Place::kText && place_ != Place::kNext; }

 private:
  enum class Place : uint8_t {
    kText,
    kOpened,     // after the mark
    kArray,      // in the array, before an object
    kJson,       // in an object
    kName,       // in a name
    kNameMark,   // in "[ARGS]" or "[CALL_ID]"
    kCallId,     // in the model's own id of the call, up to its '['
    kArgsStart,  // before the '{' of the arguments
    kArgs,
    kNext,  // after arguments: blanks, ',' and the mark
  };

  void OnByte(char c) override;
  void OnEnd(bool is_cut) override;
  void OnText(char c);
  void OnOpened(char c);
  void OnArray(char c);
  void OnJson(char c);
  void OnName(char c);
  void OnNameMark(char c);
  void OnArgs(char c);
  void BeginArgs();
  void GiveBack(char c);

  JsonCall json_;
  JsonNesting nesting_;
  MarkMatcher mark_;
  Place place_ = Place::kText;
  bool has_array_ = false;  // objects stand in an array
  bool has_call_ = false;   // one of them at least is a call
  std::string markup_;      // since "[TOOL_CALLS]", before a call has begun
  std::string name_;
  std::string word_;  // in brackets after the name
  std::string released_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_MISTRAL_PARSER_H_
