// A completion of no tokens: the answer to `echo` with `max_tokens` 0 is the prompt, which the API
// has. Any thread.
#ifndef BATON_API_ECHO_ANSWER_H_
#define BATON_API_ECHO_ANSWER_H_

#include <memory>
#include <optional>

#include "src/router/submit.h"

namespace baton::api {

// Submits the request; its name is for Cancel. A request for no tokens is answered through `sink`
// before this returns, counted, and has no name: one output without text, finished by its length,
// for each choice.
std::optional<RequestUid> SubmitOrEcho(router::Submitter* submitter,
                                       router::GenerateRequest request,
                                       std::shared_ptr<router::ResponseSink> sink);

}  // namespace baton::api

#endif  // BATON_API_ECHO_ANSWER_H_
