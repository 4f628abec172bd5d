// Reads one call that is written as a JSON object: {"name": NAME, "arguments": {..}} with more
// members, in any order, "parameters" for "arguments", and arguments as the text of an object. One
// thread.
#ifndef BATON_TEXT_TOOLS_JSON_CALL_H_
#define BATON_TEXT_TOOLS_JSON_CALL_H_

#include <cstdint>
#include <string>
#include <utility>

#include "src/text/tools/json_bytes.h"
#include "src/text/tools/tool_parser.h"

namespace baton::text {

// The bytes that may be a call.
enum class CallTrust : uint8_t {
  kMarked,    // the markup says so: any name
  kUnmarked,  // perhaps an answer in JSON: a known name, and no members that calls do not have
};

// See the file comment. The call is given to the writer once its name is known and its arguments
// begin; until then its bytes are held back.
class JsonCall {
 public:
  // The state of the object after a byte.
  enum class Step : uint8_t {
    kMore,
    kDone,    // the object is closed; it is no call unless has_begun()
    kBroken,  // this byte cannot be part of a call, and was not taken
  };

  explicit JsonCall(const ToolRules& rules) : rules_(rules) {}

  // The byte before the next one was '{'.
  void Start(CallTrust trust);
  Step Push(char c, PartsWriter* out);

  bool has_begun() const { return has_begun_; }
  // The bytes so far of an object that has not begun, '{' included.
  std::string TakeHeld() { return std::exchange(held_, {}); }

 private:
  enum class Place : uint8_t {
    kKey,
    kInKey,
    kColon,
    kValue,
    kInName,
    kArgs,
    kArgsText,
    kWord,
    kSkip
  };

  Step OnByte(char c, PartsWriter* out);
  Step OnKeyPlace(char c, PartsWriter* out);
  Step OnValue(char c, PartsWriter* out);
  Step OnArguments(char c, PartsWriter* out);
  Step OnWord(char c, PartsWriter* out);
  Step OnSkipped(char c, PartsWriter* out);
  Step Close(PartsWriter* out);
  bool KnowsKey() const;
  // Gives the call if its name is known and its arguments have begun.
  bool TryBegin(PartsWriter* out);
  void AddArguments(std::string_view text, PartsWriter* out);

  const ToolRules& rules_;
  CallTrust trust_ = CallTrust::kMarked;
  Place place_ = Place::kKey;
  JsonText text_;
  JsonNesting nesting_;
  std::string key_;
  std::string name_;
  std::string word_;
  std::string arguments_;  // that came before the name
  std::string held_;
  bool has_name_ = false;
  bool has_arguments_ = false;
  bool has_begun_ = false;
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_JSON_CALL_H_
