#include "src/api/schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "fmt/format.h"

#include "src/api/answer_form.h"
#include "src/api/json_fields.h"
#include "src/api/messages_read.h"
#include "src/api/messages_turns.h"
#include "src/api/template_params.h"
#include "src/api/tool_params.h"
#include "src/base/ascii_text.h"
#include "src/base/limits.h"
#include "src/base/priority.h"

namespace baton::api {

using limits::kMaxAddedPenalty;
using limits::kMaxChoices;
using limits::kMaxDeadlineMs;
using limits::kMaxLogitBias;
using limits::kMaxLogitBiases;
using limits::kMaxMessages;
using limits::kMaxPrompts;
using limits::kMaxPromptTokens;
using limits::kMaxRepetitionPenalty;
using limits::kMaxRequestIdBytes;
using limits::kMaxSaltBytes;
using limits::kMaxStopBytes;
using limits::kMaxStopStrings;
using limits::kMaxStopTokens;
using limits::kMaxTemperature;
using limits::kMaxTopLogprobs;
using limits::kMaxUserBytes;
using router::AskedPath;
using router::ErrorCode;
using router::RequestError;
using text::ChatMessage;
using text::CheckChatRole;

namespace {

constexpr unsigned kChat = static_cast<unsigned>(Endpoint::kChat);
constexpr unsigned kCompletion = static_cast<unsigned>(Endpoint::kCompletion);
constexpr unsigned kBoth = kChat | kCompletion;
constexpr unsigned kMessages = static_cast<unsigned>(Endpoint::kMessages);
constexpr unsigned kEvery = kBoth | kMessages;  // Messages takes them beside Anthropic's own

constexpr double kMaxInt32 = 2147483647.0;
constexpr double kMaxInt64 = 9223372036854775807.0;

// A row that a surface reads itself.
constexpr ParamRow OfSurface(std::string_view name, unsigned endpoints, std::string_view expected,
                             unsigned json_types) {
  return {name, endpoints, SpecialParam::kOfSurface, 0, 0, false, 0, false, expected, json_types};
}

// The table. A default is applied where the request is built (build_request.cc); here only what a
// client may send.
constexpr ParamRow kTable[] = {
    {"model", kEvery, &ApiParams::model},  // any: what no model is called is "not found"
    {"messages", kChat, SpecialParam::kMessages},
    {"prompt", kCompletion, SpecialParam::kPrompt},
    {"prompt_token_ids", kCompletion, SpecialParam::kPromptTokenIds},
    {"max_tokens", kChat | kMessages, &ApiParams::max_tokens, 1, kMaxInt32},
    {"max_tokens", kCompletion, &ApiParams::max_tokens, 0, kMaxInt32},
    {"max_completion_tokens", kChat, &ApiParams::max_completion_tokens, 1, kMaxInt32},
    {"temperature", kEvery, &ApiParams::temperature, 0, kMaxTemperature},
    {"top_p", kEvery, &ApiParams::top_p, 0, 1, true},
    {"top_k", kEvery, &ApiParams::top_k, -1, kMaxInt32},
    {"min_p", kEvery, &ApiParams::min_p, 0, 1},
    {"seed", kEvery, &ApiParams::seed, -kMaxInt64, kMaxInt64},
    {"n", kBoth, &ApiParams::n, 1, kMaxChoices},
    {"best_of", kCompletion, &ApiParams::best_of, 1, kMaxChoices},
    {"echo", kCompletion, &ApiParams::echo},
    {"stop", kBoth, &ApiParams::stop, 1, kMaxStopBytes, false, kMaxStopStrings},
    {"stop_token_ids", kEvery, &ApiParams::stop_token_ids, 0, kMaxInt32, false, kMaxStopTokens},
    {"presence_penalty", kEvery, &ApiParams::presence_penalty, -kMaxAddedPenalty, kMaxAddedPenalty},
    {"frequency_penalty", kEvery, &ApiParams::frequency_penalty, -kMaxAddedPenalty,
     kMaxAddedPenalty},
    {"repetition_penalty", kEvery, &ApiParams::repetition_penalty, 0, kMaxRepetitionPenalty, true},
    {"logit_bias", kEvery, &ApiParams::logit_bias, -kMaxLogitBias, kMaxLogitBias, false,
     kMaxLogitBiases},
    {"logprobs", kChat, &ApiParams::logprobs},
    {"logprobs", kCompletion, &ApiParams::logprobs_count, 0, kMaxTopLogprobs},
    {"top_logprobs", kChat, &ApiParams::top_logprobs, 0, kMaxTopLogprobs},
    {"prompt_logprobs", kBoth, &ApiParams::prompt_logprobs, 0, kMaxTopLogprobs},
    {"priority", kBoth, &ApiParams::priority, kMinPriority, kMaxPriority},
    {"return_progress", kBoth, &ApiParams::return_progress},
    {"stream", kEvery, &ApiParams::stream},
    {"stream_options", kBoth, SpecialParam::kStreamOptions},
    {"response_format", kBoth, SpecialParam::kResponseFormat},
    {"structured_outputs", kEvery, SpecialParam::kStructuredOutputs},
    {"guided_json", kBoth, SpecialParam::kGuided},
    {"guided_regex", kBoth, SpecialParam::kGuided},
    {"guided_choice", kBoth, SpecialParam::kGuided},
    {"guided_grammar", kBoth, SpecialParam::kGuided},
    {"tools", kChat, SpecialParam::kTools},
    {"tool_choice", kChat, SpecialParam::kToolChoice},
    {"parallel_tool_calls", kChat, SpecialParam::kParallelToolCalls},
    {"tool_parser", kChat | kMessages, SpecialParam::kToolParser},
    {"reasoning_format", kChat | kMessages, SpecialParam::kReasoningFormat},
    {"documents", kChat, SpecialParam::kDocuments},
    {"reasoning_effort", kChat, SpecialParam::kReasoningEffort},
    {"chat_template_kwargs", kChat | kMessages, SpecialParam::kTemplateKwargs},
    {"add_generation_prompt", kChat, &ApiParams::add_generation_prompt},
    {"continue_final_message", kChat, &ApiParams::continue_final_message},
    {"user", kBoth, &ApiParams::user, 0, kMaxUserBytes, false, 0, true},
    {"cache_salt", kEvery, &ApiParams::cache_salt, 1, kMaxSaltBytes, false, 0, true},
    {"ignore_eos", kEvery, &ApiParams::ignore_eos},
    {"min_tokens", kEvery, &ApiParams::min_tokens, 0, kMaxInt32},
    {"timeout_ms", kEvery, &ApiParams::timeout_ms, 1, kMaxDeadlineMs},
    {"path", kBoth, SpecialParam::kPath},
    {"request_id", kEvery, &ApiParams::request_id, 0, kMaxRequestIdBytes},
    // Anthropic's Messages.
    {"stop_sequences", kMessages, &ApiParams::stop, 1, kMaxStopBytes, false, kMaxStopStrings},
    OfSurface("messages", kMessages, kExpectedMessages, kJsonArray),
    OfSurface("system", kMessages, kExpectedSystem, kJsonString | kJsonArray),
    OfSurface("tools", kMessages, kExpectedMessagesTools, kJsonArray),
    OfSurface("tool_choice", kMessages, kExpectedMessagesToolChoice, kJsonObject),
    OfSurface("thinking", kMessages, kExpectedThinking, kJsonObject),
    OfSurface("output_config", kMessages, kExpectedOutputConfig, kJsonObject),
    OfSurface("output_format", kMessages, kExpectedOutputFormat, kJsonObject),
    OfSurface("context_management", kMessages, kExpectedContextManagement, kJsonObject),
    OfSurface("metadata", kMessages, kExpectedMetadata, kJsonObject),
    OfSurface("cache_control", kMessages, "anything: prefixes are cached without it", 0),
};

std::string NumberText(double value) {
  return value == std::floor(value) ? fmt::format("{:.0f}", value) : fmt::format("{}", value);
}

bool InRange(const ParamRow& row, double value) {
  const bool above = row.min_exclusive ? value > row.min : value >= row.min;
  return above && value <= row.max;  // false for NaN
}

bool OutOfRange(const ParamRow& row, RequestError* error) {
  return Fail(error, ErrorCode::kInvalidValue, row.name, ExpectedOf(row));
}

std::string RangeText(const ParamRow& row) {
  if (row.min_exclusive) {
    return fmt::format("above {} and at most {}", NumberText(row.min), NumberText(row.max));
  }
  return fmt::format("from {} to {}", NumberText(row.min), NumberText(row.max));
}

// Names the values that each kind of target accepts.
struct ExpectedVisitor {
  const ParamRow& row;

