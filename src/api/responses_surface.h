// OpenAI's Responses API as a surface. It keeps nothing: every request brings its whole
// conversation, and no answer can be asked for again.
#ifndef BATON_API_RESPONSES_SURFACE_H_
#define BATON_API_RESPONSES_SURFACE_H_

#include "src/api/surface.h"

namespace baton::api {

extern const Surface kResponsesSurface;

}  // namespace baton::api

#endif  // BATON_API_RESPONSES_SURFACE_H_
