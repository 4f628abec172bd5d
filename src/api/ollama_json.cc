#include "src/api/ollama_json.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/json_value.h"
#include "src/api/json_writer.h"
#include "src/api/logged_answer.h"
#include "src/base/version.h"
#include "src/text/chat_template.h"
#include "src/text/reasoning_splitter.h"

namespace baton::api {

using router::GenerateResult;
using router::ModelInfo;
using router::RequestError;
using router::RequestTimings;
using router::TokenOutput;
using scheduler::FinishReason;
using text::TemplateThinks;

namespace {

// The release of Ollama whose API this is. Editors refuse servers of early releases.
constexpr std::string_view kOllamaVersion = "0.13.0";

// RFC 3339 in UTC with microseconds.
std::string TimeText(int64_t unix_us) {
  const std::time_t seconds = unix_us / 1'000'000;
  std::tm time = {};
  gmtime_r(&seconds, &time);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", time.tm_year + 1900,
                     time.tm_mon + 1, time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec,
                     unix_us % 1'000'000);
}

int64_t NsOf(double ms) { return std::llround(ms * 1e6); }

double TotalMs(const RequestTimings& t) {
  return t.queue_ms + t.prefill_ms + t.kv_wait_ms + t.first_step_ms + t.decode_ms;
}

// A call as Ollama has it: its arguments are an object. False where the model wrote none.
bool WriteCall(const ToolCall& call, size_t idx, JsonWriter* json) {
  JsonValue arguments;
  RequestError ignored;
  if (!ParseJson(call.arguments.empty() ? "{}" : call.arguments, &arguments, &ignored) ||
      arguments.AsObject() == nullptr) {
    return false;
  }
  json->BeginObject().Key("id").String(call.id).Key("function").BeginObject();
  json->Key("index").Uint(idx).Key("name").String(call.name);
  json->Key("arguments").Raw(JsonOf(arguments)).EndObject().EndObject();
  return true;
}

// The text of a call that is no call of Ollama's: it goes to the client as content.
std::string BrokenCall(const ToolCall& call) {
  return fmt::format("{}({})", call.name, call.arguments);
}

// The members of the last object.
void WriteEnd(FinishReason finish, const GenerateResult& result, JsonWriter* json) {
  const RequestTimings& timings = result.timings;
  json->Key("done").Bool(true);
  json->Key("done_reason").String(finish == FinishReason::kLength ? "length" : "stop");
  json->Key("total_duration").Int(NsOf(TotalMs(timings)));
  json->Key("load_duration").Int(0);
  json->Key("prompt_eval_count").Uint(result.num_prompt_tokens);
  json->Key("prompt_eval_duration").Int(NsOf(timings.prefill_ms));
  json->Key("eval_count").Uint(result.num_completion_tokens);
  // Clients divide by it.
  const int64_t eval_ns = NsOf(timings.first_step_ms + timings.decode_ms);
  json->Key("eval_duration").Int(std::max<int64_t>(eval_ns, 1));
  WriteTimings(timings, json);
}

// See MakeOllamaWriter.
class OllamaWriter final : public AnswerWriter {
 public:
  OllamaWriter(AnswerPlan plan, OllamaForm form, std::string model)
      : AnswerWriter(std::move(plan)), form_(form), model_(std::move(model)) {}

  void AddToken(const TokenOutput& token, const TokenText& text, std::string* out) override {
    if (token.arrived_us > 0) last_us_ = token.arrived_us;
    const bool has_logprob = plan().logprobs && token.has_logprob;
    if (!text.content.empty() || !text.reasoning.empty() || has_logprob) {
      JsonWriter json = Open();
      WriteText(text.content, text.reasoning, &json);
      if (has_logprob) {
        json.Key("logprobs").BeginArray();
        WriteChatToken(plan(), {token.token, token.logprob, *token.top_logprobs, text.offset},
                       &json);
        json.EndArray();
      }
      json.Key("done").Bool(false);
      Close(&json, out);
    }
    for (const ToolCallDelta& delta : text.tool_calls) {
      if (!delta.id.empty()) {
        EndCall(out);
        call_ = {delta.id, delta.name, ""};
      }
      call_.arguments += delta.arguments;
    }
  }

