#include "src/api/responses_writer.h"

#include <algorithm>
#include <cstdint>

#include "fmt/format.h"

#include "src/api/json_writer.h"
#include "src/api/logged_answer.h"
#include "src/api/openai_json.h"
#include "src/api/responses_params.h"

namespace baton::api {

using router::ErrorCode;
using router::ErrorNameOf;
using router::GenerateResult;
using router::HttpStatusOf;
using router::RequestError;
using router::TokenOutput;
using scheduler::FinishReason;

namespace {

constexpr std::string_view kInProgress = "in_progress";
constexpr std::string_view kCompleted = "completed";
constexpr std::string_view kIncomplete = "incomplete";
constexpr std::string_view kFailed = "failed";

// The kinds of items that an answer may have.
enum class ItemKind : uint8_t {
  kReasoning,
  kSummary,  // a reasoning item too: the thoughts are its summary
  kMessage,
  kCall
};

// How the parts of an item are called. A call has none.
struct PartNames {
  std::string_view list;   // member of the item that holds them
  std::string_view type;   // of a part
  std::string_view index;  // member of an event that tells which part
  std::string_view part;   // events about a part and about its text begin so
  std::string_view text;
};

constexpr PartNames NamesOf(ItemKind kind) {
  if (kind == ItemKind::kSummary) {
    return {"summary", "summary_text", "summary_index", "response.reasoning_summary_part",
            "response.reasoning_summary_text"};
  }
  const bool is_reasoning = kind == ItemKind::kReasoning;
  return {"content", is_reasoning ? "reasoning_text" : "output_text", "content_index",
          "response.content_part",
          is_reasoning ? "response.reasoning_text" : "response.output_text"};
}

// One item of an answer.
struct Item {
  ItemKind kind = ItemKind::kMessage;
  std::string id;
  std::string call_id;    // calls
  std::string name;       // calls
  std::string_view text;  // thoughts, content or arguments
};

std::string ItemId(const AnswerPlan& plan, ItemKind kind, size_t idx) {
  std::string_view name = plan.id;
  name.remove_prefix(std::min(name.find('_') + 1, name.size()));
  std::string_view prefix = "msg";
  if (kind == ItemKind::kReasoning || kind == ItemKind::kSummary) prefix = "rs";
  if (kind == ItemKind::kCall) prefix = "fc";
  return fmt::format("{}_{}_{}", prefix, name, idx);
}

std::string_view StatusOf(FinishReason finish) {
  return finish == FinishReason::kLength ? kIncomplete : kCompleted;
}

// A part of a message or of thoughts, up to its text.
JsonWriter& OpenPart(ItemKind kind, JsonWriter* json) {
  json->BeginObject().Key("type").String(NamesOf(kind).type);
  if (kind == ItemKind::kMessage) json->Key("annotations").BeginArray().EndArray();
  return *json;
}

// A whole part without log-probabilities.
void WritePart(ItemKind kind, std::string_view text, JsonWriter* json) {
  OpenPart(kind, json).Key("text").String(text);
  if (kind == ItemKind::kMessage) json->Key("logprobs").BeginArray().EndArray();
  json->EndObject();
}

// An item up to its long text.
void OpenItem(const Item& item, std::string_view status, JsonWriter* json) {
  json->BeginObject();
  switch (item.kind) {
    case ItemKind::kReasoning:
    case ItemKind::kSummary:
      json->Key("type").String("reasoning").Key("id").String(item.id);
      json->Key("status").String(status).Key("encrypted_content").Null();
      json->Key(item.kind == ItemKind::kSummary ? "content" : "summary").BeginArray().EndArray();
      break;
    case ItemKind::kMessage:
      json->Key("type").String("message").Key("id").String(item.id);
      json->Key("status").String(status).Key("role").String("assistant");
      break;
    case ItemKind::kCall:
      json->Key("type").String("function_call").Key("id").String(item.id);
      json->Key("status").String(status).Key("call_id").String(item.call_id);
      json->Key("name").String(item.name);
      break;
  }
}

// An item as it begins: without a part, or without arguments.
void WriteBegunItem(const Item& item, JsonWriter* json) {
  OpenItem(item, kInProgress, json);
  if (item.kind == ItemKind::kCall) {
    json->Key("arguments").String("");
  } else {
    json->Key(NamesOf(item.kind).list).BeginArray().EndArray();
  }
  json->EndObject();
}

void WriteUsage(const GenerateResult& result, uint32_t num_reasoning_tokens, JsonWriter* json) {
  json->Key("usage").BeginObject();
  json->Key("input_tokens").Uint(result.num_prompt_tokens);
  json->Key("input_tokens_details").BeginObject();
  json->Key("cached_tokens").Uint(result.timings.cached_tokens);
  json->Key("cache_write_tokens").Uint(0).EndObject();
  json->Key("output_tokens").Uint(result.num_completion_tokens);
  json->Key("output_tokens_details").BeginObject();
  json->Key("reasoning_tokens").Uint(num_reasoning_tokens).EndObject();
  json->Key("total_tokens").Uint(uint64_t{result.num_prompt_tokens} + result.num_completion_tokens);
  json->EndObject();
}

// OpenAI's code of a failed answer.
std::string_view FailureCode(ErrorCode code) {
  return HttpStatusOf(code) == 429 ? "rate_limit_exceeded" : "server_error";
}

// The state of an answer, as its object tells it.
struct ResponseState {
  std::string_view status;
  std::vector<Item> items = {};
  const GenerateResult* result = nullptr;  // null: no usage yet
  uint32_t num_reasoning_tokens = 0;
  const RequestError* error = nullptr;
  const TokenLog* tokens = nullptr;  // log-probabilities of the message; null = none
  bool is_cut = false;               // the last item has no end

