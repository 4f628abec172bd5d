#include "src/api/openai_json.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "src/api/json_writer.h"
#include "src/api/long_json.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

namespace baton::api {

using router::ErrorCode;
using router::ErrorNameOf;
using router::ErrorTypeOf;
using router::GenerateResult;
using router::LinkKindName;
using router::LinkView;
using router::ModelInfo;
using router::ObjectiveView;
using router::ProcessView;
using router::PromptLogprobs;
using router::PromptProgress;
using router::RequestError;
using router::RequestTimings;
using router::RequestView;
using router::TokenOutput;
using router::Topology;
using router::UnpairedView;
using text::LossyUtf8;
using text::TextOrBytes;
using text::Tokenizer;

namespace {

bool IsChat(const AnswerPlan& plan) { return plan.endpoint == Endpoint::kChat; }

void WriteHead(const AnswerPlan& plan, std::string_view object, JsonWriter* json) {
  json->Key("id").String(plan.id);
  json->Key("object").String(object);
  json->Key("created").Int(plan.created_unix_s);
  json->Key("model").String(plan.model->name());
}

void WriteChunkHead(const AnswerPlan& plan, JsonWriter* json) {
  WriteHead(plan, IsChat(plan) ? "chat.completion.chunk" : "text_completion", json);
}

void WriteUsage(const GenerateResult& result, uint32_t num_reasoning_tokens, JsonWriter* json) {
  json->Key("usage").BeginObject();
  json->Key("prompt_tokens").Uint(result.num_prompt_tokens);
  json->Key("completion_tokens").Uint(result.num_completion_tokens);
  json->Key("total_tokens").Uint(uint64_t{result.num_prompt_tokens} + result.num_completion_tokens);
  json->Key("prompt_tokens_details").BeginObject();
  json->Key("cached_tokens").Uint(result.timings.cached_tokens);
  json->EndObject();
  json->Key("completion_tokens_details").BeginObject();
  json->Key("reasoning_tokens").Uint(num_reasoning_tokens).EndObject();
  json->EndObject();
}

// "token", "logprob", "bytes": the fields that a token and its alternatives share.
void WriteTokenFields(const Tokenizer& tokenizer, TokenId token, float logprob, JsonWriter* json) {
  const std::string_view bytes = tokenizer.TokenBytes(token);
  json->Key("token").String(bytes);
  json->Key("logprob").Float(logprob);
  json->Key("bytes").BeginArray();
  for (const char c : bytes) json->Uint(static_cast<unsigned char>(c));
  json->EndArray();
}

}  // namespace

void WriteChatToken(const AnswerPlan& plan, const LoggedToken& token, JsonWriter* json) {
  const Tokenizer& tokenizer = *plan.model->tokenizer;
  json->BeginObject();
  WriteTokenFields(tokenizer, token.token, token.logprob, json);
  json->Key("top_logprobs").BeginArray();
  for (const TokenLogprob& entry : token.top_logprobs) {
    json->BeginObject();
    WriteTokenFields(tokenizer, entry.token, entry.logprob, json);
    json->EndObject();
  }
  json->EndArray().EndObject();
}

namespace {

// The sampled token is always among its alternatives, so there may be one more than asked for. Two
// with one text (special tokens may have one) are one key; the better one stays.
void WriteTopOfCompletion(const Tokenizer& tokenizer, const LoggedToken& token, JsonWriter* json) {
  json->BeginObject();
  std::vector<std::string> seen;
  const auto add = [&](TokenId id, float logprob) {
    std::string text = TextOrBytes(tokenizer.TokenBytes(id));
    if (std::find(seen.begin(), seen.end(), text) != seen.end()) return;
    json->Key(text).Float(logprob);
    seen.push_back(std::move(text));
  };
  for (const TokenLogprob& entry : token.top_logprobs) add(entry.token, entry.logprob);
  add(token.token, token.logprob);
  json->EndObject();
}

// The lists of log-probabilities: one of a chat, OpenAI's four parallel ones of a completion.
std::span<const std::string_view> LogprobLists(const AnswerPlan& plan) {
  static constexpr std::string_view kOfChat[] = {"content"};
  static constexpr std::string_view kOfCompletion[] = {"tokens", "token_logprobs", "top_logprobs",
                                                       "text_offset"};
  if (IsChat(plan)) return kOfChat;
  return kOfCompletion;
}

// One token's entry of the list `list_idx`.
void WriteListEntry(const AnswerPlan& plan, size_t list_idx, const LoggedToken& token,
                    JsonWriter* json) {
  const Tokenizer& tokenizer = *plan.model->tokenizer;
  if (IsChat(plan)) return WriteChatToken(plan, token, json);
  if (list_idx == 0) json->String(TextOrBytes(tokenizer.TokenBytes(token.token)));
  if (list_idx == 1) json->Float(token.logprob);
  if (list_idx == 2) WriteTopOfCompletion(tokenizer, token, json);
  if (list_idx == 3) json->Uint(token.text_offset);
}

// Writes a chunk's log-probabilities; `token` null = the chunk has none.
void WriteLogprobs(const AnswerPlan& plan, const LoggedToken* token, JsonWriter* json) {
  json->Key("logprobs");
  if (!plan.logprobs) {
    json->Null();
    return;
  }
  json->BeginObject();
  const std::span<const std::string_view> lists = LogprobLists(plan);
  for (size_t i = 0; i < lists.size(); ++i) {
    json->Key(lists[i]).BeginArray();
    if (token != nullptr) WriteListEntry(plan, i, *token, json);
    json->EndArray();
  }
  json->EndObject();
}

// vLLM's stop_reason beside OpenAI's finish_reason: a text, a token id, or null. An answer with a
// grammar that the length cut says that it is no whole text of it.
void WriteEnd(const AnswerPlan& plan, const ChoiceEnd& end, JsonWriter* json) {
  json->Key("finish_reason").String(FinishName(end)).Key("stop_reason");
  if (const auto* text = std::get_if<std::string>(&end.stop_reason)) {
    json->String(*text);
  } else if (const auto* token = std::get_if<TokenId>(&end.stop_reason)) {
    json->Int(*token);
  } else {
    json->Null();
  }
  if (!IsCutShort(plan, end)) return;
  json->Key("incomplete_details").BeginObject();
  json->Key("reason").String(kCutByLength).EndObject();
}

// The calls of a chunk: id, type and name where a call begins, else a piece of its arguments.
void WriteCallDeltas(std::span<const ToolCallDelta> deltas, JsonWriter* json) {
  json->Key("tool_calls").BeginArray();
  for (const ToolCallDelta& delta : deltas) {
    json->BeginObject().Key("index").Uint(delta.index);
    if (!delta.id.empty()) json->Key("id").String(delta.id).Key("type").String("function");
    json->Key("function").BeginObject();
    if (!delta.name.empty()) json->Key("name").String(delta.name);
    json->Key("arguments").String(delta.arguments).EndObject().EndObject();
  }
  json->EndArray();
}

// The calls of a whole answer.
void WriteCalls(const std::vector<ToolCall>& calls, JsonWriter* json) {
  json->Key("tool_calls").BeginArray();
  for (const ToolCall& call : calls) {
    json->BeginObject().Key("id").String(call.id).Key("type").String("function");
    json->Key("function").BeginObject().Key("name").String(call.name);
    json->Key("arguments").String(call.arguments).EndObject().EndObject();
  }
  json->EndArray();
}

// A chat chunk's delta. One token may bring the end of the thoughts and the beginning of the
// content; one without text counts as a piece of the part in which the choice stands, and has an
// empty delta amid a call.
void WriteDelta(const TokenText& text, JsonWriter* json) {
  const bool is_call = text.in_call || !text.tool_calls.empty();
  const bool has_content =
      !text.content.empty() || (text.reasoning.empty() && !text.in_reasoning && !is_call);
  json->Key("delta").BeginObject();
  if (!text.tool_calls.empty()) WriteCallDeltas(text.tool_calls, json);
  if ((!has_content && !is_call) || !text.reasoning.empty()) {
    json->Key("reasoning_content").String(text.reasoning);
  }
  if (has_content) json->Key("content").String(text.content);
  json->EndObject();
}

// One position of `prompt_logprobs`, whose token is `id`.
void WritePromptPosition(const AnswerPlan& plan, TokenId id, const PromptLogprobs* log, size_t pos,
                         JsonWriter* json) {
  if (pos == 0 || log == nullptr || pos > log->rows.size()) {
    json->Null();
    return;
  }
  const Tokenizer& tokenizer = *plan.model->tokenizer;
  const auto add = [&](TokenId token, float logprob, uint32_t rank) {
    json->Key(std::to_string(token)).BeginObject();
    json->Key("logprob").Float(logprob).Key("rank").Uint(rank);
    json->Key("decoded_token").String(LossyUtf8(tokenizer.TokenBytes(token))).EndObject();
  };
  const PromptLogprobs::Row& row = log->rows[pos - 1];
  json->BeginObject();
  add(id, row.logprob, row.rank);
  uint32_t rank = 0;
  for (const TokenLogprob& other : log->TopOf(pos - 1)) {
    if (++rank > *plan.prompt_logprobs) break;
    if (other.token != id) add(other.token, other.logprob, rank);
  }
  json->EndObject();
}

// The lists of the echoed prompt, one at a time.
class EchoedList {
 public:
  // `log` null: the prompt's tokens have no log-probabilities. All outlive this.
  EchoedList(const AnswerPlan& plan, const wire::Prompt& tokens, const PromptLogprobs* log)
      : plan_(plan), tokens_(tokens), log_(log) {}

