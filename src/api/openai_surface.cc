#include "src/api/openai_surface.h"

#include <string>
#include <utility>

#include "src/api/openai_json.h"
#include "src/api/read_json.h"

namespace baton::api {

using router::GenerateResult;
using router::PromptLogprobs;
using router::PromptProgress;
using router::RequestError;
using router::TokenOutput;

namespace {

// Chunks as server-sent events, closed by `data: [DONE]`.
class OpenAiWriter final : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  PromptLogJson PromptLog(uint32_t prompt, const PromptLogprobs* log) const override {
    return PromptLogOf(plan(), prompt, log);
  }
  void OpenChoice(uint32_t choice, const PromptLogJson& log, std::string* out) override {
    const bool is_chat = plan().endpoint == Endpoint::kChat;
    if (!is_chat && !plan().echo && !plan().logs_prompt()) return;
    // A chat has one prompt, which the stream's first chunk tells of.
    const bool tells_prompt = !is_chat || !std::exchange(has_opened_, true);
    AppendEvent(OpeningChunk(plan(), choice, tells_prompt ? log : PromptLogJson{}), out);
  }
  void AddProgress(uint32_t choice, const PromptProgress& progress, std::string* out) override {
    AppendEvent(ProgressChunk(plan(), choice, progress), out);
  }
  void AddToken(const TokenOutput& token, const TokenText& text, std::string* out) override {
    if (plan().echo_alone) return;
    if (text.tool_calls.size() < 2) return AppendEvent(TokenChunk(plan(), token, text), out);
    // OpenAI's clients join the entries of a chunk by their places, not by their index, so a chunk
    // has one entry. The token's log-probability stands in the first one.
    TokenText piece = text;
    TokenOutput others = token;
    others.has_logprob = false;
    for (size_t i = 0; i < text.tool_calls.size(); ++i) {
      piece.tool_calls = text.tool_calls.subspan(i, 1);
      AppendEvent(TokenChunk(plan(), i == 0 ? token : others, piece), out);
      piece.reasoning = {};
      piece.content = {};
    }
  }
  void EndChoice(uint32_t choice, const ChoiceEnd& end, const GenerateResult* result,
                 std::string* out) override {
    ChunkTimings timings;
    if (result != nullptr && !plan().include_usage) timings.of_answer = &result->timings;
    if (result != nullptr && !result->prompts.empty()) {
      timings.of_prompt = &result->prompts[choice / plan().num_choices];
    }
    AppendEvent(FinishChunk(plan(), choice, end, timings), out);
  }
  void EndPrompt(uint32_t choice, const ChoiceEnd& end, const GenerateResult& result,
                 std::string* out) override {
    AppendEvent(FinishChunk(plan(), choice, end, {.of_prompt = &result.timings}), out);
  }
  void Finish(const GenerateResult& result, uint32_t num_reasoning_tokens,
              std::string* out) override {
    if (plan().include_usage) AppendEvent(UsageChunk(plan(), result, num_reasoning_tokens), out);
    AppendEvent("[DONE]", out);
  }
  // The status is out; the event says what happened, and the missing [DONE] that the answer is not
  // whole.
  void Fail(const RequestError& error, std::string* out) override {
    AppendEvent(ErrorJson(error), out);
  }
  std::unique_ptr<WholeAnswer> Whole(const AnswerCollector& answer,
                                     const GenerateResult& result) const override {
    return std::make_unique<AnswerPieces>(plan(), answer, result);
  }

 private:
  bool has_opened_ = false;  // a choice
};

bool ReadOpenAi(const SurfaceCall& call, Endpoint endpoint, SurfaceRequest* request,
                RequestError* error) {
  request->make_writer = &MakeOpenAiWriter;
  return ReadJsonParams(call.body, endpoint, &request->params, &request->ignored, error);
}

bool ReadChat(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  return ReadOpenAi(call, Endpoint::kChat, request, error);
}

bool ReadCompletion(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  return ReadOpenAi(call, Endpoint::kCompletion, request, error);
}

std::string ErrorBody(const RequestError& error, std::string_view /*request_id*/) {
  return ErrorJson(error);
}

}  // namespace

std::unique_ptr<AnswerWriter> MakeOpenAiWriter(AnswerPlan plan) {
  return std::make_unique<OpenAiWriter>(std::move(plan));
}

constexpr Surface kChatSurface = {.endpoint = Endpoint::kChat,
                                  .answer_id_prefix = "chatcmpl-",
                                  .tells_progress = true,
                                  .read = &ReadChat,
                                  .error_body = &ErrorBody};

constexpr Surface kCompletionSurface = {.endpoint = Endpoint::kCompletion,
                                        .answer_id_prefix = "cmpl-",
                                        .tells_progress = true,
                                        .read = &ReadCompletion,
                                        .error_body = &ErrorBody};

}  // namespace baton::api
