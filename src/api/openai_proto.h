// Fills the messages of inference.proto from the router's answers. openai_json.h does the same for
// HTTP. Pure; any thread.
#ifndef BATON_API_OPENAI_PROTO_H_
#define BATON_API_OPENAI_PROTO_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "baton/v1/inference.pb.h"
#include "src/api/answer_collector.h"
#include "src/api/answer_text.h"
#include "src/api/build_request.h"
#include "src/router/submit.h"

namespace baton::api {

// Chats and completions have different messages with equal parts, hence the overloads.
void FillResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                  const router::GenerateResult& result, v1::ChatCompletionResponse* out);
void FillResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                  const router::GenerateResult& result, v1::CompletionResponse* out);

// Puts the log-probabilities of a prompt, as the request asked, into an empty chunk. `log` null:
// the prompt is one token.
void FillPromptLog(const AnswerPlan& plan, uint32_t prompt, const router::PromptLogprobs* log,
                   v1::ChatCompletionChunk* out);
void FillPromptLog(const AnswerPlan& plan, uint32_t prompt, const router::PromptLogprobs* log,
                   v1::CompletionChunk* out);
// Writes one token and its text into `out`, which is empty; for a choice's first token it may have
// FillPromptLog's result. A choice's first chunk gets the role, or the echoed prompt. With
// max_tokens 0 the token itself is left out.
void FillChunk(const AnswerPlan& plan, const router::TokenOutput& token, const TokenText& text,
               v1::ChatCompletionChunk* out);
void FillChunk(const AnswerPlan& plan, const router::TokenOutput& token, const TokenText& text,
               v1::CompletionChunk* out);

// Writes how far the prompt is.
void FillProgress(const AnswerPlan& plan, uint32_t choice, const router::PromptProgress& progress,
                  v1::ChatCompletionChunk* out);
void FillProgress(const AnswerPlan& plan, uint32_t choice, const router::PromptProgress& progress,
                  v1::CompletionChunk* out);

// The parts of a stream's last chunk.
void FillUsage(const router::GenerateResult& result, uint32_t num_reasoning_tokens, v1::Usage* out);
void FillTimings(const router::RequestTimings& timings, v1::Timings* out);
// Writes the timings of one of several prompts into the chunk of its last token. A chat has one
// prompt.
inline void FillPromptTimings(const router::RequestTimings& /*timings*/,
                              v1::ChatCompletionChunk* /*out*/) {}
inline void FillPromptTimings(const router::RequestTimings& timings, v1::CompletionChunk* out) {
  FillTimings(timings, out->mutable_choices(0)->mutable_timings());
}

void FillModels(const std::vector<std::shared_ptr<const router::ModelInfo>>& models,
                v1::ListModelsResponse* out);

}  // namespace baton::api

#endif  // BATON_API_OPENAI_PROTO_H_
