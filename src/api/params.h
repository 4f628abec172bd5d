// ApiParams: a request's parameters as the client gave them, in range but not yet combined: absent
// ones stay absent. Plain values; any thread.
#ifndef BATON_API_PARAMS_H_
#define BATON_API_PARAMS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/api/tool_calls.h"
#include "src/base/json_value.h"
#include "src/router/asked_path.h"
#include "src/text/chat_template.h"
#include "src/wire/answer_grammar.h"

namespace baton::api {

// The endpoint that a request came to; the values form masks in the schema table.
enum class Endpoint : unsigned { kChat = 1, kCompletion = 2, kMessages = 4 };

// True where a request is a conversation, which the chat template renders.
constexpr bool IsConversation(Endpoint endpoint) { return endpoint != Endpoint::kCompletion; }

// The names that a surface has for these fields of a conversation; static, for errors.
struct ConversationFields {
  std::string_view messages = "messages";
  std::string_view max_tokens = "max_tokens";
  std::string_view stop = "stop";
};

// One prompt of a request that has several.
struct ApiPrompt {
  std::optional<std::string> text;  // none: ids
  std::vector<int64_t> token_ids;
};

// The fields that the schema table fills; see the file comment.
struct ApiParams {
  ConversationFields names;
  std::string model;
  std::vector<text::ChatMessage> messages;  // chat
  std::optional<std::string> prompt;        // completions: text
  std::vector<int64_t> prompt_token_ids;    // completions: ids
  std::string_view prompt_token_field;      // which field gave prompt_token_ids; "" = none
  // Completions: two prompts or more, all texts or all ids; then the fields above are empty.
  std::vector<ApiPrompt> prompts;

  std::optional<int64_t> max_tokens;
  std::optional<int64_t> max_completion_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<int64_t> seed;  // its 64 bits, signed or not
  std::optional<int64_t> n;
  std::optional<int64_t> best_of;
  std::optional<bool> echo;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> repetition_penalty;
  std::vector<std::pair<int64_t, double>> logit_bias;
  std::optional<bool> logprobs;           // chat
  std::optional<int64_t> logprobs_count;  // completions: the field `logprobs`
  std::optional<int64_t> top_logprobs;
  std::optional<int64_t> prompt_logprobs;
  std::optional<int64_t> priority;
  std::optional<bool> return_progress;
  bool embeds = false;                // the answer is the vectors of the prompts
  std::optional<int64_t> dimensions;  // embeds: elements of a vector
  std::optional<bool> stream;
  std::optional<bool> include_usage;           // of stream_options
  std::optional<bool> continuous_usage_stats;  // of stream_options
  bool has_stream_options = false;
  std::string user;
  std::string cache_salt;  // "" = none
  std::optional<bool> ignore_eos;
  std::optional<int64_t> min_tokens;
  std::optional<int64_t> timeout_ms;
  ToolParams tools;  // the template's variable `tools` has them as they were sent
  // The form of the answer and the field that asks for it (answer_form.h); not compiled yet.
  wire::SharedGrammar form;
  std::string_view form_field;           // static; "" = none
  bool forbids_blanks = false;           // structured_outputs.disable_any_whitespace
  std::optional<bool> splits_reasoning;  // reasoning_format: chat, false for "none"
  // Variables of the chat template besides the messages: documents, reasoning_effort, tools and the
  // members of chat_template_kwargs. Each name stands once.
  JsonValue::Object template_variables;
  // The client's own paths of those, one for one, and of thoughts in messages. They are for the
  // names of what the template does not read.
  std::vector<std::string> variable_fields;
  std::vector<std::string> thought_fields;
  std::optional<bool> add_generation_prompt;   // chat
  std::optional<bool> continue_final_message;  // chat
  std::string request_id;
  router::AskedPath path = router::AskedPath::kAuto;
};

}  // namespace baton::api

#endif  // BATON_API_PARAMS_H_
