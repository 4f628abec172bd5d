#include "src/api/embeddings_surface.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/json_writer.h"
#include "src/api/ollama_json.h"
#include "src/api/ollama_params.h"
#include "src/api/openai_json.h"
#include "src/api/read_json.h"
#include "src/api/unsupported_params.h"

namespace baton::api {

using router::ErrorCode;
using router::GenerateResult;
using router::RequestError;
using router::RequestTimings;
using router::TokenOutput;

namespace {

constexpr std::string_view kExpectedFormat = "\"float\" or \"base64\" (little-endian float32)";
constexpr std::string_view kExpectedDimensions =
    "absent, or the number of elements that the model's vectors have";

constexpr SurfaceField kFields[] = {
    {"input", kJsonString | kJsonArray, kExpectedPrompt},
    {"encoding_format", kJsonString, kExpectedFormat},
    {"dimensions", kJsonInteger, kExpectedDimensions},
    {"messages", 0, "absent; send the text as 'input'"},
    {"images", 0, "absent: images are not read"},
    {"truncate_prompt_tokens", 0, "absent: no input is cut"},
};
constexpr SurfaceField kOllamaFields[] = {
    {"input", kJsonString | kJsonArray, kExpectedPrompt},
    {"dimensions", kJsonInteger, kExpectedDimensions},
    {"truncate", kJsonBool, "true or false; no input is cut, one that is too long is refused"},
    {"keep_alive", kJsonNumber | kJsonString, "a duration; nothing is unloaded"},
    {"options", kJsonObject, "an object; nothing in it changes a vector"},
    {"images", 0, "absent: images are not read"},
};
constexpr std::string_view kExpectedText = "a string that is not empty";
constexpr SurfaceField kOlderOllamaFields[] = {
    {"prompt", kJsonString, kExpectedText},
    {"input", 0, "absent; prompt is its name here"},
    {"keep_alive", kJsonNumber | kJsonString, "a duration; nothing is unloaded"},
    {"options", kJsonObject, "an object; nothing in it changes a vector"},
};
constexpr std::string_view kPassedFields[] = {"model",      "user",       "cache_salt",
                                              "timeout_ms", "request_id", "priority"};

// The forms of an answer.
enum class Form : uint8_t { kFloats, kBase64, kOllama, kOlderOllama };

// Elements of a vector as base64 of their little-endian bytes.
std::string Base64Of(const std::vector<float>& vector) {
  static_assert(std::endian::native == std::endian::little && sizeof(float) == 4);
  return absl::Base64Escape(
      {reinterpret_cast<const char*>(vector.data()), vector.size() * sizeof(float)});
}

// The answer front to back. `answer` and `plan` outlive it.
class EmbeddingPieces final : public WholeAnswer {
 public:
  EmbeddingPieces(Form form, std::string model, const AnswerCollector& answer,
                  const GenerateResult& result)
      : form_(form), model_(std::move(model)), answer_(answer), result_(result) {}

  std::string Next(size_t num_bytes) override {
    while (json_.text().size() < num_bytes && !is_done_) Write();
    return json_.Take();
  }

