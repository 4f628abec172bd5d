// AnswerSink: what writes the answer to one call, which may have several prompts (prompt_fan_in.h).
// Its functions are called one at a time, as those of a ResponseSink.
#ifndef BATON_API_ANSWER_SINK_H_
#define BATON_API_ANSWER_SINK_H_

#include "src/router/submit.h"

namespace baton::api {

// With several prompts the choices are numbered through, prompt by prompt, and each prompt's last
// token has is_last.
class AnswerSink : public router::ResponseSink {
 public:
  // Several prompts only: after the last token of a prompt, while others still run. For the one
  // that ends last OnFinished comes instead, with the sum of all.
  virtual void OnPromptFinished(const router::GenerateResult& /*result*/) {}
};

}  // namespace baton::api

#endif  // BATON_API_ANSWER_SINK_H_
