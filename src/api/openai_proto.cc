#include "src/api/openai_proto.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "src/base/clock.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

namespace baton::api {

using router::GenerateResult;
using router::ModelInfo;
using router::PromptLogprobs;
using router::PromptProgress;
using router::RequestTimings;
using router::TokenOutput;
using text::LossyUtf8;
using text::TextOrBytes;

namespace {

template <typename Message>
void FillHead(const AnswerPlan& plan, std::string_view object, Message* out) {
  out->set_id(plan.id);
  out->set_object(std::string(object));
  out->set_created(plan.created_unix_s);
  out->set_model(plan.model->name());
  out->set_request_id(plan.request_id);
}

// "token", "logprob" and "bytes" of TokenLogprob and TopLogprob. A proto string must be UTF-8, and
// a token may end in half a character: `name` makes one of its bytes.
template <typename Message>
void FillToken(const AnswerPlan& plan, TokenId token, float logprob,
               std::string (*name)(std::string_view), Message* out) {
  const std::string_view bytes = plan.model->tokenizer->TokenBytes(token);
  out->set_token(name(bytes));
  out->set_logprob(logprob);
  out->set_bytes(bytes.data(), bytes.size());
}

void AddChatToken(const AnswerPlan& plan, const LoggedToken& token, v1::ChatLogprobs* out) {
  v1::TokenLogprob* entry = out->add_content();
  FillToken(plan, token.token, token.logprob, LossyUtf8, entry);
  for (const TokenLogprob& other : token.top_logprobs) {
    FillToken(plan, other.token, other.logprob, LossyUtf8, entry->add_top_logprobs());
  }
}

void AddCompletionToken(const AnswerPlan& plan, const LoggedToken& token,
                        v1::CompletionLogprobs* out) {
  out->add_tokens(TextOrBytes(plan.model->tokenizer->TokenBytes(token.token)));
  out->add_token_logprobs(token.logprob);
  out->add_text_offset(token.text_offset);
  v1::TopLogprobs* top = out->add_top_logprobs();
  bool has_sampled = false;
  for (const TokenLogprob& other : token.top_logprobs) {
    FillToken(plan, other.token, other.logprob, TextOrBytes, top->add_entries());
    has_sampled |= other.token == token.token;
  }
  if (!has_sampled) {
    FillToken(plan, token.token, token.logprob, TextOrBytes, top->add_entries());
  }
}

// The echoed prompt's tokens. The first one has no log-probability, and no alternatives.
void AddEchoedTokens(const AnswerPlan& plan, uint32_t prompt, const PromptLogprobs* log,
                     v1::CompletionLogprobs* out) {
  const text::Tokenizer& tokenizer = *plan.model->tokenizer;
  uint32_t offset = 0;
  for (size_t pos = 0; pos < plan.prompts[prompt].tokens.size(); ++pos) {
    const TokenId id = plan.prompts[prompt].tokens[pos];
    if (pos > 0 && log != nullptr && pos <= log->rows.size()) {
      const std::span<const TokenLogprob> top = log->TopOf(pos - 1);
      AddCompletionToken(plan,
                         {id, log->rows[pos - 1].logprob,
                          top.first(std::min<size_t>(top.size(), plan.top_logprobs)), offset},
                         out);
    } else {
      out->add_tokens(TextOrBytes(tokenizer.TokenBytes(id)));
      out->add_token_logprobs(std::numeric_limits<float>::quiet_NaN());
      out->add_text_offset(offset);
      out->add_top_logprobs();
    }
    if (!tokenizer.IsSpecial(id)) offset += CountCodePoints(tokenizer.TokenBytes(id));
  }
}

// The field `prompt_logprobs`, which a chat has beside its choices and a completion in each.
template <typename Message>
void AddPromptLogprobs(const AnswerPlan& plan, uint32_t prompt, const PromptLogprobs* log,
                       Message* out) {
  if (!plan.prompt_logprobs.has_value()) return;
  const auto add = [&](TokenId id, float logprob, uint32_t rank, v1::PromptPosition* position) {
    v1::PromptLogprob* const entry = position->add_entries();
    entry->set_token_id(static_cast<uint32_t>(id));
    entry->set_logprob(logprob);
    entry->set_rank(rank);
    entry->set_decoded_token(LossyUtf8(plan.model->tokenizer->TokenBytes(id)));
  };
  for (size_t pos = 0; pos < plan.prompts[prompt].tokens.size(); ++pos) {
    v1::PromptPosition* const position = out->add_prompt_logprobs();
    if (pos == 0 || log == nullptr || pos > log->rows.size()) continue;
    const TokenId id = plan.prompts[prompt].tokens[pos];
    add(id, log->rows[pos - 1].logprob, log->rows[pos - 1].rank, position);
    uint32_t rank = 0;
    for (const TokenLogprob& other : log->TopOf(pos - 1)) {
      if (++rank > *plan.prompt_logprobs) break;
      if (other.token != id) add(other.token, other.logprob, rank, position);
    }
  }
}

// The fields that both kinds of chunk have beside their choice.
template <typename Chunk>
void FillChunkFields(const AnswerPlan& plan, const TokenOutput& token, Chunk* out) {
  out->set_token_index(token.index);
  out->set_token_id(static_cast<uint32_t>(token.token));
  const auto unix_us = [&plan](int64_t steady_us) {
    return static_cast<uint64_t>(plan.received_unix_us + (steady_us - plan.received_us));
  };
  v1::ServerTimes* times = out->mutable_server_times();
  times->set_received_unix_us(unix_us(plan.received_us));
  times->set_token_unix_us(unix_us(token.arrived_us));
  times->set_sent_unix_us(unix_us(SystemClock().NowUs()));
}

// "finish_reason", "stop_reason" and "incomplete_details", which every kind of choice has.
template <typename Choice>
void FillEnd(const AnswerPlan& plan, const ChoiceEnd& end, Choice* out) {
  if (IsCutShort(plan, end)) {
    out->mutable_incomplete_details()->set_reason(std::string(kCutByLength));
  }
  out->set_finish_reason(std::string(FinishName(end)));
  if (const auto* text = std::get_if<std::string>(&end.stop_reason)) {
    out->mutable_stop_reason()->set_text(*text);
  } else if (const auto* token = std::get_if<TokenId>(&end.stop_reason)) {
    out->mutable_stop_reason()->set_token_id(static_cast<uint32_t>(*token));
  }
}

template <typename Response>
void FillAccount(const AnswerCollector& answer, const GenerateResult& result, Response* out) {
  FillUsage(result, answer.num_reasoning_tokens(), out->mutable_usage());
  FillTimings(result.timings, out->mutable_timings());
}

}  // namespace

void FillResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                  const GenerateResult& result, v1::ChatCompletionResponse* out) {
  FillHead(plan, "chat.completion", out);
  for (const uint32_t idx : answer.Best(plan.num_choices)) {
    const CollectedChoice& choice = answer.choice(idx);
    v1::ChatChoice* filled = out->add_choices();
    filled->set_index(static_cast<uint32_t>(out->choices_size() - 1));
    filled->mutable_message()->set_role("assistant");
    filled->mutable_message()->set_reasoning_content(choice.reasoning);
    filled->mutable_message()->set_content(choice.text);
    for (const ToolCall& call : choice.tool_calls) {
      v1::ToolCall* made = filled->mutable_message()->add_tool_calls();
      made->set_id(call.id);
      made->set_type("function");
      made->mutable_function()->set_name(call.name);
      made->mutable_function()->set_arguments(LossyUtf8(call.arguments));
    }
    FillEnd(plan, choice.end, filled);
    if (!plan.logprobs) continue;
    for (size_t i = 0; i < choice.tokens.size(); ++i) {
      const LoggedToken token = choice.tokens.at(i);
      AddChatToken(plan, token, filled->mutable_logprobs());
    }
  }
  AddPromptLogprobs(plan, 0, answer.PromptLogOf(0), out);
  FillAccount(answer, result, out);
}

void FillResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                  const GenerateResult& result, v1::CompletionResponse* out) {
  FillHead(plan, "text_completion", out);
  for (const uint32_t idx : answer.Best(plan.num_choices)) {
    const CollectedChoice& choice = answer.choice(idx);
    v1::CompletionChoice* filled = out->add_choices();
    filled->set_index(static_cast<uint32_t>(out->choices_size() - 1));
    filled->set_text(choice.text);
    FillEnd(plan, choice.end, filled);
    if (!result.prompts.empty()) {
      FillTimings(result.prompts[answer.PromptOf(idx)], filled->mutable_timings());
    }
    const uint32_t prompt = answer.PromptOf(idx);
    AddPromptLogprobs(plan, prompt, answer.PromptLogOf(prompt), filled);
    if (!plan.logprobs) continue;
    if (plan.logs_echo) {
      AddEchoedTokens(plan, prompt, answer.PromptLogOf(prompt), filled->mutable_logprobs());
    }
    for (size_t i = 0; i < choice.tokens.size(); ++i) {
      const LoggedToken token = choice.tokens.at(i);
      AddCompletionToken(plan, token, filled->mutable_logprobs());
    }
  }
  FillAccount(answer, result, out);
}

void FillPromptLog(const AnswerPlan& plan, uint32_t prompt, const PromptLogprobs* log,
                   v1::ChatCompletionChunk* out) {
  AddPromptLogprobs(plan, prompt, log, out);
}

