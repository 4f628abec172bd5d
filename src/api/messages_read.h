// Anthropic's Messages request as ApiParams: the rows of the schema table, then the fields whose
// form is Anthropic's own. Pure; any thread.
#ifndef BATON_API_MESSAGES_READ_H_
#define BATON_API_MESSAGES_READ_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/api/json_value.h"
#include "src/api/params.h"
#include "src/base/limits.h"
#include "src/base/numbered_text.h"
#include "src/router/request_error.h"

namespace baton::api {

inline constexpr std::string_view kExpectedMessagesTools =
    kNumberedText<"an array of at most {} objects {\"name\":string, \"input_schema\":object, ..}",
                  limits::kMaxTools>;
inline constexpr std::string_view kExpectedMessagesToolChoice =
    "an object with the type \"auto\", \"any\", \"none\" or \"tool\", which has a name";
inline constexpr std::string_view kExpectedThinking =
    "an object with the type \"disabled\", \"adaptive\" or \"enabled\", which has budget_tokens";
inline constexpr std::string_view kExpectedOutputConfig = "an object with effort and format";
inline constexpr std::string_view kExpectedOutputFormat =
    "{\"type\":\"json_schema\",\"schema\":object}";
inline constexpr std::string_view kExpectedContextManagement =
    "an object with edits, of which only clear_thinking with keep \"all\" is taken";
inline constexpr std::string_view kExpectedMetadata = "an object with user_id";

// The part of a request that its answer needs to know.
struct MessagesForm {
  int64_t max_tokens = 0;       // as the client gave it
  bool omits_thoughts = false;  // thinking.display is "omitted": blocks of thoughts have no text
};

// Reads `body`, an object. max_tokens may be absent, as in a request that is only counted. Names
// what nobody reads in `ignored`. False: `error` names the field.
bool ReadMessages(const JsonValue& body, ApiParams* params, MessagesForm* form,
                  std::vector<std::string>* ignored, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_MESSAGES_READ_H_
