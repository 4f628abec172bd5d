#include "src/api/ollama_params.h"

#include <algorithm>
#include <array>
#include <utility>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/read_json.h"
#include "src/api/schema.h"
#include "src/api/unsupported_params.h"
#include "src/base/limits.h"
#include "src/base/numbered_text.h"
#include "src/text/chat_template.h"
#include "src/text/reasoning_splitter.h"

namespace baton::api {

using router::ErrorCode;
using router::ModelInfo;
using router::RequestError;
using text::TemplateThinks;

namespace {

constexpr std::string_view kExpectedThink = "true, false, \"low\", \"medium\", \"high\" or \"max\"";
constexpr std::string_view kExpectedFormat = "\"json\" or a JSON Schema";
constexpr std::string_view kExpectedCalls =
    "an array of objects {\"function\":{\"name\":string, \"arguments\":object}}";
// Each call has a message with its result, which is looked for among all calls without one.
constexpr size_t kMaxCalls = limits::kMaxMessages;
constexpr std::string_view kExpectedFewCalls =
    kNumberedText<"at most {} calls in all messages", kMaxCalls>;
// A completion ends with the context where the client gives no length.
constexpr int64_t kMaxTokens = 2147483647;

// A field of a chat or a completion and its name in options.
struct OptionName {
  std::string_view ollama;
  std::string_view chat;
};
// Options that go to the table of parameters, which checks them or refuses them.
constexpr auto kOptions = std::to_array<OptionName>({
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"stop", "stop"},
    {"repeat_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"repeat_last_n", "repeat_last_n"},
    {"typical_p", "typical_p"},
    {"tfs_z", "tfs_z"},
    {"mirostat", "mirostat"},
    {"mirostat_tau", "mirostat_tau"},
    {"mirostat_eta", "mirostat_eta"},
});
// Options whose values differ; each has its reader.
constexpr auto kOwnOptions = std::to_array<OptionName>(
    {{"num_predict", "max_tokens"}, {"top_k", "top_k"}, {"seed", "seed"}});
// Fields of a request that every form passes on; they are Baton's own.
constexpr auto kPassed = std::to_array<std::string_view>(
    {"model", "logprobs", "top_logprobs", "cache_salt", "timeout_ms", "request_id", "user"});
constexpr std::string_view kExpectedKeepAlive = "seconds, or a duration such as \"5m\" or \"-1\"";
constexpr auto kRead = std::to_array<SurfaceField>({
    {"stream", kJsonBool, "true or false"},
    {"options", kJsonObject, "an object"},
    {"format", kJsonString | kJsonObject, kExpectedFormat},
    {"think", kJsonBool | kJsonString, kExpectedThink},
    {"keep_alive", kJsonNumber | kJsonString, kExpectedKeepAlive},
    {"truncate", kJsonBool, "true or false"},
    {"shift", kJsonBool, "true or false"},
});
constexpr auto kOfShow = std::to_array<SurfaceField>({
    {"model", kJsonString, "a string"},
    {"name", kJsonString, "a string, the older name of model, which goes before it"},
});
constexpr auto kOfChat = std::to_array<SurfaceField>({
    {"messages", kJsonArray, kExpectedMessages},
    {"tools", kJsonArray, "an array of functions"},
});
// Fields without a type are refused below.
constexpr auto kOfGenerate = std::to_array<SurfaceField>({
    {"prompt", kJsonString, "a string"},
    {"system", kJsonString, "a string"},
    {"raw", kJsonBool, "true or false"},
    {"suffix", 0, ""},
    {"template", 0, ""},
    {"context", 0, ""},
    {"images", 0, ""},
});

// Fields of /api/generate that are not served.
constexpr auto kRefused = std::to_array<RefusedField>(
    {{"suffix", "absent; no text is filled in"},
     {"template", "absent; the model's own chat template is used, and raw uses none"},
     {"context", "absent; /api/chat takes a conversation"},
     {"images", "absent; images are not read"}});

bool Has(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "", [], {} and false.
bool IsEmpty(const JsonValue& value) {
  if (const std::string* text = value.AsString()) return text->empty();
  if (const bool* flag = value.AsBool()) return !*flag;
  if (const JsonValue::Array* array = value.AsArray()) return array->empty();
  const JsonValue::Object* object = value.AsObject();
  return object != nullptr && object->empty();
}

// Takes leading digits with at most one point among them; false: there is no digit.
bool TakeNumber(std::string_view* text) {
  const size_t size = std::min(text->find_first_not_of("0123456789."), text->size());
  const std::string_view number = text->substr(0, size);
  text->remove_prefix(size);
  return number.find_first_of("0123456789") != std::string_view::npos &&
         std::count(number.begin(), number.end(), '.') <= 1;
}

// A duration as Go writes it: "5m", "1h30m", "1.5s", "-1m", "0". Clients also send plain seconds.
bool IsDuration(std::string_view text) {
  constexpr auto kUnits =
      std::to_array<std::string_view>({"ns", "us", "\xC2\xB5s", "\xCE\xBCs", "ms", "s", "m", "h"});
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  if (!TakeNumber(&text)) return false;
  if (text.empty()) return true;  // seconds
  for (;;) {
    const auto* const unit =
        std::find_if(kUnits.begin(), kUnits.end(),
                     [text](std::string_view known) { return text.starts_with(known); });
    if (unit == kUnits.end()) return false;
    text.remove_prefix(unit->size());
    if (text.empty()) return true;
    if (!TakeNumber(&text)) return false;
  }
}

bool IsOption(std::string_view name) {
  const auto is_row = [name](const OptionName& row) {
    return row.ollama == name || row.chat == name;
  };
  return std::any_of(kOptions.begin(), kOptions.end(), is_row) ||
         std::any_of(kOwnOptions.begin(), kOwnOptions.end(), is_row);
}

// Reads one request.
class Reader {
 public:
  Reader(const JsonValue& root, OllamaForm form, OllamaRequest* request, RequestError* error)
      : root_(root), form_(form), request_(request), error_(error) {}

  bool Read() {
    const bool is_chat = form_ == OllamaForm::kChat;
    if (!CheckTypes() || !(is_chat ? ReadMessages() : ReadPrompt())) return false;
    if (!ReadFormat() || !ReadThink() || !ReadOptions() || !ReadOthers()) return false;
    const Endpoint endpoint = form_ == OllamaForm::kRaw ? Endpoint::kCompletion : Endpoint::kChat;
    request_->params.names = {is_chat ? "messages" : "prompt", "options.num_predict",
                              "options.stop"};
    const JsonValue body(std::move(body_));
    const bool is_read =
        ReadJsonParams(body, endpoint, &request_->params, &request_->ignored, error_);
    if (!is_read) error_->param = OllamaField(form_, std::move(error_->param));
    if (GivenMember(root_, "keep_alive") != nullptr) ignored_.emplace_back("keep_alive");
    AddUnread(ignored_, &request_->ignored);
    return is_read;
  }

  // The request only loads a model. Adds the fields that change nothing to `ignored`.
  bool ReadLoad(std::vector<std::string>* ignored) {
    if (!CheckTypes()) return false;
    for (const auto& [name, value] : *root_.AsObject()) {
      if (value.is_null() || IsEmpty(value)) continue;
      if (!CheckNotForeign(name, value)) return false;
      if (name == "keep_alive" || !IsOwn(name)) ignored_.push_back(HeaderSafe(name));
    }
    AddUnread(ignored_, ignored);
    return true;
  }

 private:
  bool Fail(ErrorCode code, std::string_view field, std::string_view expected) const {
    return api::Fail(error_, code, field, expected);
  }
  bool IsOwn(std::string_view name) const {
    return Has(kPassed, name) || HasField(kRead, name) || HasField(OllamaFieldsOf(form_), name);
  }

  bool CheckTypes() const {
    for (const std::string_view name : {"stream", "raw", "truncate", "shift"}) {
      const JsonValue* value = GivenMember(root_, name);
      if (value == nullptr || value->AsBool() != nullptr) continue;
      return Fail(ErrorCode::kInvalidType, name, "true or false");
    }
    return true;
  }

  // The fields that every form has, and those that it does not.
  bool ReadOthers() {
    const JsonValue* stream = GivenMember(root_, "stream");
    body_.emplace_back("stream", stream == nullptr ? JsonValue(true) : *stream);
    for (const auto& [name, value] : *root_.AsObject()) {
      if (value.is_null()) continue;
      if (Has(kPassed, name)) AddPassed(name, value);
      if (!CheckNotForeign(name, value)) return false;
      // Nothing reads the others, so they are named as ignored.
      if (!IsOwn(name)) body_.emplace_back(name, value);
    }
    return true;
  }

  // Refuses fields that another form or another API has.
  bool CheckNotForeign(const std::string& name, const JsonValue& value) const {
    if (IsOwn(name)) return true;
    if (IsOption(name)) {
      return Fail(ErrorCode::kUnsupported, name,
                  fmt::format("absent; send {}", OllamaField(form_, name)));
    }
    if (HasField(kOfChat, name) || HasField(kOfGenerate, name)) {
      return Fail(ErrorCode::kUnsupported, name,
                  form_ == OllamaForm::kChat ? "absent; /api/generate takes it"
                                             : "absent; /api/chat takes it");
    }
    const bool is_foreign = FindParam(Endpoint::kChat, name) != nullptr ||
                            (IsUnsupportedParam(Endpoint::kChat, name) && !IsEmpty(value));
    return !is_foreign ||
           Fail(ErrorCode::kUnsupported, name, "absent: Ollama's API has no such field");
  }

  // A completion has logprobs as a number.
  void AddPassed(const std::string& name, const JsonValue& value) {
    if (form_ != OllamaForm::kRaw || (name != "logprobs" && name != "top_logprobs")) {
      body_.emplace_back(name, value);
      return;
    }
    const JsonValue* logprobs = GivenMember(root_, "logprobs");
    const bool is_on = logprobs != nullptr && logprobs->AsBool() != nullptr && *logprobs->AsBool();
    if (name == "top_logprobs") {
      if (!is_on) ignored_.push_back(name);
      return;
    }
    const JsonValue* top = GivenMember(root_, "top_logprobs");
    if (is_on) body_.emplace_back(name, top == nullptr ? JsonValue(int64_t{0}) : *top);
    if (value.AsBool() == nullptr) body_.emplace_back(name, value);
  }

  bool ReadMessages() {
    const JsonValue* messages = GivenMember(root_, "messages");
    const JsonValue::Array* array = messages == nullptr ? nullptr : messages->AsArray();
    if (array == nullptr) return Fail(ErrorCode::kInvalidType, "messages", kExpectedMessages);
    if (array->size() > limits::kMaxMessages) {
      return Fail(ErrorCode::kInvalidValue, "messages", kExpectedMessages);
    }
    JsonValue::Array turns;
    for (size_t i = 0; i < array->size(); ++i) {
      JsonValue::Object turn;
      if (!ReadTurn((*array)[i], fmt::format("messages[{}]", i), &turn)) return false;
      turns.emplace_back(std::move(turn));
    }
    body_.emplace_back("messages", JsonValue(std::move(turns)));
    return ReadTools();
  }

  bool ReadTurn(const JsonValue& value, const std::string& at, JsonValue::Object* turn) {
    if (value.AsObject() == nullptr) {
      return Fail(ErrorCode::kInvalidType, at, "an object with role and content");
    }
    const JsonValue* images = GivenMember(value, "images");
    if (images != nullptr && !IsEmpty(*images)) {
      return Fail(ErrorCode::kUnsupported, at + ".images", "absent; images are not read");
    }
    const JsonValue* content = GivenMember(value, "content");
    turn->emplace_back("role", value.Find("role") == nullptr ? JsonValue() : *value.Find("role"));
    turn->emplace_back("content", content == nullptr ? JsonText("") : *content);
    for (const auto& [name, member] : *value.AsObject()) {
      if (name == "role" || name == "content" || name == "images" || member.is_null()) continue;
      if (name == "tool_calls") {
        if (!ReadCalls(member, at + ".tool_calls", turn)) return false;
      } else if (name == "thinking") {
        turn->emplace_back("reasoning_content", member);
      } else if (name == "tool_name") {
        turn->emplace_back("name", member);
      } else {
        turn->emplace_back(name, member);
      }
    }
    if (IsJsonText(value.Find("role"), "tool")) NameCallOf(value, turn);
    return true;
  }

  // Calls get ids where the client has none, as Ollama's have.
  bool ReadCalls(const JsonValue& value, const std::string& at, JsonValue::Object* turn) {
    const JsonValue::Array* array = value.AsArray();
    if (array == nullptr) return Fail(ErrorCode::kInvalidType, at, kExpectedCalls);
    JsonValue::Array calls;
    for (const JsonValue& call : *array) {
      const JsonValue* function = call.Find("function");
      const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
      if (name == nullptr || name->AsString() == nullptr) {
        return Fail(ErrorCode::kInvalidType, at, kExpectedCalls);
      }
      const JsonValue* id = GivenMember(call, "id");
      const JsonValue own = id != nullptr ? *id : JsonText(fmt::format("call_{:08}", num_calls_));
      if (++num_calls_ > kMaxCalls) return Fail(ErrorCode::kInvalidValue, at, kExpectedFewCalls);
      JsonValue::Object chat;
      chat.emplace_back("id", own);
      chat.emplace_back("type", JsonText("function"));
      chat.emplace_back("function", *function);
      calls.emplace_back(std::move(chat));
      if (own.AsString() != nullptr) open_calls_.emplace_back(*own.AsString(), *name->AsString());
    }
    turn->emplace_back("tool_calls", JsonValue(std::move(calls)));
    return true;
  }

  // A tool's message without an id answers the first call of its function that has no answer.
  void NameCallOf(const JsonValue& value, JsonValue::Object* turn) {
    const JsonValue* id = GivenMember(value, "tool_call_id");
    const JsonValue* name = GivenMember(value, "tool_name");
    const std::string* tool = name == nullptr ? nullptr : name->AsString();
    const auto found = std::find_if(open_calls_.begin(), open_calls_.end(), [&](const auto& call) {
      if (id != nullptr) return IsJsonText(id, call.first);
      return tool == nullptr || call.second == *tool;
    });
    if (found == open_calls_.end()) return;
    if (id == nullptr) turn->emplace_back("tool_call_id", JsonText(found->first));
    open_calls_.erase(found);
  }

  bool ReadTools() {
    const JsonValue* tools = GivenMember(root_, "tools");
    if (tools == nullptr) return true;
    const JsonValue::Array* array = tools->AsArray();
    if (array == nullptr) return Fail(ErrorCode::kInvalidType, "tools", "an array of functions");
    JsonValue::Array chat;
    for (const JsonValue& tool : *array) {
      JsonValue::Object members;
      if (tool.AsObject() != nullptr) members = *tool.AsObject();
      if (tool.AsObject() != nullptr && GivenMember(tool, "type") == nullptr) {
        std::erase_if(members,
                      [](const JsonValue::Member& member) { return member.first == "type"; });
        members.emplace_back("type", JsonText("function"));
      }
      chat.push_back(tool.AsObject() == nullptr ? tool : JsonValue(std::move(members)));
    }
    body_.emplace_back("tools", JsonValue(std::move(chat)));
    return true;
  }

  bool ReadPrompt() {
    for (const auto& [name, way] : kRefused) {
      const JsonValue* value = GivenMember(root_, name);
      if (value != nullptr && !IsEmpty(*value)) return Fail(ErrorCode::kUnsupported, name, way);
    }
    for (const std::string_view name : {"prompt", "system"}) {
      const JsonValue* value = GivenMember(root_, name);
      if (value == nullptr || value->AsString() != nullptr) continue;
      return Fail(ErrorCode::kInvalidType, name, "a string");
    }
    const JsonValue* system = GivenMember(root_, "system");
    const bool has_system = system != nullptr && !system->AsString()->empty();
    const JsonValue* given = GivenMember(root_, "prompt");
    const JsonValue prompt = given == nullptr ? JsonText("") : *given;
    if (form_ == OllamaForm::kRaw) {
      if (has_system) return Fail(ErrorCode::kConflict, "system", "raw takes a prompt alone");
      body_.emplace_back("prompt", prompt);
      return true;
    }
    JsonValue::Array messages;
    const auto add = [&messages](std::string_view role, const JsonValue& content) {
      JsonValue::Object message;
      message.emplace_back("role", JsonText(role));
      message.emplace_back("content", content);
      messages.emplace_back(std::move(message));
    };
    if (has_system) add("system", *system);
    add("user", prompt);
    body_.emplace_back("messages", JsonValue(std::move(messages)));
    return true;
  }

  bool ReadFormat() {
    const JsonValue* format = GivenMember(root_, "format");
    if (format == nullptr || IsJsonText(format, "")) return true;
    JsonValue::Object chat;
    if (IsJsonText(format, "json")) {
      chat.emplace_back("type", JsonText("json_object"));
    } else if (format->AsObject() != nullptr) {
      JsonValue::Object inner;
      inner.emplace_back("name", JsonText("format"));
      inner.emplace_back("schema", *format);
      chat.emplace_back("type", JsonText("json_schema"));
      chat.emplace_back("json_schema", JsonValue(std::move(inner)));
    } else {
      return Fail(ErrorCode::kInvalidValue, "format", kExpectedFormat);
    }
    body_.emplace_back("response_format", JsonValue(std::move(chat)));
    return true;
  }

  bool ReadThink() {
    const JsonValue* think = GivenMember(root_, "think");
    if (think == nullptr) return true;
    const bool* flag = think->AsBool();
    const bool is_level = IsJsonText(think, "low") || IsJsonText(think, "medium") ||
                          IsJsonText(think, "high") || IsJsonText(think, "max");
    if (flag == nullptr && !is_level) {
      return Fail(think->AsString() != nullptr ? ErrorCode::kInvalidValue : ErrorCode::kInvalidType,
                  "think", kExpectedThink);
    }
    if (form_ == OllamaForm::kRaw) {  // a raw prompt is not rendered
      ignored_.emplace_back("think");
      return true;
    }
    if (is_level) body_.emplace_back("reasoning_effort", *think);
    const bool thinks = is_level || *flag;
    if (!thinks) body_.emplace_back("reasoning_format", JsonText("none"));
    JsonValue::Object variables;
    variables.emplace_back("enable_thinking", JsonValue(thinks));
    body_.emplace_back("chat_template_kwargs", JsonValue(std::move(variables)));
    return true;
  }

  bool ReadOptions() {
    const JsonValue* options = GivenMember(root_, "options");
    if (options == nullptr) return ReadLength(nullptr);
    if (options->AsObject() == nullptr) {
      return Fail(ErrorCode::kInvalidType, "options", "an object");
    }
    for (const auto& [name, value] : *options->AsObject()) {
      if (!value.is_null() && !ReadOption(name, value)) return false;
    }
    return ReadLength(GivenMember(*options, "num_predict"));
  }

  bool ReadOption(const std::string& name, const JsonValue& value) {
    constexpr auto kOfLoading = std::to_array<std::string_view>(
        {"num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv",
         "use_mmap", "use_mlock", "num_thread", "numa", "vocab_only", "logits_all",
         "embedding_only", "penalize_newline"});
    const auto* const row =
        std::find_if(kOptions.begin(), kOptions.end(),
                     [&name](const OptionName& known) { return known.ollama == name; });
    if (row != kOptions.end()) {
      body_.emplace_back(std::string(row->chat), value);
      return true;
    }
    if (name == "num_predict") return true;  // ReadLength
    if (name == "top_k" || name == "seed") {
      // All tokens are 0 or -1, and any seed is -1.
      int64_t number = 0;
      const bool is_int = value.GetInteger(&number);
      const bool is_none = is_int && (number == -1 || (name == "top_k" && number == 0));
      if (!is_none) body_.emplace_back(name, value);
      return true;
    }
    const bool is_of_loading = Has(kOfLoading, name);
    if (is_of_loading && !value.IsNumber() && value.AsBool() == nullptr) {
      return Fail(ErrorCode::kInvalidType, "options." + name, "a number, true or false");
    }
    if (is_of_loading && HasHugeNumber(value)) {
      return Fail(ErrorCode::kInvalidValue, "options." + name, kExpectedNumbers);
    }
    // A name that other servers have would change the answer.
    const bool is_foreign =
        FindParam(Endpoint::kChat, name) != nullptr || IsUnsupportedParam(Endpoint::kChat, name);
    if (is_foreign && !is_of_loading) {
      return Fail(ErrorCode::kUnsupported, "options." + name,
                  "absent: Ollama's options have no such name");
    }
    ignored_.push_back("options." + HeaderSafe(name));
    return true;
  }

  // Ollama's -1 and -2 end with the context, and so does 0.
  bool ReadLength(const JsonValue* value) {
    int64_t number = 0;
    const bool is_int = value != nullptr && value->GetInteger(&number);
    if (value != nullptr && (!is_int || number < -2 || number > kMaxTokens)) {
      return Fail(value->IsNumber() ? ErrorCode::kInvalidValue : ErrorCode::kInvalidType,
                  "options.num_predict", fmt::format("an integer from -2 to {}", kMaxTokens));
    }
    if (value != nullptr && number > 0) {
      body_.emplace_back("max_tokens", *value);
    } else if (form_ == OllamaForm::kRaw) {
      body_.emplace_back("max_tokens", JsonValue(kMaxTokens));
    }
    return true;
  }

  const JsonValue& root_;
  const OllamaForm form_;
  OllamaRequest* const request_;
  RequestError* const error_;
  JsonValue::Object body_;            // the request as a chat or a completion
  std::vector<std::string> ignored_;  // options that change nothing here
  size_t num_calls_ = 0;
  std::vector<std::pair<std::string, std::string>> open_calls_;  // ids and names without an answer
};

}  // namespace

std::span<const SurfaceField> OllamaCommonFields() { return kRead; }

std::span<const SurfaceField> OllamaFieldsOf(OllamaForm form) {
  if (form == OllamaForm::kChat) return kOfChat;
  return kOfGenerate;
}

std::span<const std::string_view> OllamaPassedFields() { return kPassed; }
std::span<const SurfaceField> OllamaShowFields() { return kOfShow; }

bool ReadOllama(const JsonValue& root, OllamaForm form, OllamaRequest* request,
                RequestError* error) {
  return Reader(root, form, request, error).Read();
}

bool CheckOllamaKeepAlive(const JsonValue& root, RequestError* error) {
  const JsonValue* keep = GivenMember(root, "keep_alive");
  if (keep == nullptr) return true;
  if (keep->IsNumber()) {
    return !HasHugeNumber(*keep) ||
           Fail(error, ErrorCode::kInvalidValue, "keep_alive", kExpectedNumbers);
  }
  if (keep->AsString() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "keep_alive", kExpectedKeepAlive);
  }
  return IsDuration(*keep->AsString()) ||
         Fail(error, ErrorCode::kInvalidValue, "keep_alive", kExpectedKeepAlive);
}

bool IsOllamaUnload(const JsonValue& root) {
  const JsonValue* keep = GivenMember(root, "keep_alive");
  double seconds = 1;
  if (keep == nullptr || keep->GetNumber(&seconds)) return seconds == 0;
  // "0", "0s", "0m0s": a duration whose digits are all 0.
  const std::string* text = keep->AsString();
  return text != nullptr && text->find_first_of("123456789") == std::string::npos;
}

bool IsOllamaLoad(const JsonValue& root, OllamaForm form) {
  const JsonValue* value = GivenMember(root, form == OllamaForm::kChat ? "messages" : "prompt");
  return value == nullptr ||
         (form == OllamaForm::kChat ? value->AsArray() != nullptr && value->AsArray()->empty()
                                    : IsJsonText(value, ""));
}

bool ReadOllamaLoad(const JsonValue& root, OllamaForm form, std::vector<std::string>* ignored,
                    RequestError* error) {
  return Reader(root, form, nullptr, error).ReadLoad(ignored);
}

bool CheckOllamaThink(const JsonValue& root, const ModelInfo& model, RequestError* error) {
  const JsonValue* think = GivenMember(root, "think");
  const bool is_off = think == nullptr || (think->AsBool() != nullptr && !*think->AsBool());
  const text::ChatTemplate* own = model.chat_template.get();
  if (is_off || own == nullptr) return true;
  const bool thinks = own->Reads("enable_thinking") || own->Reads("reasoning_effort") ||
                      TemplateThinks(own->source());
  return thinks || Fail(error, ErrorCode::kUnsupported, "think",
                        "false or absent: this model's chat template knows no thoughts");
}

std::string OllamaField(OllamaForm form, std::string field) {
  for (const auto& row : kOptions) {
    if (field == row.chat || field == row.ollama) return fmt::format("options.{}", row.ollama);
  }
  for (const auto& row : kOwnOptions) {
    if (field == row.chat || field == row.ollama) return fmt::format("options.{}", row.ollama);
  }
  constexpr std::string_view kSchema = "response_format.json_schema.schema";
  if (field.starts_with(kSchema)) return field.replace(0, kSchema.size(), "format");
  if (field.starts_with("response_format")) return "format";
  if (field == "reasoning_effort" || field.starts_with("chat_template_kwargs")) return "think";
  if (!field.starts_with("messages")) return field;
  if (form != OllamaForm::kChat) return "prompt";
  constexpr std::string_view kThoughts = ".reasoning_content";
  const size_t at = field.size() - std::min(kThoughts.size(), field.size());
  if (field.ends_with(kThoughts)) field.replace(at, kThoughts.size(), ".thinking");
  return field;
}

void NameAsOllama(OllamaForm form, RequestError* error) {
  // An option that was sent outside of options is named as it was sent.
  if (error->code == ErrorCode::kUnsupported && IsOption(error->param)) return;
  error->param = OllamaField(form, std::move(error->param));
}

}  // namespace baton::api