  // Writes the entry at `pos` of the list `list_idx`. The first token has no log-probability.
  // `offset`: code points of the tokens before it, and then of those up to it.
  void Write(size_t list_idx, size_t pos, uint32_t* offset, JsonWriter* json) const {
    LoggedToken token{.token = tokens_[pos], .text_offset = *offset};
    const bool is_known = pos > 0 && log_ != nullptr && pos <= log_->rows.size();
    if (is_known) {
      const std::span<const TokenLogprob> top = log_->TopOf(pos - 1);
      token.logprob = log_->rows[pos - 1].logprob;
      token.top_logprobs = top.first(std::min<size_t>(top.size(), plan_.top_logprobs));
    }
    constexpr size_t kTokens = 0;
    constexpr size_t kOffsets = 3;
    if (is_known || list_idx == kTokens || list_idx == kOffsets) {
      WriteListEntry(plan_, list_idx, token, json);
    } else {
      json->Null();
    }
    const Tokenizer& tokenizer = *plan_.model->tokenizer;
    if (!tokenizer.IsSpecial(token.token)) {
      *offset += CountCodePoints(tokenizer.TokenBytes(token.token));
    }
  }

 private:
  const AnswerPlan& plan_;
  const wire::Prompt& tokens_;
  const PromptLogprobs* const log_;
};

// The value of "logprobs" of a chunk that echoes a prompt.
std::string EchoedLogprobs(const AnswerPlan& plan, const wire::Prompt& tokens,
                           const PromptLogprobs* log) {
  const EchoedList list(plan, tokens, log);
  const std::span<const std::string_view> names = LogprobLists(plan);
  JsonWriter json;
  json.BeginObject();
  for (size_t i = 0; i < names.size(); ++i) {
    json.Key(names[i]).BeginArray();
    uint32_t offset = 0;
    for (size_t pos = 0; pos < tokens.size(); ++pos) list.Write(i, pos, &offset, &json);
    json.EndArray();
  }
  json.EndObject();
  return json.Take();
}

// The value of "prompt_logprobs" of a chunk.
std::string PromptPositions(const AnswerPlan& plan, const wire::Prompt& tokens,
                            const PromptLogprobs* log) {
  JsonWriter json;
  json.BeginArray();
  for (size_t pos = 0; pos < tokens.size(); ++pos) {
    WritePromptPosition(plan, tokens[pos], log, pos, &json);
  }
  json.EndArray();
  return json.Take();
}

// Closes a chunk of a choice with so many tokens until now: "usage":null where a usage chunk is
// still to come, or the choice's usage so far.
std::string EndChunk(const AnswerPlan& plan, uint32_t choice, uint32_t num_tokens,
                     JsonWriter* json) {
  json->EndArray();
  if (plan.continuous_usage) {
    const uint64_t num_prompt_tokens = plan.PromptOf(choice).num_tokens;
    json->Key("usage").BeginObject();
    json->Key("prompt_tokens").Uint(num_prompt_tokens);
    json->Key("completion_tokens").Uint(num_tokens);
    json->Key("total_tokens").Uint(num_prompt_tokens + num_tokens);
    json->EndObject();
  } else if (plan.include_usage) {
    json->Key("usage").Null();
  }
  json->EndObject();
  return json->Take();
}

void WriteModel(const ModelInfo& model, std::string_view name, JsonWriter* json) {
  json->BeginObject();
  json->Key("id").String(name);
  json->Key("object").String("model");
  json->Key("created").Int(model.created_unix_s);
  json->Key("owned_by").String("baton");
  json->Key("max_context").Uint(model.max_context);
  json->Key("max_model_len").Uint(model.max_context);  // vLLM's name for it
  json->Key("vocab_size").Uint(model.vocab_size);
  if (!model.names.empty()) json->Key("root").String(model.id);  // of all its names
  json->EndObject();
}

// `has_model`: workers tell their model.
void WriteProcess(const ProcessView& process, bool has_model, JsonWriter* json) {
  json->BeginObject();
  json->Key("role").String(process.role);
  json->Key("worker_id").String(process.worker_id);
  json->Key("incarnation").String(process.incarnation);
  json->Key("pid").Uint(process.pid);
  json->Key("grpc").String(process.grpc);
  if (!process.http.empty()) json->Key("http").String(process.http);
  json->Key("admin").String(process.admin);
  json->Key("kv").String(process.kv);
  json->Key("ready").Bool(process.ready);
  if (has_model && !process.model.empty()) json->Key("model").String(process.model);
  if (process.role == "router") {
    json->EndObject();
    return;
  }
  json->Key("kv_blocks").BeginObject();
  for (const auto& [state, count] : process.kv_blocks) json->Key(state).Uint(count);
  json->EndObject();
  json->Key("running").Uint(process.running);
  json->Key("waiting").Uint(process.waiting);
  json->Key("links").BeginArray();
  for (const LinkView& link : process.links) {
    json->BeginObject().Key("to").String(link.to);
    json->Key("transport").String(LinkKindName(link.kind));
    json->Key("bytes_per_s").Uint(link.bytes_per_s).Key("up").Bool(link.up);
    if (!link.why.empty()) json->Key("why").String(link.why);
    json->EndObject();
  }
  json->EndArray();
  json->Key("not_paired").BeginArray();
  for (const UnpairedView& other : process.not_paired) {
    json->BeginObject().Key("with").String(other.with).Key("why").String(other.why).EndObject();
  }
  json->EndArray().EndObject();
}

}  // namespace

void WriteTimings(const RequestTimings& timings, JsonWriter* json) {
  json->Key("timings").BeginObject();
  json->Key("path").String(timings.disaggregated ? "disagg" : "local");
  json->Key("prefill_worker").String(timings.prefill_worker);
  json->Key("decode_worker").String(timings.decode_worker);
  json->Key("transport").String(timings.transport);
  json->Key("kv_bytes").Uint(timings.kv_bytes);
  json->Key("queue_ms").Milli(timings.queue_ms);
  json->Key("prefill_ms").Milli(timings.prefill_ms);
  json->Key("kv_wait_ms").Milli(timings.kv_wait_ms);
  json->Key("first_step_ms").Milli(timings.first_step_ms);
  json->Key("decode_ms").Milli(timings.decode_ms);
  json->Key("cached_tokens").Uint(timings.cached_tokens);
  json->Key("prefix_source").String(timings.prefix_source());
  json->Key("resumes").Uint(timings.resumes);
  json->Key("exact").Bool(timings.exact);
  json->Key("speculated").Uint(timings.speculated);
  json->Key("accepted").Uint(timings.accepted);
  json->Key("speculation").String(GuessStateName(timings.speculation));
  json->EndObject();
}

std::string ErrorJson(const RequestError& error) {
  JsonWriter json;
  json.BeginObject().Key("error").BeginObject();
  json.Key("message").String(error.Message());
  json.Key("type").String(ErrorTypeOf(error.code));
  json.Key("param");
  if (error.param.empty()) {
    json.Null();
  } else {
    json.String(error.param);
  }
  json.Key("code").String(ErrorNameOf(error.code));
  if (error.code == ErrorCode::kContextLengthExceeded) {
    json.Key("n_prompt_tokens").Uint(error.num_prompt_tokens).Key("n_ctx").Uint(error.max_context);
  }
  json.EndObject().EndObject();
  return json.Take();
}

AnswerPieces::AnswerPieces(const AnswerPlan& plan, const AnswerCollector& answer,
                           GenerateResult result)
    : plan_(plan),
      answer_(answer),
      result_(std::move(result)),
      order_(answer.Best(plan.num_choices)) {}

std::string AnswerPieces::Next(size_t num_bytes) {
  while (stage_ != Stage::kDone && json_.text().size() < num_bytes) Step();
  return json_.Take();
}

void AnswerPieces::Step() {
  switch (stage_) {
    case Stage::kHead:
      json_.BeginObject();
      WriteHead(plan_, IsChat(plan_) ? "chat.completion" : "text_completion", &json_);
      json_.Key("choices").BeginArray();
      stage_ = order_.empty() ? Stage::kTail : Stage::kChoice;
      break;
    case Stage::kChoice:
      BeginChoice();
      break;
    case Stage::kThoughts:
    case Stage::kText:
      StepString();
      break;
    case Stage::kList:
      StepList();
      break;
    case Stage::kEnd:
      WriteEnd(plan_, answer_.choice(order_[choice_]).end, &json_);
      if (!result_.prompts.empty()) {
        WriteTimings(result_.prompts[answer_.PromptOf(order_[choice_])], &json_);
      }
      if (!IsChat(plan_) && plan_.prompt_logprobs.has_value()) {
        BeginPromptLog();
      } else {
        EndChoice();
      }
      break;
    case Stage::kPromptLog:
      StepPromptLog();
      break;
    case Stage::kTail:
      json_.EndArray();
      stage_ = Stage::kUsage;
      if (IsChat(plan_) && plan_.prompt_logprobs.has_value()) BeginPromptLog();
      break;
    case Stage::kUsage:
      WriteUsage(result_, answer_.num_reasoning_tokens(), &json_);
      WriteTimings(result_.timings, &json_);
      json_.EndObject();
      stage_ = Stage::kDone;
      break;
    case Stage::kDone:
      break;
  }
}

void AnswerPieces::BeginChoice() {
  json_.BeginObject().Key("index").Uint(choice_);
  if (!IsChat(plan_)) return BeginText();
  json_.Key("message").BeginObject().Key("role").String("assistant");
  if (!plan_.splits_reasoning) return BeginText();
  json_.Key("reasoning_content");
  if (answer_.choice(order_[choice_]).reasoning.empty()) {
    json_.Null();
    return BeginText();
  }
  json_.BeginString();
  stage_ = Stage::kThoughts;
  text_at_ = 0;
}

void AnswerPieces::BeginText() {
  const CollectedChoice& choice = answer_.choice(order_[choice_]);
  json_.Key(IsChat(plan_) ? "content" : "text");
  if (choice.text.empty() && !choice.tool_calls.empty()) {
    json_.Null();
    return EndMessage();
  }
  json_.BeginString();
  stage_ = Stage::kText;
  text_at_ = 0;
}

void AnswerPieces::StepString() {
  const CollectedChoice& choice = answer_.choice(order_[choice_]);
  const std::string& text = stage_ == Stage::kThoughts ? choice.reasoning : choice.text;
  const std::string_view part = TextStep(text, text_at_);
  json_.AppendString(part);
  text_at_ += part.size();
  if (text_at_ < text.size()) return;
  json_.EndString();
  if (stage_ == Stage::kThoughts) return BeginText();
  EndMessage();
}

void AnswerPieces::EndMessage() {
  const CollectedChoice& choice = answer_.choice(order_[choice_]);
  if (!choice.tool_calls.empty()) WriteCalls(choice.tool_calls, &json_);
  if (IsChat(plan_)) json_.EndObject();
  BeginLists();
}

void AnswerPieces::BeginLists() {
  json_.Key("logprobs");
  stage_ = plan_.logprobs ? Stage::kList : Stage::kEnd;
  if (!plan_.logprobs) {
    json_.Null();
    return;
  }
  list_ = 0;
  token_ = 0;
  json_.BeginObject().Key(LogprobLists(plan_)[0]).BeginArray();
}

void AnswerPieces::StepList() {
  const TokenLog& tokens = answer_.choice(order_[choice_]).tokens;
  const PlannedPrompt& prompt = plan_.prompts[answer_.PromptOf(order_[choice_])];
  const size_t num_echoed = plan_.logs_echo ? prompt.tokens.size() : 0;
  if (token_ < num_echoed) return WriteEchoed(token_++);
  if (token_ < num_echoed + tokens.size()) {
    return WriteListEntry(plan_, list_, tokens.at(token_++ - num_echoed), &json_);
  }
  json_.EndArray();
  token_ = 0;
  offset_ = 0;
  const std::span<const std::string_view> lists = LogprobLists(plan_);
  if (++list_ < lists.size()) {
    json_.Key(lists[list_]).BeginArray();
  } else {
    json_.EndObject();
    stage_ = Stage::kEnd;
  }
}

// One entry of the present list for a token of the echoed prompt.
void AnswerPieces::WriteEchoed(size_t pos) {
  const uint32_t prompt = answer_.PromptOf(order_[choice_]);
  EchoedList(plan_, plan_.prompts[prompt].tokens, answer_.PromptLogOf(prompt))
      .Write(list_, pos, &offset_, &json_);
}

void AnswerPieces::BeginPromptLog() {
  json_.Key("prompt_logprobs").BeginArray();
  token_ = 0;
  stage_ = Stage::kPromptLog;
}

// vLLM's form: null for the first token; then by its id the prompt's token, and the likeliest ones.
void AnswerPieces::StepPromptLog() {
  const uint32_t prompt = IsChat(plan_) ? 0 : answer_.PromptOf(order_[choice_]);
  const wire::Prompt& tokens = plan_.prompts[prompt].tokens;
  if (token_ < tokens.size()) {
    WritePromptPosition(plan_, tokens[token_], answer_.PromptLogOf(prompt), token_, &json_);
    ++token_;
    return;
  }
  json_.EndArray();
  if (!IsChat(plan_)) return EndChoice();
  stage_ = Stage::kUsage;
}

void AnswerPieces::EndChoice() {
  json_.EndObject();
  stage_ = ++choice_ == order_.size() ? Stage::kTail : Stage::kChoice;
}

PromptLogJson PromptLogOf(const AnswerPlan& plan, uint32_t prompt, const PromptLogprobs* log) {
  const wire::Prompt& tokens = plan.prompts[prompt].tokens;
  PromptLogJson json;
  if (plan.logs_echo) json.echoed = EchoedLogprobs(plan, tokens, log);
  if (plan.prompt_logprobs.has_value()) json.positions = PromptPositions(plan, tokens, log);
  return json;
}

std::string OpeningChunk(const AnswerPlan& plan, uint32_t choice, const PromptLogJson& log) {
  const bool tells_positions = !log.positions.empty();
  JsonWriter json;
  json.BeginObject();
  WriteChunkHead(plan, &json);
  if (tells_positions && IsChat(plan)) json.Key("prompt_logprobs").Raw(log.positions);
  json.Key("choices").BeginArray().BeginObject().Key("index").Uint(choice);
  if (IsChat(plan)) {
    json.Key("delta").BeginObject();
    json.Key("role").String("assistant").Key("content").String("").EndObject();
  } else {
    json.Key("text").String(plan.PromptOf(choice).echo_text);
  }
  json.Key("logprobs").Raw(log.echoed.empty() ? "null" : std::string_view(log.echoed));
  json.Key("finish_reason").Null();
  if (tells_positions && !IsChat(plan)) json.Key("prompt_logprobs").Raw(log.positions);
  json.EndObject();
  return EndChunk(plan, choice, 0, &json);
}

std::string ProgressChunk(const AnswerPlan& plan, uint32_t choice, const PromptProgress& progress) {
  JsonWriter json;
  json.BeginObject();
  WriteChunkHead(plan, &json);
  json.Key("prompt_progress").BeginObject();
  json.Key("total").Uint(progress.total).Key("cache").Uint(progress.cache);
  json.Key("processed").Uint(progress.processed).Key("time_ms").Int(progress.time_ms).EndObject();
  json.Key("choices").BeginArray().BeginObject().Key("index").Uint(choice);
  if (IsChat(plan)) {
    json.Key("delta").BeginObject();
    json.Key("role").String("assistant").Key("content").Null().EndObject();
  } else {
    json.Key("text").String("");
  }
  json.Key("logprobs").Null().Key("finish_reason").Null().EndObject();
  return EndChunk(plan, choice, 0, &json);
}

std::string TokenChunk(const AnswerPlan& plan, const TokenOutput& token, const TokenText& text) {
  constexpr size_t kUsualBytes = 384;
  JsonWriter json(kUsualBytes);
  json.BeginObject();
  WriteChunkHead(plan, &json);
  json.Key("choices").BeginArray().BeginObject().Key("index").Uint(token.choice);
  if (IsChat(plan)) {
    WriteDelta(text, &json);
  } else {
    json.Key("text").String(text.content);
  }
  LoggedToken logged;
  if (token.has_logprob) logged = {token.token, token.logprob, *token.top_logprobs, text.offset};
  WriteLogprobs(plan, token.has_logprob ? &logged : nullptr, &json);
  json.Key("finish_reason").Null().EndObject();
  return EndChunk(plan, token.choice, token.index + 1, &json);
}

std::string FinishChunk(const AnswerPlan& plan, uint32_t choice, const ChoiceEnd& end,
                        const ChunkTimings& timings) {
  JsonWriter json;
  json.BeginObject();
  WriteChunkHead(plan, &json);
  json.Key("choices").BeginArray().BeginObject().Key("index").Uint(choice);
  if (IsChat(plan)) {
    json.Key("delta").BeginObject().EndObject();
  } else {
    json.Key("text").String("");
  }
  json.Key("logprobs").Null();
  WriteEnd(plan, end, &json);
  if (timings.of_prompt != nullptr) WriteTimings(*timings.of_prompt, &json);
  json.EndObject();
  if (timings.of_answer == nullptr) return EndChunk(plan, choice, end.num_tokens, &json);
  json.EndArray();
  WriteTimings(*timings.of_answer, &json);
  json.EndObject();
  return json.Take();
}

std::string UsageChunk(const AnswerPlan& plan, const GenerateResult& result,
                       uint32_t num_reasoning_tokens) {
  JsonWriter json;
  json.BeginObject();
  WriteChunkHead(plan, &json);
  json.Key("choices").BeginArray().EndArray();
  WriteUsage(result, num_reasoning_tokens, &json);
  WriteTimings(result.timings, &json);
  json.EndObject();
  return json.Take();
}

std::string ModelsJson(const std::vector<std::shared_ptr<const ModelInfo>>& models) {
  JsonWriter json;
  json.BeginObject().Key("object").String("list").Key("data").BeginArray();
  for (const auto& model : models) {
    if (model->names.empty()) WriteModel(*model, model->id, &json);
    for (const std::string& name : model->names) WriteModel(*model, name, &json);
  }
  json.EndArray().EndObject();
  return json.Take();
}

std::string ModelJson(const ModelInfo& model, std::string_view name) {
  JsonWriter json;
  WriteModel(model, name, &json);
  return json.Take();
}

void WriteObjectives(const Topology& topology, JsonWriter* json) {
  if (topology.objectives.empty()) return;
  json->Key("slo").BeginObject();
  for (const ObjectiveView& objective : topology.objectives) {
    const uint64_t num_all = objective.num_met + objective.num_missed;
    json->Key(objective.name).BeginObject();
    json->Key("limit_ms").Milli(static_cast<double>(objective.limit_us) / 1000);
    json->Key("met").Uint(objective.num_met).Key("missed").Uint(objective.num_missed);
    json->Key("share");
    if (num_all > 0) {
      json->Milli(static_cast<double>(objective.num_met) / static_cast<double>(num_all));
    } else {
      json->Null();
    }
    json->EndObject();
  }
  json->EndObject();
}

std::string TopologyJson(const Topology& topology) {
  JsonWriter json;
  json.BeginObject().Key("model").String(topology.model).Key("processes").BeginArray();
  for (const ProcessView& process : topology.processes) {
    WriteProcess(process, topology.has_several_models, &json);
  }
  json.EndArray();
  WriteObjectives(topology, &json);
  json.EndObject();
  return json.Take();
}

std::string RequestsJson(const std::vector<RequestView>& requests) {
  JsonWriter json;
  json.BeginArray();
  for (const RequestView& request : requests) {
    json.BeginObject();
    json.Key("request_uid").String(request.uid.ToHex());
    json.Key("request_id").String(request.request_id);
    json.Key("choice").Uint(request.choice);
    json.Key("attempt").Uint(request.attempt);
    json.Key("state").String(request.state);
    json.Key("age_ms").Int(request.age_ms);
    json.Key("worker").String(request.decode_worker);
    json.Key("prefill_worker").String(request.prefill_worker);
    json.Key("num_tokens").Uint(request.num_tokens);
    json.EndObject();
  }
  json.EndArray();
  return json.Take();
}

}  // namespace baton::api