 private:
  // Writes the next part: what begins the answer, a part of a vector, or what ends the answer.
  void Write() {
    const std::vector<std::vector<float>>& vectors = answer_.embeddings();
    if (!has_begun_) {
      has_begun_ = true;
      return Begin();
    }
    if (vector_ == vectors.size()) {
      is_done_ = true;
      return End();
    }
    const std::vector<float>& vector = vectors[vector_];
    if (element_ == 0) BeginVector();
    if (form_ == Form::kBase64) {
      json_.String(Base64Of(vector));
      return EndVector();
    }
    if (element_ == 0) json_.BeginArray();
    constexpr size_t kElementsAtOnce = 1024;
    const size_t end = std::min(element_ + kElementsAtOnce, vector.size());
    for (; element_ < end; ++element_) json_.Float(vector[element_]);
    if (element_ < vector.size()) return;
    json_.EndArray();
    EndVector();
  }
  void Begin() {
    json_.BeginObject();
    if (form_ == Form::kOlderOllama) {
      json_.Key("embedding");
    } else if (form_ == Form::kOllama) {
      json_.Key("model").String(model_).Key("embeddings").BeginArray();
    } else {
      json_.Key("object").String("list").Key("data").BeginArray();
    }
  }
  void BeginVector() {
    if (IsOllama()) return;
    json_.BeginObject().Key("object").String("embedding");
    json_.Key("index").Uint(vector_).Key("embedding");
  }
  void EndVector() {
    if (!IsOllama()) json_.EndObject();
    element_ = 0;
    ++vector_;
  }
  void End() {
    if (form_ == Form::kOlderOllama) {
      json_.EndObject();
      return;
    }
    json_.EndArray();
    if (form_ == Form::kOllama) {
      const RequestTimings& timings = result_.timings;
      json_.Key("total_duration").Int(std::llround((timings.queue_ms + timings.prefill_ms) * 1e6));
      json_.Key("load_duration").Int(0);
      json_.Key("prompt_eval_count").Uint(result_.num_prompt_tokens).EndObject();
      return;
    }
    json_.Key("model").String(model_).Key("usage").BeginObject();
    json_.Key("prompt_tokens").Uint(result_.num_prompt_tokens);
    json_.Key("total_tokens").Uint(result_.num_prompt_tokens).EndObject().EndObject();
  }

  // The vectors stand by themselves.
  bool IsOllama() const { return form_ == Form::kOllama || form_ == Form::kOlderOllama; }

  const Form form_;
  const std::string model_;
  const AnswerCollector& answer_;
  const GenerateResult result_;
  JsonWriter json_;
  bool has_begun_ = false;
  bool is_done_ = false;
  size_t vector_ = 0;   // the next one
  size_t element_ = 0;  // of it
};

// Answers are whole: nothing else is ever called.
class EmbeddingsWriter final : public AnswerWriter {
 public:
  EmbeddingsWriter(AnswerPlan plan, Form form, std::string model)
      : AnswerWriter(std::move(plan)), form_(form), model_(std::move(model)) {}

  void AddToken(const TokenOutput& /*token*/, const TokenText& /*text*/,
                std::string* /*out*/) override {}
  void EndChoice(uint32_t /*choice*/, const ChoiceEnd& /*end*/, const GenerateResult* /*result*/,
                 std::string* /*out*/) override {}
  void Finish(const GenerateResult& /*result*/, uint32_t /*num_reasoning_tokens*/,
              std::string* /*out*/) override {}
  void Fail(const RequestError& /*error*/, std::string* /*out*/) override {}
  std::unique_ptr<WholeAnswer> Whole(const AnswerCollector& answer,
                                     const GenerateResult& result) const override {
    const bool is_named = form_ == Form::kOllama && !model_.empty();
    return std::make_unique<EmbeddingPieces>(form_, is_named ? model_ : plan().model->name(),
                                             answer, result);
  }

