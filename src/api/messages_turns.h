// The fields `system` and `messages` of Anthropic's Messages API as turns of a chat. Pure; any
// thread.
//
// Parts of a request and the turns that they become:
//  - `system`: one turn of role "system" in front; its blocks are joined with a newline. The line
//    of billing data that coding agents put first changes with every request and is left out, so
//    that the rest stays a prefix that caches know.
//  - Messages of one role that follow each other: one turn.
//  - tool_result: a turn of role "tool" with `tool_call_id`, before the text of its message.
//  - tool_use and thinking: `tool_calls` and `reasoning_content` of the assistant's turn.
//  - A last message of the assistant: the answer continues it.
#ifndef BATON_API_MESSAGES_TURNS_H_
#define BATON_API_MESSAGES_TURNS_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/api/json_value.h"
#include "src/api/params.h"
#include "src/router/request_error.h"

namespace baton::api {

inline constexpr std::string_view kExpectedSystem =
    "a string or an array of blocks {\"type\":\"text\",\"text\":string}";
inline constexpr std::string_view kExpectedBlocks =
    "a string or an array of blocks of type text, tool_use, tool_result or thinking";

// `body`: the request, an object. Names what nobody reads in `ignored`. False: `error` names the
// field.
bool ReadMessagesTurns(const JsonValue& body, ApiParams* params, std::vector<std::string>* ignored,
                       router::RequestError* error);

// Without the line of billing data at the front, if there is one.
std::string_view WithoutBillingLine(std::string_view system);

}  // namespace baton::api

#endif  // BATON_API_MESSAGES_TURNS_H_