void FillPromptLog(const AnswerPlan& plan, uint32_t prompt, const PromptLogprobs* log,
                   v1::CompletionChunk* out) {
  v1::CompletionChoice* const choice = out->add_choices();
  AddPromptLogprobs(plan, prompt, log, choice);
  if (plan.logs_echo) AddEchoedTokens(plan, prompt, log, choice->mutable_logprobs());
}

void FillChunk(const AnswerPlan& plan, const TokenOutput& token, const TokenText& text,
               v1::ChatCompletionChunk* out) {
  FillHead(plan, "chat.completion.chunk", out);
  v1::ChatChunkChoice* choice = out->add_choices();
  choice->set_index(token.choice);
  if (token.index == 0) choice->mutable_delta()->set_role("assistant");
  choice->mutable_delta()->set_reasoning_content(std::string(text.reasoning));
  choice->mutable_delta()->set_content(std::string(text.content));
  for (const ToolCallDelta& delta : text.tool_calls) {
    v1::ToolCallDelta* part = choice->mutable_delta()->add_tool_calls();
    part->set_index(delta.index);
    part->set_id(delta.id);
    if (!delta.id.empty()) part->set_type("function");
    part->mutable_function()->set_name(delta.name);
    part->mutable_function()->set_arguments(delta.arguments);
  }
  FillEnd(plan, EndOf(plan, token, text), choice);
  if (plan.logprobs && token.has_logprob) {
    AddChatToken(plan, {token.token, token.logprob, *token.top_logprobs, text.offset},
                 choice->mutable_logprobs());
  }
  FillChunkFields(plan, token, out);
}

void FillChunk(const AnswerPlan& plan, const TokenOutput& token, const TokenText& text,
               v1::CompletionChunk* out) {
  FillHead(plan, "text_completion", out);
  v1::CompletionChoice* const choice =
      out->choices_size() > 0 ? out->mutable_choices(0) : out->add_choices();
  choice->set_index(token.choice);
  if (token.index == 0) choice->set_text(plan.PromptOf(token.choice).echo_text);
  if (plan.echo_alone) {
    FillEnd(plan, EndOf(plan, token, text), choice);
    TokenOutput none;
    none.arrived_us = token.arrived_us;
    return FillChunkFields(plan, none, out);
  }
  choice->mutable_text()->append(text.content);
  FillEnd(plan, EndOf(plan, token, text), choice);
  if (plan.logprobs && token.has_logprob) {
    AddCompletionToken(plan, {token.token, token.logprob, *token.top_logprobs, text.offset},
                       choice->mutable_logprobs());
  }
  FillChunkFields(plan, token, out);
}