  std::string operator()(std::optional<int64_t> ApiParams::* /*target*/) const {
    if (row.max == kMaxInt64) {
      return fmt::format("an integer from {} to {}", std::numeric_limits<int64_t>::min(),
                         std::numeric_limits<uint64_t>::max());
    }
    return "an integer " + RangeText(row);
  }
  std::string operator()(std::optional<double> ApiParams::* /*target*/) const {
    return "a number " + RangeText(row);
  }
  std::string operator()(std::optional<bool> ApiParams::* /*target*/) const {
    return "true or false";
  }
  std::string operator()(std::string ApiParams::*target) const {
    if (target == &ApiParams::request_id) {
      return fmt::format("a string of at most {} visible ASCII characters, without blanks",
                         NumberText(row.max));
    }
    if (row.max == 0) return "a string";
    if (row.min > 0) {
      return fmt::format("a string of {} to {} bytes", NumberText(row.min), NumberText(row.max));
    }
    return fmt::format("a string of at most {}{} bytes", NumberText(row.max),
                       row.is_opaque ? "" : " printable");
  }
  std::string operator()(std::vector<std::string> ApiParams::* /*target*/) const {
    return fmt::format("a string or an array of at most {} strings of {} to {} bytes",
                       row.max_items, NumberText(row.min), NumberText(row.max));
  }
  std::string operator()(std::vector<int64_t> ApiParams::* /*target*/) const {
    return fmt::format("an array of at most {} token ids from 0 to the model's last",
                       row.max_items);
  }
  std::string operator()(LogitBias ApiParams::* /*target*/) const {
    return fmt::format("an object of at most {} token ids with numbers {}", row.max_items,
                       RangeText(row));
  }
  std::string operator()(SpecialParam special) const {
    switch (special) {
      case SpecialParam::kMessages:
        return std::string(kExpectedMessages);
      case SpecialParam::kPrompt:
        return std::string(kExpectedPrompt);
      case SpecialParam::kPromptTokenIds:
        return "an array of token ids";
      case SpecialParam::kStreamOptions:
        return "an object with include_usage and continuous_usage_stats true or false";
      case SpecialParam::kResponseFormat:
        return std::string(kExpectedResponseFormat);
      case SpecialParam::kStructuredOutputs:
        return std::string(kExpectedStructuredOutputs);
      case SpecialParam::kGuided:
        return "as the member of structured_outputs whose name follows \"guided_\"";
      case SpecialParam::kTools:
        return std::string(kExpectedTools);
      case SpecialParam::kToolChoice:
        return std::string(kExpectedToolChoice);
      case SpecialParam::kParallelToolCalls:
        return "true or false";
      case SpecialParam::kToolParser:
        return std::string(kExpectedToolParser);
      case SpecialParam::kReasoningFormat:
        return "\"auto\", \"deepseek\" or \"none\"";
      case SpecialParam::kReasoningEffort:
        return std::string(kExpectedReasoningEffort);
      case SpecialParam::kDocuments:
        return std::string(kExpectedDocuments);
      case SpecialParam::kTemplateKwargs:
        return std::string(kExpectedTemplateKwargs);
      case SpecialParam::kOfSurface:
        return std::string(row.expected);
      case SpecialParam::kPath:
        return "\"auto\", \"disagg\" or \"local\"";
    }
    return {};
  }
};

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

}  // namespace

std::span<const ParamRow> ParamTable() { return kTable; }

bool HasField(std::span<const SurfaceField> fields, std::string_view name) {
  return std::any_of(fields.begin(), fields.end(),
                     [name](const SurfaceField& field) { return field.name == name; });
}

const ParamRow* FindParam(Endpoint endpoint, std::string_view name) {
  for (const ParamRow& row : kTable) {
    if (row.name == name && row.AppliesTo(endpoint)) return &row;
  }
  return nullptr;
}

std::string ExpectedOf(const ParamRow& row) { return std::visit(ExpectedVisitor{row}, row.target); }

bool StoreInteger(const ParamRow& row, int64_t value, ApiParams* params, RequestError* error) {
  if (!InRange(row, static_cast<double>(value))) return OutOfRange(row, error);
  params->*std::get<std::optional<int64_t> ApiParams::*>(row.target) = value;
  return true;
}

bool StoreNumber(const ParamRow& row, double value, ApiParams* params, RequestError* error) {
  if (!InRange(row, value)) return OutOfRange(row, error);
  // Workers compute in float, where 1e-60 is 0: what must be above 0 stays so.
  constexpr double kLeast = std::numeric_limits<float>::min();
  params->*std::get<std::optional<double> ApiParams::*>(row.target) =
      row.min_exclusive ? std::max(value, row.min + kLeast) : value;
  return true;
}

bool StoreBool(const ParamRow& row, bool value, ApiParams* params, RequestError* /*error*/) {
  params->*std::get<std::optional<bool> ApiParams::*>(row.target) = value;
  return true;
}

bool StoreString(const ParamRow& row, std::string value, ApiParams* params, RequestError* error) {
  const bool is_any = row.max == 0;
  if (!is_any && !InRange(row, static_cast<double>(value.size()))) return OutOfRange(row, error);
  if (!is_any && !row.is_opaque && !IsPrintable(value)) return OutOfRange(row, error);
  const auto target = std::get<std::string ApiParams::*>(row.target);
  if (target == &ApiParams::request_id && !IsVisibleAscii(value)) return OutOfRange(row, error);
  params->*target = std::move(value);
  return true;
}

bool StoreStrings(const ParamRow& row, std::vector<std::string> values, ApiParams* params,
                  RequestError* error) {
  if (values.size() > row.max_items) return OutOfRange(row, error);
  for (const std::string& value : values) {
    if (!InRange(row, static_cast<double>(value.size()))) return OutOfRange(row, error);
  }
  params->*std::get<std::vector<std::string> ApiParams::*>(row.target) = std::move(values);
  return true;
}

bool StoreIntegers(const ParamRow& row, std::vector<int64_t> values, ApiParams* params,
                   RequestError* error) {
  if (values.size() > row.max_items) return OutOfRange(row, error);
  for (const int64_t value : values) {
    if (!InRange(row, static_cast<double>(value))) return OutOfRange(row, error);
  }
  params->*std::get<std::vector<int64_t> ApiParams::*>(row.target) = std::move(values);
  return true;
}

bool StoreBias(const ParamRow& row, LogitBias values, ApiParams* params, RequestError* error) {
  if (values.size() > row.max_items) return OutOfRange(row, error);
  std::sort(values.begin(), values.end());
  for (size_t i = 0; i < values.size(); ++i) {
    // "1" and "01" are two keys and one token.
    const bool twice = i > 0 && values[i].first == values[i - 1].first;
    const bool is_token = values[i].first >= 0 && values[i].first <= INT32_MAX;
    if (twice || !is_token || !InRange(row, values[i].second)) return OutOfRange(row, error);
  }
  params->*std::get<LogitBias ApiParams::*>(row.target) = std::move(values);
  return true;
}

bool StoreMessages(std::vector<ChatMessage> messages, ApiParams* params, RequestError* error) {
  if (messages.empty() || messages.size() > kMaxMessages) {
    return Fail(error, ErrorCode::kInvalidValue, "messages", kExpectedMessages);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (CheckChatRole(messages[i].role).ok()) continue;
    return Fail(error, ErrorCode::kInvalidValue, fmt::format("messages[{}].role", i),
                kExpectedRole);
  }
  params->messages = std::move(messages);
  return true;
}

namespace {

// Ids that a prompt may have, whatever its model.
bool CheckPromptTokens(std::string_view name, const std::vector<int64_t>& tokens,
                       RequestError* error) {
  for (const int64_t token : tokens) {
    if (token >= 0 && token <= INT32_MAX) continue;
    return Fail(error, ErrorCode::kInvalidValue, name, "token ids from 0 on");
  }
  if (tokens.size() <= kMaxPromptTokens) return true;
  return Fail(error, ErrorCode::kInvalidValue, name, kExpectedTokenCount);
}

}  // namespace

bool CheckPromptCount(size_t num_prompts, RequestError* error) {
  if (num_prompts <= kMaxPrompts) return true;
  return Fail(error, ErrorCode::kInvalidValue, "prompt",
              fmt::format("at most {} prompts, these are {}; send several requests", kMaxPrompts,
                          num_prompts));
}

bool StorePrompts(std::vector<ApiPrompt> prompts, ApiParams* params, RequestError* error) {
  if (!CheckPromptCount(prompts.size(), error)) return false;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (!CheckPromptTokens(fmt::format("prompt[{}]", i), prompts[i].token_ids, error)) return false;
  }
  params->prompts = std::move(prompts);
  return true;
}

