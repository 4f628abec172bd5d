// Tool calls in the text of an answer, in each style: what is read does not depend on how the text
// was cut, nothing of it is lost, and each call begins with its name.
#include <memory>
#include <string>
#include <vector>

#include "src/text/tools/tool_parser.h"
#include "src/text/tools/tool_style.h"
#include "src/text/utf8.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using namespace text;  // NOLINT(google-build-using-namespace)

namespace {

// All parts of one answer.
struct Read {
  std::string reasoning;
  std::string content;
  std::string calls;  // each begins with "\x01NAME\x02"
  uint32_t num_calls = 0;
  friend bool operator==(const Read&, const Read&) = default;
};

void CheckWhole(std::string_view piece) {
  BATON_CHECK(ValidUtf8Prefix(piece) == piece.size(), "half a character");
}

void Add(const ToolParts& parts, Read* all) {
  CheckWhole(parts.reasoning);
  CheckWhole(parts.content);
  all->reasoning += parts.reasoning;
  all->content += parts.content;
  for (const CallPiece& piece : parts.calls) {
    CheckWhole(piece.name);
    CheckWhole(piece.arguments);
    if (!piece.name.empty()) {
      BATON_CHECK(piece.index == all->num_calls, "call {} begins after {}", piece.index,
                  all->num_calls);
      BATON_CHECK(piece.arguments.empty(), "a call begins with more than its name");
      ++all->num_calls;
      all->calls += '\x01' + piece.name + '\x02';
      continue;
    }
    BATON_CHECK(piece.index + 1 == all->num_calls, "a piece of call {} of {}", piece.index,
                all->num_calls);
    all->calls += piece.arguments;
  }
}

Read ReadAll(ToolStyle style, const ToolRules& rules, const std::vector<std::string_view>& pieces) {
  const std::unique_ptr<ToolParser> parser = ToolParser::Create(style, rules);
  Read all;
  for (const std::string_view piece : pieces) Add(parser->Push(piece), &all);
  Add(parser->Flush(), &all);
  BATON_CHECK(parser->num_calls() == all.num_calls, "{} calls are counted, {} were given",
              parser->num_calls(), all.num_calls);
  return all;
}

// Whole characters, as the detokenizer gives them.
std::string WholeCharacters(std::string_view bytes) {
  Utf8Stream stream;
  std::string out;
  stream.Push(bytes, &out);
  stream.Finish(&out);
  return out;
}

// The text's characters in pieces of a few.
std::vector<std::string_view> CutCharacters(std::string_view text, size_t max_piece) {
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  size_t end = 0;
  for (const std::string_view piece : CutPieces(text, max_piece)) {
    end += piece.size();
    if (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) continue;
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

const std::vector<ToolShape>& Functions() {
  static const std::vector<ToolShape> functions = {{"f",
                                                    {{"city", kJsonText},
                                                     {"n", kJsonNumber},
                                                     {"o", kJsonObject},
                                                     {"any", 0},
                                                     {"flag", kJsonBool},
                                                     {"maybe", kJsonText | kJsonNull}}},
                                                   {"g", {}}};
  return functions;
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(tool_parser) {
  using namespace baton::fuzz;  // NOLINT: the whole target
  ByteSource source(input);
  const auto style =
      static_cast<ToolStyle>(source.Below(1 + static_cast<uint32_t>(ToolStyle::kGeneric)));
  const size_t max_piece = 1 + source.Below(8);
  ToolRules rules{.functions = Functions()};
  if (source.Flag()) rules.max_calls = 1 + source.Below(3);
  const std::string text = WholeCharacters(TextOf(source.rest()));
  const Read whole = ReadAll(style, rules, {text});
  BATON_CHECK(whole == ReadAll(style, rules, CutCharacters(text, max_piece)),
              "{} bytes in style {} in one piece, and in many", text.size(), ToolStyleName(style));
  BATON_CHECK(whole.num_calls <= rules.max_calls, "{} calls", whole.num_calls);
  // Markup that is no call comes back as it was; only channels have marks of their own.
  if (style != ToolStyle::kHarmony && whole.num_calls == 0) {
    BATON_CHECK(whole.content == text, "{} bytes became {}", text.size(), whole.content.size());
  }
}