 private:
  const Form form_;
  const std::string model_;  // as the client calls it
};

bool IsEmptyText(const JsonValue& value) {
  return value.AsString() != nullptr && value.AsString()->empty();
}

bool CheckInput(const JsonValue* input, RequestError* error) {
  if (input == nullptr) return Fail(error, ErrorCode::kMissingField, "input", kExpectedPrompt);
  constexpr std::string_view kNotEmpty = "at least one token long";
  if (IsEmptyText(*input)) return Fail(error, ErrorCode::kInvalidValue, "input", kNotEmpty);
  const JsonValue::Array* array = input->AsArray();
  if (array == nullptr) return true;
  if (array->empty()) return Fail(error, ErrorCode::kInvalidValue, "input", kExpectedPrompt);
  const auto empty = std::find_if(array->begin(), array->end(), IsEmptyText);
  if (empty == array->end()) return true;
  return Fail(error, ErrorCode::kInvalidValue, fmt::format("input[{}]", empty - array->begin()),
              kNotEmpty);
}

bool CheckRefused(const JsonValue& body, std::span<const SurfaceField> fields,
                  RequestError* error) {
  for (const SurfaceField& field : fields) {
    if (field.json_types != 0 || GivenMember(body, field.name) == nullptr) continue;
    return Fail(error, ErrorCode::kUnsupported, field.name, field.expected);
  }
  return true;
}

bool ReadDimensions(const JsonValue& body, ApiParams* params, RequestError* error) {
  const JsonValue* value = GivenMember(body, "dimensions");
  if (value == nullptr) return true;
  int64_t dimensions = 0;
  if (!value->GetInteger(&dimensions)) {
    return Fail(error, ErrorCode::kInvalidType, "dimensions", kExpectedDimensions);
  }
  params->dimensions = dimensions;
  return true;
}

// The request as a completion of one token, which stands for the vector.
bool ReadInputs(const JsonValue& body, std::span<const SurfaceField> fields,
                SurfaceRequest* request, RequestError* error) {
  if (!CheckRefused(body, fields, error) || !CheckUnsupportedOfEmbedding(body, error)) return false;
  const JsonValue* input = GivenMember(body, "input");
  if (!CheckInput(input, error)) return false;
  JsonValue::Object completion;
  completion.emplace_back("prompt", *input);
  for (const std::string_view name : kPassedFields) {
    if (const JsonValue* value = GivenMember(body, name)) completion.emplace_back(name, *value);
  }
  ApiParams& params = request->params;
  std::vector<std::string> none;
  if (!ReadJsonParams(JsonValue(std::move(completion)), Endpoint::kCompletion, &params, &none,
                      error)) {
    *error = NamedAsInput(std::move(*error));
    return false;
  }
  params.max_tokens = 1;
  params.embeds = true;
  return ReadDimensions(body, &params, error);
}

// Names what nothing read: all but `known`, the passed fields, and neutral values of a table.
std::vector<std::string> IgnoredOf(const JsonValue& body,
                                   std::initializer_list<std::string_view> known) {
  std::vector<std::string> ignored = IgnoredJsonFields(body, known);
  std::erase_if(ignored, [](const std::string& name) {
    return IsUnsupportedOfEmbedding(name) ||
           std::find(std::begin(kPassedFields), std::end(kPassedFields), name) !=
               std::end(kPassedFields);
  });
  return ignored;
}

bool ReadOpenAi(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  if (!ReadInputs(call.body, kFields, request, error)) return false;
  Form form = Form::kFloats;
  if (const JsonValue* format = GivenMember(call.body, "encoding_format")) {
    if (format->AsString() == nullptr) {
      return Fail(error, ErrorCode::kInvalidType, "encoding_format", kExpectedFormat);
    }
    if (IsJsonText(format, "base64")) {
      form = Form::kBase64;
    } else if (!IsJsonText(format, "float")) {
      return Fail(error, ErrorCode::kInvalidValue, "encoding_format", kExpectedFormat);
    }
  }
  request->ignored = IgnoredOf(call.body, {"input", "encoding_format", "dimensions"});
  request->make_writer = [form](AnswerPlan plan) {
    return std::make_unique<EmbeddingsWriter>(std::move(plan), form, "");
  };
  return true;
}

// Both of Ollama's forms have these beside their texts.
bool CheckOllamaOptions(const JsonValue& body, RequestError* error) {
  if (!CheckOllamaKeepAlive(body, error)) return false;
  const JsonValue* const options = GivenMember(body, "options");
  if (options == nullptr || options->AsObject() != nullptr) return true;
  return Fail(error, ErrorCode::kInvalidType, "options", "an object");
}

void FinishOllama(const JsonValue& body, Form form, SurfaceRequest* request) {
  if (const JsonValue* const options = GivenMember(body, "options")) {
    NameUnknownMembers(*options, "options", {}, &request->ignored);
  }
  request->make_writer = [form, model = request->params.model](AnswerPlan plan) {
    return std::make_unique<EmbeddingsWriter>(std::move(plan), form, model);
  };
}

bool ReadOllama(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  if (!CheckOllamaOptions(call.body, error)) return false;
  const JsonValue* const truncate = GivenMember(call.body, "truncate");
  if (truncate != nullptr && truncate->AsBool() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "truncate", "true or false");
  }
  if (!ReadInputs(call.body, kOllamaFields, request, error)) return false;
  request->ignored = IgnoredOf(call.body, {"input", "dimensions", "truncate", "options"});
  FinishOllama(call.body, Form::kOllama, request);
  return true;
}

// The one text becomes the one input.
bool ReadOlderOllama(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  if (!CheckRefused(call.body, kOlderOllamaFields, error) ||
      !CheckOllamaOptions(call.body, error)) {
    return false;
  }
  const JsonValue* const prompt = GivenMember(call.body, "prompt");
  if (prompt == nullptr || prompt->AsString() == nullptr) {
    return Fail(error, prompt == nullptr ? ErrorCode::kMissingField : ErrorCode::kInvalidType,
                "prompt", kExpectedText);
  }
  JsonValue::Object members;
  for (const auto& [name, value] : *call.body.AsObject()) {
    if (name != "input") members.emplace_back(name == "prompt" ? "input" : name, value);
  }
  const JsonValue body(std::move(members));
  if (!ReadInputs(body, kOllamaFields, request, error)) return false;
  request->ignored = IgnoredOf(body, {"input", "dimensions", "options"});
  FinishOllama(body, Form::kOlderOllama, request);
  return true;
}

std::string OpenAiError(const RequestError& error, std::string_view /*request_id*/) {
  return ErrorJson(NamedAsInput(error));
}

std::string OllamaError(const RequestError& error, std::string_view /*request_id*/) {
  return OllamaErrorJson(NamedAsInput(error));
}

std::string OlderOllamaError(const RequestError& error, std::string_view /*request_id*/) {
  RequestError named = error;
  if (named.code != ErrorCode::kUnsupported && named.param == "input") named.param = "prompt";
  return OllamaErrorJson(named);
}

}  // namespace

