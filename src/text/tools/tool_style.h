// How models write tool calls into their text: one style for each family. Plain values; any thread.
#ifndef BATON_TEXT_TOOLS_TOOL_STYLE_H_
#define BATON_TEXT_TOOLS_TOOL_STYLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace baton::text {

// The markup of calls.
enum class ToolStyle : uint8_t {
  kNone,        // none: all text is content
  kHermes,      // <tool_call>{"name": .., "arguments": {..}}</tool_call>: Hermes, Qwen 2.5 and 3
  kQwen3Coder,  // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
  kLlama3,   // {"name": .., "parameters": {..}} as the whole answer, perhaps after <|python_tag|>
  kGemma,    // call:NAME{key:<escape>text<escape>} between FunctionGemma's or Gemma 4's marks
  kMistral,  // [TOOL_CALLS][{"name": .., "arguments": {..}}], or [TOOL_CALLS]NAME[ARGS]{..}
  kHarmony,  // channels of gpt-oss: "commentary to=functions.NAME"; "analysis" is thoughts
  kGeneric,  // {"name": .., "arguments": {..}} or an array of them as the whole answer
};

// "none", "hermes", "qwen3_coder", "llama3", "gemma", "mistral", "harmony", "generic".
std::string_view ToolStyleName(ToolStyle style);
// The style of that name; "auto" and unknown names have none.
std::optional<ToolStyle> FindToolStyle(std::string_view name);

// The style that a chat template teaches its model, by the marks in its text; kNone where the
// template shows no tools, or calls in a markup that is not read here.
ToolStyle ToolStyleOf(std::string_view template_source);

// The texts of control tokens that are a part of the markup. An answer that is read in this style
// keeps their text; other control tokens have none.
std::span<const std::string_view> ToolMarks(ToolStyle style);
// The texts of control tokens that end an answer with calls, besides those that end any answer.
std::span<const std::string_view> ToolStops(ToolStyle style);

}  // namespace baton::text

#endif  // BATON_TEXT_TOOLS_TOOL_STYLE_H_
