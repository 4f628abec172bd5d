// BuildRequest: from parameters to a request. It combines the client's values with defaults and the
// model, renders the template and tokenises. A text of megabytes takes long (README.md), so it runs
// on the API's own threads (api_workers.h). Pure but for the random seed; any thread.
#ifndef BATON_API_BUILD_REQUEST_H_
#define BATON_API_BUILD_REQUEST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/params.h"
#include "src/api/tool_calls.h"
#include "src/api/tool_metrics.h"
#include "src/base/limits.h"
#include "src/base/span_ids.h"
#include "src/router/client_pause.h"
#include "src/router/generate_request.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"
#include "src/text/chat_encoder.h"
#include "src/text/tokenizer.h"
#include "src/wire/answer_grammar.h"
#include "src/wire/prompt.h"

namespace baton::api {

// Bytes that the echoed prompts of one request's choices may have together. They are written at
// once, where nothing waits for a slow client: as JSON, at 6 bytes for each of them at worst, this
// stays below limits::kMaxUnsentBytes.
inline constexpr size_t kMaxEchoBytes = size_t{512} << 10;

// Log-probabilities of one prompt in a stream, alternatives included: they are one event.
inline constexpr uint64_t kMaxStreamedPromptLogprobs = uint64_t{16} << 10;
// Bytes of that event. A token may be a line of a hundred spaces or line breaks, so the bytes are
// counted when the event is there. It fits a connection beside the bytes at which the router pauses
// and 256 KiB for the events after it that no pause holds back.
inline constexpr size_t kMaxOpeningBytes =
    limits::kMaxUnsentBytes - router::kPauseBytes - (size_t{256} << 10);

// One prompt as its answer shows it.
struct PlannedPrompt {
  uint32_t num_tokens = 0;
  std::string echo_text;  // with `echo`
  wire::Prompt tokens;    // where its log-probabilities are told
};

// The form in which an answer is written, which the router does not need to know.
struct AnswerPlan {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;  // "chatcmpl-...", "cmpl-..." or as the surface has it
  std::string request_id;
  std::shared_ptr<const router::ModelInfo> model;
  int64_t created_unix_s = 0;
  int64_t received_us = 0;       // steady clock
  int64_t received_unix_us = 0;  // wall clock at the same moment
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // with include_usage: every chunk has the choice's usage so far
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  uint32_t num_choices = 1;  // returned for each prompt; best_of computes more
  std::vector<PlannedPrompt> prompts{1};
  bool embeds = false;  // the answer is the vectors of the prompts
  bool echo = false;
  // max_tokens 0: the answer is the prompt. Nothing is computed but its log-probabilities, and with
  // them one token, of which nobody is told.
  bool echo_alone = false;
  bool logs_echo = false;                   // `logprobs` has those of the echoed prompt
  std::optional<uint32_t> prompt_logprobs;  // alternatives in the field of that name
  bool splits_reasoning = false;  // the model may think, and its thoughts have a field of their own
  bool opens_reasoning = false;   // the prompt ends within thoughts
  std::shared_ptr<const ToolReading> tools;   // null: no calls are read
  const ToolMetrics* tool_metrics = nullptr;  // counts them; null = nobody does
  bool is_constrained = false;  // the answer has a grammar: a cut one says that it is incomplete
  // Texts that may end a choice, for stop_reason.
  std::vector<std::string> stop;
  bool ignore_eos = false;  // end-of-generation tokens are ordinary ones

  // Choices that are returned, prompt by prompt.
  uint32_t num_all_choices() const { return num_choices * static_cast<uint32_t>(prompts.size()); }
  bool logs_prompt() const { return logs_echo || prompt_logprobs.has_value(); }
  // The client's name for what asks for the log-probabilities of a prompt.
  std::string_view prompt_log_field() const { return logs_echo ? "echo" : "prompt_logprobs"; }
  // Alternatives of each of the prompt's tokens that are computed.
  uint32_t top_of_prompt() const {
    return std::max(logs_echo ? top_logprobs : 0, prompt_logprobs.value_or(0));
  }
  // The prompt of a returned choice.
  const PlannedPrompt& PromptOf(uint32_t choice) const { return prompts[choice / num_choices]; }

