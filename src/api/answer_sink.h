// AnswerSink: what writes the answer to one call, which may have several prompts (prompt_fan_in.h).
// Its functions are called one at a time, as those of a ResponseSink.
#ifndef BATON_API_ANSWER_SINK_H_
#define BATON_API_ANSWER_SINK_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/router/submit.h"

namespace baton::api {

// With several prompts the choices are numbered through, prompt by prompt, and each prompt's last
// token has is_last.
class AnswerSink : public router::ResponseSink {
 public:
  // Several prompts only: after the last token of a prompt, while others still run. For the one
  // that ends last OnFinished comes instead, with the sum of all.
  virtual void OnPromptFinished(const router::GenerateResult& /*result*/) {}
  // OnPromptLogprobs of the request for this prompt.
  virtual void OnLoggedPrompt(uint32_t /*prompt*/,
                              std::shared_ptr<const router::PromptLogprobs> /*logprobs*/) {}
  void OnPromptLogprobs(std::shared_ptr<const router::PromptLogprobs> logprobs) final {
    OnLoggedPrompt(0, std::move(logprobs));
  }
  // OnProgress of the request for this prompt.
  virtual void OnPromptProgress(uint32_t /*prompt*/, const router::PromptProgress& /*progress*/) {}
  void OnProgress(const router::PromptProgress& progress) final { OnPromptProgress(0, progress); }
  // OnEmbedding of the request for this prompt.
  virtual void OnEmbeddedPrompt(uint32_t /*prompt*/, std::vector<float> /*embedding*/) {}
  void OnEmbedding(std::vector<float> embedding) final {
    OnEmbeddedPrompt(0, std::move(embedding));
  }
};

}  // namespace baton::api

#endif  // BATON_API_ANSWER_SINK_H_
