#include "src/api/tokenize_json.h"

#include <optional>
#include <string_view>

#include "src/api/build_request.h"
#include "src/api/json_fields.h"
#include "src/api/json_writer.h"
#include "src/api/read_json.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

namespace baton::api {

using router::ErrorCode;
using router::ModelInfo;
using router::RequestError;
using text::ChatPrompt;
using text::EncodeOptions;
using text::TextOrBytes;
using text::Tokenizer;
using text::ValidUtf8Prefix;

namespace {

constexpr std::string_view kExpectedFlag = "true or false";
constexpr std::string_view kExpectedText = "a string";
constexpr std::string_view kExpectedIds = "an array of token ids";

constexpr SurfaceField kTokenizeFields[] = {
    {"model", kJsonString, kExpectedText},
    {"content", kJsonString, kExpectedText},
    {"add_special", kJsonBool, kExpectedFlag},
    {"parse_special", kJsonBool, kExpectedFlag},
    {"with_pieces", kJsonBool, kExpectedFlag},
    {"prompt", kJsonString, kExpectedText},
    {"add_special_tokens", kJsonBool, kExpectedFlag},
    {"return_token_strs", kJsonBool, kExpectedFlag},
};
constexpr SurfaceField kDetokenizeFields[] = {
    {"model", kJsonString, kExpectedText},
    {"tokens", kJsonArray, kExpectedIds},
};

// A flag that keeps its value when it is absent; false as result: it has another type.
bool ReadFlag(const JsonValue& body, std::string_view name, bool* flag, RequestError* error) {
  const JsonValue* value = body.Find(name);
  if (value == nullptr || value->is_null()) return true;
  if (value->AsBool() == nullptr) return Fail(error, ErrorCode::kInvalidType, name, kExpectedFlag);
  *flag = *value->AsBool();
  return true;
}

bool IsGiven(const JsonValue& body, std::string_view name) {
  const JsonValue* value = body.Find(name);
  return value != nullptr && !value->is_null();
}

// The text of the field `name`, which is given.
bool ReadText(const JsonValue& body, std::string_view name, TextField* text, RequestError* error) {
  const JsonValue* value = body.Find(name);
  if (value->AsString() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, name, kExpectedText);
  }
  *text = {name, *value->AsString()};
  return true;
}

// llama-server's piece of a token: its text, or its bytes where they are no text.
void WritePiece(std::string_view bytes, JsonWriter* json) {
  if (ValidUtf8Prefix(bytes) == bytes.size()) {
    json->String(bytes);
    return;
  }
  json->BeginArray();
  for (const char c : bytes) json->Uint(static_cast<unsigned char>(c));
  json->EndArray();
}

std::string PiecesJson(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  JsonWriter json;
  json.BeginObject().Key("tokens").BeginArray();
  bool at_start = true;
  for (const TokenId token : tokens) {
    const bool is_text = !tokenizer.IsSpecial(token);
    json.BeginObject().Key("id").Int(token).Key("piece");
    WritePiece(is_text && at_start ? tokenizer.BytesAtStart(token) : tokenizer.TokenBytes(token),
               &json);
    json.EndObject();
    at_start = at_start && !is_text;
  }
  json.EndArray().EndObject();
  return json.Take();
}

void WriteIds(const std::vector<TokenId>& tokens, JsonWriter* json) {
  json->Key("tokens").BeginArray();
  for (const TokenId token : tokens) json->Int(token);
  json->EndArray();
}

// vLLM's answer.
std::string CountedJson(const ModelInfo& model, const std::vector<TokenId>& tokens,
                        bool with_strings) {
  JsonWriter json;
  json.BeginObject().Key("count").Uint(tokens.size());
  json.Key("max_model_len").Uint(model.max_context);
  WriteIds(tokens, &json);
  json.Key("token_strs");
  if (with_strings) {
    json.BeginArray();
    for (const TokenId token : tokens) {
      json.String(TextOrBytes(model.tokenizer->TokenBytes(token)));
    }
    json.EndArray();
  } else {
    json.Null();
  }
  json.EndObject();
  return json.Take();
}

bool TokenizeContent(const TextCall& call, TextAnswer* answer, RequestError* error) {
  answer->ignored = IgnoredJsonFields(
      call.body, {"model", "content", "add_special", "parse_special", "with_pieces"});
  TextField text;
  EncodeOptions options;
  bool with_pieces = false;
  std::vector<TokenId> tokens;
  if (!ReadText(call.body, "content", &text, error) ||
      !ReadFlag(call.body, "add_special", &options.add_special, error) ||
      !ReadFlag(call.body, "parse_special", &options.parse_special, error) ||
      !ReadFlag(call.body, "with_pieces", &with_pieces, error) ||
      !TokenizeText(call.model, text, options, &tokens, error)) {
    return false;
  }
  if (with_pieces) {
    answer->json = PiecesJson(*call.model.tokenizer, tokens);
    return true;
  }
  JsonWriter json;
  json.BeginObject();
  WriteIds(tokens, &json);
  json.EndObject();
  answer->json = json.Take();
  return true;
}

bool TokenizePrompt(const TextCall& call, TextAnswer* answer, RequestError* error) {
  answer->ignored =
      IgnoredJsonFields(call.body, {"model", "prompt", "add_special_tokens", "return_token_strs"});
  TextField text;
  EncodeOptions options{.add_special = true};
  bool with_strings = false;
  std::vector<TokenId> tokens;
  if (!ReadText(call.body, "prompt", &text, error) ||
      !ReadFlag(call.body, "add_special_tokens", &options.add_special, error) ||
      !ReadFlag(call.body, "return_token_strs", &with_strings, error) ||
      !TokenizeText(call.model, text, options, &tokens, error)) {
    return false;
  }
  answer->json = CountedJson(call.model, tokens, with_strings);
  return true;
}

bool TokenizeMessages(const TextCall& call, TextAnswer* answer, RequestError* error) {
  answer->ignored = IgnoredJsonFields(
      call.body, {"model", "messages", "documents", "reasoning_effort", "chat_template_kwargs",
                  "add_generation_prompt", "continue_final_message", "tools", "add_special_tokens",
                  "return_token_strs"});
  ApiParams params;
  ChatPrompt prompt;
  bool with_strings = false;
  if (!ReadFlag(call.body, "return_token_strs", &with_strings, error) ||
      !ReadJsonTemplateParams(call.body, &params, error) ||
      !RenderMessages(call.model, params, call.wall_unix_ms, &prompt, error)) {
    return false;
  }
  AddUnread(UnreadVariables(call.model, params), &answer->ignored);
  answer->json = CountedJson(call.model, prompt.tokens, with_strings);
  return true;
}

// A flag is true or false in every form, also in one that does not read it.
bool CheckFlags(const JsonValue& body, RequestError* error) {
  for (const SurfaceField& field : kTokenizeFields) {
    bool flag = false;
    if (field.json_types == kJsonBool && !ReadFlag(body, field.name, &flag, error)) return false;
  }
  return true;
}

}  // namespace