  std::string_view StatusOfItem(const Item& item) const {
    return is_cut && &item == &items.back() ? kIncomplete : kCompleted;
  }
};

// Whether the last item has no end. A stop text may cut a call; a text that it ends is whole.
bool IsLastItemCut(const ChoiceEnd& end) {
  return end.finish == FinishReason::kLength || end.is_call_cut;
}

// Writes one response.
class ResponseBody {
 public:
  ResponseBody(const AnswerPlan& plan, const RepeatedFields& repeated, LoggedAnswer* out)
      : plan_(plan), repeated_(repeated), out_(out) {}

  void Write(const ResponseState& state) {
    json().BeginObject().Key("id").String(plan_.id).Key("object").String("response");
    json().Key("created_at").Int(plan_.created_unix_s).Key("status").String(state.status);
    WriteEnd(state);
    json().Key("model").String(plan_.model->name()).Key("output").BeginArray();
    for (const Item& item : state.items) {
      WriteItem(item, state.StatusOfItem(item), state.tokens, state.num_reasoning_tokens);
    }
    json().EndArray();
    if (state.result != nullptr) {
      WriteUsage(*state.result, state.num_reasoning_tokens, &json());
      WriteTimings(state.result->timings, &json());
    } else {
      json().Key("usage").Null();
    }
    for (const auto& [name, value] : repeated_) json().Key(name).Raw(value);
    json().EndObject();
  }

  // `tokens`: of a message, from `first_token` on; null = none.
  void WriteItem(const Item& item, std::string_view status, const TokenLog* tokens = nullptr,
                 size_t first_token = 0) {
    OpenItem(item, status, &json());
    if (item.kind == ItemKind::kCall) {
      json().Key("arguments");
      out_->out().LongString(item.text);
      json().EndObject();
      return;
    }
    json().Key(NamesOf(item.kind).list).BeginArray();
    OpenPart(item.kind, &json()).Key("text");
    out_->out().LongString(item.text);
    if (item.kind == ItemKind::kMessage) {
      json().Key("logprobs");
      if (tokens != nullptr) {
        out_->AddTokens(*tokens, first_token);
      } else {
        json().BeginArray().EndArray();
      }
    }
    json().EndObject().EndArray().EndObject();
  }

  JsonWriter& json() { return out_->out().json(); }

