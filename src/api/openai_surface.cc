#include "src/api/openai_surface.h"

#include <string>
#include <utility>

#include "src/api/openai_json.h"
#include "src/api/read_json.h"

namespace baton::api {

using router::GenerateResult;
using router::RequestError;
using router::TokenOutput;

namespace {

// Chunks as server-sent events, closed by `data: [DONE]`.
class OpenAiWriter final : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  void OpenChoice(uint32_t choice, std::string* out) override {
    const bool opens = plan().endpoint == Endpoint::kChat || plan().echo;
    if (opens) AppendEvent(OpeningChunk(plan(), choice), out);
  }
  void AddToken(const TokenOutput& token, const TokenText& text, std::string* out) override {
    if (!plan().echo_alone) AppendEvent(TokenChunk(plan(), token, text), out);
  }
  void EndChoice(uint32_t choice, const ChoiceEnd& end, const GenerateResult* result,
                 std::string* out) override {
    const GenerateResult* const shown = plan().include_usage ? nullptr : result;
    AppendEvent(FinishChunk(plan(), choice, end, shown), out);
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
                                  .read = &ReadChat,
                                  .error_body = &ErrorBody};

constexpr Surface kCompletionSurface = {.endpoint = Endpoint::kCompletion,
                                        .answer_id_prefix = "cmpl-",
                                        .read = &ReadCompletion,
                                        .error_body = &ErrorBody};

}  // namespace baton::api
