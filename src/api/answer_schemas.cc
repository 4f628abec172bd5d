#include "src/api/answer_schemas.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "src/base/check.h"

namespace baton::api {

namespace {

// An object of JSON; see the file comment of the header.
struct AnswerObject {
  std::string_view name;
  std::string_view members;
};

// Parts that several surfaces have.
constexpr AnswerObject kShared[] = {
    {"Timings",
     "path:'disagg'|'local' prefill_worker:string decode_worker:string transport:string "
     "kv_bytes:integer queue_ms:number prefill_ms:number kv_wait_ms:number first_step_ms:number "
     "decode_ms:number cached_tokens:integer prefix_source:string resumes:integer exact:boolean "
     "speculated:integer accepted:integer speculation:string"},
    {"TopLogprob", "token:string logprob:number|null bytes:[integer]"},
    {"TokenLogprob", "token:string logprob:number|null bytes:[integer] top_logprobs:[TopLogprob]"},
    {"PromptToken", "logprob:number|null rank:integer decoded_token:string"},
    {"CutDetails", "reason:string"},
};

// Chat and completions.
constexpr AnswerObject kOpenAi[] = {
    {"ChatCompletion",
     "id:string object:'chat.completion' created:integer model:string choices:[ChatChoice] "
     "prompt_logprobs?:[{PromptToken}|null] usage:Usage timings:Timings"},
    {"ChatChoice",
     "index:integer message:ChatMessage logprobs:ChatLogprobs|null finish_reason:string "
     "stop_reason:string|integer|null incomplete_details?:CutDetails timings?:Timings"},
    {"ChatMessage",
     "role:'assistant' content:string|null reasoning_content?:string|null "
     "tool_calls?:[ToolCall]"},
    {"ChatLogprobs", "content:[TokenLogprob]"},
    {"ToolCall", "id:string type:'function' function:CalledFunction"},
    {"CalledFunction", "name:string arguments:string"},
    {"Usage",
     "prompt_tokens:integer completion_tokens:integer total_tokens:integer "
     "prompt_tokens_details:CachedTokens completion_tokens_details:ReasoningTokens"},
    {"CachedTokens", "cached_tokens:integer"},
    {"ReasoningTokens", "reasoning_tokens:integer"},
    {"Completion",
     "id:string object:'text_completion' created:integer model:string choices:[CompletionChoice] "
     "usage:Usage timings:Timings"},
    {"CompletionChoice",
     "index:integer text:string logprobs:CompletionLogprobs|null finish_reason:string "
     "stop_reason:string|integer|null incomplete_details?:CutDetails timings?:Timings "
     "prompt_logprobs?:[{PromptToken}|null]"},
    {"CompletionLogprobs",
     "tokens:[string] token_logprobs:[number|null] top_logprobs:[{number|null}|null] "
     "text_offset:[integer]"},
    {"ChatChunk",
     "id:string object:'chat.completion.chunk' created:integer model:string "
     "prompt_logprobs?:[{PromptToken}|null] prompt_progress?:PromptProgress "
     "choices:[ChatChunkChoice] usage?:ChunkUsage|null timings?:Timings"},
    {"ChatChunkChoice",
     "index:integer delta:ChatDelta logprobs:ChatLogprobs|null finish_reason:string|null "
     "stop_reason?:string|integer|null incomplete_details?:CutDetails timings?:Timings"},
    {"ChatDelta",
     "role?:'assistant' content?:string|null reasoning_content?:string "
     "tool_calls?:[ToolCallDelta]"},
    {"ToolCallDelta", "index:integer id?:string type?:'function' function:CalledPart"},
    {"CalledPart", "name?:string arguments:string"},
    {"PromptProgress", "total:integer cache:integer processed:integer time_ms:integer"},
    {"ChunkUsage",
     "prompt_tokens:integer completion_tokens:integer total_tokens:integer "
     "prompt_tokens_details?:CachedTokens completion_tokens_details?:ReasoningTokens"},
    {"CompletionChunk",
     "id:string object:'text_completion' created:integer model:string "
     "prompt_progress?:PromptProgress choices:[CompletionChunkChoice] usage?:ChunkUsage|null "
     "timings?:Timings"},
    {"CompletionChunkChoice",
     "index:integer text:string logprobs:CompletionLogprobs|null finish_reason:string|null "
     "stop_reason?:string|integer|null incomplete_details?:CutDetails timings?:Timings "
     "prompt_logprobs?:[{PromptToken}|null]"},
    {"Model",
     "id:string object:'model' created:integer owned_by:string max_context:integer "
     "max_model_len:integer vocab_size:integer root?:string"},
    {"ModelList", "object:'list' data:[Model]"},
    {"Embeddings", "object:'list' data:[Embedding] model:string usage:EmbeddingUsage"},
    {"Embedding", "object:'embedding' index:integer embedding:[number]|string"},
    {"EmbeddingUsage", "prompt_tokens:integer total_tokens:integer"},
};

// Anthropic's Messages.
constexpr AnswerObject kMessages[] = {
    {"Message",
     "id:string type:'message' role:'assistant' model:string "
     "content:[TextBlock|ThinkingBlock|ToolUseBlock] stop_reason:string stop_sequence:string|null "
     "usage:MessageUsage timings:Timings"},
    {"TextBlock", "type:'text' text:string"},
    {"ThinkingBlock", "type:'thinking' thinking:string signature:string"},
    {"ToolUseBlock", "type:'tool_use' id:string name:string input:object"},
    {"MessageUsage",
     "input_tokens:integer cache_creation_input_tokens:integer cache_read_input_tokens:integer "
     "output_tokens:integer output_tokens_details?:ThinkingTokens"},
    {"ThinkingTokens", "thinking_tokens:integer"},
    {"MessagesEvent",
     "type:string message?:object index?:integer content_block?:object delta?:object "
     "usage?:MessageUsage timings?:Timings error?:object request_id?:string"},
    {"TokenCount", "input_tokens:integer"},
    {"MessagesModel",
     "type:'model' id:string display_name:string created_at:string lifecycle:string "
     "max_input_tokens:integer max_tokens:integer"},
    {"MessagesModelList",
     "data:[MessagesModel] has_more:boolean first_id:string|null last_id:string|null"},
};

// OpenAI's Responses.
constexpr AnswerObject kResponses[] = {
    {"Response",
     "id:string object:'response' created_at:integer status:string error:ResponseError|null "
     "incomplete_details:CutDetails|null model:string "
     "output:[ResponseReasoning|ResponseMessage|ResponseCall] usage:ResponseUsage|null "
     "timings?:Timings background:boolean instructions:string|null max_output_tokens:integer|null "
     "max_tool_calls:integer|null metadata:{string} parallel_tool_calls:boolean "
     "previous_response_id:null reasoning:object service_tier:string store:boolean "
     "temperature:number text:object tool_choice:string|object tools:[object] "
     "top_logprobs:integer top_p:number truncation:string user:string|null"},
    {"ResponseError", "code:string message:string"},
    {"ResponseReasoning",
     "type:'reasoning' id:string status:string summary:[object] encrypted_content:null "
     "content:[ReasoningText]"},
    {"ReasoningText", "type:'reasoning_text' text:string"},
    {"ResponseMessage",
     "type:'message' id:string status:string role:'assistant' content:[OutputText]"},
    {"OutputText", "type:'output_text' annotations:[object] text:string logprobs:[TokenLogprob]"},
    {"ResponseCall",
     "type:'function_call' id:string status:string call_id:string name:string arguments:string"},
    {"ResponseUsage",
     "input_tokens:integer input_tokens_details:ResponseInputDetails output_tokens:integer "
     "output_tokens_details:ReasoningTokens total_tokens:integer"},
    {"ResponseInputDetails", "cached_tokens:integer cache_write_tokens:integer"},
    {"ResponseInputTokens", "object:'response.input_tokens' input_tokens:integer"},
    {"ResponseEvent",
     "type:string sequence_number:integer response?:Response item?:object output_index?:integer "
     "content_index?:integer summary_index?:integer item_id?:string part?:object delta?:string "
     "text?:string "
     "logprobs?:[TokenLogprob] name?:string arguments?:string code?:string message?:string "
     "param?:string|null error?:object"},
};

// Ollama's API.
constexpr AnswerObject kOllama[] = {
    {"OllamaChat",
     "model:string created_at:string message:OllamaMessage logprobs?:[TokenLogprob] done:boolean "
     "done_reason:string total_duration?:integer load_duration?:integer "
     "prompt_eval_count?:integer prompt_eval_duration?:integer eval_count?:integer "
     "eval_duration?:integer timings?:Timings"},
    {"OllamaChatLine",
     "model:string created_at:string message:OllamaMessage logprobs?:[TokenLogprob] done:boolean "
     "done_reason?:string eval_count?:integer timings?:Timings"},
    {"OllamaMessage", "role:'assistant' content:string thinking?:string tool_calls?:[OllamaCall]"},
    {"OllamaCall", "id:string function:OllamaFunction"},
    {"OllamaFunction", "index:integer name:string arguments:object"},
    {"OllamaText",
     "model:string created_at:string response:string thinking?:string logprobs?:[TokenLogprob] "
     "done:boolean done_reason:string total_duration?:integer load_duration?:integer "
     "prompt_eval_count?:integer prompt_eval_duration?:integer eval_count?:integer "
     "eval_duration?:integer timings?:Timings"},
    {"OllamaTextLine",
     "model:string created_at:string response:string thinking?:string logprobs?:[TokenLogprob] "
     "done:boolean done_reason?:string eval_count?:integer timings?:Timings"},
    {"OllamaEmbeddings",
     "model:string embeddings:[[number]] total_duration:integer load_duration:integer "
     "prompt_eval_count:integer"},
    {"OllamaEmbedding", "embedding:[number]"},
    {"OllamaModels", "models:[OllamaModel]"},
    {"OllamaModel",
     "name:string model:string modified_at?:string size:integer digest:string details:object "
     "expires_at?:string size_vram?:integer context_length?:integer"},
    {"OllamaShow",
     "license:string modelfile:string parameters:string template:string details:object "
     "model_info:object capabilities:[string] modified_at:string"},
    {"OllamaVersion", "version:string baton:string"},
};

// Texts and tokens, and the server itself.
constexpr AnswerObject kServer[] = {
    {"TokenIds", "tokens:[integer]"},
    {"TokenPieces", "tokens:[TokenPiece]"},
    {"TokenPiece", "id:integer piece:string|[integer]"},
    {"CountedTokens",
     "count:integer max_model_len:integer tokens:[integer] token_strs:[string]|null"},
    {"DetokenizedText", "content:string prompt:string"},
    {"TokenizerInfo",
     "tokenizer_class:string model:string bos_token:string|null eos_token:string|null "
     "pad_token:string|null add_bos_token:boolean add_eos_token:boolean vocab_size:integer "
     "model_max_length:integer chat_template:string|null"},
    {"RenderedPrompt", "prompt:string"},
    {"Health", "status:'ok'"},
    {"Version", "version:string"},
    {"Topology", "model:string processes:[Process] slo?:{Objective}"},
    {"Process",
     "role:string worker_id:string incarnation:string pid:integer grpc:string http?:string "
     "admin:string kv:string ready:boolean model?:string kv_blocks?:{integer} running?:integer "
     "waiting?:integer links?:[Link] not_paired?:[NotPaired]"},
    {"Link", "to:string transport:string bytes_per_s:integer up:boolean why?:string"},
    {"NotPaired", "with:string why:string"},
    {"Objective", "limit_ms:number met:integer missed:integer share:number|null"},
    {"ClusterEvent", "version:integer type:string time_ms:integer"},
    {"OpenApi", "openapi:string info:object paths:object components:object"},
};

constexpr RouteAnswer kRoutes[] = {
    {ApiRoute::kChat, "ChatCompletion", "ChatChunk|Error"},
    {ApiRoute::kCompletion, "Completion", "CompletionChunk|Error"},
    {ApiRoute::kMessages, "Message", "MessagesEvent"},
    {ApiRoute::kCountTokens, "TokenCount"},
    {ApiRoute::kModels, "ModelList|MessagesModelList"},
    {ApiRoute::kModel, "Model|MessagesModel"},
    {ApiRoute::kResponses, "Response", "ResponseEvent"},
    {ApiRoute::kInputTokens, "ResponseInputTokens"},
    {ApiRoute::kEmbeddings, "Embeddings"},
    {ApiRoute::kOllamaChat, "OllamaChat", "OllamaChatLine|OllamaError"},
    {ApiRoute::kOllamaGenerate, "OllamaText", "OllamaTextLine|OllamaError"},
    {ApiRoute::kOllamaEmbed, "OllamaEmbeddings"},
    {ApiRoute::kOllamaEmbeddings, "OllamaEmbedding"},
    {ApiRoute::kOllamaShow, "OllamaShow"},
    {ApiRoute::kOllamaTags, "OllamaModels"},
    {ApiRoute::kOllamaPs, "OllamaModels"},
    {ApiRoute::kOllamaVersion, "OllamaVersion"},
    {ApiRoute::kTokenize, "TokenIds|TokenPieces|CountedTokens"},
    {ApiRoute::kDetokenize, "DetokenizedText"},
    {ApiRoute::kTokenizerInfo, "TokenizerInfo"},
    {ApiRoute::kApplyTemplate, "RenderedPrompt"},
    {ApiRoute::kHealth, "Health"},
    {ApiRoute::kTopology, "Topology"},
    {ApiRoute::kClusterEvents, "", "ClusterEvent"},
    {ApiRoute::kStream, "", "ChatChunk|CompletionChunk|MessagesEvent|ResponseEvent|Error"},
    {ApiRoute::kVersion, "Version"},
    {ApiRoute::kOpenApi, "OpenApi"},
};

constexpr const RouteAnswer* FindRow(ApiRoute route) {
  for (const RouteAnswer& row : kRoutes) {
    if (row.route == route) return &row;
  }
  return nullptr;
}

constexpr bool PathsAndAnswersFit() {
  for (const ApiPath& path : kApiPaths) {
    const RouteAnswer* const row = FindRow(path.route);
    if ((row == nullptr) != path.summary.empty()) return false;
    if (row != nullptr && row->whole.empty() && row->event.empty()) return false;
  }
  return true;
}
static_assert(PathsAndAnswersFit(),
              "each path of api_paths.h with a summary, and no other, has a row here with a form");

// The parts of `text` between `separator`, where no bracket is open.
std::vector<std::string_view> PartsOf(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '{') ++depth;
    if (text[i] == ']' || text[i] == '}') --depth;
    if (text[i] != separator || depth > 0) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// "string", "null": a type of JSON by its own name.
bool IsTypeName(std::string_view type) {
  return type.front() >= 'a' && type.front() <= 'z' && type != "any";
}

// The schema of a TYPE without '|', up to the end of its object.
void WriteOne(std::string_view type, JsonWriter* json) {
  const std::string_view inner = type.substr(1, type.size() - 2);
  json->BeginObject();
  if (type.front() == '[') {
    json->Key("type").String("array").Key("items");
    WriteSchemaOf(inner, json);
  } else if (type.front() == '{') {
    json->Key("type").String("object").Key("additionalProperties");
    WriteSchemaOf(inner, json);
  } else if (type.front() == '\'') {
    json->Key("const").String(inner);
  } else if (IsTypeName(type)) {
    json->Key("type").String(type);
  } else if (type != "any") {
    json->Key("$ref").String("#/components/schemas/" + std::string(type));
  }
  json->EndObject();
}

void WriteObject(const AnswerObject& object, JsonWriter* json) {
  std::vector<std::string_view> required;
  json->Key(object.name).BeginObject().Key("type").String("object");
  json->Key("properties").BeginObject();
  for (const std::string_view member : PartsOf(object.members, ' ')) {
    const size_t colon = member.find(':');
    std::string_view name = member.substr(0, colon);
    if (name.ends_with('?')) {
      name.remove_suffix(1);
    } else {
      required.push_back(name);
    }
    json->Key(name);
    WriteSchemaOf(member.substr(colon + 1), json);
  }
  json->EndObject().Key("required").BeginArray();
  for (const std::string_view name : required) json->String(name);
  json->EndArray().EndObject();
}

}  // namespace

const RouteAnswer& RouteAnswerOf(const ApiPath& path) {
  const RouteAnswer* const row = FindRow(path.route);
  BATON_CHECK(row != nullptr, "{} is for people: its answer is not described", path.path);
  return *row;
}

void WriteSchemaOf(std::string_view type, JsonWriter* json) {
  const std::vector<std::string_view> parts = PartsOf(type, '|');
  if (parts.size() == 1) return WriteOne(type, json);
  const bool are_names = std::all_of(parts.begin(), parts.end(), IsTypeName);
  json->BeginObject().Key(are_names ? "type" : "anyOf").BeginArray();
  for (const std::string_view part : parts) {
    if (are_names) {
      json->String(part);
    } else {
      WriteOne(part, json);
    }
  }
  json->EndArray().EndObject();
}

void WriteAnswerSchemas(JsonWriter* json) {
  for (const AnswerObject& object : kShared) WriteObject(object, json);
  for (const AnswerObject& object : kOpenAi) WriteObject(object, json);
  for (const AnswerObject& object : kMessages) WriteObject(object, json);
  for (const AnswerObject& object : kResponses) WriteObject(object, json);
  for (const AnswerObject& object : kOllama) WriteObject(object, json);
  for (const AnswerObject& object : kServer) WriteObject(object, json);
}

}  // namespace baton::api