  void EndChoice(uint32_t /*choice*/, const ChoiceEnd& end, const GenerateResult* /*result*/,
                 std::string* out) override {
    EndCall(out);
    finish_ = end.finish;
  }

  void Finish(const GenerateResult& result, uint32_t /*num_reasoning_tokens*/,
              std::string* out) override {
    JsonWriter json = Open();
    WriteText("", "", &json);
    WriteEnd(finish_, result, &json);
    Close(&json, out);
  }

  void Fail(const RequestError& error, std::string* out) override {
    RequestError named = error;
    NameAsOllama(form_, &named);
    out->append(OllamaErrorJson(named)).push_back('\n');
  }

  std::unique_ptr<WholeAnswer> Whole(const AnswerCollector& answer,
                                     const GenerateResult& result) const override {
    const CollectedChoice& choice = answer.choice(0);
    auto whole = std::make_unique<LoggedAnswer>(plan());
    const int64_t end_us = plan().received_unix_us + NsOf(TotalMs(result.timings)) / 1000;
    WriteHead(end_us, &whole->out().json());
    if (form_ == OllamaForm::kChat) {
      WriteMessage(choice, &whole->out());
    } else {
      whole->out().json().Key("response");
      whole->out().LongString(choice.text);
      WriteThoughts(choice, &whole->out());
    }
    if (plan().logprobs) {
      whole->out().json().Key("logprobs");
      whole->AddTokens(choice.tokens, 0);
    }
    WriteEnd(choice.end.finish, result, &whole->out().json());
    whole->out().json().EndObject();
    return whole;
  }

 private:
  void WriteHead(int64_t unix_us, JsonWriter* json) const {
    json->BeginObject().Key("model").String(model_.empty() ? plan().model->name() : model_);
    json->Key("created_at").String(TimeText(unix_us));
  }

  static void WriteThoughts(const CollectedChoice& choice, LongJson* out) {
    if (choice.reasoning.empty()) return;
    out->json().Key("thinking");
    out->LongString(choice.reasoning);
  }

  // LongString's texts outlive the answer: a call that is none follows the content as short JSON.
  static void WriteMessage(const CollectedChoice& choice, LongJson* out) {
    JsonWriter calls;
    std::string broken;
    calls.BeginArray();
    size_t num_calls = 0;
    for (const ToolCall& call : choice.tool_calls) {
      if (WriteCall(call, num_calls, &calls)) {
        ++num_calls;
      } else {
        broken += BrokenCall(call);
      }
    }
    calls.EndArray();
    out->json().Key("message").BeginObject().Key("role").String("assistant").Key("content");
    if (broken.empty()) {
      out->LongString(choice.text);
    } else {
      out->json().String(choice.text + broken);
    }
    WriteThoughts(choice, out);
    if (num_calls > 0) out->json().Key("tool_calls").Raw(calls.text());
    out->json().EndObject();
  }

  JsonWriter Open() const {
    JsonWriter json;
    const int64_t since_us = last_us_ > 0 ? last_us_ - plan().received_us : 0;
    WriteHead(plan().received_unix_us + since_us, &json);
    return json;
  }
  static void Close(JsonWriter* json, std::string* out) {
    json->EndObject();
    out->append(json->Take()).push_back('\n');
  }

  void WriteText(std::string_view content, std::string_view thoughts, JsonWriter* json) const {
    const bool is_chat = form_ == OllamaForm::kChat;
    if (is_chat) json->Key("message").BeginObject().Key("role").String("assistant");
    json->Key(is_chat ? "content" : "response").String(content);
    if (!thoughts.empty()) json->Key("thinking").String(thoughts);
    if (is_chat) json->EndObject();
  }

  // A call goes out once its arguments are whole.
  void EndCall(std::string* out) {
    if (call_.id.empty()) return;
    JsonWriter json = Open();
    JsonWriter written;
    if (WriteCall(call_, num_calls_, &written)) {
      ++num_calls_;
      json.Key("message").BeginObject().Key("role").String("assistant").Key("content").String("");
      json.Key("tool_calls").BeginArray().Raw(written.text()).EndArray().EndObject();
    } else {
      WriteText(BrokenCall(call_), "", &json);
    }
    json.Key("done").Bool(false);
    Close(&json, out);
    call_ = {};
  }

