// The JSON of OpenAI's API: answers, stream chunks, errors. Pure; any thread.
#ifndef BATON_API_OPENAI_JSON_H_
#define BATON_API_OPENAI_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/answer_collector.h"
#include "src/api/answer_text.h"
#include "src/api/answer_writer.h"
#include "src/api/build_request.h"
#include "src/api/json_writer.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"
#include "src/router/topology.h"

namespace baton::api {

// {"error":{"message","type","param","code"}} and, for a prompt that is too long, n_prompt_tokens
// and n_ctx.
std::string ErrorJson(const router::RequestError& error);

// The member "timings", which every surface's answers carry.
void WriteTimings(const router::RequestTimings& timings, JsonWriter* json);
// A token with its log-probability and alternatives, as an object of a chat.
void WriteChatToken(const AnswerPlan& plan, const LoggedToken& token, JsonWriter* json);

// AnswerPieces: the JSON of a whole answer in pieces.
class AnswerPieces final : public WholeAnswer {
 public:
  // `plan` and `answer` outlive this.
  AnswerPieces(const AnswerPlan& plan, const AnswerCollector& answer,
               router::GenerateResult result);

  std::string Next(size_t num_bytes) override;

 private:
  enum class Stage : uint8_t {
    kHead,
    kChoice,
    kThoughts,
    kText,
    kList,
    kEnd,
    kPromptLog,
    kTail,
    kUsage,
    kDone
  };

  void Step();
  void BeginChoice();
  void BeginText();
  void StepString();
  void EndMessage();
  void BeginLists();
  void StepList();
  void WriteEchoed(size_t pos);
  void BeginPromptLog();
  void StepPromptLog();
  void EndChoice();

  const AnswerPlan& plan_;
  const AnswerCollector& answer_;
  const router::GenerateResult result_;
  const std::vector<uint32_t> order_;  // the choices to write, in order
  JsonWriter json_;
  Stage stage_ = Stage::kHead;
  uint32_t choice_ = 0;  // place in order_
  size_t text_at_ = 0;   // byte of the choice's thoughts or text
  size_t list_ = 0;      // among the choice's lists of log-probabilities
  size_t token_ = 0;     // in that list, or in the prompt's log-probabilities
  uint32_t offset_ = 0;  // code points of the echoed tokens before token_
};

// Chunks of a stream, each a JSON object without SSE framing.
// The log-probabilities of a prompt, as the request asked; `log` null: the prompt is one token.
PromptLogJson PromptLogOf(const AnswerPlan& plan, uint32_t prompt,
                          const router::PromptLogprobs* log);
// The first chunk of a choice. Chats: delta {"role":"assistant","content":""}; completions: the
// echoed prompt. Both have the log-probabilities of the prompt.
std::string OpeningChunk(const AnswerPlan& plan, uint32_t choice, const PromptLogJson& log);
// A chunk that says how far the prompt is, in llama-server's form.
std::string ProgressChunk(const AnswerPlan& plan, uint32_t choice,
                          const router::PromptProgress& progress);
// The chunk of one token and its text.
std::string TokenChunk(const AnswerPlan& plan, const router::TokenOutput& token,
                       const TokenText& text);
// The timings in a choice's last chunk; null = none.
struct ChunkTimings {
  const router::RequestTimings* of_answer = nullptr;  // in the stream's last such chunk when no
                                                      // usage chunk follows
  const router::RequestTimings* of_prompt = nullptr;  // of several: in the last one of each
};
// The last chunk of a choice: delta {}, finish_reason and stop_reason.
std::string FinishChunk(const AnswerPlan& plan, uint32_t choice, const ChoiceEnd& end,
                        const ChunkTimings& timings);
// The chunk with usage and timings; its choices are [].
std::string UsageChunk(const AnswerPlan& plan, const router::GenerateResult& result,
                       uint32_t num_reasoning_tokens);

std::string ModelsJson(const std::vector<std::shared_ptr<const router::ModelInfo>>& models);
std::string ModelJson(const router::ModelInfo& model, std::string_view name);
// Adds the member "slo" to the open object where the server has objectives.
void WriteObjectives(const router::Topology& topology, JsonWriter* json);
std::string TopologyJson(const router::Topology& topology);
std::string RequestsJson(const std::vector<router::RequestView>& requests);

}  // namespace baton::api

#endif  // BATON_API_OPENAI_JSON_H_