std::span<const SurfaceField> TokenizeFields() { return kTokenizeFields; }
std::span<const SurfaceField> DetokenizeFields() { return kDetokenizeFields; }

bool AnswerTokenize(const TextCall& call, TextAnswer* answer, RequestError* error) {
  constexpr std::string_view kForms = "exactly one of content, prompt and messages is given";
  if (!CheckFlags(call.body, error)) return false;
  std::string_view form;
  for (const std::string_view name : {"content", "prompt", "messages"}) {
    if (!IsGiven(call.body, name)) continue;
    if (!form.empty()) return Fail(error, ErrorCode::kConflict, name, kForms);
    form = name;
  }
  if (form == "content") return TokenizeContent(call, answer, error);
  if (form == "prompt") return TokenizePrompt(call, answer, error);
  if (form == "messages") return TokenizeMessages(call, answer, error);
  return Fail(error, ErrorCode::kMissingField, "content", kForms);
}

bool AnswerDetokenize(const TextCall& call, TextAnswer* answer, RequestError* error) {
  answer->ignored = IgnoredJsonFields(call.body, {"model", "tokens"});
  const JsonValue* tokens = call.body.Find("tokens");
  if (tokens == nullptr || tokens->is_null()) {
    return Fail(error, ErrorCode::kMissingField, "tokens", kExpectedIds);
  }
  std::vector<int64_t> ids;
  std::string text;
  if (!ReadJsonTokens(*tokens, "tokens", &ids, error) ||
      !DetokenizeIds(call.model, ids, "tokens", &text, error)) {
    return false;
  }
  JsonWriter json;
  json.BeginObject().Key("content").String(text).Key("prompt").String(text).EndObject();
  answer->json = json.Take();
  return true;
}

std::string TokenizerInfoJson(const ModelInfo& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  JsonWriter json;
  const auto add_token = [&](std::string_view name, std::optional<TokenId> token) {
    json.Key(name);
    if (token.has_value()) {
      json.String(TextOrBytes(tokenizer.TokenBytes(*token)));
    } else {
      json.Null();
    }
  };
  json.BeginObject().Key("tokenizer_class").String("PreTrainedTokenizerFast");
  json.Key("model").String(model.name());
  add_token("bos_token", tokenizer.bos_id());
  add_token("eos_token", tokenizer.eos_id());
  add_token("pad_token", tokenizer.pad_id());
  json.Key("add_bos_token").Bool(tokenizer.add_bos());
  json.Key("add_eos_token").Bool(tokenizer.add_eos());
  json.Key("vocab_size").Uint(model.vocab_size);
  json.Key("model_max_length").Uint(model.max_context).Key("chat_template");
  if (model.chat_template != nullptr) {
    json.String(model.chat_template->source());
  } else {
    json.Null();
  }
  json.EndObject();
  return json.Take();
}

}  // namespace baton::api
