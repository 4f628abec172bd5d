#include "src/text/tools/tool_style.h"

#include <array>
#include <string_view>

namespace baton::text {
namespace {

struct StyleRow {
  ToolStyle style;
  std::string_view name;
};

constexpr std::array<StyleRow, 8> kStyles = {{
    {ToolStyle::kNone, "none"},
    {ToolStyle::kHermes, "hermes"},
    {ToolStyle::kQwen3Coder, "qwen3_coder"},
    {ToolStyle::kLlama3, "llama3"},
    {ToolStyle::kGemma, "gemma"},
    {ToolStyle::kMistral, "mistral"},
    {ToolStyle::kHarmony, "harmony"},
    {ToolStyle::kGeneric, "generic"},
}};

constexpr std::string_view kHermesMarks[] = {"<tool_call>", "</tool_call>"};
constexpr std::string_view kLlamaMarks[] = {"<|python_tag|>"};
constexpr std::string_view kGemmaMarks[] = {
    "<start_function_call>", "<end_function_call>", "<escape>",
    "<|tool_call>",          "<tool_call|>",        "<|\"|>"};
constexpr std::string_view kMistralMarks[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};
constexpr std::string_view kHarmonyMarks[] = {"<|start|>",     "<|channel|>", "<|message|>",
                                              "<|constrain|>", "<|end|>",     "<|call|>",
                                              "<|return|>"};
// A model that goes on after its calls would write the results itself.
constexpr std::string_view kGemmaStops[] = {"<start_function_response>", "<|tool_response>"};

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::string_view ToolStyleName(ToolStyle style) {
  for (const StyleRow& row : kStyles) {
    if (row.style == style) return row.name;
  }
  return "";
}

std::optional<ToolStyle> FindToolStyle(std::string_view name) {
  for (const StyleRow& row : kStyles) {
    if (row.name == name) return row.style;
  }
  return std::nullopt;
}

ToolStyle ToolStyleOf(std::string_view source) {
  if (Has(source, "<|channel|>") && Has(source, "functions.")) return ToolStyle::kHarmony;
  if (!Has(source, "tools") && !Has(source, "tool_calls")) return ToolStyle::kNone;
  if (Has(source, "[TOOL_CALLS]")) return ToolStyle::kMistral;
  if (Has(source, "<start_function_call>") || Has(source, "<|tool_call>call:")) {
    return ToolStyle::kGemma;
  }
  if (Has(source, "<tool_call>")) {
    const bool is_xml = Has(source, "<function=") && Has(source, "<parameter=");
    // GLM and MiniMax write keys and values in tags of their own, Apriel one list of all calls:
    // nobody reads those here.
    const bool is_other = Has(source, "<arg_key>") || Has(source, "<tool_calls>[");
    if (!is_xml && is_other) return ToolStyle::kNone;
    if (is_xml) return ToolStyle::kQwen3Coder;
    return Has(source, "\"arguments\"") ? ToolStyle::kHermes : ToolStyle::kNone;
  }
  const bool is_llama = Has(source, "<|start_header_id|>") && Has(source, "\"parameters\": ");
  return is_llama ? ToolStyle::kLlama3 : ToolStyle::kNone;
}

std::span<const std::string_view> ToolMarks(ToolStyle style) {
  switch (style) {
    case ToolStyle::kHermes:
    case ToolStyle::kQwen3Coder:
      return kHermesMarks;
    case ToolStyle::kLlama3:
      return kLlamaMarks;
    case ToolStyle::kGemma:
      return kGemmaMarks;
    case ToolStyle::kMistral:
      return kMistralMarks;
    case ToolStyle::kHarmony:
      return kHarmonyMarks;
    case ToolStyle::kNone:
    case ToolStyle::kGeneric:
      break;
  }
  return {};
}

std::span<const std::string_view> ToolStops(ToolStyle style) {
  if (style == ToolStyle::kGemma) return kGemmaStops;
  return {};
}

}  // namespace baton::text
