// Calls as the whole answer: JSON objects, one after the other or in an array (kGeneric), and those
// of Llama 3, whose first may stand after "<|python_tag|>". One thread.
#ifndef BATON_TEXT_TOOLS_BARE_JSON_PARSER_H_
#define BATON_TEXT_TOOLS_BARE_JSON_PARSER_H_

#include <string>

#include "src/text/tools/json_call.h"
#include "src/text/tools/mark_matcher.h"
#include "src/text/tools/tool_parser.h"

namespace baton::text {

// Without a mark an object at the beginning of the answer is a call only if it names a function
// that was offered; between objects there may be blanks, ',' and ';'.
class BareJsonParser final : public ToolParser {
 public:
  BareJsonParser(ToolStyle style, const ToolRules& rules);
  bool in_call() const override { return place_ == Place::kJson; }

 private:
  enum class Place : uint8_t {
    kStart,  // blanks and marks so far
    kArray,  // after a '[' at the beginning
    kJson,   // inside of an object
    kNext,   // after an object that is a call
    kText,   // content to the end
  };

  void OnByte(char c) override;
  void OnEnd(bool is_cut) override;
  void OnStart(char c);
  void OnJson(char c);
  void OnNext(char c);
  void OnText(char c);
  void BeginObject();
  // Gives out the text that was held back as content; what follows is content too.
  void GiveBack();

  JsonCall call_;
  MarkMatcher mark_;
  Place place_ = Place::kStart;
  CallTrust trust_ = CallTrust::kUnmarked;
  std::string markup_;  // before an object
  std::string released_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_BARE_JSON_PARSER_H_
