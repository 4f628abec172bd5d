#include "src/api/messages_json.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "fmt/format.h"

#include "src/api/json_value.h"
#include "src/api/json_writer.h"
#include "src/api/long_json.h"
#include "src/api/openai_json.h"

namespace baton::api {

using router::ErrorCode;
using router::GenerateResult;
using router::HttpStatusOf;
using router::RequestError;
using router::TokenOutput;
using scheduler::FinishReason;

namespace {

// Anthropic's type of an error, by its status.
std::string_view TypeOfStatus(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return "invalid_request_error";
  }
}

// Coding agents look for these words to know that they must shorten the conversation.
std::string MessageOf(const RequestError& error) {
  const bool is_long = error.code == ErrorCode::kContextLengthExceeded && error.expected.empty();
  if (!is_long) {
    RequestError named = error;
    named.param = MessagesField(error.param);
    return named.Message();
  }
  return fmt::format("prompt is too long: {} tokens > {} maximum", error.num_prompt_tokens,
                     std::max(error.max_context, 1u) - 1);
}

// Tokens that a cache had are counted apart from the others, as Anthropic counts them. Every prompt
// is cached, so that none is counted as written to a cache.
void WriteUsage(uint32_t num_prompt_tokens, uint32_t num_cached_tokens, uint32_t num_output_tokens,
                JsonWriter* json) {
  const uint32_t num_cached = std::min(num_cached_tokens, num_prompt_tokens);
  json->Key("usage").BeginObject();
  json->Key("input_tokens").Uint(num_prompt_tokens - num_cached);
  json->Key("cache_creation_input_tokens").Uint(0);
  json->Key("cache_read_input_tokens").Uint(num_cached);
  json->Key("output_tokens").Uint(num_output_tokens);
}

void WriteFinalUsage(const AnswerPlan& plan, const GenerateResult& result,
                     uint32_t num_reasoning_tokens, JsonWriter* json) {
  WriteUsage(result.num_prompt_tokens, result.timings.cached_tokens, result.num_completion_tokens,
             json);
  if (plan.splits_reasoning) {
    json->Key("output_tokens_details").BeginObject();
    json->Key("thinking_tokens").Uint(num_reasoning_tokens).EndObject();
  }
  json->EndObject();
}

// "stop_reason" and "stop_sequence". `num_tokens`: of the answer.
void WriteStop(const MessagesForm& form, const ChoiceEnd& end, uint32_t num_tokens,
               JsonWriter* json) {
  const auto* sequence = std::get_if<std::string>(&end.stop_reason);
  std::string_view reason = "end_turn";
  if (end.finish == FinishReason::kLength) {
    reason = num_tokens < form.max_tokens ? "model_context_window_exceeded" : "max_tokens";
  } else if (sequence != nullptr) {
    reason = "stop_sequence";
  } else if (end.awaits_results()) {
    reason = "tool_use";
  }
  json->Key("stop_reason").String(reason).Key("stop_sequence");
  if (sequence != nullptr) {
    json->String(*sequence);
  } else {
    json->Null();
  }
}

// The members of a message up to its content.
void WriteHead(const AnswerPlan& plan, JsonWriter* json) {
  json->Key("id").String(plan.id).Key("type").String("message");
  json->Key("role").String("assistant").Key("model").String(plan.model->name());
  json->Key("content").BeginArray();
}

void WriteCall(const std::string& id, const std::string& name, JsonWriter* json) {
  json->Key("type").String("tool_use").Key("id").String(id).Key("name").String(name);
}

// {"type":TYPE with more members that the caller writes and closes.
JsonWriter BeginEvent(std::string_view type) {
  JsonWriter json;
  json.BeginObject().Key("type").String(type);
  return json;
}

// Appends a delta of the block `index`: {"type":TYPE, FIELD:TEXT}.
void AppendDelta(uint32_t index, std::string_view type, std::string_view field,
                 std::string_view text, std::string* out) {
  JsonWriter json = BeginEvent("content_block_delta");
  json.Key("index").Uint(index).Key("delta").BeginObject();
  json.Key("type").String(type).Key(field).String(text).EndObject().EndObject();
  AppendEvent("content_block_delta", json.text(), out);
}

}  // namespace

std::string MessagesField(std::string field) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"].function.parameters", "].input_schema"}, {"].function", "]"}};
  for (const auto& [from, to] : kNames) {
    const size_t at = field.starts_with("tools[") ? field.find(from) : std::string::npos;
    if (at != std::string::npos) return field.replace(at, from.size(), to);
  }
  return field;
}

std::string MessagesErrorJson(const RequestError& error, std::string_view request_id) {
  JsonWriter json = BeginEvent("error");
  json.Key("error").BeginObject();
  json.Key("type").String(TypeOfStatus(HttpStatusOf(error.code)));
  json.Key("message").String(MessageOf(error));
  // Anthropic's SDKs go on without a thread where these details say that there is none.
  if (error.code == ErrorCode::kUnsupported && error.param == "thread") {
    json.Key("details").BeginObject().Key("error_code").String("thread_unsupported_request");
    json.Key("unsupported").BeginArray().String("thread").EndArray().EndObject();
  }
  json.EndObject();
  json.Key("request_id").String(request_id).EndObject();
  return json.Take();
}

std::string ToolInputJson(const std::string& arguments) {
  if (arguments.empty()) return "{}";
  JsonValue parsed;
  RequestError error;
  if (ParseJson(arguments, &parsed, &error) && parsed.AsObject() != nullptr) return arguments;
  JsonWriter json;
  json.BeginObject().Key("raw_arguments").String(arguments).EndObject();
  return json.Take();
}