 private:
  void WriteEnd(const ResponseState& state) {
    json().Key("error");
    if (state.error != nullptr) {
      json().BeginObject().Key("code").String(FailureCode(state.error->code));
      json().Key("message").String(state.error->Message()).EndObject();
    } else {
      json().Null();
    }
    json().Key("incomplete_details");
    if (state.status == kIncomplete) {
      json().BeginObject().Key("reason").String("max_output_tokens").EndObject();
    } else {
      json().Null();
    }
  }

  const AnswerPlan& plan_;
  const RepeatedFields& repeated_;
  LoggedAnswer* const out_;
};

// An item without log-probabilities.
std::string ItemJson(const AnswerPlan& plan, const RepeatedFields& repeated, const Item& item,
                     std::string_view status) {
  LoggedAnswer body(plan);
  ResponseBody(plan, repeated, &body).WriteItem(item, status);
  return body.Next(std::string::npos);
}

ItemKind ThoughtsOf(const ResponsesForm& form) {
  return form.summarizes ? ItemKind::kSummary : ItemKind::kReasoning;
}

// The collected answer. `kept`: gets its items; null = nothing does.
std::unique_ptr<WholeAnswer> WholeResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                                           const GenerateResult& result, const ResponsesForm& form,
                                           StoredItems* kept) {
  const CollectedChoice& choice = answer.choice(0);
  ResponseState state{StatusOf(choice.end.finish)};
  const auto add = [&](ItemKind kind, std::string_view text) {
    state.items.push_back({kind, ItemId(plan, kind, state.items.size()), "", "", text});
  };
  if (!choice.reasoning.empty()) add(ThoughtsOf(form), choice.reasoning);
  const bool is_empty = state.items.empty() && choice.tool_calls.empty();
  if (!choice.text.empty() || is_empty) add(ItemKind::kMessage, choice.text);
  for (const ToolCall& call : choice.tool_calls) {
    add(ItemKind::kCall, call.arguments);
    state.items.back().call_id = call.id;
    state.items.back().name = call.name;
  }
  state.is_cut = IsLastItemCut(choice.end);
  for (const Item& item : state.items) {
    const std::string_view status = state.StatusOfItem(item);
    if (kept != nullptr) kept->Put(item.id, ItemJson(plan, form.repeated, item, status));
  }
  state.result = &result;
  state.num_reasoning_tokens = answer.num_reasoning_tokens();
  if (plan.logprobs) state.tokens = &choice.tokens;
  auto whole = std::make_unique<LoggedAnswer>(plan);
  ResponseBody(plan, form.repeated, whole.get()).Write(state);
  return whole;
}

// See the file comment of the header.
class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(AnswerPlan plan, ResponsesForm form, std::shared_ptr<StoredItems> kept)
      : AnswerWriter(std::move(plan)), form_(std::move(form)), kept_(std::move(kept)) {}

  void Begin(std::string* out) override {
    EmitResponse("response.created", {kInProgress}, out);
    EmitResponse("response.in_progress", {kInProgress}, out);
  }

  void AddToken(const TokenOutput& token, const TokenText& text, std::string* out) override {
    if (!text.reasoning.empty()) {
      SwitchTo(ThoughtsOf(form_), out);
      EmitDelta(text.reasoning, out);
    }
    const bool after_call = !items_.empty() && items_.back().item.kind == ItemKind::kCall;
    const bool is_other =
        text.in_reasoning || text.in_call || !text.reasoning.empty() || after_call;
    const bool has_logprob =
        plan().logprobs && token.has_logprob && (!is_other || !text.content.empty());
    if (!text.content.empty() || has_logprob) {
      SwitchTo(ItemKind::kMessage, out);
      LoggedToken logged;
      if (has_logprob) logged = {token.token, token.logprob, *token.top_logprobs, text.offset};
      EmitText(text.content, has_logprob ? &logged : nullptr, out);
    }
    for (const ToolCallDelta& call : text.tool_calls) AddCall(call, out);
  }

