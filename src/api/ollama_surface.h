// Ollama's generating endpoints as surfaces, one for each form of request.
#ifndef BATON_API_OLLAMA_SURFACE_H_
#define BATON_API_OLLAMA_SURFACE_H_

#include "src/api/surface.h"

namespace baton::api {

extern const Surface kOllamaChatSurface;  // also of the endpoints that generate nothing
extern const Surface kOllamaGenerateSurface;
extern const Surface kOllamaRawSurface;

}  // namespace baton::api

#endif  // BATON_API_OLLAMA_SURFACE_H_