RequestError NamedAsInput(RequestError error) {
  constexpr std::string_view kPrompt = "prompt";
  // A field that this API does not have is named as it was sent.
  if (error.code == ErrorCode::kUnsupported || !error.param.starts_with(kPrompt)) return error;
  const bool is_prompt = error.param.size() == kPrompt.size() || error.param[kPrompt.size()] == '[';
  if (is_prompt) error.param.replace(0, kPrompt.size(), "input");
  return error;
}

std::span<const SurfaceField> EmbeddingsFields() { return kFields; }
std::span<const SurfaceField> OllamaEmbedFields() { return kOllamaFields; }
std::span<const SurfaceField> OllamaEmbeddingsFields() { return kOlderOllamaFields; }
std::span<const std::string_view> EmbeddingsPassedFields() { return kPassedFields; }

constexpr Surface kEmbeddingsSurface = {.endpoint = Endpoint::kCompletion,
                                        .answer_id_prefix = "embd-",
                                        .read = &ReadOpenAi,
                                        .error_body = &OpenAiError};

constexpr Surface kOllamaEmbedSurface = {.endpoint = Endpoint::kCompletion,
                                         .answer_id_prefix = "ollama-",
                                         .may_have_tag = true,
                                         .read = &ReadOllama,
                                         .error_body = &OllamaError};

constexpr Surface kOllamaEmbeddingsSurface = {.endpoint = Endpoint::kCompletion,
                                              .answer_id_prefix = "ollama-",
                                              .may_have_tag = true,
                                              .read = &ReadOlderOllama,
                                              .error_body = &OlderOllamaError};

}  // namespace baton::api