  void EndChoice(uint32_t /*choice*/, const ChoiceEnd& end, const GenerateResult* /*result*/,
                 std::string* /*out*/) override {
    end_ = end;
  }

  void Finish(const GenerateResult& result, uint32_t num_reasoning_tokens,
              std::string* out) override {
    if (items_.empty()) SwitchTo(ItemKind::kMessage, out);
    CloseItem(IsLastItemCut(end_) ? kIncomplete : kCompleted, out);
    const std::string_view status = StatusOf(end_.finish);
    ResponseState state{status, Items(), &result, num_reasoning_tokens};
    state.is_cut = IsLastItemCut(end_);
    EmitResponse(status == kCompleted ? "response.completed" : "response.incomplete", state, out);
  }

  // The response says for itself that it has failed. Clients that know one kind of error event read
  // the second event.
  void Fail(const RequestError& failed, std::string* out) override {
    RequestError error = failed;
    NameAsResponses(&error);
    ResponseState state{kFailed, Items()};
    state.error = &error;
    state.is_cut = true;
    EmitResponse("response.failed", state, out);
    JsonWriter json = Open("error");
    json.Key("code").String(ErrorNameOf(error.code)).Key("message").String(error.Message());
    json.Key("param");
    if (error.param.empty()) {
      json.Null();
    } else {
      json.String(error.param);
    }
    std::string body = ErrorJson(error);  // {"error":{..}}
    json.Key("error").Raw(std::string_view(body).substr(9, body.size() - 10));
    Emit("error", &json, out);
  }

  std::unique_ptr<WholeAnswer> Whole(const AnswerCollector& answer,
                                     const GenerateResult& result) const override {
    return WholeResponse(plan(), answer, result, form_, kept_.get());
  }

 private:
  // An item that has begun.
  struct BegunItem {
    Item item;         // without its text
    std::string text;  // so far
  };

  // An event up to its own members.
  JsonWriter Open(std::string_view type) {
    JsonWriter json;
    json.BeginObject().Key("type").String(type).Key("sequence_number").Uint(sequence_++);
    return json;
  }
  // An event about the open item.
  JsonWriter OpenOfItem(std::string_view type) {
    JsonWriter json = Open(type);
    json.Key("item_id").String(items_.back().item.id);
    json.Key("output_index").Uint(items_.size() - 1);
    return json;
  }
  // An event about the one part of the open item.
  JsonWriter OpenOfPart(std::string_view type) {
    JsonWriter json = OpenOfItem(type);
    json.Key(NamesOf(items_.back().item.kind).index).Uint(0);
    return json;
  }
  static void Emit(std::string_view type, JsonWriter* json, std::string* out) {
    json->EndObject();
    AppendEvent(type, json->Take(), out);
  }

  void EmitResponse(std::string_view type, const ResponseState& state, std::string* out) {
    LoggedAnswer body(plan());
    ResponseBody(plan(), form_.repeated, &body).Write(state);
    JsonWriter json = Open(type);
    json.Key("response").Raw(body.Next(std::string::npos));
    Emit(type, &json, out);
  }

  // A piece of the arguments of the open call.
  void EmitArguments(std::string_view delta, std::string* out) {
    constexpr std::string_view kType = "response.function_call_arguments.delta";
    JsonWriter json = OpenOfItem(kType);
    json.Key("delta").String(delta);
    Emit(kType, &json, out);
    items_.back().text += delta;
  }

  // A piece of the open thoughts.
  void EmitDelta(std::string_view delta, std::string* out) {
    const std::string type = EventOf(NamesOf(items_.back().item.kind).text, "delta");
    JsonWriter json = OpenOfPart(type);
    json.Key("delta").String(delta);
    Emit(type, &json, out);
    items_.back().text += delta;
  }

  void EmitText(std::string_view delta, const LoggedToken* token, std::string* out) {
    constexpr std::string_view kType = "response.output_text.delta";
    JsonWriter json = OpenOfPart(kType);
    json.Key("delta").String(delta).Key("logprobs").BeginArray();
    if (token != nullptr) WriteChatToken(plan(), *token, &json);
    json.EndArray();
    Emit(kType, &json, out);
    items_.back().text += delta;
  }

