#include "src/api/echo_answer.h"

#include <utility>

#include "src/base/clock.h"

namespace baton::api {

using router::GenerateRequest;
using router::GenerateResult;
using router::ResponseSink;
using router::Submitter;
using router::TokenOutput;
using scheduler::FinishReason;

std::optional<RequestUid> SubmitOrEcho(Submitter* submitter, GenerateRequest request,
                                       std::shared_ptr<ResponseSink> sink) {
  if (request.sampling.max_tokens > 0) {
    return submitter->Submit(std::move(request), std::move(sink));
  }
  submitter->CountEcho(request.num_choices);
  for (uint32_t choice = 0; choice < request.num_choices; ++choice) {
    TokenOutput output;
    output.choice = choice;
    output.finish = FinishReason::kLength;
    output.is_last = choice + 1 == request.num_choices;
    output.arrived_us = SystemClock().NowUs();
    sink->OnToken(output);
  }
  GenerateResult result;
  result.num_prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  sink->OnFinished(result);
  return std::nullopt;
}

}  // namespace baton::api
