// Reads tool calls out of the text of an answer, byte by byte. One thread at a time; the state is a
// pure function of the text pushed, so a resumed request rebuilds it by pushing the same text.
//
// 1. The parts, joined, do not depend on how the text was cut. Whole characters in, whole
//    characters out.
// 2. A call begins with a piece that has its name; pieces of its arguments follow, each as soon as
//    its bytes are there. Nothing is taken back.
// 3. Markup that turns out to be no call comes back as content, byte for byte.
// 4. Content is unchanged but for blanks beside calls: those before a call, those after the last
//    call, and those between a call and the first content are dropped.
// 5. Arguments of JSON styles are the model's own bytes; those of other styles are translated.
//    Nobody repairs JSON that the model broke.
#ifndef BATON_TEXT_TOOLS_TOOL_PARSER_H_
#define BATON_TEXT_TOOLS_TOOL_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/text/tools/tool_style.h"

namespace baton::text {

// The part of one call that a text adds: its name when it begins, else a piece of its arguments.
struct CallPiece {
  uint32_t index = 0;  // of the call, from 0 without gaps
  std::string name;
  std::string arguments;
};

// The text of an answer that may go to the client now.
struct ToolParts {
  std::string reasoning;  // kHarmony alone
  std::string content;
  std::vector<CallPiece> calls;
};

// Types that a JSON Schema allows, as bits; 0 = it does not say.
enum JsonTypes : uint8_t {
  kJsonText = 1,
  kJsonNumber = 2,
  kJsonBool = 4,
  kJsonNull = 8,
  kJsonObject = 16,
  kJsonArray = 32,
};

// The name and arguments of one function, as a parser knows them.
struct ToolShape {
  std::string name;
  // Each parameter with the types that its schema allows; for styles that write values as text.
  std::vector<std::pair<std::string, uint8_t>> parameters;
  bool is_allowed = true;  // false: its calls are dropped
};

// The functions that the model knows, and how often it may call.
struct ToolRules {
  std::vector<ToolShape> functions;
  uint32_t max_calls = UINT32_MAX;  // later calls are dropped

  const ToolShape* Find(std::string_view name) const;
};

// Collects the parts of one answer for a parser.
class PartsWriter {
 public:
  // `rules` outlives the writer.
  explicit PartsWriter(const ToolRules& rules) : rules_(rules) {}

  void Content(std::string_view text);
  void Reasoning(std::string_view text) { parts_.reasoning.append(text); }
  // Begins a call; Arguments adds to the latest.
  void BeginCall(std::string name);
  void Arguments(std::string_view text);
  // Forgets blanks that belonged to markup.
  void DropBlanks() { blanks_.clear(); }
  // No text follows.
  void Finish();

  ToolParts Take() { return std::exchange(parts_, {}); }
  uint32_t num_calls() const { return num_calls_; }

 private:
  const ToolRules& rules_;
  ToolParts parts_;
  std::string blanks_;        // content that is dropped if a call follows
  uint32_t num_calls_ = 0;    // given
  bool drops_call_ = false;   // the latest call is one too many, or not allowed
  bool has_content_ = false;  // more than blanks
};

// See the file comment. O(1) a byte.
class ToolParser {
 public:
  // `rules` outlives the parser. kNone gives a parser for which all text is content.
  static std::unique_ptr<ToolParser> Create(ToolStyle style, const ToolRules& rules);
  virtual ~ToolParser() = default;

  ToolParts Push(std::string_view text);
  // Returns what was held back, when no text follows. `is_cut`: the model would have gone on.
  ToolParts Flush(bool is_cut = false);

  uint32_t num_calls() const { return out_.num_calls(); }
  // The text so far ends within markup of a call.
  virtual bool in_call() const = 0;
  // The text so far ends in thoughts.
  virtual bool in_reasoning() const { return false; }

 protected:
  explicit ToolParser(const ToolRules& rules) : rules_(rules), out_(rules) {}

  virtual void OnByte(char c) = 0;
  virtual void OnEnd(bool is_cut) = 0;

  const ToolRules& rules_;
  PartsWriter out_;
};

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_TOOL_PARSER_H_
