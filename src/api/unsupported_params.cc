#include "src/api/unsupported_params.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

#include "src/api/json_fields.h"
#include "src/api/schema.h"

namespace baton::api {

using router::ErrorCode;
using router::RequestError;

namespace {

constexpr unsigned kChat = static_cast<unsigned>(Endpoint::kChat);
constexpr unsigned kCompletion = static_cast<unsigned>(Endpoint::kCompletion);
constexpr unsigned kBoth = kChat | kCompletion;
constexpr unsigned kMessages = static_cast<unsigned>(Endpoint::kMessages);

// Values that ask for nothing. null is one of each kind. A value that another server applies is in
// none of them, however empty it looks.
enum class Neutral : uint8_t {
  kEmpty,     // false, "", [] and {}
  kNoSchema,  // false, "" and []; {} is the schema of any JSON: llama.cpp and vLLM apply it
  kNothing,   // null alone
  kTrue,      // true
  kZero,      // 0, false, "", [] and {}
  kOne,       // 1
  kMinusOne,  // -1
  kNumbers,   // a number of `words`
  kText,      // a text of `words`
  kIgnored,   // as kText, and named among the ignored fields: nothing here honours it
  kUnused,    // any, and named among the ignored fields: nothing here honours it
  kModality,  // ["text"] and []
  kAny,       // any: it only shapes what another field of the table turns on
};

// One field. `words`: the neutral values, parted by '|', or what to use instead.
struct UnsupportedRow {
  std::string_view name;
  unsigned endpoints;
  Neutral neutral;
  std::string_view words = "";
};

constexpr std::string_view kUseMaxTokens = "max_tokens is its name here";
constexpr std::string_view kUseRepetition = "repetition_penalty is its name here";
constexpr std::string_view kUseStop = "stop is its name here";
constexpr std::string_view kUseTemplate =
    "chat_template_kwargs passes variables to the model's template";
constexpr std::string_view kUseSalt = "cache_salt keeps prefixes apart";
constexpr std::string_view kUseStructured = "structured_outputs does it";

// The table, by what a field is about.
constexpr UnsupportedRow kTable[] = {
    // Anthropic's Messages: fields of other surfaces under Anthropic's names, and services.
    {"stop", kMessages, Neutral::kEmpty, "stop_sequences is its name here"},
    {"max_completion_tokens", kMessages, Neutral::kNothing, kUseMaxTokens},
    {"n", kMessages, Neutral::kOne, "a message is one answer"},
    {"response_format", kMessages, Neutral::kNothing, "output_config.format is its name here"},
    {"stream_options", kMessages, Neutral::kUnused},
    {"reasoning_effort", kMessages, Neutral::kNothing, "output_config.effort is its name here"},
    {"parallel_tool_calls", kMessages, Neutral::kTrue,
     "tool_choice.disable_parallel_tool_use does it"},
    {"add_generation_prompt", kMessages, Neutral::kTrue, "a last assistant message is continued"},
    {"continue_final_message", kMessages, Neutral::kEmpty, "a last assistant message is continued"},
    {"user", kMessages, Neutral::kEmpty, "metadata.user_id is its name here"},
    {"service_tier", kMessages, Neutral::kIgnored, "auto|standard_only"},
    {"speed", kMessages, Neutral::kIgnored, "standard"},
    {"container", kMessages, Neutral::kNothing},
    {"mcp_servers", kMessages, Neutral::kEmpty, "a client calls its servers as tools"},
    {"thread", kMessages, Neutral::kNothing, "send the whole conversation"},
    {"compaction", kMessages, Neutral::kNothing},
    {"instructions", kMessages, Neutral::kEmpty, "system is its name here"},
    {"input", kMessages, Neutral::kEmpty, "messages is its name here"},
    {"format", kMessages, Neutral::kEmpty, "output_config.format is its name here"},
    {"text", kMessages, Neutral::kEmpty, "output_config.format is its name here"},
    {"think", kMessages, Neutral::kNothing, "thinking is its name here"},
    // Fields of Responses, Messages and Ollama that a chat or a completion would answer without.
    {"system", kBoth, Neutral::kEmpty, "a message of the role system has it"},
    {"instructions", kBoth, Neutral::kEmpty, "a message of the role system has it"},
    {"input", kChat, Neutral::kEmpty, "messages is its name here"},
    {"input", kCompletion, Neutral::kEmpty, "prompt is its name here"},
    {"text", kBoth, Neutral::kEmpty, "response_format is its name here"},
    {"format", kBoth, Neutral::kEmpty, "response_format is its name here"},
    {"output_config", kBoth, Neutral::kEmpty, "response_format and reasoning_effort are its parts"},
    {"conversation", kBoth, Neutral::kEmpty, "send the whole conversation"},
    {"context", kBoth, Neutral::kEmpty, "send the whole conversation"},
    {"options", kBoth, Neutral::kEmpty, "its members stand beside the other fields here"},
    {"think", kBoth, Neutral::kNothing, kUseTemplate},
    {"template", kBoth, Neutral::kEmpty, kUseTemplate},
    {"raw", kBoth, Neutral::kEmpty, "/v1/completions takes a prompt as it is"},
    {"images", kBoth, Neutral::kEmpty, "images are not read"},
    {"mcp_servers", kBoth, Neutral::kEmpty, "a client calls its servers as tools"},
    {"prompt_token_ids", kChat, Neutral::kEmpty, "/v1/completions takes token ids"},
    // Constrained answers: vLLM, SGLang, llama-server, TGI.
    {"guided_decoding_backend", kBoth, Neutral::kAny},
    {"guided_whitespace_pattern", kBoth, Neutral::kEmpty, "blanks between JSON tokens are bounded"},
    {"structural_tag", kBoth, Neutral::kEmpty, kUseStructured},
    {"grammar", kBoth, Neutral::kEmpty, kUseStructured},
    {"grammar_string", kBoth, Neutral::kEmpty, kUseStructured},
    {"grammar_lazy", kBoth, Neutral::kAny},
    {"grammar_triggers", kBoth, Neutral::kEmpty, kUseStructured},
    {"json_schema", kBoth, Neutral::kNoSchema, kUseStructured},
    {"regex", kBoth, Neutral::kEmpty, kUseStructured},
    {"ebnf", kBoth, Neutral::kEmpty, kUseStructured},
    {"guideline", kBoth, Neutral::kEmpty, kUseStructured},
    // Tools in their older form and beside chats.
    {"functions", kBoth, Neutral::kEmpty, "tools is the newer form"},
    {"function_call", kBoth, Neutral::kText, "none|auto"},
    {"parallel_tool_calls", kCompletion, Neutral::kAny},
    {"tool_parser", kCompletion, Neutral::kAny},
    {"tools", kCompletion, Neutral::kEmpty, "/v1/chat/completions takes tools"},
    {"tool_choice", kCompletion, Neutral::kText, "none|auto"},
    {"tool_prompt", kBoth, Neutral::kEmpty},
    {"parse_tool_calls", kBoth, Neutral::kEmpty},
    {"web_search_options", kBoth, Neutral::kNothing},
    {"moderation", kBoth, Neutral::kNothing},
    {"search_parameters", kBoth, Neutral::kNothing},
    {"plugins", kBoth, Neutral::kEmpty},
    {"transforms", kBoth, Neutral::kEmpty},
    // Other forms of prompts and answers.
    {"suffix", kBoth, Neutral::kEmpty},
    {"prompt_embeds", kBoth, Neutral::kEmpty},
    {"input_ids", kBoth, Neutral::kEmpty, "/v1/completions takes token ids as prompt"},
    {"prompt", kChat, Neutral::kEmpty, "/v1/completions takes a prompt"},
    {"messages", kCompletion, Neutral::kEmpty, "/v1/chat/completions takes messages"},
    {"modalities", kBoth, Neutral::kModality},
    {"audio", kBoth, Neutral::kEmpty},
    {"image_data", kBoth, Neutral::kEmpty},
    {"multimodal_data", kBoth, Neutral::kEmpty},
    {"truncate_prompt_tokens", kBoth, Neutral::kEmpty},
    {"prompt_truncate_len", kBoth, Neutral::kEmpty},
    {"truncate", kBoth, Neutral::kEmpty},
    {"truncation", kBoth, Neutral::kText, "disabled"},
    {"context_length_exceeded_behavior", kBoth, Neutral::kText, "error"},
    {"add_special_tokens", kChat, Neutral::kEmpty, "the chat template writes them"},
    {"add_special_tokens", kCompletion, Neutral::kTrue, "prompt takes token ids"},
    {"chat_template", kBoth, Neutral::kEmpty, kUseTemplate},
    {"chat_template_kwargs", kCompletion, Neutral::kEmpty, "/v1/chat/completions takes it"},
    {"documents", kCompletion, Neutral::kEmpty, "/v1/chat/completions takes it"},
    {"add_generation_prompt", kCompletion, Neutral::kAny},
    {"continue_final_message", kCompletion, Neutral::kEmpty, "/v1/chat/completions takes it"},
    {"safe_prompt", kBoth, Neutral::kEmpty},
    {"prompt_mode", kBoth, Neutral::kEmpty},
    {"echo", kChat, Neutral::kEmpty, "/v1/completions takes it"},
    {"return_full_text", kBoth, Neutral::kEmpty, "echo of /v1/completions does it"},
    {"include_stop_str_in_output", kBoth, Neutral::kEmpty},
    {"no_stop_trim", kBoth, Neutral::kEmpty},
    {"skip_special_tokens", kBoth, Neutral::kTrue},
    {"spaces_between_special_tokens", kBoth, Neutral::kTrue, "special tokens have no text here"},
    {"verbosity", kBoth, Neutral::kText, "medium"},
    {"response_fields", kBoth, Neutral::kEmpty},
    {"n_indent", kBoth, Neutral::kZero},
    // Thoughts.
    {"thinking", kBoth, Neutral::kNothing, kUseTemplate},
    {"enable_thinking", kBoth, Neutral::kNothing, kUseTemplate},
    {"disable_reasoning", kBoth, Neutral::kEmpty, kUseTemplate},
    {"thinking_budget", kBoth, Neutral::kMinusOne},
    {"thinking_token_budget", kBoth, Neutral::kMinusOne},
    {"thinking_budget_tokens", kBoth, Neutral::kMinusOne},
    {"reasoning_budget", kBoth, Neutral::kMinusOne},
    {"reasoning", kBoth, Neutral::kEmpty, "reasoning_effort and reasoning_format are its parts"},
    {"reasoning_effort", kCompletion, Neutral::kText, "none"},
    {"reasoning_format", kCompletion, Neutral::kAny},
    {"include_reasoning", kBoth, Neutral::kTrue},
    {"separate_reasoning", kBoth, Neutral::kTrue, "reasoning_format none does it"},
    {"stream_reasoning", kBoth, Neutral::kTrue},
    {"reasoning_in_content", kBoth, Neutral::kEmpty, "reasoning_format none does it"},
    {"thinking_forced_open", kBoth, Neutral::kEmpty},
    // Lengths and ends under other names.
    {"max_new_tokens", kBoth, Neutral::kNothing, kUseMaxTokens},
    {"max_output_tokens", kBoth, Neutral::kNothing, kUseMaxTokens},
    {"max_tokens_to_sample", kBoth, Neutral::kNothing, kUseMaxTokens},
    {"max_length", kBoth, Neutral::kNothing, kUseMaxTokens},
    {"n_predict", kBoth, Neutral::kNothing, kUseMaxTokens},
    {"num_predict", kBoth, Neutral::kNothing, kUseMaxTokens},
    {"max_completion_tokens", kCompletion, Neutral::kNothing, kUseMaxTokens},
    {"min_new_tokens", kBoth, Neutral::kZero, "min_tokens is its name here"},
    {"min_length", kBoth, Neutral::kZero, "min_tokens is its name here"},
    {"stop_sequences", kBoth, Neutral::kEmpty, kUseStop},
    {"stop_words", kBoth, Neutral::kEmpty, kUseStop},
    {"stop_regex", kBoth, Neutral::kEmpty, kUseStop},
    {"ban_eos_token", kBoth, Neutral::kEmpty, "ignore_eos and min_tokens are near it"},
    {"t_max_predict_ms", kBoth, Neutral::kZero, "timeout_ms ends a request"},
    // Sampling.
    {"random_seed", kBoth, Neutral::kNothing, "seed is its name here"},
    {"do_sample", kBoth, Neutral::kTrue, "temperature 0 is greedy"},
    {"use_beam_search", kBoth, Neutral::kEmpty, "n and best_of sample several answers"},
    {"num_beams", kBoth, Neutral::kOne, "n and best_of sample several answers"},
    {"length_penalty", kBoth, Neutral::kOne},
    {"early_stopping", kBoth, Neutral::kEmpty},
    {"best_of", kChat, Neutral::kOne, "/v1/completions takes it"},
    {"n_cmpl", kBoth, Neutral::kOne, "n is its name here"},
    {"bad_words", kBoth, Neutral::kEmpty, "logit_bias of -100 keeps a token out"},
    {"banned_strings", kBoth, Neutral::kEmpty, "logit_bias of -100 keeps a token out"},
    {"custom_token_bans", kBoth, Neutral::kEmpty, "logit_bias of -100 keeps a token out"},
    {"allowed_token_ids", kBoth, Neutral::kEmpty, "logit_bias is near it"},
    {"logits_processors", kBoth, Neutral::kEmpty},
    {"custom_logit_processor", kBoth, Neutral::kEmpty},
    {"custom_params", kBoth, Neutral::kEmpty},
    {"vllm_xargs", kBoth, Neutral::kEmpty},
    {"repeat_penalty", kBoth, Neutral::kOne, kUseRepetition},
    {"rep_pen", kBoth, Neutral::kOne, kUseRepetition},
    {"rep_pen_range", kBoth, Neutral::kAny},
    {"encoder_repetition_penalty", kBoth, Neutral::kOne, kUseRepetition},
    {"repeat_last_n", kBoth, Neutral::kNumbers, "-1|64"},
    {"repetition_detection", kBoth, Neutral::kEmpty},
    {"penalize_nl", kBoth, Neutral::kAny},
    {"no_repeat_ngram_size", kBoth, Neutral::kZero, kUseRepetition},
    {"penalty_alpha", kBoth, Neutral::kZero},
    {"typical_p", kBoth, Neutral::kOne, "top_p and min_p are near it"},
    {"typ_p", kBoth, Neutral::kOne, "top_p and min_p are near it"},
    {"tfs_z", kBoth, Neutral::kOne, "top_p and min_p are near it"},
    {"tfs", kBoth, Neutral::kOne, "top_p and min_p are near it"},
    {"top_a", kBoth, Neutral::kZero, "top_p and min_p are near it"},
    {"top_n_sigma", kBoth, Neutral::kNumbers, "-1|0"},
    {"nsigma", kBoth, Neutral::kZero, "top_p and min_p are near it"},
    {"epsilon_cutoff", kBoth, Neutral::kZero},
    {"eta_cutoff", kBoth, Neutral::kZero},
    {"mirostat", kBoth, Neutral::kZero},
    {"mirostat_mode", kBoth, Neutral::kZero},
    {"mirostat_tau", kBoth, Neutral::kAny},
    {"mirostat_eta", kBoth, Neutral::kAny},
    {"dynatemp_range", kBoth, Neutral::kZero},
    {"dynatemp_exponent", kBoth, Neutral::kAny},
    {"dynamic_temperature", kBoth, Neutral::kEmpty},
    {"dynatemp_low", kBoth, Neutral::kAny},
    {"dynatemp_high", kBoth, Neutral::kAny},
    {"smoothing_factor", kBoth, Neutral::kZero},
    {"smoothing_curve", kBoth, Neutral::kAny},
    {"dry_multiplier", kBoth, Neutral::kZero},
    {"dry_base", kBoth, Neutral::kAny},
    {"dry_allowed_length", kBoth, Neutral::kAny},
    {"dry_penalty_last_n", kBoth, Neutral::kAny},
    {"dry_sequence_breakers", kBoth, Neutral::kAny},
    {"xtc_probability", kBoth, Neutral::kZero},
    {"xtc_threshold", kBoth, Neutral::kAny},
    {"adaptive_target", kBoth, Neutral::kMinusOne},
    {"adaptive_decay", kBoth, Neutral::kAny},
    {"samplers", kBoth, Neutral::kEmpty},
    {"sampler_priority", kBoth, Neutral::kEmpty},
    {"sampler_order", kBoth, Neutral::kEmpty},
    {"temperature_last", kBoth, Neutral::kEmpty},
    {"min_keep", kBoth, Neutral::kZero},
    {"guidance_scale", kBoth, Neutral::kOne},
    {"cfg_scale", kBoth, Neutral::kOne},
    {"negative_prompt", kBoth, Neutral::kEmpty},
    {"watermark", kBoth, Neutral::kEmpty},
    {"backend_sampling", kBoth, Neutral::kAny},
    // Numbers beside the text.
    {"top_logprobs", kCompletion, Neutral::kZero, "logprobs is their number in completions"},
    {"n_probs", kBoth, Neutral::kZero, "logprobs is its name here"},
    {"post_sampling_probs", kBoth, Neutral::kEmpty},
    {"top_logprobs_num", kBoth, Neutral::kZero, "top_logprobs is its name here"},
    {"top_n_tokens", kBoth, Neutral::kZero, "top_logprobs is its name here"},
    {"return_logprob", kBoth, Neutral::kEmpty, "logprobs is its name here"},
    {"logprob_start_len", kBoth, Neutral::kMinusOne},
    {"token_ids_logprob", kBoth, Neutral::kEmpty},
    {"details", kBoth, Neutral::kEmpty, "logprobs and timings are near it"},
    {"decoder_input_details", kBoth, Neutral::kEmpty},
    {"return_token_ids", kBoth, Neutral::kEmpty, "gRPC answers have token ids"},
    {"return_prompt_token_ids", kBoth, Neutral::kEmpty, "/tokenize has them"},
    {"return_tokens", kBoth, Neutral::kEmpty, "gRPC answers have token ids"},
    {"return_tokens_as_token_ids", kBoth, Neutral::kEmpty, "gRPC answers have token ids"},
    {"return_hidden_states", kBoth, Neutral::kEmpty},
    {"return_routed_experts", kBoth, Neutral::kEmpty},
    {"return_cached_tokens_details", kBoth, Neutral::kEmpty, "usage has cached_tokens"},
    {"timings_per_token", kBoth, Neutral::kEmpty, "the last chunk has timings"},
    {"receipt", kBoth, Neutral::kEmpty},
    // Fields about which server answers, in which order, from which cache.
    {"service_tier", kBoth, Neutral::kIgnored, "auto|default"},
    {"lora", kBoth, Neutral::kEmpty},
    {"lora_path", kBoth, Neutral::kEmpty},
    {"lora_request", kBoth, Neutral::kEmpty},
    {"adapter_id", kBoth, Neutral::kEmpty},
    {"session_params", kBoth, Neutral::kEmpty},
    {"id_slot", kBoth, Neutral::kMinusOne},
    {"cache_prompt", kBoth, Neutral::kTrue, kUseSalt},
    {"extra_key", kBoth, Neutral::kEmpty, kUseSalt},
    {"kv_transfer_params", kBoth, Neutral::kEmpty},
    {"ec_transfer_params", kBoth, Neutral::kEmpty},
    {"bootstrap_host", kBoth, Neutral::kNothing},
    {"bootstrap_port", kBoth, Neutral::kNothing},
    {"bootstrap_room", kBoth, Neutral::kNothing},
    {"data_parallel_rank", kBoth, Neutral::kNothing},
    {"routed_dp_rank", kBoth, Neutral::kNothing},
    {"background", kBoth, Neutral::kEmpty},
    {"previous_response_id", kBoth, Neutral::kNothing, "send the whole conversation"},
};

// Members of a chat's message.
constexpr UnsupportedRow kTurnTable[] = {
    {"function_call", kChat, Neutral::kNothing, "tool_calls is the newer form"},
    {"audio", kChat, Neutral::kEmpty, "send its transcript as text"},
    {"prefix", kChat, Neutral::kEmpty, "continue_final_message does it"},
    {"partial", kChat, Neutral::kEmpty, "continue_final_message does it"},
    {"images", kChat, Neutral::kEmpty},
    {"tools", kChat, Neutral::kEmpty, "tools of the request is its place"},
};

constexpr std::string_view kUseInput = "write it into input";

// Fields of other servers' embeddings, whose other values give another vector.
constexpr UnsupportedRow kEmbeddingTable[] = {
    {"normalize", kCompletion, Neutral::kTrue, "vectors have the length 1"},
    {"normalized", kCompletion, Neutral::kTrue, "vectors have the length 1"},
    {"embd_normalize", kCompletion, Neutral::kNumbers, "2"},
    {"use_activation", kCompletion, Neutral::kTrue, "vectors have the length 1"},
    {"pooling", kCompletion, Neutral::kNothing, "the model's own pooling is used"},
    {"pooling_type", kCompletion, Neutral::kNothing, "the model's own pooling is used"},
    {"embed_dtype", kCompletion, Neutral::kText, "float32"},
    {"output_dtype", kCompletion, Neutral::kText, "float"},
    {"embedding_type", kCompletion, Neutral::kText, "float"},
    {"endianness", kCompletion, Neutral::kText, "native|little"},
    {"output_dimension", kCompletion, Neutral::kNothing, "dimensions is its name here"},
    {"add_special_tokens", kCompletion, Neutral::kTrue, "input takes token ids"},
    {"late_chunking", kCompletion, Neutral::kEmpty},
    {"return_multivector", kCompletion, Neutral::kEmpty},
    {"task", kCompletion, Neutral::kText, "embed"},
    {"input_type", kCompletion, Neutral::kEmpty, kUseInput},
    {"prompt_name", kCompletion, Neutral::kEmpty, kUseInput},
    {"instruction", kCompletion, Neutral::kEmpty, kUseInput},
    {"prompt", kCompletion, Neutral::kEmpty, kUseInput},
    {"lora", kCompletion, Neutral::kEmpty},
    {"lora_path", kCompletion, Neutral::kEmpty},
    {"lora_request", kCompletion, Neutral::kEmpty},
    {"adapter_id", kCompletion, Neutral::kEmpty},
};

// A surface of conversations refuses what a chat refuses.
unsigned MaskOf(Endpoint endpoint) {
  return static_cast<unsigned>(endpoint) | (IsConversation(endpoint) ? kChat : 0);
}

// A field that a chat takes and this surface does not know.
bool IsForeign(Endpoint endpoint, std::string_view name) {
  return endpoint != Endpoint::kCompletion && FindParam(endpoint, name) == nullptr &&
         FindParam(Endpoint::kChat, name) != nullptr;
}

const UnsupportedRow* Find(Endpoint endpoint, std::string_view name) {
  const unsigned mask = MaskOf(endpoint);
  const auto* const found = std::find_if(
      std::begin(kTable), std::end(kTable),
      [&](const UnsupportedRow& row) { return row.name == name && (row.endpoints & mask) != 0; });
  // A field that is served has its row elsewhere.
  if (found == std::end(kTable) || FindParam(endpoint, name) != nullptr) return nullptr;
  return found;
}

// false, "", [] and {}.
bool IsEmpty(const JsonValue& value) {
  if (const bool* flag = value.AsBool()) return !*flag;
  if (const std::string* text = value.AsString()) return text->empty();
  if (const JsonValue::Array* array = value.AsArray()) return array->empty();
  const JsonValue::Object* object = value.AsObject();
  return object != nullptr && object->empty();
}

bool IsNumber(const JsonValue& value, double number) {
  double given = 0;
  return value.GetNumber(&given) && given == number;
}

// The parts of `words` between '|'.
std::vector<std::string_view> PartsOf(std::string_view words) {
  std::vector<std::string_view> parts;
  while (!words.empty()) {
    const size_t end = words.find('|');
    parts.push_back(words.substr(0, end));
    words.remove_prefix(end == std::string_view::npos ? words.size() : end + 1);
  }
  return parts;
}

bool IsWordOf(const JsonValue& value, std::string_view words) {
  const std::string* text = value.AsString();
  if (text == nullptr) return false;
  const auto parts = PartsOf(words);
  return text->empty() || std::find(parts.begin(), parts.end(), *text) != parts.end();
}

bool IsNumberOf(const JsonValue& value, std::string_view words) {
  const auto parts = PartsOf(words);
  return std::any_of(parts.begin(), parts.end(), [&value](std::string_view part) {
    return IsNumber(value, std::stod(std::string(part)));
  });
}

bool IsNeutral(const UnsupportedRow& row, const JsonValue& value) {
  if (value.is_null()) return true;
  switch (row.neutral) {
    case Neutral::kEmpty:
      return IsEmpty(value);
    case Neutral::kNoSchema:
      return IsEmpty(value) && value.AsObject() == nullptr;
    case Neutral::kNothing:
      return false;
    case Neutral::kTrue:
      return value.AsBool() != nullptr && *value.AsBool();
    case Neutral::kZero:
      return IsNumber(value, 0) || IsEmpty(value);
    case Neutral::kOne:
      return IsNumber(value, 1);
    case Neutral::kMinusOne:
      return IsNumber(value, -1);
    case Neutral::kNumbers:
      return IsNumberOf(value, row.words);
    case Neutral::kText:
    case Neutral::kIgnored:
      return IsWordOf(value, row.words);
    case Neutral::kModality: {
      const JsonValue::Array* list = value.AsArray();
      return list != nullptr && std::all_of(list->begin(), list->end(), [](const JsonValue& item) {
               return IsWordOf(item, "text");
             });
    }
    case Neutral::kUnused:
    case Neutral::kAny:
      return true;
  }
  return false;
}

// "a, b or absent", each word in `quotes`.
std::string AnyOfOrAbsent(std::string_view words, std::string_view quotes) {
  return fmt::format("{1}{0}{1} or absent",
                     fmt::join(PartsOf(words), fmt::format("{0}, {0}", quotes)), quotes);
}

// The values that the field may have, and the way out.
std::string ExpectedOf(const UnsupportedRow& row) {
  const auto with_way = [&row](std::string_view value) {
    return row.words.empty() ? std::string(value) : fmt::format("{}; {}", value, row.words);
  };
  switch (row.neutral) {
    case Neutral::kEmpty:
    case Neutral::kNoSchema:
    case Neutral::kNothing:
    case Neutral::kUnused:
    case Neutral::kAny:
      return with_way("absent");
    case Neutral::kTrue:
      return with_way("true or absent");
    case Neutral::kZero:
      return with_way("0 or absent");
    case Neutral::kOne:
      return with_way("1 or absent");
    case Neutral::kMinusOne:
      return with_way("-1 or absent");
    case Neutral::kNumbers:
      return AnyOfOrAbsent(row.words, "");
    case Neutral::kText:
    case Neutral::kIgnored:
      return AnyOfOrAbsent(row.words, "\"");
    case Neutral::kModality:
      return "[\"text\"] or absent";
  }
  return "absent";
}

// False for the first row of `table` that `object` asks for. `prefix`: its place, with a dot.
bool CheckRows(std::span<const UnsupportedRow> table, const JsonValue& object,
               std::string_view prefix, RequestError* error) {
  for (const UnsupportedRow& row : table) {
    const JsonValue* value = object.Find(row.name);
    if (value == nullptr || IsNeutral(row, *value)) continue;
    return Fail(error, ErrorCode::kUnsupported, fmt::format("{}{}", prefix, row.name),
                ExpectedOf(row));
  }
  return true;
}

}  // namespace

bool IsUnsupportedParam(Endpoint endpoint, std::string_view name) {
  const UnsupportedRow* row = Find(endpoint, name);
  return row != nullptr && row->neutral != Neutral::kIgnored && row->neutral != Neutral::kUnused;
}

bool CheckUnsupportedParams(const JsonValue& root, Endpoint endpoint, RequestError* error) {
  for (const auto& [name, value] : *root.AsObject()) {
    const UnsupportedRow* row = Find(endpoint, name);
    if (row != nullptr) {
      if (IsNeutral(*row, value)) continue;
      return Fail(error, ErrorCode::kUnsupported, row->name, ExpectedOf(*row));
    }
    if (!IsForeign(endpoint, name) || value.is_null() || IsEmpty(value)) continue;
    return Fail(error, ErrorCode::kUnsupported, name, "absent; /v1/chat/completions takes it");
  }
  return true;
}

bool CheckUnsupportedOfTurn(const JsonValue& turn, std::string_view path, RequestError* error) {
  return CheckRows(kTurnTable, turn, fmt::format("{}.", path), error);
}

bool IsUnsupportedOfEmbedding(std::string_view name) {
  return std::any_of(std::begin(kEmbeddingTable), std::end(kEmbeddingTable),
                     [name](const UnsupportedRow& row) { return row.name == name; });
}

bool CheckUnsupportedOfEmbedding(const JsonValue& root, RequestError* error) {
  return CheckRows(kEmbeddingTable, root, "", error);
}

}  // namespace baton::api
