// Tools inside the API: what a request says of them, how the text of an answer becomes calls, and
// the names that calls get. Plain values; any thread.
//
// Every surface (chat, Messages, Responses, Ollama, gRPC) uses the same forms:
//  - Offered tools: OpenAI's JSON through StoreTools, StoreToolChoice and StoreParallelToolCalls
//    (tool_params.h), which fill ApiParams::tools and the template's variable `tools`.
//  - A message of role "tool": a text::ChatMessage with the member `tool_call_id`.
//  - An assistant message with calls: a text::ChatMessage with the member `tool_calls`, as
//    ReadToolCalls (template_params.h) makes it: each call's arguments are an object.
//  - An answer: TokenText::tool_calls token by token, CollectedChoice::tool_calls as a whole.
#ifndef BATON_API_TOOL_CALLS_H_
#define BATON_API_TOOL_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/json_value.h"
#include "src/text/tools/tool_parser.h"
#include "src/text/tools/tool_style.h"

namespace baton::api {

// The part of one call that one token adds. The first delta of a call has its id and name and no
// arguments; later ones have a piece of the arguments alone. The pieces, joined, are the call's
// arguments.
struct ToolCallDelta {
  uint32_t index = 0;     // of the call within its choice, from 0 without gaps
  std::string id;         // "" after the first delta
  std::string name;       // "" after the first delta
  std::string arguments;  // "" in the first delta; whole characters
};

// One call of a whole answer.
struct ToolCall {
  std::string id;
  std::string name;
  // As the model wrote them: the text of a JSON object, unless the model broke it or its tokens
  // ran out.
  std::string arguments;
};

// The value of tool_choice.
enum class ToolChoice : uint8_t {
  kAuto,      // the model may call; also where the field is absent
  kNone,      // no call
  kRequired,  // one call or more
  kNamed,     // one call of the allowed function
};

// A function that the model may call.
struct ToolFunction {
  std::string name;
  JsonValue parameters;  // a JSON Schema; null = no arguments were declared
  bool strict = false;   // a call's arguments must follow the schema
};

// All that a request says of tools.
struct ToolParams {
  std::vector<ToolFunction> functions;  // names are unequal
  ToolChoice choice = ToolChoice::kAuto;
  // The functions that alone may be called, each with its place in the request; empty = all.
  // kNamed: the one that must be.
  std::map<std::string, size_t, std::less<>> allowed;
  bool parallel = true;                  // one choice may have several calls
  std::optional<text::ToolStyle> style;  // the request's own `tool_parser`; absent = the router's

  // The model may answer with a call.
  bool may_call() const { return !functions.empty() && choice != ToolChoice::kNone; }
  bool must_call() const { return choice == ToolChoice::kRequired || choice == ToolChoice::kNamed; }
  bool is_allowed(std::string_view name) const { return allowed.empty() || allowed.contains(name); }
};

// How the calls of an answer are read.
struct ToolReading {
  text::ToolStyle style = text::ToolStyle::kNone;
  bool demands_call = false;                          // nothing but calls may stand in the answer
  text::ToolStyle id_style = text::ToolStyle::kNone;  // of ToolCallId
  text::ToolRules rules;
};

// The id of a call: the same for the same answer, choice and index. Mistral's templates take ids of
// nine letters and digits alone; all others get "call_" and 24 of them.
std::string ToolCallId(std::string_view answer_id, uint32_t choice, uint32_t index,
                       text::ToolStyle style);

}  // namespace baton::api

#endif  // BATON_API_TOOL_CALLS_H_