namespace {

template <typename Chunk>
void FillProgressChunk(const AnswerPlan& plan, std::string_view object, uint32_t choice,
                       const PromptProgress& progress, Chunk* out) {
  FillHead(plan, object, out);
  out->add_choices()->set_index(choice);
  out->mutable_prompt_progress()->set_total(progress.total);
  out->mutable_prompt_progress()->set_cache(progress.cache);
  out->mutable_prompt_progress()->set_processed(progress.processed);
  out->mutable_prompt_progress()->set_time_ms(static_cast<uint64_t>(progress.time_ms));
}

}  // namespace

void FillProgress(const AnswerPlan& plan, uint32_t choice, const PromptProgress& progress,
                  v1::ChatCompletionChunk* out) {
  FillProgressChunk(plan, "chat.completion.chunk", choice, progress, out);
}

void FillProgress(const AnswerPlan& plan, uint32_t choice, const PromptProgress& progress,
                  v1::CompletionChunk* out) {
  FillProgressChunk(plan, "text_completion", choice, progress, out);
}

void FillUsage(const GenerateResult& result, uint32_t num_reasoning_tokens, v1::Usage* out) {
  out->set_prompt_tokens(result.num_prompt_tokens);
  out->set_completion_tokens(result.num_completion_tokens);
  out->set_total_tokens(result.num_prompt_tokens + result.num_completion_tokens);
  out->mutable_prompt_tokens_details()->set_cached_tokens(result.timings.cached_tokens);
  out->mutable_completion_tokens_details()->set_reasoning_tokens(num_reasoning_tokens);
}

void FillTimings(const RequestTimings& timings, v1::Timings* out) {
  out->set_path(timings.disaggregated ? "disagg" : "local");
  out->set_prefill_worker(timings.prefill_worker);
  out->set_decode_worker(timings.decode_worker);
  out->set_transport(timings.transport);
  out->set_kv_bytes(timings.kv_bytes);
  out->set_queue_ms(timings.queue_ms);
  out->set_prefill_ms(timings.prefill_ms);
  out->set_kv_wait_ms(timings.kv_wait_ms);
  out->set_first_step_ms(timings.first_step_ms);
  out->set_decode_ms(timings.decode_ms);
  out->set_cached_tokens(timings.cached_tokens);
  out->set_prefix_source(std::string(timings.prefix_source()));
  out->set_resumes(timings.resumes);
  out->set_exact(timings.exact);
  out->set_speculated(static_cast<uint32_t>(std::min<uint64_t>(timings.speculated, UINT32_MAX)));
  out->set_accepted(static_cast<uint32_t>(std::min<uint64_t>(timings.accepted, UINT32_MAX)));
  out->set_speculation(std::string(GuessStateName(timings.speculation)));
}

void FillModels(const std::vector<std::shared_ptr<const ModelInfo>>& models,
                v1::ListModelsResponse* out) {
  out->set_object("list");
  const auto add = [out](const ModelInfo& info, const std::string& name) {
    v1::Model* model = out->add_data();
    model->set_id(name);
    model->set_object("model");
    model->set_created(info.created_unix_s);
    model->set_owned_by("baton");
    model->set_max_context(info.max_context);
    model->set_vocab_size(info.vocab_size);
  };
  for (const auto& info : models) {
    if (info->names.empty()) add(*info, info->id);
    for (const std::string& name : info->names) add(*info, name);
  }
}

}  // namespace baton::api
