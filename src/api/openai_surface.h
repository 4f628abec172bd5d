// OpenAI's chat and completions as surfaces. Errors of paths that are no surface's have their form
// too.
#ifndef BATON_API_OPENAI_SURFACE_H_
#define BATON_API_OPENAI_SURFACE_H_

#include <memory>

#include "src/api/surface.h"

namespace baton::api {

extern const Surface kChatSurface;
extern const Surface kCompletionSurface;

// The writer of both; `plan.endpoint` says which.
std::unique_ptr<AnswerWriter> MakeOpenAiWriter(AnswerPlan plan);

}  // namespace baton::api

#endif  // BATON_API_OPENAI_SURFACE_H_
