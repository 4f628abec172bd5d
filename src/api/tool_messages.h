// Tools for models whose chat template knows none: the functions stand in the system message, and
// calls and their results in the texts of turns. Pure; any thread.
#ifndef BATON_API_TOOL_MESSAGES_H_
#define BATON_API_TOOL_MESSAGES_H_

#include <vector>

#include "src/api/params.h"
#include "src/text/chat_template.h"

namespace baton::api {

// The template reads no tools, and the request has some, or has calls in its messages that the
// template does not name either: such a template would drop them without a word.
bool NeedsToolMessages(const text::ChatTemplate& chat_template, const ApiParams& params);

// The conversation with the tools in it:
// 1. Functions that may be called follow the system message, or are one in front.
// 2. A call is a line {"name": .., "arguments": {..}} in the assistant's text, which is also what
//    the model is asked to write.
// 3. Results that follow each other are one message of the user.
std::vector<text::ChatMessage> MessagesWithTools(const ApiParams& params);

}  // namespace baton::api

#endif  // BATON_API_TOOL_MESSAGES_H_
