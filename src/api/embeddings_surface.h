// Embeddings as surfaces: OpenAI's /v1/embeddings, Ollama's /api/embed, and its older form
// /api/embeddings, which has one text, `prompt`, and answers with its vector alone. The inputs are
// the prompts of a completion whose answer is a vector each (GenerateRequest::embeds), so that
// limits, tenants, deadlines and several inputs are those of prompts.
#ifndef BATON_API_EMBEDDINGS_SURFACE_H_
#define BATON_API_EMBEDDINGS_SURFACE_H_

#include <span>
#include <string_view>

#include "src/api/build_request.h"
#include "src/api/schema.h"
#include "src/api/surface.h"
#include "src/router/request_error.h"

namespace baton::api {

extern const Surface kEmbeddingsSurface;
extern const Surface kOllamaEmbedSurface;
extern const Surface kOllamaEmbeddingsSurface;

// The fields that each surface reads, for openapi.json.
std::span<const SurfaceField> EmbeddingsFields();
std::span<const SurfaceField> OllamaEmbedFields();
std::span<const SurfaceField> OllamaEmbeddingsFields();
// A completion's fields that mean the same here, in all of them.
std::span<const std::string_view> EmbeddingsPassedFields();

// Gives an error of the completion that the request became the client's name for its inputs.
router::RequestError NamedAsInput(router::RequestError error);

}  // namespace baton::api

#endif  // BATON_API_EMBEDDINGS_SURFACE_H_