void MessagesWriter::Begin(std::string* out) {
  JsonWriter json = BeginEvent("message_start");
  json.Key("message").BeginObject();
  WriteHead(plan(), &json);
  json.EndArray().Key("stop_reason").Null().Key("stop_sequence").Null();
  WriteUsage(plan().prompts.front().num_tokens, 0, 0, &json);
  json.EndObject().EndObject().EndObject();
  AppendEvent("message_start", json.text(), out);
}

void MessagesWriter::CloseBlock(std::string* out) {
  if (block_ == Block::kNone) return;
  const uint32_t index = num_blocks_ - 1;
  // Clients send thoughts back with a signature; nobody checks it here.
  if (block_ == Block::kThinking) AppendDelta(index, "signature_delta", "signature", "", out);
  JsonWriter json = BeginEvent("content_block_stop");
  json.Key("index").Uint(index).EndObject();
  AppendEvent("content_block_stop", json.text(), out);
  block_ = Block::kNone;
}

void MessagesWriter::Enter(Block block, std::string* out) {
  if (block_ == block) return;
  CloseBlock(out);
  block_ = block;
  JsonWriter json = BeginEvent("content_block_start");
  json.Key("index").Uint(num_blocks_++).Key("content_block").BeginObject();
  if (block == Block::kThinking) {
    json.Key("type").String("thinking").Key("thinking").String("").Key("signature").String("");
  } else {
    json.Key("type").String("text").Key("text").String("");
  }
  json.EndObject().EndObject();
  AppendEvent("content_block_start", json.text(), out);
}

void MessagesWriter::OpenCall(const ToolCallDelta& call, std::string* out) {
  CloseBlock(out);
  block_ = Block::kToolUse;
  JsonWriter json = BeginEvent("content_block_start");
  json.Key("index").Uint(num_blocks_++).Key("content_block").BeginObject();
  WriteCall(call.id, call.name, &json);
  json.Key("input").BeginObject().EndObject().EndObject().EndObject();
  AppendEvent("content_block_start", json.text(), out);
}

void MessagesWriter::AddArguments(std::string_view arguments, std::string* out) {
  if (arguments.empty() || block_ != Block::kToolUse) return;
  AppendDelta(num_blocks_ - 1, "input_json_delta", "partial_json", arguments, out);
}

void MessagesWriter::AddToken(const TokenOutput& /*token*/, const TokenText& text,
                              std::string* out) {
  if (!text.reasoning.empty()) {
    Enter(Block::kThinking, out);
    if (!form_.omits_thoughts) {
      AppendDelta(num_blocks_ - 1, "thinking_delta", "thinking", text.reasoning, out);
    }
  }
  // One token may end a call, bring text, and begin another call.
  size_t next = 0;
  for (; next < text.tool_calls.size() && text.tool_calls[next].id.empty(); ++next) {
    AddArguments(text.tool_calls[next].arguments, out);
  }
  if (!text.content.empty()) {
    Enter(Block::kText, out);
    AppendDelta(num_blocks_ - 1, "text_delta", "text", text.content, out);
  }
  for (; next < text.tool_calls.size(); ++next) {
    const ToolCallDelta& call = text.tool_calls[next];
    if (!call.id.empty()) OpenCall(call, out);
    AddArguments(call.arguments, out);
  }
}

void MessagesWriter::EndChoice(uint32_t /*choice*/, const ChoiceEnd& end,
                               const GenerateResult* /*result*/, std::string* out) {
  CloseBlock(out);
  end_ = end;
}

void MessagesWriter::Finish(const GenerateResult& result, uint32_t num_reasoning_tokens,
                            std::string* out) {
  JsonWriter json = BeginEvent("message_delta");
  json.Key("delta").BeginObject();
  WriteStop(form_, end_, end_.num_tokens, &json);
  json.EndObject();
  WriteFinalUsage(plan(), result, num_reasoning_tokens, &json);
  WriteTimings(result.timings, &json);
  json.EndObject();
  AppendEvent("message_delta", json.text(), out);
  AppendEvent("message_stop", BeginEvent("message_stop").EndObject().text(), out);
}

void MessagesWriter::Fail(const RequestError& error, std::string* out) {
  AppendEvent("error", MessagesErrorJson(error, plan().request_id), out);
}

std::unique_ptr<WholeAnswer> MessagesWriter::Whole(const AnswerCollector& answer,
                                                   const GenerateResult& result) const {
  const CollectedChoice& choice = answer.choice(answer.Best(1).front());
  auto whole = std::make_unique<LongJson>();
  JsonWriter& json = whole->json();
  json.BeginObject();
  WriteHead(plan(), &json);
  if (!choice.reasoning.empty()) {
    json.BeginObject().Key("type").String("thinking").Key("thinking");
    whole->LongString(form_.omits_thoughts ? std::string_view() : choice.reasoning);
    json.Key("signature").String("").EndObject();
  }
  if (!choice.text.empty()) {
    json.BeginObject().Key("type").String("text").Key("text");
    whole->LongString(choice.text);
    json.EndObject();
  }
  for (const ToolCall& call : choice.tool_calls) {
    json.BeginObject();
    WriteCall(call.id, call.name, &json);
    json.Key("input").Raw(ToolInputJson(call.arguments));
    json.EndObject();
  }
  json.EndArray();
  WriteStop(form_, choice.end, choice.num_tokens, &json);
  WriteFinalUsage(plan(), result, answer.num_reasoning_tokens(), &json);
  WriteTimings(result.timings, &json);
  json.EndObject();
  return whole;
}

}  // namespace baton::api