  // Thoughts and answer stand in channels, which the reader of calls tells apart.
  bool has_channels() const {
    return tools != nullptr && tools->style == text::ToolStyle::kHarmony;
  }
  // The answer goes by other names than planned (ResponseSink::OnAccepted).
  void Rename(const router::AnswerName& name) {
    id = name.id;
    request_id = name.request_id;
    created_unix_s = name.created_unix_s;
  }
};

// A request ready for Submit.
struct BuiltRequest {
  router::GenerateRequest request;              // of its first prompt
  std::vector<router::GenerateRequest> others;  // of its other prompts, in their order
  // request.timeout_us before the transport's own deadline cut it; 0 = none was given
  int64_t timeout_us = 0;
  AnswerPlan plan;
  std::string tenant;  // as in Arrival
  // See UnreadVariables; also what a loose schema drops, and progress that nobody would be told of.
  std::vector<std::string> unread;
  // For X-Baton-Warnings, joined by ", ": what is served and few servers take; "" = nothing.
  std::string warnings;
  // Where a grammar of the answer begins.
  wire::GrammarStart grammar_start = wire::GrammarStart::kFirstToken;

  // Choices that are computed, of all prompts.
  uint32_t num_computed() const {
    return request.num_choices * static_cast<uint32_t>(1 + others.size());
  }
  // Tokens of all prompts.
  uint64_t num_prompt_tokens() const {
    uint64_t sum = request.prompt.size();
    for (const router::GenerateRequest& other : others) sum += other.prompt.size();
    return sum;
  }
};

// The place, time and name under which a request arrived.
struct Arrival {
  Endpoint endpoint = Endpoint::kChat;
  std::string_view answer_id_prefix;  // static; "" = OpenAI's for the endpoint
  int64_t now_us = 0;                 // steady clock
  int64_t wall_unix_ms = 0;
  std::string request_id;                     // "" = none was given
  SpanIds trace;                              // not valid = none was given
  int64_t timeout_us = 0;                     // the transport's own deadline, 0 = none
  bool stream = false;                        // the call streams whatever its parameters say (gRPC)
  bool may_have_tag = false;                  // Surface::may_have_tag
  bool tells_progress = false;                // Surface::tells_progress
  bool splits_reasoning = true;               // where the request does not say
  std::optional<text::ToolStyle> tool_style;  // of calls; absent = as the template says
  std::vector<std::string> idempotency_keys;  // all that were given; one is right
  const ToolMetrics* tool_metrics = nullptr;  // outlives the answer; null = calls are not counted
  std::string tenant;                         // of the API key; "" = the server asks for none
};

// A model as a client names it.
struct ModelName {
  std::string_view id;
  bool may_have_tag = false;  // Surface::may_have_tag
  // The answer may be there already, under an idempotency key: a model without workers is resolved
  // to what it was. The router refuses what it has to compute.
  bool may_be_gone = false;
};

// The model of that name; null: `error` is 404, 503 while the model or any has no workers, or 400
// for "" and "default" where there are several.
std::shared_ptr<const router::ModelInfo> ResolveModel(const router::Submitter& submitter,
                                                      const ModelName& name,
                                                      router::RequestError* error);

// For a stream whose first event of a choice is `num_bytes` long: true = more than
// kMaxOpeningBytes, as `error` says.
bool IsOpeningTooLarge(const AnswerPlan& plan, size_t num_bytes, router::RequestError* error);

// False: `error` names the field.
bool BuildRequest(const ApiParams& params, const Arrival& arrival,
                  const router::Submitter& submitter, BuiltRequest* built,
                  router::RequestError* error);

// True for names that may stand in a header and a log line: 1 to limits::kMaxRequestIdBytes
// printable ASCII characters.
bool IsUsableRequestId(std::string_view id);

// A text and the name of the field that it came in.
struct TextField {
  std::string_view name;
  std::string_view text;
};

// The parts that the text endpoints use alone. Each returns false with `error` set.
bool TokenizeText(const router::ModelInfo& model, const TextField& field,
                  const text::EncodeOptions& options, std::vector<TokenId>* tokens,
                  router::RequestError* error);
bool DetokenizeIds(const router::ModelInfo& model, const std::vector<int64_t>& ids,
                   std::string_view field, std::string* text, router::RequestError* error);
// The messages of `params` with its variables. `wall_unix_ms`: the time that templates which print
// the date are told.
bool RenderMessages(const router::ModelInfo& model, const ApiParams& params, int64_t wall_unix_ms,
                    text::ChatPrompt* prompt, router::RequestError* error);

// Fields that the template of `model` does not read, so that they change nothing, by the client's
// own paths: "documents", "chat_template_kwargs.mood", "messages[1].reasoning_content". An empty
// value is none. At most kMaxIgnoredNames.
std::vector<std::string> UnreadVariables(const router::ModelInfo& model, const ApiParams& params);

}  // namespace baton::api

#endif  // BATON_API_BUILD_REQUEST_H_