bool StorePromptTokens(std::string_view name, std::vector<int64_t> tokens, ApiParams* params,
                       RequestError* error) {
  if (!CheckPromptTokens(name, tokens, error)) return false;
  params->prompt_token_ids = std::move(tokens);
  params->prompt_token_field = name;
  return true;
}

bool StoreReasoningFormat(std::string_view format, ApiParams* params, RequestError* error) {
  // llama-server's names: the first two both mean a field of its own, `reasoning_content`.
  const bool splits = format == "auto" || format == "deepseek";
  if (splits || format == "none") {
    params->splits_reasoning = splits;
    return true;
  }
  return Fail(error, ErrorCode::kInvalidValue, "reasoning_format",
              ExpectedOf(*FindParam(Endpoint::kChat, "reasoning_format")));
}

bool StorePath(std::string_view path, ApiParams* params, RequestError* error) {
  if (path == "auto" || path == "disagg" || path == "local") {
    params->path = path == "auto"     ? AskedPath::kAuto
                   : path == "disagg" ? AskedPath::kDisagg
                                      : AskedPath::kLocal;
    return true;
  }
  return Fail(error, ErrorCode::kInvalidValue, "path",
              ExpectedOf(*FindParam(Endpoint::kChat, "path")));
}

}  // namespace baton::api