  const OllamaForm form_;
  const std::string model_;
  ToolCall call_;  // the one whose arguments come; without id = none
  size_t num_calls_ = 0;
  int64_t last_us_ = 0;  // steady clock, when the last token came; 0 = not known
  FinishReason finish_ = FinishReason::kNone;
};

void WriteDetails(JsonWriter* json) {
  json->Key("details").BeginObject();
  for (const char* name : {"parent_model", "format", "family"}) json->Key(name).String("");
  json->Key("families").BeginArray().EndArray();
  for (const char* name : {"parameter_size", "quantization_level"}) json->Key(name).String("");
  json->EndObject();
}

void WriteModel(const ModelInfo& model, std::string_view name, bool is_running, JsonWriter* json) {
  json->BeginObject().Key("name").String(name).Key("model").String(name);
  if (!is_running) {
    json->Key("modified_at").String(TimeText(model.created_unix_s * 1'000'000));
  }
  json->Key("size").Uint(0).Key("digest").String("");
  WriteDetails(json);
  if (is_running) {
    json->Key("expires_at").String("9999-12-31T23:59:59Z");  // no model is unloaded
    json->Key("size_vram").Uint(0).Key("context_length").Uint(model.max_context);
  }
  json->EndObject();
}

std::string ListJson(const ModelList& models, bool are_running) {
  JsonWriter json;
  json.BeginObject().Key("models").BeginArray();
  for (const auto& model : models) {
    if (model->names.empty()) WriteModel(*model, model->id, are_running, &json);
    for (const std::string& name : model->names) WriteModel(*model, name, are_running, &json);
  }
  json.EndArray().EndObject();
  return json.Take();
}

}  // namespace

std::unique_ptr<AnswerWriter> MakeOllamaWriter(AnswerPlan plan, OllamaForm form,
                                               std::string model) {
  return std::make_unique<OllamaWriter>(std::move(plan), form, std::move(model));
}

std::string OllamaErrorJson(const RequestError& error) {
  JsonWriter json;
  json.BeginObject().Key("error").String(error.Message()).EndObject();
  return json.Take();
}

std::string OllamaLoadJson(OllamaForm form, std::string_view model, std::string_view reason,
                           int64_t wall_unix_ms) {
  JsonWriter json;
  json.BeginObject().Key("model").String(model);
  json.Key("created_at").String(TimeText(wall_unix_ms * 1000));
  if (form == OllamaForm::kChat) {
    json.Key("message").BeginObject().Key("role").String("assistant");
    json.Key("content").String("").EndObject();
  } else {
    json.Key("response").String("");
  }
  json.Key("done").Bool(true).Key("done_reason").String(reason).EndObject();
  return json.Take();
}

std::string OllamaTagsJson(const ModelList& models) { return ListJson(models, false); }
std::string OllamaPsJson(const ModelList& models) { return ListJson(models, true); }

std::string OllamaShowJson(const ModelInfo& model) {
  const text::ChatTemplate* const own = model.chat_template.get();
  JsonWriter json;
  json.BeginObject().Key("license").String("");
  json.Key("modelfile").String(fmt::format("FROM {}\n", model.name()));
  json.Key("parameters").String("");
  json.Key("template").String(own == nullptr ? "" : own->source());
  WriteDetails(&json);
  json.Key("model_info").BeginObject().Key("general.architecture").String("baton");
  json.Key("general.basename").String(model.id);
  json.Key("baton.context_length").Uint(model.max_context);
  json.Key("baton.vocab_size").Uint(model.vocab_size).EndObject();
  json.Key("capabilities").BeginArray().String("completion");
  if (own != nullptr) json.String("tools");
  if (own != nullptr && TemplateThinks(own->source())) json.String("thinking");
  json.EndArray();
  json.Key("modified_at").String(TimeText(model.created_unix_s * 1'000'000)).EndObject();
  return json.Take();
}

std::string OllamaVersionJson() {
  JsonWriter json;
  json.BeginObject().Key("version").String(kOllamaVersion).Key("baton").String(kVersion);
  json.EndObject();
  return json.Take();
}

}  // namespace baton::api
