// The input of a request of OpenAI's Responses API as the messages of a chat. Pure; any thread.
#ifndef BATON_API_RESPONSES_INPUT_H_
#define BATON_API_RESPONSES_INPUT_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/api/json_value.h"
#include "src/api/stored_items.h"
#include "src/router/request_error.h"

namespace baton::api {

inline constexpr std::string_view kExpectedInput =
    "a string or an array of items: messages, function_call, function_call_output, reasoning";

// A conversation, and where each message of it stood in the request.
struct ResponsesInput {
  // Names of fields, for errors about what they became.
  struct Origin {
    std::string path;                // "instructions", "input", "input[3]"
    bool is_item = false;            // false: the field is a text
    std::vector<std::string> calls;  // of each call of the message: "input[4]"
  };

  JsonValue::Array messages;         // as a chat has them
  std::vector<Origin> origins;       // of each message
  std::vector<std::string> ignored;  // members of items that nothing reads, by their path

  // The field of the request that became `param`, the path of a part of a message:
  // "messages[2].content[0]" is "input[3].content[0]". Other names stay as they are.
  std::string FieldOf(std::string_view param) const;
};

// Reads `instructions` and `input`. Items of one turn of the assistant (thoughts, a message, calls)
// are one message. Statuses, annotations and log-probabilities of items are not read, and ids only
// in references to `items` (null = there are none). False: `error` names the field.
bool ReadResponsesInput(const JsonValue& root, const StoredItems* items, ResponsesInput* input,
                        router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_RESPONSES_INPUT_H_