  void AddCall(const ToolCallDelta& call, std::string* out) {
    if (!call.id.empty()) OpenNewItem(ItemKind::kCall, call.id, call.name, out);
    if (!call.arguments.empty()) {
      EmitArguments(call.arguments, out);
    }
  }

  // Text of that kind follows: an item of the kind is open afterwards.
  void SwitchTo(ItemKind kind, std::string* out) {
    if (!is_open_ || items_.back().item.kind != kind) OpenNewItem(kind, "", "", out);
  }

  void OpenNewItem(ItemKind kind, std::string_view call_id, std::string_view name,
                   std::string* out) {
    CloseItem(kCompleted, out);
    items_.push_back(
        {{kind, ItemId(plan(), kind, items_.size()), std::string(call_id), std::string(name), ""},
         ""});
    is_open_ = true;
    JsonWriter added = Open("response.output_item.added");
    added.Key("output_index").Uint(items_.size() - 1).Key("item");
    WriteBegunItem(items_.back().item, &added);
    Emit("response.output_item.added", &added, out);
    if (kind == ItemKind::kCall) return;
    const std::string type = EventOf(NamesOf(kind).part, "added");
    JsonWriter part = OpenOfPart(type);
    part.Key("part");
    WritePart(kind, "", &part);
    Emit(type, &part, out);
  }

  // Ends the item that is open, if one is.
  void CloseItem(std::string_view status, std::string* out) {
    if (!is_open_) return;
    is_open_ = false;
    const BegunItem& begun = items_.back();
    if (begun.item.kind == ItemKind::kCall) {
      constexpr std::string_view kType = "response.function_call_arguments.done";
      JsonWriter done = OpenOfItem(kType);
      done.Key("name").String(begun.item.name).Key("arguments").String(begun.text);
      Emit(kType, &done, out);
    } else {
      ClosePart(begun, out);
    }
    std::string item = ItemJson(plan(), form_.repeated, ItemOf(begun), status);
    JsonWriter json = Open("response.output_item.done");
    json.Key("output_index").Uint(items_.size() - 1).Key("item").Raw(item);
    Emit("response.output_item.done", &json, out);
    if (kept_ != nullptr) kept_->Put(begun.item.id, std::move(item));
  }

  void ClosePart(const BegunItem& begun, std::string* out) {
    const PartNames names = NamesOf(begun.item.kind);
    const std::string text_done = EventOf(names.text, "done");
    JsonWriter done = OpenOfPart(text_done);
    done.Key("text").String(begun.text);
    if (begun.item.kind == ItemKind::kMessage) done.Key("logprobs").BeginArray().EndArray();
    Emit(text_done, &done, out);
    const std::string part_done = EventOf(names.part, "done");
    JsonWriter part = OpenOfPart(part_done);
    part.Key("part");
    WritePart(begun.item.kind, begun.text, &part);
    Emit(part_done, &part, out);
  }

  static std::string EventOf(std::string_view what, std::string_view state) {
    return fmt::format("{}.{}", what, state);
  }
  static Item ItemOf(const BegunItem& begun) {
    Item item = begun.item;
    item.text = begun.text;
    return item;
  }
  // All items with their texts, which stay where they are until the next token.
  std::vector<Item> Items() const {
    std::vector<Item> items;
    for (const BegunItem& begun : items_) items.push_back(ItemOf(begun));
    return items;
  }

  const ResponsesForm form_;
  const std::shared_ptr<StoredItems> kept_;  // null: the items are not kept
  std::vector<BegunItem> items_;
  bool is_open_ = false;  // the last item has not ended
  uint64_t sequence_ = 0;
  ChoiceEnd end_;  // set by EndChoice
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(AnswerPlan plan, ResponsesForm form,
                                                  std::shared_ptr<StoredItems> items) {
  return std::make_unique<ResponsesWriter>(std::move(plan), std::move(form), std::move(items));
}

}  // namespace baton::api
