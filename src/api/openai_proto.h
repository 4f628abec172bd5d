// The messages of inference.proto from what the router produces; the gRPC twin of openai_json.h.
// Pure; any thread.
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

// Chat and completions have messages of their own with the same parts; these overloads are what
// differs.
void FillResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                  const router::GenerateResult& result, v1::ChatCompletionResponse* out);
void FillResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                  const router::GenerateResult& result, v1::CompletionResponse* out);

// The log-probabilities of a prompt that the request asked for, in an empty chunk; `log` null: the
// prompt is one token.
void FillPromptLog(const AnswerPlan& plan, uint32_t prompt, const router::PromptLogprobs* log,
                   v1::ChatCompletionChunk* out);
void FillPromptLog(const AnswerPlan& plan, uint32_t prompt, const router::PromptLogprobs* log,
                   v1::CompletionChunk* out);
// Adds one token's chunk and what it adds to `out`: empty, or for a choice's first token what
// FillPromptLog made. A choice's first chunk has the role, or the echoed prompt. With max_tokens 0
// the token itself is left out.
void FillChunk(const AnswerPlan& plan, const router::TokenOutput& token, const TokenText& text,
               v1::ChatCompletionChunk* out);
void FillChunk(const AnswerPlan& plan, const router::TokenOutput& token, const TokenText& text,
               v1::CompletionChunk* out);

// How far the prompt of the choice is.
void FillProgress(const AnswerPlan& plan, uint32_t choice, const router::PromptProgress& progress,
                  v1::ChatCompletionChunk* out);
void FillProgress(const AnswerPlan& plan, uint32_t choice, const router::PromptProgress& progress,
                  v1::CompletionChunk* out);

// The parts of a stream's last chunk.
void FillUsage(const router::GenerateResult& result, uint32_t num_reasoning_tokens, v1::Usage* out);
void FillTimings(const router::RequestTimings& timings, v1::Timings* out);
// The timings of one of several prompts, in the chunk of its last token. A chat has one prompt.
inline void FillPromptTimings(const router::RequestTimings& /*timings*/,
                              v1::ChatCompletionChunk* /*out*/) {}
inline void FillPromptTimings(const router::RequestTimings& timings, v1::CompletionChunk* out) {
  FillTimings(timings, out->mutable_choices(0)->mutable_timings());
}

void FillModels(const std::vector<std::shared_ptr<const router::ModelInfo>>& models,
                v1::ListModelsResponse* out);

}  // namespace baton::api

#endif  // BATON_API_OPENAI_PROTO_H_
